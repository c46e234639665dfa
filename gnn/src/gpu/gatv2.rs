//! GATv2's attention on a GPU: a score is the product of a vector with a non-linear function of
//! both ends and the edge.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::attention::{
    Edges, Slots, col_of, edge_of, first_slot, is_left_out, is_own, leaky, leaky_slope, own_col,
    scaled, slot_of,
};
use super::memory::{arg, cols, count, empty, launch, len, rows, shaped_like};
use super::sum::{PIECE, sum_rows};
use crate::kernel::GatV2;

/// The inputs of the vector inside the non-linearity.
#[derive(CubeLaunch, CubeType)]
struct Ends {
    /// `[num_cols, width]` and `[num_rows, width]`.
    l: Box<[f32]>,
    r: Box<[f32]>,
    /// `[width, edge_dim]`.
    weight: Box<[f32]>,
    /// `[num_edges, edge_dim]`, and `[num_rows, edge_dim]` for the added self-loops.
    feature: Box<[f32]>,
    mean: Box<[f32]>,
    width: u32,
    /// 0 without edge features.
    edge_dim: u32,
}

/// Sets the mean of each row's edge features, without those of self-loops.
#[cube(launch)]
fn mean_features(feature: &[f32], slots: &Slots, out: &mut [f32], edge_dim: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let v = ABSOLUTE_POS / edge_dim as usize;
    let k = ABSOLUTE_POS % edge_dim as usize;
    let mut sum = 0.0f32.runtime();
    let mut others = 0.0f32.runtime();
    for e in slots.offset[v] as usize..slots.offset[v + 1] as usize {
        if slots.col[e] as usize != own_col(slots, v) {
            sum += feature[e * edge_dim as usize + k];
            others += 1.0f32;
        }
    }
    out[ABSOLUTE_POS] = sum / f32::max(others, 1.0f32);
}

/// Returns feature `k` of the edge of a slot.
#[cube]
fn feature_of(ends: &Ends, slots: &Slots, v: usize, slot: usize, k: usize) -> f32 {
    let edge_dim = ends.edge_dim as usize;
    if is_own(slots, v, slot) {
        ends.mean[v * edge_dim + k]
    } else {
        ends.feature[edge_of(slots, v, slot) * edge_dim + k]
    }
}

/// Returns value `at` of the vector inside the non-linearity.
#[cube]
fn inner(ends: &Ends, slots: &Slots, v: usize, u: usize, slot: usize, at: usize) -> f32 {
    let width = ends.width as usize;
    let edge_dim = ends.edge_dim as usize;
    let mut sum = ends.l[u * width + at] + ends.r[v * width + at];
    for k in 0..edge_dim {
        sum += ends.weight[at * edge_dim + k] * feature_of(ends, slots, v, slot, k);
    }
    sum
}

#[cube(launch)]
fn scores(ends: &Ends, slots: &Slots, att: &[f32], slot_row: &[u32], out: &mut [f32], heads: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let dim = (ends.width / heads) as usize;
    let slot = ABSOLUTE_POS / heads as usize;
    let first = ABSOLUTE_POS % heads as usize * dim;
    let v = slot_row[slot] as usize;
    let u = col_of(slots, v, slot);
    let mut sum = 0.0f32.runtime();
    if !is_left_out(slots, v, slot) {
        for at in first..first + dim {
            sum += att[at] * leaky(inner(ends, slots, v, u, slot, at));
        }
    }
    out[ABSOLUTE_POS] = sum;
}

/// Returns the slope of value `at` of the vector inside the non-linearity of a slot.
#[cube]
fn inner_slope(
    ends: &Ends,
    slots: &Slots,
    att: &[f32],
    slope: &[f32],
    v: usize,
    u: usize,
    slot: usize,
    at: usize,
    heads: u32,
) -> f32 {
    let head = at / (ends.width / heads) as usize;
    let of_score = slope[slot * heads as usize + head];
    of_score * att[at] * leaky_slope(inner(ends, slots, v, u, slot, at))
}

#[cube(launch)]
fn r_slopes(ends: &Ends, slots: &Slots, att: &[f32], slope: &[f32], out: &mut [f32], heads: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let v = ABSOLUTE_POS / ends.width as usize;
    let at = ABSOLUTE_POS % ends.width as usize;
    let mut sum = 0.0f32.runtime();
    for slot in first_slot(slots, v)..first_slot(slots, v + 1) {
        let u = col_of(slots, v, slot);
        sum += inner_slope(ends, slots, att, slope, v, u, slot, at, heads);
    }
    out[ABSOLUTE_POS] = sum;
}

/// Adds up the slope of the scoring vector over the slots of each piece.
#[cube(launch)]
fn att_terms(
    ends: &Ends,
    slots: &Slots,
    slope: &[f32],
    slot_row: &[u32],
    out: &mut [f32],
    heads: u32,
    num_slots: u32,
    #[comptime] piece: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let at = ABSOLUTE_POS % ends.width as usize;
    let head = at / (ends.width / heads) as usize;
    let first = (ABSOLUTE_POS / ends.width as usize) as u32 * piece;
    let mut sum = 0.0f32.runtime();
    for slot in first as usize..u32::min(num_slots, first + piece) as usize {
        let v = slot_row[slot] as usize;
        let u = col_of(slots, v, slot);
        sum += slope[slot * heads as usize + head] * leaky(inner(ends, slots, v, u, slot, at));
    }
    out[ABSOLUTE_POS] = sum;
}

/// Adds up the slope of the weight of edge features over the slots of each piece.
#[cube(launch)]
fn weight_terms(
    ends: &Ends,
    slots: &Slots,
    att: &[f32],
    slope: &[f32],
    slot_row: &[u32],
    out: &mut [f32],
    heads: u32,
    num_slots: u32,
    #[comptime] piece: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let k = ABSOLUTE_POS % ends.edge_dim as usize;
    let at = ABSOLUTE_POS / ends.edge_dim as usize % ends.width as usize;
    let first = (ABSOLUTE_POS / (ends.edge_dim * ends.width) as usize) as u32 * piece;
    let mut sum = 0.0f32.runtime();
    for slot in first as usize..u32::min(num_slots, first + piece) as usize {
        let v = slot_row[slot] as usize;
        let u = col_of(slots, v, slot);
        let of_inner = inner_slope(ends, slots, att, slope, v, u, slot, at, heads);
        sum += of_inner * feature_of(ends, slots, v, slot, k);
    }
    out[ABSOLUTE_POS] = sum;
}

/// Sets the slopes of `l`, through the scores and through the weighted sums.
#[cube(launch)]
fn l_slopes(
    ends: &Ends,
    slots: &Slots,
    att: &[f32],
    slope: &[f32],
    share: &[f32],
    grad: &[f32],
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
    let width = ends.width as usize;
    let u = ABSOLUTE_POS / width;
    let at = ABSOLUTE_POS % width;
    let head = at / (ends.width / heads) as usize;
    let mut sum = 0.0f32.runtime();
    for e in col_offset[u] as usize..col_offset[u + 1] as usize {
        let v = col_row[e] as usize;
        let slot = slot_of(slots, v, col_edge[e] as usize);
        sum += inner_slope(ends, slots, att, slope, v, u, slot, at, heads);
        sum += share[slot * heads as usize + head] * grad[v * width + at];
    }
    if slots.loops > 0 {
        if u < rows as usize {
            let slot = first_slot(slots, u + 1) - 1;
            sum += inner_slope(ends, slots, att, slope, u, u, slot, at, heads);
            sum += share[slot * heads as usize + head] * grad[u * width + at];
        }
    }
    out[ABSOLUTE_POS] = sum;
}

/// The buffers of [`Ends`].
struct EndsOnGpu {
    l: CubeTensor,
    r: CubeTensor,
    weight: CubeTensor,
    feature: CubeTensor,
    mean: CubeTensor,
    width: usize,
    edge_dim: usize,
}

impl EndsOnGpu {
    fn new(op: &GatV2, inputs: &[CubeTensor], edges: &Edges) -> EndsOnGpu {
        let (l, weight) = (&inputs[0], &inputs[3]);
        let feature = op.edge_feature.as_ref().map(|of| of.on_gpu(&l.device));
        let edge_dim = feature.as_ref().map_or(0, |_| cols(weight));
        // Only added self-loops have the mean.
        let averaged = feature.as_ref().filter(|_| edges.loops > 0);
        let mean = averaged.map(|of_edges| {
            let out = empty(l, op.attention.csr.num_rows(), edge_dim);
            launch!(
                mean_features,
                len(&out),
                l,
                arg(of_edges),
                edges.slots(),
                arg(&out),
                count(edge_dim)
            );
            out
        });
        EndsOnGpu {
            l: l.clone(),
            r: inputs[1].clone(),
            weight: weight.clone(),
            // No kernel reads the weight that takes the place of absent features.
            feature: feature.unwrap_or_else(|| weight.clone()),
            mean: mean.unwrap_or_else(|| weight.clone()),
            width: cols(l),
            edge_dim,
        }
    }

    fn arg(&self) -> EndsLaunch {
        EndsLaunch::new(
            arg(&self.l),
            arg(&self.r),
            arg(&self.weight),
            arg(&self.feature),
            arg(&self.mean),
            count(self.width),
            count(self.edge_dim),
        )
    }
}

/// The state of a backward pass.
struct Back<'a> {
    op: &'a GatV2,
    inputs: &'a [CubeTensor],
    edges: Edges,
    ends: EndsOnGpu,
    /// Slopes of the scores.
    slope: CubeTensor,
}

impl Back<'_> {
    fn r(&self) -> CubeTensor {
        let r = &self.inputs[1];
        let out = empty(r, rows(r), cols(r));
        launch!(
            r_slopes,
            len(&out),
            r,
            self.ends.arg(),
            self.edges.slots(),
            arg(&self.inputs[2]),
            arg(&self.slope),
            arg(&out),
            count(self.op.attention.heads)
        );
        out
    }

    fn att(&self) -> CubeTensor {
        let (att, num_slots) = (&self.inputs[2], self.op.attention.num_slots());
        let out = empty(att, num_slots.div_ceil(PIECE), self.ends.width);
        launch!(
            att_terms,
            len(&out),
            att,
            self.ends.arg(),
            self.edges.slots(),
            arg(&self.slope),
            arg(&self.edges.slot_row),
            arg(&out),
            count(self.op.attention.heads),
            count(num_slots),
            count(PIECE)
        );
        shaped_like(sum_rows(&out), att)
    }

    fn weight(&self) -> CubeTensor {
        let (weight, num_slots) = (&self.inputs[3], self.op.attention.num_slots());
        let out = empty(weight, num_slots.div_ceil(PIECE), len(weight));
        launch!(
            weight_terms,
            len(&out),
            weight,
            self.ends.arg(),
            self.edges.slots(),
            arg(&self.inputs[2]),
            arg(&self.slope),
            arg(&self.edges.slot_row),
            arg(&out),
            count(self.op.attention.heads),
            count(num_slots),
            count(PIECE)
        );
        shaped_like(sum_rows(&out), weight)
    }

    fn l(&self, grad: &CubeTensor, share: &CubeTensor) -> CubeTensor {
        let (l, attention) = (&self.inputs[0], &self.op.attention);
        let out_edges = attention.edges_out(&l.device);
        let out = empty(l, rows(l), cols(l));
        launch!(
            l_slopes,
            len(&out),
            l,
            self.ends.arg(),
            self.edges.slots(),
            arg(&self.inputs[2]),
            arg(&self.slope),
            arg(share),
            arg(grad),
            arg(&out_edges.offset),
            arg(&out_edges.edge),
            arg(&out_edges.row),
            arg(&out),
            count(attention.heads),
            count(attention.csr.num_rows())
        );
        out
    }
}

impl GpuKernel for GatV2 {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (l, attention) = (&inputs[0], &self.attention);
        let edges = attention.edges(&l.device);
        let ends = EndsOnGpu::new(self, inputs, &edges);
        let score = empty(l, attention.num_slots(), attention.heads);
        launch!(
            scores,
            len(&score),
            l,
            ends.arg(),
            edges.slots(),
            arg(&inputs[2]),
            arg(&edges.slot_row),
            arg(&score),
            count(attention.heads)
        );
        let alpha = edges.softmax(&score);
        let factor = attention.slot_factors(l);
        let out = edges.sums(l, &scaled(&alpha, factor.as_ref()));
        (out, std::iter::once(alpha).chain(factor).collect())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (l, attention) = (&inputs[0], &self.attention);
        let (alpha, factor) = (&saved[0], saved.get(1));
        let edges = attention.edges(&l.device);
        let back = Back {
            op: self,
            inputs,
            ends: EndsOnGpu::new(self, inputs, &edges),
            edges,
            slope: attention.slopes_of_scores((l, grad), (alpha, factor), None),
        };
        let of_l = back.l(grad, &scaled(alpha, factor));
        let weight = self.edge_feature.is_some().then(|| back.weight());
        vec![Some(of_l), Some(back.r()), Some(back.att()), weight]
    }
}
