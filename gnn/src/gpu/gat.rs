//! GAT's attention on a GPU: a score is the sum of one number per end and one per edge.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::attention::{
    Slots, col_of, edge_of, first_slot, is_left_out, is_own, leaky, own_col, scaled, slot_of,
};
use super::memory::{arg, cols, count, empty, launch, len, rows, shaped_like};
use super::sum::sum_rows;
use crate::kernel::{Gat, RawGat};

/// Sets the scores of each node, as src and then as dst: `[num_cols, 2 * heads]`. With one scoring
/// vector, `src`, there are half as many columns.
#[cube(launch)]
fn node_scores(
    h: &[f32],
    src: &[f32],
    dst: &[f32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
    columns: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let dim = dim as usize;
    let u = ABSOLUTE_POS / columns as usize;
    let column = ABSOLUTE_POS % columns as usize;
    let first = column % heads * dim;
    let mut sum = 0.0f32.runtime();
    for at in first..first + dim {
        let mut weight = src[at];
        if column >= heads {
            weight = dst[at];
        }
        sum += h[u * heads * dim + at] * weight;
    }
    out[ABSOLUTE_POS] = sum;
}

/// Sets 1 / number of each row's in-edges that are not self-loops; 0 if there are none.
#[cube(launch)]
fn mean_shares(slots: &Slots, out: &mut [f32]) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let own = own_col(slots, ABSOLUTE_POS);
    let mut others = 0.0f32.runtime();
    for e in slots.offset[ABSOLUTE_POS] as usize..slots.offset[ABSOLUTE_POS + 1] as usize {
        if slots.col[e] as usize != own {
            others += 1.0f32;
        }
    }
    out[ABSOLUTE_POS] = select(others > 0.0f32, 1.0f32 / f32::max(others, 1.0f32), 0.0f32);
}

/// Sets the scores of the edges, after the non-linearity.
#[cube(launch)]
fn edge_scores(
    slots: &Slots,
    s: &[f32],
    z: &[f32],
    share: &[f32],
    slot_row: &[u32],
    out: &mut [f32],
    heads: u32,
    #[comptime] has_z: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let slot = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let v = slot_row[slot] as usize;
    let u = col_of(slots, v, slot);
    let own = own_col(slots, v);
    let mut score = s[u * 2 * heads + head] + s[(own * 2 + 1) * heads + head];
    if comptime!(has_z) {
        if is_own(slots, v, slot) {
            let mut sum = 0.0f32.runtime();
            for e in slots.offset[v] as usize..slots.offset[v + 1] as usize {
                if slots.col[e] as usize != own {
                    sum += z[e * heads + head];
                }
            }
            score += sum * share[v];
        } else {
            score += z[edge_of(slots, v, slot) * heads + head];
        }
    }
    out[ABSOLUTE_POS] = leaky(score);
}

/// Sets the slopes of the edges' own scores, also through their mean, which the added self-loop
/// has.
#[cube(launch)]
fn z_slopes(
    slots: &Slots,
    slope: &[f32],
    share: &[f32],
    edge_row: &[u32],
    out: &mut [f32],
    heads: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let e = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let v = edge_row[e] as usize;
    let mut own = 0.0f32.runtime();
    let slot = slot_of(slots, v, e);
    if !is_left_out(slots, v, slot) {
        let own_slot = first_slot(slots, v + 1) - 1;
        own = slope[slot * heads + head] + share[v] * slope[own_slot * heads + head];
    }
    out[ABSOLUTE_POS] = own;
}

/// Sets the slopes of each node's scores, as src and then as dst.
#[cube(launch)]
fn node_slopes(
    slope: &[f32],
    offset: &[u32],
    col_offset: &[u32],
    col_edge: &[u32],
    col_row: &[u32],
    out: &mut [f32],
    heads: u32,
    rows: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let u = ABSOLUTE_POS / (2 * heads);
    let column = ABSOLUTE_POS % (2 * heads);
    let head = column % heads;
    let mut sum = 0.0f32.runtime();
    if column < heads {
        for at in col_offset[u] as usize..col_offset[u + 1] as usize {
            let slot = (col_edge[at] + col_row[at]) as usize;
            sum += slope[slot * heads + head];
        }
        if u < rows as usize {
            sum += slope[(offset[u + 1] as usize + u) * heads + head];
        }
    } else if u < rows as usize {
        for slot in offset[u] as usize + u..offset[u + 1] as usize + u + 1 {
            sum += slope[slot * heads + head];
        }
    }
    out[ABSOLUTE_POS] = sum;
}

/// Sets the slopes of the features, through the weighted sums and through the scores.
#[cube(launch)]
fn feature_slopes(
    grad: &[f32],
    share: &[f32],
    node_slope: &[f32],
    src: &[f32],
    dst: &[f32],
    offset: &[u32],
    col_offset: &[u32],
    col_edge: &[u32],
    col_row: &[u32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
    rows: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let width = heads * dim as usize;
    let u = ABSOLUTE_POS / width;
    let at = ABSOLUTE_POS % width;
    let head = at / dim as usize;
    let mut sum = 0.0f32.runtime();
    for e in col_offset[u] as usize..col_offset[u + 1] as usize {
        let v = col_row[e] as usize;
        sum += share[(col_edge[e] as usize + v) * heads + head] * grad[v * width + at];
    }
    if u < rows as usize {
        let own = offset[u + 1] as usize + u;
        sum += share[own * heads + head] * grad[u * width + at];
    }
    sum += node_slope[u * 2 * heads + head] * src[at];
    sum += node_slope[(u * 2 + 1) * heads + head] * dst[at];
    out[ABSOLUTE_POS] = sum;
}

/// Sets the terms of the slope of one scoring vector; its node slopes start at column `first`.
#[cube(launch)]
fn vector_terms(
    h: &[f32],
    node_slope: &[f32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
    first: u32,
    columns: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let width = (heads * dim) as usize;
    let head = ABSOLUTE_POS % width / dim as usize;
    let row = ABSOLUTE_POS / width * columns as usize;
    out[ABSOLUTE_POS] = node_slope[row + first as usize + head] * h[ABSOLUTE_POS];
}

/// Returns the scores of nodes by one or two scoring vectors.
pub(super) fn scores_of_nodes(h: &CubeTensor, vectors: &[CubeTensor], heads: usize) -> CubeTensor {
    let columns = vectors.len() * heads;
    let out = empty(h, rows(h), columns);
    launch!(
        node_scores,
        len(&out),
        h,
        arg(h),
        arg(&vectors[0]),
        arg(vectors.get(1).unwrap_or(&vectors[0])),
        arg(&out),
        count(heads),
        count(cols(h) / heads),
        count(columns)
    );
    out
}

/// Returns the slope of scoring vector `at` from the slopes of the nodes' scores.
pub(super) fn vector_slope(
    h: &CubeTensor,
    of_nodes: &CubeTensor,
    (vector, at): (&CubeTensor, usize),
    heads: usize,
) -> CubeTensor {
    let terms = empty(h, rows(h), cols(h));
    launch!(
        vector_terms,
        len(&terms),
        h,
        arg(h),
        arg(of_nodes),
        arg(&terms),
        count(heads),
        count(cols(h) / heads),
        count(at * heads),
        count(cols(of_nodes))
    );
    shaped_like(sum_rows(&terms), vector)
}

impl Gat {
    fn dim(&self, h: &CubeTensor) -> usize {
        cols(h) / self.attention.heads
    }

    /// Returns the share of each edge in the mean of its row.
    fn mean_shares_on_gpu(&self, near: &CubeTensor) -> CubeTensor {
        let edges = self.attention.edges(&near.device);
        let out = empty(near, self.attention.csr.num_rows(), 1);
        launch!(mean_shares, len(&out), near, edges.slots(), arg(&out));
        out
    }

    /// Returns the slopes of the edges' own scores.
    fn z_slopes_on_gpu(&self, slope: &CubeTensor, share: &CubeTensor) -> CubeTensor {
        let (attention, device) = (&self.attention, &slope.device);
        let edges = attention.edges(device);
        let edge_row = super::graph::edge_rows(&attention.csr, device);
        let out = empty(slope, attention.csr.num_edges(), attention.heads);
        launch!(
            z_slopes,
            len(&out),
            slope,
            edges.slots(),
            arg(slope),
            arg(share),
            arg(&edge_row),
            arg(&out),
            count(attention.heads)
        );
        out
    }

    /// Returns the slopes of the nodes' scores and of the features.
    fn node_slopes_on_gpu(
        &self,
        inputs: &[CubeTensor],
        grad: &CubeTensor,
        (slope, share): (&CubeTensor, &CubeTensor),
    ) -> [CubeTensor; 2] {
        let (h, heads) = (&inputs[0], self.attention.heads);
        let edges = self.attention.edges(&h.device).rows;
        let out_edges = self.attention.edges_out(&h.device);
        let num_rows = count(self.attention.csr.num_rows());
        let of_nodes = empty(h, rows(h), 2 * heads);
        launch!(
            node_slopes,
            len(&of_nodes),
            h,
            arg(slope),
            arg(&edges.offset),
            arg(&out_edges.offset),
            arg(&out_edges.edge),
            arg(&out_edges.row),
            arg(&of_nodes),
            count(heads),
            num_rows
        );
        let of_features = empty(h, rows(h), cols(h));
        launch!(
            feature_slopes,
            len(&of_features),
            h,
            arg(grad),
            arg(share),
            arg(&of_nodes),
            arg(&inputs[1]),
            arg(&inputs[2]),
            arg(&edges.offset),
            arg(&out_edges.offset),
            arg(&out_edges.edge),
            arg(&out_edges.row),
            arg(&of_features),
            count(heads),
            count(self.dim(h)),
            num_rows
        );
        [of_nodes, of_features]
    }
}

impl GpuKernel for Gat {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        assert!(
            !self.attention.csr.bipartite,
            "attention between two types runs in steps"
        );
        let (h, attention) = (&inputs[0], &self.attention);
        let edges = attention.edges(&h.device);
        let s = if self.scored {
            inputs[1].clone()
        } else {
            scores_of_nodes(h, &inputs[1..3], attention.heads)
        };
        let share = self.edge_scores.then(|| self.mean_shares_on_gpu(h));
        let score = empty(h, attention.num_slots(), attention.heads);
        launch!(
            edge_scores,
            len(&score),
            h,
            edges.slots(),
            arg(&s),
            arg(&inputs[3]),
            arg(share.as_ref().unwrap_or(&s)),
            arg(&edges.slot_row),
            arg(&score),
            count(attention.heads),
            self.edge_scores
        );
        let alpha = edges.softmax(&score);
        let factor = attention.slot_factors(h);
        let out = edges.sums(h, &scaled(&alpha, factor.as_ref()));
        let saved = [alpha, score].into_iter().chain(factor).collect();
        (out, saved)
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (h, attention) = (&inputs[0], &self.attention);
        let (alpha, score, factor) = (&saved[0], &saved[1], saved.get(2));
        let slope = attention.slopes_of_scores((h, grad), (alpha, factor), Some(score));
        let share = scaled(alpha, factor);
        let [of_nodes, of_h] = self.node_slopes_on_gpu(inputs, grad, (&slope, &share));
        let [src, dst] =
            [0, 1].map(|at| vector_slope(h, &of_nodes, (&inputs[1 + at], at), attention.heads));
        let z = self
            .edge_scores
            .then(|| self.z_slopes_on_gpu(&slope, &self.mean_shares_on_gpu(h)));
        vec![Some(of_h), Some(src), Some(dst), z]
    }
}

impl GpuKernel for RawGat {
    fn forward(&self, _inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        unreachable!("on GPUs, models project rows before they aggregate them")
    }

    fn backward(
        &self,
        _inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        _grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        unreachable!("on GPUs, models project rows before they aggregate them")
    }
}
