//! The softmax over the edges of each row, whatever their relation.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::gpu::GpuKernel;
use crate::gpu::attention::{Edges, Slots, scaled};
use crate::gpu::mask::{Draw, draw, edge_factor, ordinal_of_relation};
use crate::gpu::memory::{arg, count, empty, launch};
use crate::kernel::EdgeSoftmax;

/// Sets the factor of each coefficient: weight times dropout of its edge.
///
/// A unit walks over the edges of a row, since an edge's dropout depends on its rank among the
/// row's edges of its relation.
#[cube(launch)]
fn edge_factors(
    slots: &Slots,
    weight: &[f32],
    key: &[u32],
    relation: &[u32],
    out: &mut [f32],
    draw: Draw,
    units: u32,
    heads: u32,
    #[comptime] has_weight: bool,
    #[comptime] drops: bool,
    #[comptime] has_relation: bool,
) {
    if ABSOLUTE_POS >= units as usize {
        terminate!();
    }
    let heads = heads as usize;
    let v = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    // No relation has this number.
    let mut last = u32::MAX.runtime();
    let mut rank = 0u32.runtime();
    for e in slots.offset[v] as usize..slots.offset[v + 1] as usize {
        let mut factor = 1.0f32.runtime();
        if comptime!(has_weight) {
            factor = weight[e];
        }
        if comptime!(drops) {
            let mut own = 0u32.runtime();
            if comptime!(has_relation) {
                own = relation[e];
            }
            rank = select(own == last, rank + 1, 0u32);
            last = own;
            let place = ordinal_of_relation(rank, own);
            let dst = slots.own_key as usize + v;
            factor *= edge_factor(&draw, key, dst, slots.col[e] as usize, place, head as u32);
        }
        out[e * heads + head] = factor;
    }
}

impl EdgeSoftmax {
    fn edges(&self, near: &CubeTensor) -> Edges {
        Edges::of(&self.csr, 0, self.heads, &near.device)
    }

    /// Returns the factors of the coefficients, or none if all are 1.
    fn factors(&self, edges: &Edges, near: &CubeTensor) -> Option<CubeTensor> {
        if self.weight.is_none() && self.dropout.is_none() {
            return None;
        }
        let device = &near.device;
        let weight = self.weight.as_ref().map(|of| of.on_gpu(device));
        let dropout = self.dropout.as_ref();
        let key = dropout.map(|of| of.key.on_gpu(device));
        let relation = dropout.and_then(|of| of.relation.as_ref());
        let relation = relation.map(|of| of.on_gpu(device));
        let out = empty(near, self.csr.num_edges(), self.heads);
        let units = self.csr.num_rows() * self.heads;
        launch!(
            edge_factors,
            units,
            near,
            edges.slots(),
            arg(weight.as_ref().unwrap_or(near)),
            arg(key.as_ref().unwrap_or(&edges.slot_row)),
            arg(relation.as_ref().unwrap_or(&edges.slot_row)),
            arg(&out),
            draw(dropout.map(|of| &of.mask)),
            count(units),
            count(self.heads),
            weight.is_some(),
            dropout.is_some(),
            relation.is_some()
        );
        Some(out)
    }
}

impl GpuKernel for EdgeSoftmax {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let score = &inputs[0];
        let edges = self.edges(score);
        let alpha = edges.softmax(score);
        let factor = self.factors(&edges, score);
        let out = scaled(&alpha, factor.as_ref());
        (out, std::iter::once(alpha).chain(factor).collect())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (alpha, factor) = (&saved[0], saved.get(1));
        let slope = scaled(grad, factor);
        let edges = self.edges(&inputs[0]);
        vec![Some(edges.softmax_slopes((alpha, &slope), None))]
    }
}
