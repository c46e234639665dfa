//! Edges on their way from the reader to the worker that owns the node they lead to.

use crate::buckets::{Bucket, BucketLayout, Edge, EdgeBatch, EdgeBuckets, SealedBuckets};
use crate::ends::Ends;
use crate::hub::{HubCounts, HubPart, RankedColumns, Totals, reindex};
use crate::number::{Dictionary, MISSING};
use crate::sample::{Ranker, edge_hash};
use crate::store::WorkUnits;
use crate::{Placement, StoreError, StorePlan};
use cluster::Peer;
use schemas::{Dangling, EdgeRows, EdgesPlan, LocalIdx, NodeIdx, Unit};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// Most buckets of a worker's nodes: so many runs does a batch of edges fall into.
const BUCKETS_MAX: usize = 512;

/// Least nodes of a bucket: their in-edges lie in the cache while they are ranked.
const BUCKET_NODES: usize = 1 << 11;

/// What became of the edge table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// In-edges, reversed ones counted too.
    pub in_edges: u64,
    /// Rows left out because an end is no node.
    pub dropped_rows: u64,
    /// In-edges that each worker ranked, its shares of re-indexed nodes' too: the skew of the map.
    pub received_by_worker: Vec<u64>,
}

/// In-edges of the nodes of one partition, not ranked yet.
pub(crate) struct OwnedEdges {
    pub(crate) buckets: SealedBuckets,
    /// Parts of the re-indexed nodes of this partition, by local place; their edges in `buckets`
    /// do not count.
    pub(crate) hubs: BTreeMap<LocalIdx, HubPart>,
}

/// Cuts the edges that one worker reads into batches by the worker they go to.
struct Scatter<'a> {
    plan: &'a StorePlan,
    ends: &'a Ends,
    cutter: Cutter<'a>,
    counts: HubCounts,
    dangling: DanglingRows,
    scratch: Scratch,
}

/// Cuts routed edges into batches.
#[derive(Clone, Copy)]
struct Cutter<'a> {
    placement: &'a Placement,
    layout: BucketLayout,
    /// The slots of a worker's buckets start at a multiple of a power of two.
    slot_bits: u32,
    dim: usize,
}

/// The edges of the rows at hand, reverses next to the edge they belong to.
#[derive(Default)]
struct Scratch {
    src: (Vec<NodeIdx>, Vec<u64>),
    dst: (Vec<NodeIdx>, Vec<u64>),
    routed: Vec<Routed>,
}

/// An edge with its way: the slot of its worker and bucket, and what it is there.
struct Routed {
    slot: u32,
    /// Among the rows at hand.
    row: u32,
    edge: Edge,
}

/// Rows with an end that no node has.
#[derive(Clone, Default, Serialize, Deserialize)]
struct DanglingRows {
    rows: u64,
    ends: u64,
    /// The first: its row, whether `src` is the end in question, and the end.
    first: Option<(u64, bool, String)>,
}

/// Reads the edges and moves each to the owner of its `dst`, hubs' edges by way of all workers.
///
/// Where a hub is, shows while the edges move. Those of its edges that came to its owner before are
/// forwarded, so that in the end each worker has all parallel edges of its share, by input row.
///
/// # Errors
///
/// An unreadable table, a value that cannot be used, an end that is no node (unless dropped).
pub(crate) fn place_edges(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: WorkUnits,
    dictionary: Dictionary,
    placement: &Placement,
) -> Result<(OwnedEdges, EdgeCounts), StoreError> {
    let (num_nodes, workers) = (placement.num_nodes(), peer.peers());
    let ends = Ends::gather(peer, &plan.edges, work, dictionary)?;
    let most_local = num_nodes.div_ceil(workers);
    let layout = BucketLayout::new(most_local, BUCKET_NODES, BUCKETS_MAX);
    let cutter = Cutter {
        placement,
        layout,
        slot_bits: layout.num_buckets().next_power_of_two().trailing_zeros(),
        dim: plan.edges.feature_dim().unwrap_or(0),
    };
    let num_rows = work.of(plan.edges.units()).map(|unit| unit.num_rows as u64);
    let in_edges = num_rows.sum::<u64>() * (1 + u64::from(plan.edges.undirected()));
    let mut scatter = Scatter {
        plan,
        ends: &ends,
        cutter,
        counts: HubCounts::new(num_nodes, in_edges, plan.hub_threshold, workers),
        dangling: DanglingRows::default(),
        scratch: Scratch::default(),
    };
    // Half of the memory is for edges in buckets, and of that a tenth for those forwarded.
    let bytes_max = plan.memory_budget / plan.workers / 20;
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

/// Sends the parts of re-indexed nodes to their owners; returns this worker's, merged as they came.
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

/// Moves edges; returns those that come to this worker, up to `bytes_max` of them in memory.
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
        let open = taken.as_mut().expect("taken when the shuffle is over");
        open.take(batch)
    })?;
    Ok(received.take().expect("put there above"))
}

/// Cuts those edges of re-indexed nodes that lie at their owner, this worker, into batches.
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

/// The rows that this worker reads, some at a time with the first one's row.
fn edge_rows<'a>(
    plan: &'a EdgesPlan,
    work: WorkUnits,
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

/// Returns how many rows were left out.
fn check_dangling(dangling: &[DanglingRows], plan: &EdgesPlan) -> Result<u64, StoreError> {
    let rows = dangling.iter().map(|d| d.rows).sum();
    let first = dangling.iter().filter_map(|d| d.first.as_ref()).min();
    let Some((first_row, is_src, id)) = first else {
        return Ok(0);
    };
    if plan.dangling() == Dangling::Drop {
        return Ok(rows);
    }
    let (file, row) = plan.locate(*first_row);
    let spec = plan.spec();
    Err(StoreError::DanglingEdge {
        file,
        row,
        column: if *is_src { &spec.src } else { &spec.dst }.clone(),
        id: id.clone(),
        count: dangling.iter().map(|d| d.ends).sum(),
    })
}

impl Scatter<'_> {
    /// Cuts rows into batches by the worker they go to.
    fn batches(
        &mut self,
        first_row: u64,
        rows: &EdgeRows,
    ) -> Vec<Result<(usize, EdgeBatch), StoreError>> {
        let scratch = &mut self.scratch;
        let (src_numbers, src_hashes) = &mut scratch.src;
        self.ends.resolve(&rows.src, src_numbers, src_hashes);
        let (dst_numbers, dst_hashes) = &mut scratch.dst;
        self.ends.resolve(&rows.dst, dst_numbers, dst_hashes);
        scratch.routed.clear();
        for row in 0..rows.dst.len() {
            let (src, dst) = (self.scratch.src.0[row], self.scratch.dst.0[row]);
            if src == MISSING || dst == MISSING {
                self.leave_out(first_row, row, rows);
                continue;
            }
            let (src_hash, dst_hash) = (self.scratch.src.1[row], self.scratch.dst.1[row]);
            let weight = rows.weight.as_ref().map_or(1.0, |weight| weight[row]);
            self.route(row, src, dst, edge_hash(src_hash, dst_hash), weight);
            if self.plan.edges.undirected() {
                self.route(row, dst, src, edge_hash(dst_hash, src_hash), weight);
            }
        }
        let feature = rows.feature.as_deref().unwrap_or_default();
        let batches = self
            .cutter
            .cut(first_row, false, &self.scratch.routed, feature);
        batches.into_iter().map(Ok).collect()
    }

    fn leave_out(&mut self, first_row: u64, row: usize, rows: &EdgeRows) {
        let is_missing = |numbers: &[NodeIdx]| numbers[row] == MISSING;
        let (src, dst) = (
            is_missing(&self.scratch.src.0),
            is_missing(&self.scratch.dst.0),
        );
        self.dangling.rows += 1;
        self.dangling.ends += u64::from(src) + u64::from(dst);
        if self.dangling.first.is_none() {
            let id = if src { &rows.src } else { &rows.dst }.display(row);
            self.dangling.first = Some((first_row + row as u64, src, id));
        }
    }

    fn route(&mut self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64, weight: f32) {
        let routed = if self.counts.is_beyond(dst) {
            self.cutter.spread(row, src, dst, hash, weight)
        } else {
            self.cutter.own(row, src, dst, hash, weight)
        };
        self.scratch.routed.push(routed);
    }
}

impl Cutter<'_> {
    /// Routes an edge to the owner of `dst`.
    fn own(&self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64, weight: f32) -> Routed {
        let (owner, local) = self.placement.owner_and_local(dst);
        Routed {
            slot: narrow(self.first_slot(owner) + self.layout.own(local)),
            row: narrow(row),
            edge: Edge::to_own(hash, local, src, weight),
        }
    }

    /// Routes an edge of a re-indexed node.
    fn spread(&self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64, weight: f32) -> Routed {
        let worker = reindex(hash, self.placement.workers());
        Routed {
            slot: narrow(self.first_slot(worker) + self.layout.hub(dst)),
            row: narrow(row),
            edge: Edge::to_hub(hash, dst, src, weight),
        }
    }

    fn first_slot(&self, worker: usize) -> usize {
        worker << self.slot_bits
    }

    /// Sorts routed edges by slot, which leaves each slot's by row, and cuts them by worker.
    fn cut(
        &self,
        first_row: u64,
        forwarded: bool,
        routed: &[Routed],
        feature: &[f32],
    ) -> Vec<(usize, EdgeBatch)> {
        let (bits, dim) = (self.slot_bits, self.dim);
        // A counting sort: where each slot's edges start, and when they are placed, where they end.
        let mut slots = vec![0u32; self.first_slot(self.placement.workers())];
        for edge in routed {
            slots[edge.slot as usize] += 1;
        }
        let columns = slots.chunks_mut(1 << bits).map(|mine| {
            let mut before = 0;
            for slot in mine {
                before += std::mem::replace(slot, before);
            }
            let num_edges = before as usize;
            (vec![Edge::default(); num_edges], vec![0.0; num_edges * dim])
        });
        let mut columns: Vec<(Vec<Edge>, Vec<f32>)> = columns.collect();
        for one in routed {
            let next = &mut slots[one.slot as usize];
            let to = *next as usize;
            *next += 1;
            let (edges, features) = &mut columns[one.slot as usize >> bits];
            edges[to] = one.edge;
            if dim > 0 {
                let row = one.row as usize;
                features[to * dim..(to + 1) * dim]
                    .copy_from_slice(&feature[row * dim..(row + 1) * dim]);
            }
        }
        let batches = slots.chunks(1 << bits).zip(columns).enumerate();
        let batches = batches.map(|(worker, (ends, parts))| {
            let batch = EdgeBatch {
                first_row,
                forwarded,
                ends: ends[..self.layout.num_buckets()].to_vec(),
                edges: parts.0,
                feature: parts.1,
            };
            (worker, batch)
        });
        batches.filter(|(_, batch)| batch.num_edges() > 0).collect()
    }
}

fn narrow(place: usize) -> u32 {
    u32::try_from(place).expect("nodes, slots and rows of a batch are below 2^32")
}

/// Ranks this worker's share of each re-indexed node's in-edges, and cuts it to what may be kept.
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
