//! Moves edges from the worker that reads them to the owner of their `dst`.

use crate::buckets::{Bucket, BucketLayout, EdgeBatch, EdgeBuckets, SealedBuckets};
use crate::ends::Ends;
use crate::hub::{HubCounts, HubPart, RankedColumns, Totals};
use crate::memory::turn_bytes;
use crate::meta::EdgeCounts;
use crate::number::Dictionary;
use crate::sample::Ranker;
use crate::scatter::{Cutter, Routed, Scatter, check_dangling};
use crate::units::OwnUnits;
use crate::{Placement, StoreError, StorePlan};
use cluster::Peer;
use schemas::{EdgeRows, EdgesPlan, LocalIdx, NodeIdx, Unit};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// Greatest number of buckets of a worker's nodes: a batch of edges is split into this many runs.
const BUCKETS_MAX: usize = 512;

/// Least number of nodes in a bucket: few enough that their in-edges stay in the cache while they
/// are ranked.
const BUCKET_NODES: usize = 1 << 11;

/// In-edges of the nodes of one partition, not ranked yet.
pub(crate) struct OwnedEdges {
    pub(crate) buckets: SealedBuckets,
    /// Parts of the re-indexed nodes of this partition, by local position; their edges in `buckets`
    /// are ignored.
    pub(crate) hubs: BTreeMap<LocalIdx, HubPart>,
}

/// Reads the edges and sends each to the owner of its `dst`; edges of hubs are spread over all
/// workers first.
///
/// Hubs are detected while edges are exchanged. The owner of a hub forwards the edges that it
/// received before, so that in the end each worker has all parallel edges of its share, by input
/// row.
///
/// # Errors
///
/// If a table cannot be read, a value cannot be used, or an end is no node (unless such edges are
/// dropped).
pub(crate) fn place_edges(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    dictionary: Dictionary,
    placement: &Placement,
) -> Result<(OwnedEdges, EdgeCounts), StoreError> {
    let (num_nodes, workers) = (placement.num_nodes(), peer.peers());
    let ends = Ends::gather(peer, &plan.edges, work, dictionary)?;
    let most_local = num_nodes.div_ceil(workers);
    let layout = BucketLayout::new(most_local, BUCKET_NODES, BUCKETS_MAX);
    let cutter = Cutter::new(placement, layout, plan.edges.feature_dim().unwrap_or(0));
    let num_rows = work.of(plan.edges.units()).map(|unit| unit.num_rows as u64);
    let in_edges = num_rows.sum::<u64>() * (1 + u64::from(plan.edges.undirected()));
    let counts = HubCounts::new(num_nodes, in_edges, plan.hub_threshold, workers);
    let mut scatter = Scatter::new(plan, &ends, cutter, counts);
    // A tenth of the memory is for edges that are forwarded.
    let bytes_max = turn_bytes(plan.memory_budget) / plan.workers / 10;
    let outgoing = edge_rows(&plan.edges, work).flat_map(|item| match item {
        Ok((first_row, rows)) => scatter.batches(first_row, &rows),
        Err(e) => vec![Err(e)],
    });
    let received = exchange(peer, outgoing, cutter, plan, 9 * bytes_max)?;
    let dangling = peer.gather_all::<_, StoreError>(Ok(scatter.dangling))?;
    let dropped_rows = check_dangling(&dangling, &plan.edges)?;
    let reindexed = scatter.counts.reindexed(peer)?;
    drop(ends);
    let mut num_edges = received.num_edges();
    let mut buckets = peer.agree(received.seal())?;
    if !reindexed.is_empty() {
        let early = forward(&buckets, cutter, &reindexed, peer.index());
        let early = early.inspect(|(_, batch)| num_edges -= batch.num_edges());
        let forwarded = exchange(peer, early.map(Ok), cutter, plan, bytes_max)?;
        num_edges += forwarded.num_edges();
        buckets.merge(peer.agree(forwarded.seal())?);
    }
    let received_by_worker = peer.gather_all::<_, StoreError>(Ok(num_edges))?;
    let edge_counts = EdgeCounts {
        in_edges: received_by_worker.iter().sum(),
        dropped_rows,
        received_by_worker,
    };
    let parts = rank_shares(&buckets, plan, &reindexed);
    let parts = parts.map(|part| Ok((placement.owner(part.node), part)));
    let hubs = invert_parts(peer, parts, plan, placement)?;
    Ok((OwnedEdges { buckets, hubs }, edge_counts))
}

/// Sends the parts of re-indexed nodes to their owners; returns this worker's parts, merged as they
/// arrive.
fn invert_parts(
    peer: &mut Peer<'_>,
    parts: impl Iterator<Item = Result<(usize, HubPart), StoreError>>,
    plan: &StorePlan,
    placement: &Placement,
) -> Result<BTreeMap<LocalIdx, HubPart>, StoreError> {
    let hubs = Rc::new(RefCell::new(BTreeMap::<LocalIdx, HubPart>::new()));
    let (taken, places, lists) = (Rc::clone(&hubs), placement.clone(), plan.lists());
    let dim = plan.edges.feature_dim().unwrap_or(0);
    peer.shuffle_each::<HubPart, StoreError>(parts, move |_, _, part| {
        match taken.borrow_mut().entry(places.local(part.node)) {
            Entry::Vacant(place) => drop(place.insert(part)),
            Entry::Occupied(mut known) => known.get_mut().merge(&part, &lists, dim),
        }
        Ok(())
    })?;
    Ok(hubs.take())
}

/// Exchanges edges between all workers; returns those that this worker receives, with up to
/// `bytes_max` bytes of them in memory.
fn exchange(
    peer: &mut Peer<'_>,
    outgoing: impl Iterator<Item = Result<(usize, EdgeBatch), StoreError>>,
    cutter: Cutter<'_>,
    plan: &StorePlan,
    bytes_max: usize,
) -> Result<EdgeBuckets, StoreError> {
    let buckets = EdgeBuckets::new(cutter.layout, cutter.dim, bytes_max, &plan.dir);
    let received = Rc::new(RefCell::new(Some(buckets)));
    let take = Rc::clone(&received);
    peer.shuffle_each::<EdgeBatch, StoreError>(outgoing, move |_, _, batch| {
        let mut taken = take.borrow_mut();
        let open = taken
            .as_mut()
            .expect("it is taken only when the shuffle is over");
        open.take(batch)
    })?;
    Ok(received.take().expect("it was set above"))
}

/// Cuts the edges of re-indexed nodes that this worker, their owner, has received into batches.
fn forward<'a>(
    buckets: &'a SealedBuckets,
    cutter: Cutter<'a>,
    reindexed: &[NodeIdx],
    worker: usize,
) -> impl Iterator<Item = (usize, EdgeBatch)> + use<'a> {
    let placement = cutter.placement;
    let mut is_reindexed = vec![false; placement.num_local(worker)];
    let places = reindexed
        .iter()
        .map(|&node| placement.owner_and_local(node));
    for (_, local) in places.filter(|&(owner, _)| owner == worker) {
        is_reindexed[local.index()] = true;
    }
    buckets
        .own_edges()
        .flat_map(move |(first_row, edges, feature)| {
            let early = edges.iter().enumerate();
            let early = early.filter(|(_, edge)| is_reindexed[edge.own_dst().index()]);
            let routed = early.map(|(row, edge)| {
                let dst = placement.node(worker, edge.own_dst());
                cutter.spread(row, edge.src, dst, edge.hash(), edge.weight)
            });
            let routed: Vec<Routed> = routed.collect();
            cutter.cut(first_row, true, &routed, feature)
        })
}

/// Returns the rows that this worker reads, batch by batch, with the number of each batch's first
/// row.
fn edge_rows<'a>(
    plan: &'a EdgesPlan,
    work: OwnUnits,
) -> impl Iterator<Item = Result<(u64, EdgeRows), StoreError>> + use<'a> {
    type Rows<'a> = Box<dyn Iterator<Item = Result<(u64, EdgeRows), StoreError>> + 'a>;
    work.of(plan.units())
        .flat_map(|unit: &'a Unit| -> Rows<'a> {
            let batches = match plan.batches(unit) {
                Ok(batches) => batches,
                Err(e) => return Box::new(std::iter::once(Err(e.into()))),
            };
            let mut next_row = unit.first_row;
            Box::new(batches.map(move |item| {
                let (first_row, rows) = (next_row, item?);
                next_row += rows.dst.len() as u64;
                Ok((first_row, rows))
            }))
        })
}

/// Ranks this worker's share of each re-indexed node's in-edges, and cuts it to the number that
/// each list keeps.
fn rank_shares<'a>(
    buckets: &'a SealedBuckets,
    plan: &'a StorePlan,
    reindexed: &[NodeIdx],
) -> impl Iterator<Item = HubPart> + use<'a> {
    let (dim, lists) = (plan.edges.feature_dim().unwrap_or(0), plan.lists());
    let mut by_bucket = BTreeMap::<usize, Vec<NodeIdx>>::new();
    for &node in reindexed {
        let bucket = buckets.layout().hub(node);
        by_bucket.entry(bucket).or_default().push(node);
    }
    let (mut bucket, mut ranker, mut ranked) = (Bucket::default(), Ranker::default(), Vec::new());
    by_bucket.into_iter().flat_map(move |(b, nodes)| {
        buckets.gather_hubs(b, &nodes, &mut bucket);
        let mut parts = Vec::new();
        for (i, &node) in nodes.iter().enumerate() {
            let (edges, features) = bucket.node(i, dim);
            if edges.is_empty() {
                continue;
            }
            ranker.load(edges);
            let ranked_lists = lists.iter().map(|list| {
                ranker.rank(edges, list.order, list.keep, &mut ranked);
                RankedColumns::from_ranked(&ranked, features, dim)
            });
            parts.push(HubPart {
                node,
                lists: ranked_lists.collect(),
                totals: Totals::of(node, edges),
            });
        }
        parts
    })
}
