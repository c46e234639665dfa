//! Cuts the edges that one worker reads into batches by receiving worker and bucket.

use crate::buckets::{BucketLayout, Edge, EdgeBatch};
use crate::ends::Ends;
use crate::hub::{HubCounts, reindex};
use crate::number::MISSING;
use crate::sample::edge_hash;
use crate::{Placement, StoreError, StorePlan};
use schemas::{Dangling, EdgeRows, EdgesPlan, NodeIdx};
use serde::{Deserialize, Serialize};

/// Cuts the edges that one worker reads into batches by receiving worker.
pub(crate) struct Scatter<'a> {
    plan: &'a StorePlan,
    ends: &'a Ends,
    cutter: Cutter<'a>,
    pub(crate) counts: HubCounts,
    pub(crate) dangling: DanglingRows,
    scratch: Scratch,
}

/// Cuts routed edges into batches.
#[derive(Clone, Copy)]
pub(crate) struct Cutter<'a> {
    pub(crate) placement: &'a Placement,
    pub(crate) layout: BucketLayout,
    /// The slots of each worker's buckets start at a multiple of 2^`slot_bits`.
    slot_bits: u32,
    pub(crate) dim: usize,
}

/// The edges of the current rows; a reverse follows its edge.
#[derive(Default)]
struct Scratch {
    src: (Vec<NodeIdx>, Vec<u64>),
    dst: (Vec<NodeIdx>, Vec<u64>),
    routed: Vec<Routed>,
}

/// An edge with the slot of its worker and bucket.
pub(crate) struct Routed {
    slot: u32,
    /// Row of the edge among the current rows.
    row: u32,
    edge: Edge,
}

/// Rows with an end that no node has.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct DanglingRows {
    rows: u64,
    /// The first of them: its row, whether the end is `src` (else `dst`), and the id.
    first: Option<(u64, bool, String)>,
}

impl<'a> Scatter<'a> {
    /// Starts to cut the edges of a plan.
    pub(crate) fn new(
        plan: &'a StorePlan,
        ends: &'a Ends,
        cutter: Cutter<'a>,
        counts: HubCounts,
    ) -> Self {
        Self {
            plan,
            ends,
            cutter,
            counts,
            dangling: DanglingRows::default(),
            scratch: Scratch::default(),
        }
    }

    /// Cuts rows into batches by receiving worker.
    pub(crate) fn batches(
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
        let src = self.scratch.src.0[row] == MISSING;
        self.dangling.rows += 1;
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

impl<'a> Cutter<'a> {
    /// Cuts edges with `dim` features into batches for the owners of `placement`.
    pub(crate) fn new(placement: &'a Placement, layout: BucketLayout, dim: usize) -> Self {
        Self {
            placement,
            layout,
            slot_bits: layout.num_buckets().next_power_of_two().trailing_zeros(),
            dim,
        }
    }

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
    pub(crate) fn spread(
        &self,
        row: usize,
        src: NodeIdx,
        dst: NodeIdx,
        hash: u64,
        weight: f32,
    ) -> Routed {
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

    /// Sorts routed edges by slot, keeping their order within a slot, and cuts them by worker.
    pub(crate) fn cut(
        &self,
        first_row: u64,
        forwarded: bool,
        routed: &[Routed],
        feature: &[f32],
    ) -> Vec<(usize, EdgeBatch)> {
        let (bits, dim) = (self.slot_bits, self.dim);
        // A counting sort: `slots` holds the start of each slot's edges and, when they are placed,
        // their end.
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

/// Returns the number of rows that were left out; if they are not allowed, an error that names the
/// first.
pub(crate) fn check_dangling(
    dangling: &[DanglingRows],
    plan: &EdgesPlan,
) -> Result<u64, StoreError> {
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
        column: (if *is_src { &spec.src } else { &spec.dst })
            .as_str()
            .into(),
        id: id.as_str().into(),
        rows,
        num_rows: plan.num_rows(),
    })
}
