//! Cuts the edges that one worker reads into batches by receiving worker and bucket.

use crate::buckets::{BucketLayout, Edge, EdgeBatch};
use crate::ends::Resolved;
use crate::hub::{HubCounts, reindex};
use crate::number::MISSING;
use crate::sample::{edge_hash, relation_salt};
use crate::{StoreError, TypePlacement};
use schemas::{Dangling, EdgeRows, EdgesPlan, NodeIdx, RelationPlan};
use serde::{Deserialize, Serialize};

/// Cuts the edges of a relation that one worker reads into batches by receiving worker.
pub(crate) struct Scatter<'a> {
    relation: &'a RelationPlan,
    salt: u64,
    cutter: Cutter<'a>,
    pub(crate) counts: HubCounts,
    pub(crate) dangling: DanglingRows,
    /// The edges of the current rows; a reverse follows its edge.
    routed: Vec<Routed>,
}

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
    is_weighted: bool,
    pub(crate) dim: usize,
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
    /// Starts to cut the edges of a relation.
    pub(crate) fn new(relation: &'a RelationPlan, cutter: Cutter<'a>, counts: HubCounts) -> Self {
        Self {
            relation,
            salt: relation_salt(&relation.name),
            cutter,
            counts,
            dangling: DanglingRows::default(),
            routed: Vec::new(),
        }
    }

    /// Cuts rows, whose ends are `ends`, into batches by receiving worker.
    pub(crate) fn batches(&mut self, rows: &EdgeRows, ends: &Resolved) -> Vec<(usize, EdgeBatch)> {
        self.routed.clear();
        let is_undirected = self.relation.edges.undirected();
        let (src_end, dst_end) = match self.relation.reversed {
            false => (&ends.src, &ends.dst),
            true => (&ends.dst, &ends.src),
        };
        for row in 0..rows.dst.len() {
            let (src, dst) = (src_end.numbers[row], dst_end.numbers[row]);
            if src == MISSING || dst == MISSING {
                self.leave_out(row, rows, ends);
                continue;
            }
            let (src_hash, dst_hash) = (src_end.hashes[row], dst_end.hashes[row]);
            let hash = edge_hash(self.salt, src_hash, dst_hash);
            self.route(row, src, dst, hash);
            if is_undirected {
                let back_hash = edge_hash(self.salt, dst_hash, src_hash);
                self.route(row, dst, src, back_hash);
            }
        }
        if self.routed.is_empty() {
            return Vec::new();
        }
        let weight = rows.weight.as_deref().unwrap_or_default();
        let feature = rows.feature.as_deref().unwrap_or_default();
        let first_row = rows.rows.row(0);
        let cutter = self.cutter;
        cutter.cut((first_row, false), &self.routed, weight, feature)
    }

    fn leave_out(&mut self, row: usize, rows: &EdgeRows, ends: &Resolved) {
        let src = ends.src.numbers[row] == MISSING;
        self.dangling.rows += 1;
        if self.dangling.first.is_none() {
            let id = if src { &rows.src } else { &rows.dst }.display(row);
            self.dangling.first = Some((rows.rows.row(row), src, id));
        }
    }

    fn route(&mut self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64) {
        let routed = if self.counts.is_beyond(dst) {
            self.cutter.spread(row, src, dst, hash)
        } else {
            self.cutter.own(row, src, dst, hash)
        };
        self.routed.push(routed);
    }
}

impl<'a> Cutter<'a> {
    /// Cuts edges, with weights or not and with `dim` features, into batches for the owners of
    /// `placement`.
    pub(crate) fn new(
        member: usize,
        placement: &'a TypePlacement,
        layout: BucketLayout,
        (is_weighted, dim): (bool, usize),
    ) -> Self {
        Self {
            member: narrow(member),
            placement,
            layout,
            slot_bits: layout.num_buckets().next_power_of_two().trailing_zeros(),
            is_weighted,
            dim,
        }
    }

    /// Tells whether edges have weights, and how many features they have.
    pub(crate) fn columns(&self) -> (bool, usize) {
        (self.is_weighted, self.dim)
    }

    /// Cuts edges of a relation that is exchanged alone.
    pub(crate) fn alone(self) -> Self {
        Self { member: 0, ..self }
    }

    /// Routes an edge to the owner of `dst`.
    fn own(&self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64) -> Routed {
        let (owner, place) = self.placement.owner_and_place(dst);
        Routed {
            slot: narrow(self.first_slot(owner) + self.layout.own(place)),
            row: narrow(row),
            edge: Edge::to_own(hash, place, src),
        }
    }

    /// Routes an edge of a re-indexed node.
    pub(crate) fn spread(&self, row: usize, src: NodeIdx, dst: NodeIdx, hash: u64) -> Routed {
        let worker = reindex(hash, self.placement.workers());
        Routed {
            slot: narrow(self.first_slot(worker) + self.layout.hub(dst)),
            row: narrow(row),
            edge: Edge::to_hub(hash, dst, src),
        }
    }

    fn first_slot(&self, worker: usize) -> usize {
        worker << self.slot_bits
    }

    /// Sorts routed edges by slot, keeping their order within a slot, and cuts them by worker.
    ///
    /// # Shapes
    ///
    /// - `weight`: `[num_rows]`, or empty
    /// - `feature`: `[num_rows * dim]`
    pub(crate) fn cut(
        &self,
        (first_row, forwarded): (u64, bool),
        routed: &[Routed],
        weight: &[f32],
        feature: &[f32],
    ) -> Vec<(usize, EdgeBatch)> {
        let (bits, dim) = (self.slot_bits, self.dim);
        let weights_an_edge = usize::from(!weight.is_empty());
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
            let weights = vec![0.0; num_edges * weights_an_edge];
            let features = vec![0.0; num_edges * dim];
            (vec![Edge::default(); num_edges], weights, features)
        });
        let mut columns: Vec<(Vec<Edge>, Vec<f32>, Vec<f32>)> = columns.collect();
        for one in routed {
            let next = &mut slots[one.slot as usize];
            let to = *next as usize;
            *next += 1;
            let (edges, weights, features) = &mut columns[one.slot as usize >> bits];
            edges[to] = one.edge;
            let row = one.row as usize;
            if let Some(of_edge) = weights.get_mut(to) {
                *of_edge = weight[row];
            }
            if dim > 0 {
                features[to * dim..(to + 1) * dim]
                    .copy_from_slice(&feature[row * dim..(row + 1) * dim]);
            }
        }
        let batches = slots.chunks(1 << bits).zip(columns).enumerate();
        let batches = batches.map(|(worker, (ends, parts))| {
            let batch = EdgeBatch {
                relation: self.member,
                first_row,
                forwarded,
                ends: ends[..self.layout.num_buckets()].to_vec(),
                edges: parts.0,
                weight: parts.1,
                feature: parts.2,
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
        table: plan.table_key().into(),
    })
}
