//! Cuts the edges that one worker reads into batches by receiving worker and bucket.

use crate::buckets::{BucketLayout, Edge, EdgeBatch, EdgeShape, EdgeVecs};
use crate::ends::{End, Resolved};
use crate::graphs::GraphsOfNodes;
use crate::hub::{HubCounts, reindex};
use crate::number::MISSING;
use crate::pair_set::PairSet;
use crate::sample::{edge_hash, relation_salt};
use crate::{StoreError, TypePlacement};
use schemas::{Dangling, EdgeRows, EdgesPlan, NodeIdx, RelationPlan};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Rows ahead at which the counts of an edge are prefetched.
const ROWS_AHEAD: usize = 16;

/// Cuts the edges of a relation that one worker reads into batches by receiving worker.
pub(crate) struct Scatter<'a> {
    relation: &'a RelationPlan,
    salt: u64,
    cutter: Cutter<'a>,
    pub(crate) counts: HubCounts,
    pub(crate) dangling: DanglingRows,
    /// Pairs whose edges are left out, or the only ones that are taken.
    leaving: Option<Leaving>,
    /// The graph of each node, if the ends of an edge must be of one graph.
    graphs: Option<Arc<GraphsOfNodes>>,
}

/// Which edges of a relation of pairs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Those that carry messages.
    Messages,
    /// Those that are left out because they equal a pair.
    LeftOut,
}

/// Pairs, and whether the edges that equal one are left out or taken.
pub(crate) type Leaving = (Arc<PairSet>, Takes);

/// Cuts routed edges of one relation into batches.
#[derive(Clone, Copy)]
pub(crate) struct Cutter<'a> {
    /// Position of the relation among those that are exchanged together.
    member: u32,
    /// Placement of the nodes that the edges lead to.
    pub(crate) placement: &'a TypePlacement,
    pub(crate) layout: BucketLayout,
    /// The slots of each worker's buckets start at a multiple of 2^`slot_bits`.
    slot_bits: u32,
    pub(crate) shape: EdgeShape,
}

/// Edges with the slots of their workers and buckets, by column.
#[derive(Default)]
pub(crate) struct Routed {
    slots: Vec<u32>,
    /// Row of each edge among the current rows; empty if edges have neither weights nor features.
    rows: Vec<u32>,
    edges: Vec<Edge>,
    /// Empty where an [`crate::edge_hash::EdgeHasher`] gives the hashes.
    hash: Vec<u64>,
}

/// The memory in which the edges of some rows are cut. All relations use it in turn, so it stays in
/// the cache.
#[derive(Default)]
pub(crate) struct CutMemory {
    /// The edges of the current rows; a reverse follows its edge.
    pub(crate) routed: Routed,
    sorted: Sorted,
}

/// Edges sorted by slot.
#[derive(Default)]
struct Sorted {
    /// For each slot, the start of its edges and, when they are placed, their end.
    slots: Vec<u32>,
    columns: EdgeVecs,
}

/// Rows with an end that no node has, and the number of edges that are left out.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct DanglingRows {
    rows: u64,
    /// In-edges that are left out because they equal a pair.
    pub(crate) left_out: u64,
    /// The first of the dangling rows: its row, whether the end is `src` (else `dst`), and the id.
    first: Option<(u64, bool, String)>,
    /// The first row whose ends are of two graphs: its row and both ids.
    crossing: Option<(u64, [String; 2])>,
}

impl<'a> Scatter<'a> {
    /// Starts to cut the edges of a relation.
    pub(crate) fn new(
        relation: &'a RelationPlan,
        cutter: Cutter<'a>,
        counts: HubCounts,
        (leaving, graphs): (Option<Leaving>, Option<Arc<GraphsOfNodes>>),
    ) -> Self {
        Self {
            leaving,
            graphs,
            relation,
            salt: relation_salt(&relation.name),
            cutter,
            counts,
            dangling: DanglingRows::default(),
        }
    }

    /// Cuts rows, whose ends are `ends`, into batches by receiving worker.
    pub(crate) fn batches(
        &mut self,
        rows: &EdgeRows,
        ends: &Resolved,
        memory: &mut CutMemory,
    ) -> Vec<(usize, EdgeBatch)> {
        let routed = &mut memory.routed;
        routed.clear();
        let is_undirected = self.relation.edges.undirected();
        let (src_end, dst_end) = match self.relation.reversed {
            false => (&ends.src, &ends.dst),
            true => (&ends.dst, &ends.src),
        };
        for row in 0..rows.dst.len() {
            if let Some(&later) = dst_end.numbers.get(row + ROWS_AHEAD) {
                self.counts.prefetch(later);
                if is_undirected {
                    self.counts.prefetch(src_end.numbers[row + ROWS_AHEAD]);
                }
            }
            let (src, dst) = (src_end.numbers[row], dst_end.numbers[row]);
            if src == MISSING || dst == MISSING {
                self.leave_out(row, rows, ends);
                continue;
            }
            if let Some((set, takes)) = &self.leaving {
                let is_left_out = set.contains(src, dst);
                self.dangling.left_out += u64::from(is_left_out) << u32::from(is_undirected);
                if is_left_out != (*takes == Takes::LeftOut) {
                    continue;
                }
            }
            if self.graphs.as_ref().is_some_and(|of| of.differ(src, dst)) {
                let ids = || [&rows.src, &rows.dst].map(|ids| ids.display(row));
                let first = &mut self.dangling.crossing;
                first.get_or_insert_with(|| (rows.rows.row(row), ids()));
                continue;
            }
            self.route(row, (src, dst), (src_end, dst_end), routed);
            if is_undirected {
                self.route(row, (dst, src), (dst_end, src_end), routed);
            }
        }
        if routed.edges.is_empty() {
            return Vec::new();
        }
        let weight = rows.weight.as_deref().unwrap_or_default();
        let feature = rows.feature.as_deref().unwrap_or_default();
        let first_row = rows.rows.row(0);
        self.cutter
            .cut((first_row, false), (weight, feature), memory)
    }

    fn leave_out(&mut self, row: usize, rows: &EdgeRows, ends: &Resolved) {
        let src = ends.src.numbers[row] == MISSING;
        self.dangling.rows += 1;
        if self.dangling.first.is_none() {
            let id = if src { &rows.src } else { &rows.dst }.display(row);
            self.dangling.first = Some((rows.rows.row(row), src, id));
        }
    }

    #[inline]
    fn route(
        &mut self,
        row: usize,
        (src, dst): (NodeIdx, NodeIdx),
        ends: (&End, &End),
        out: &mut Routed,
    ) {
        let salt = self.salt;
        let hash = || match &self.cutter.shape.hasher {
            Some(hasher) => hasher.hash(src, dst),
            None => edge_hash(salt, ends.0.hashes[row], ends.1.hashes[row]),
        };
        if self.counts.is_beyond(dst) {
            self.cutter.spread(row, src, dst, hash(), out);
        } else {
            self.cutter.own(row, src, dst, hash, out);
        }
    }
}

impl Routed {
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.rows.clear();
        self.edges.clear();
        self.hash.clear();
    }
}

impl<'a> Cutter<'a> {
    /// Cuts edges into batches for the owners of `placement`.
    pub(crate) fn new(
        member: usize,
        placement: &'a TypePlacement,
        layout: BucketLayout,
        shape: EdgeShape,
    ) -> Self {
        Self {
            member: narrow(member),
            placement,
            layout,
            slot_bits: layout.num_buckets().next_power_of_two().trailing_zeros(),
            shape,
        }
    }

    /// Cuts edges of a relation that is exchanged alone.
    pub(crate) fn alone(self) -> Self {
        Self { member: 0, ..self }
    }

    /// Routes an edge to the owner of `dst`; its hash is only computed if it is sent.
    fn own(
        &self,
        row: usize,
        src: NodeIdx,
        dst: NodeIdx,
        hash: impl FnOnce() -> u64,
        out: &mut Routed,
    ) {
        let (owner, place) = self.placement.owner_and_place(dst);
        let slot = self.first_slot(owner) + self.layout.own(place);
        self.push(slot, row, Edge::to_own(place, src), hash, out);
    }

    /// Routes an edge of a re-indexed node.
    pub(crate) fn spread(
        &self,
        row: usize,
        src: NodeIdx,
        dst: NodeIdx,
        hash: u64,
        out: &mut Routed,
    ) {
        let worker = reindex(hash, self.placement.workers());
        let slot = self.first_slot(worker) + self.layout.hub(dst);
        self.push(slot, row, Edge::to_hub(dst, src), || hash, out);
    }

    #[inline]
    fn push(
        &self,
        slot: usize,
        row: usize,
        edge: Edge,
        hash: impl FnOnce() -> u64,
        out: &mut Routed,
    ) {
        out.slots.push(narrow(slot));
        out.edges.push(edge);
        if self.shape.is_weighted || self.shape.dim > 0 {
            out.rows.push(narrow(row));
        }
        if self.shape.hasher.is_none() {
            out.hash.push(hash());
        }
    }

    fn first_slot(&self, worker: usize) -> usize {
        worker << self.slot_bits
    }

    /// Sorts the routed edges of `memory` by slot, keeping their order within a slot, and cuts them
    /// by worker.
    ///
    /// # Shapes
    ///
    /// - `weight`: `[num_rows]`, or empty
    /// - `feature`: `[num_rows * dim]`
    pub(crate) fn cut(
        &self,
        (first_row, forwarded): (u64, bool),
        (weight, feature): (&[f32], &[f32]),
        memory: &mut CutMemory,
    ) -> Vec<(usize, EdgeBatch)> {
        let CutMemory { routed, sorted } = memory;
        sorted.sort(self.first_slot(self.placement.workers()), routed);
        sorted.take_values(routed, (weight, feature), self.shape.dim);
        let mut start = 0;
        let ends = sorted.slots.chunks(1 << self.slot_bits).enumerate();
        let batches = ends.map(|(worker, ends)| {
            let ends = &ends[..self.layout.num_buckets()];
            let end = ends.last().map_or(start, |&end| end as usize);
            let range = start..end;
            let batch = EdgeBatch {
                relation: self.member,
                first_row,
                forwarded,
                ends: ends.iter().map(|to| to - narrow(start)).collect(),
                columns: sorted.columns.slice(range, self.shape.dim),
            };
            start = end;
            (worker, batch)
        });
        batches.filter(|(_, batch)| batch.num_edges() > 0).collect()
    }
}

impl Sorted {
    /// Sorts edges and hashes by slot (a counting sort).
    fn sort(&mut self, num_slots: usize, routed: &Routed) {
        self.slots.clear();
        self.slots.resize(num_slots, 0);
        for &slot in &routed.slots {
            self.slots[slot as usize] += 1;
        }
        let mut before = 0;
        for slot in &mut self.slots {
            before += std::mem::replace(slot, before);
        }
        let columns = &mut self.columns;
        columns.edges.resize(routed.edges.len(), Edge::default());
        columns.hash.resize(routed.hash.len(), 0);
        let starts = &mut self.slots;
        if routed.hash.is_empty() {
            for (&slot, &edge) in routed.slots.iter().zip(&routed.edges) {
                columns.edges[next(starts, slot)] = edge;
            }
        } else {
            let edges = routed.edges.iter().zip(&routed.hash);
            for (&slot, (&edge, &hash)) in routed.slots.iter().zip(edges) {
                let to = next(starts, slot);
                columns.edges[to] = edge;
                columns.hash[to] = hash;
            }
        }
    }

    /// Sorts weights and features as [`Sorted::sort`] sorted the edges.
    fn take_values(&mut self, routed: &Routed, (weight, feature): (&[f32], &[f32]), dim: usize) {
        let (num_edges, columns) = (routed.edges.len(), &mut self.columns);
        let has_weights = !weight.is_empty();
        let num_weights = if has_weights { num_edges } else { 0 };
        columns.weight.resize(num_weights, 0.0);
        columns.feature.resize(num_edges * dim, 0.0);
        if !has_weights && dim == 0 {
            return;
        }
        // The ends of the slots become their starts again, from the last edge on.
        let slots = routed.slots.iter().zip(&routed.rows).rev();
        let mut ends = self.slots.clone();
        for (&slot, &row) in slots {
            let end = &mut ends[slot as usize];
            *end -= 1;
            let (to, row) = (*end as usize, row as usize);
            if has_weights {
                columns.weight[to] = weight[row];
            }
            columns.feature[to * dim..(to + 1) * dim]
                .copy_from_slice(&feature[row * dim..(row + 1) * dim]);
        }
    }
}

/// Returns the next position of a slot.
#[inline]
fn next(starts: &mut [u32], slot: u32) -> usize {
    let start = &mut starts[slot as usize];
    let to = *start as usize;
    *start += 1;
    to
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
    let crossing = dangling.iter().filter_map(|d| d.crossing.as_ref()).min();
    if let Some((first_row, [src, dst])) = crossing {
        return Err(plan.between_graphs(*first_row, [src, dst]).into());
    }
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
        table: plan.table_key().into(),
    })
}
