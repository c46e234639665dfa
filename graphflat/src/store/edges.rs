//! Edges on their way from the reader to the worker that owns the node they lead to.

use super::WorkUnits;
use super::buckets::{Bucket, BucketLayout, EdgeBatch, EdgeBuckets, EdgeColumns, SealedBuckets};
use super::ends::{Ends, InDegrees};
use super::file::NODES_PER_BATCH;
use super::number::{Dictionary, MISSING};
use crate::hub::{HubPart, Hubs, RankedColumns, Totals};
use crate::sample::{Ranked, Ranker, edge_hash, keep_least};
use crate::{FlattenError, NodeIdx, Peer, Placement, StorePlan};
use schemas::{Dangling, EdgeRows, EdgesPlan, Unit};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most buckets of a worker's nodes: so many runs does a batch of edges fall into.
const BUCKETS_MAX: usize = 512;

/// Most buckets of hubs.
const HUB_BUCKETS_MAX: usize = 64;

/// What became of the edge table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// In-edges, reversed ones counted too.
    pub in_edges: u64,
    /// Rows left out because an end is no node.
    pub dropped_rows: u64,
    /// In-edges that each worker received before hubs were cut: the skew of the map.
    pub received_by_worker: Vec<u64>,
}

/// In-edges of the nodes of one partition, not ranked yet.
pub(super) struct OwnedEdges {
    pub(super) buckets: SealedBuckets,
    /// Parts of the hubs of this partition, by local place.
    pub(super) hubs: BTreeMap<usize, Vec<HubPart>>,
}

/// The first in-edges of a hub for one sample, out of all its parts.
pub(super) struct InvertedSample {
    pub(super) ranked: Vec<Ranked>,
    pub(super) weight: Vec<f32>,
    pub(super) feature: Vec<f32>,
}

/// Cuts the edges that one worker reads into batches by the worker they go to.
struct Scatter<'a> {
    plan: &'a StorePlan,
    ends: &'a Ends,
    hubs: &'a Hubs,
    placement: &'a Placement,
    own: BucketLayout,
    hub: BucketLayout,
    dangling: DanglingRows,
    scratch: Scratch,
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
    node: u32,
    src: NodeIdx,
    /// Among the rows at hand.
    row: u32,
    hash: u64,
}

/// Rows with an end that no node has.
#[derive(Clone, Default, Serialize, Deserialize)]
struct DanglingRows {
    rows: u64,
    ends: u64,
    /// The first: its row, whether `src` is the end in question, and the end.
    first: Option<(u64, bool, String)>,
}

type Received = Rc<RefCell<Option<(EdgeBuckets, EdgeBuckets)>>>;

/// Reads the edges and moves each to the owner of its `dst`, hubs' edges by way of all workers.
///
/// The table is read twice, ends only at first: that finds the hubs, so that no worker ever
/// receives a hub's edges alone.
///
/// # Errors
///
/// An unreadable table, a value that cannot be used, an end that is no node (unless dropped).
pub(super) fn place_edges(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: WorkUnits,
    dictionary: Dictionary,
    placement: &Placement,
) -> Result<(OwnedEdges, Hubs, EdgeCounts), FlattenError> {
    let num_nodes = placement.num_nodes();
    let (ends, counts) = Ends::survey(peer, &plan.edges, work, dictionary, num_nodes)?;
    let hubs = Hubs::find(peer, &counts, plan.hub_threshold, num_nodes)?;
    drop::<InDegrees>(counts);
    let most_local = num_nodes.div_ceil(peer.peers());
    let layouts = (
        BucketLayout::new(most_local, NODES_PER_BATCH, BUCKETS_MAX),
        BucketLayout::new(hubs.nodes().len(), 1, HUB_BUCKETS_MAX),
    );
    let mut scatter = Scatter {
        plan,
        ends: &ends,
        hubs: &hubs,
        placement,
        own: layouts.0,
        hub: layouts.1,
        dangling: DanglingRows::default(),
        scratch: Scratch::default(),
    };
    let (own, shares) = exchange(peer, &mut scatter, work)?;
    let dangling = peer.gather_all::<_, FlattenError>(Ok(scatter.dangling))?;
    let dropped_rows = check_dangling(&dangling, &plan.edges)?;
    drop(ends);
    let received = own.num_edges() + shares.num_edges();
    let received = peer.gather_all::<_, FlattenError>(Ok(received))?;
    let edge_counts = EdgeCounts {
        in_edges: received.iter().sum(),
        dropped_rows,
        received_by_worker: received,
    };
    let weighted = plan.edges.has_weight();
    let sealed = own
        .seal(weighted)
        .and_then(|own| Ok((own, shares.seal(weighted)?)));
    let (buckets, hub_buckets) = peer.agree(sealed)?;
    let parts = rank_shares(&hub_buckets, plan, &hubs);
    let parts = parts.map(|part| Ok((placement.owner(part.node), part)));
    let mut inverted = BTreeMap::<usize, Vec<HubPart>>::new();
    for (_, part) in peer.shuffle::<HubPart, FlattenError>(parts)? {
        let local = placement.local(part.node);
        inverted.entry(local).or_default().push(part);
    }
    let owned = OwnedEdges {
        buckets,
        hubs: inverted,
    };
    Ok((owned, hubs, edge_counts))
}

/// Moves all edges; returns those of this worker's nodes and its shares of the hubs'.
fn exchange(
    peer: &mut Peer<'_>,
    scatter: &mut Scatter<'_>,
    work: WorkUnits,
) -> Result<(EdgeBuckets, EdgeBuckets), FlattenError> {
    let plan = scatter.plan;
    let dim = plan.edges.feature_dim().unwrap_or(0);
    // Half of the memory is for edges in buckets, and of that a fifth for hubs'.
    let bytes_max = plan.memory_budget / plan.workers / 10;
    let buckets = |layout, bytes| EdgeBuckets::new(layout, dim, bytes, &plan.dir);
    let received: Received = Rc::new(RefCell::new(Some((
        buckets(scatter.own, 4 * bytes_max),
        buckets(scatter.hub, bytes_max),
    ))));
    let take = Rc::clone(&received);
    let outgoing = edge_rows(&plan.edges, work).flat_map(|item| match item {
        Ok((first_row, rows)) => scatter.batches(first_row, &rows),
        Err(e) => vec![Err(e)],
    });
    peer.shuffle_each::<EdgeBatch, FlattenError>(outgoing, move |_, _, batch| {
        let mut taken = take.borrow_mut();
        let (own, shares) = taken.as_mut().expect("taken when the shuffle is over");
        if batch.to_hubs { shares } else { own }.take(batch)
    })?;
    Ok(received.take().expect("put there above"))
}

/// The rows that this worker reads, some at a time with the first one's row.
fn edge_rows<'a>(
    plan: &'a EdgesPlan,
    work: WorkUnits,
) -> impl Iterator<Item = Result<(u64, EdgeRows), FlattenError>> + use<'a> {
    type Rows<'a> = Box<dyn Iterator<Item = Result<(u64, EdgeRows), FlattenError>> + 'a>;
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
fn check_dangling(dangling: &[DanglingRows], plan: &EdgesPlan) -> Result<u64, FlattenError> {
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
    Err(FlattenError::DanglingEdge {
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
    ) -> Vec<Result<(usize, EdgeBatch), FlattenError>> {
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
            self.route(row, src, dst, edge_hash(src_hash, dst_hash));
            if self.plan.edges.undirected() {
                self.route(row, dst, src, edge_hash(dst_hash, src_hash));
            }
        }
        self.cut(first_row, rows)
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

    fn route(&mut self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64) {
        let workers = self.placement.workers();
        let (slot, node) = match self.hubs.reindex(dst, hash, self.placement) {
            Some((worker, hub)) => {
                let before = workers * self.own.num_buckets();
                let bucket = self.hub.bucket(hub);
                (before + worker * self.hub.num_buckets() + bucket, hub)
            }
            None => {
                let (owner, local) = self.placement.owner_and_local(dst);
                (
                    owner * self.own.num_buckets() + self.own.bucket(local),
                    local,
                )
            }
        };
        self.scratch.routed.push(Routed {
            slot: narrow(slot),
            node: narrow(node),
            src,
            row: narrow(row),
            hash,
        });
    }

    /// Sorts the routed edges by slot, which leaves each slot's by row, and cuts them by worker.
    fn cut(
        &self,
        first_row: u64,
        rows: &EdgeRows,
    ) -> Vec<Result<(usize, EdgeBatch), FlattenError>> {
        let workers = self.placement.workers();
        let buckets = (self.own.num_buckets(), self.hub.num_buckets());
        let routed = &self.scratch.routed;
        // A counting sort: where each slot's edges start, and when they are placed, where they end.
        let mut slots = vec![0u32; workers * (buckets.0 + buckets.1)];
        for edge in routed {
            slots[edge.slot as usize] += 1;
        }
        let mut before = 0;
        for slot in &mut slots {
            before += std::mem::replace(slot, before);
        }
        let mut order = vec![0u32; routed.len()];
        for (i, edge) in (0..).zip(routed) {
            let next = &mut slots[edge.slot as usize];
            order[*next as usize] = i;
            *next += 1;
        }
        let (own, hub) = slots.split_at(workers * buckets.0);
        let own = own.chunks(buckets.0).map(|ends| (false, ends));
        let hub = hub.chunks(buckets.1).map(|ends| (true, ends));
        let (mut batches, mut start) = (Vec::new(), 0);
        for (slot, (to_hubs, ends)) in own.chain(hub).enumerate() {
            let end = *ends.last().expect("there is at least one bucket");
            let mine = &order[start as usize..end as usize];
            if !mine.is_empty() {
                let batch = EdgeBatch {
                    first_row,
                    to_hubs,
                    ends: ends.iter().map(|e| e - start).collect(),
                    columns: self.columns(mine, rows),
                };
                batches.push(Ok((slot % workers, batch)));
            }
            start = end;
        }
        batches
    }

    fn columns(&self, edges: &[u32], rows: &EdgeRows) -> EdgeColumns {
        let routed = &self.scratch.routed;
        let routed = || edges.iter().map(|&i| &routed[i as usize]);
        let weight = match &rows.weight {
            Some(weight) => routed().map(|edge| weight[edge.row as usize]).collect(),
            None => Vec::new(),
        };
        let mut feature = Vec::new();
        if let Some(values) = &rows.feature {
            let dim = values.len() / rows.dst.len();
            routed().for_each(|edge| {
                let start = edge.row as usize * dim;
                feature.extend_from_slice(&values[start..start + dim]);
            });
        }
        EdgeColumns {
            hash: routed().map(|edge| edge.hash).collect(),
            node: routed().map(|edge| edge.node).collect(),
            src: routed().map(|edge| edge.src).collect(),
            weight,
            feature,
        }
    }
}

fn narrow(place: usize) -> u32 {
    u32::try_from(place).expect("nodes, slots and rows of a batch are below 2^32")
}

/// Ranks this worker's share of each hub's in-edges, and cuts it to what may be kept.
fn rank_shares<'a>(
    shares: &'a SealedBuckets,
    plan: &'a StorePlan,
    hubs: &'a Hubs,
) -> impl Iterator<Item = HubPart> + use<'a> {
    let layout = *shares.layout();
    let dim = plan.edges.feature_dim().unwrap_or(0);
    let (mut bucket, mut ranker, mut ranked) = (Bucket::default(), Ranker::default(), Vec::new());
    (0..layout.num_buckets()).flat_map(move |b| {
        shares.gather(b, &mut bucket);
        let mut parts = Vec::new();
        for (i, hub) in layout.nodes(b).enumerate() {
            let (edges, features) = bucket.node(i, dim);
            if edges.src.is_empty() {
                continue;
            }
            ranker.load(&edges);
            let samples = (0..u64::from(plan.samples)).map(|sample| {
                let seed = plan.seed.wrapping_add(sample);
                ranker.rank(&edges, plan.sampling, seed, plan.keep, &mut ranked);
                RankedColumns::from_ranked(&ranked, &edges, features, dim)
            });
            let node = hubs.nodes()[hub].0;
            parts.push(HubPart {
                node,
                samples: samples.collect(),
                totals: Totals::of(node, &edges),
            });
        }
        parts
    })
}

/// Merges a hub's parts to what it would have been on one worker.
pub(super) fn invert(parts: &[HubPart], plan: &StorePlan) -> (Totals, Vec<InvertedSample>) {
    let mut totals = Totals::default();
    parts.iter().for_each(|part| totals.merge(&part.totals));
    let invert_sample = |s: usize| {
        let (mut ranked, mut weight, mut feature) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let columns = &part.samples[s];
            columns.append_to(&mut ranked, weight.len());
            weight.extend_from_slice(&columns.weight);
            feature.extend_from_slice(&columns.feature);
        }
        keep_least(&mut ranked, plan.keep);
        InvertedSample {
            ranked,
            weight,
            feature,
        }
    };
    let samples = (0..plan.samples as usize).map(invert_sample).collect();
    (totals, samples)
}
