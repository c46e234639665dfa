//! GPU kernels shared by GAT and GATv2: factors of in-edges, softmax over a row, weighted sums.
//!
//! Coefficients are laid out as in `kernel::attention`, `[num_slots, heads]`: a row has one slot
//! for each in-edge, then one for the self-loop added to the row. Self-loops of the edge list have
//! coefficient 0.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::graph::{Cols, Rows, by_col, by_row, slot_rows};
use super::mask::{Draw, draw, edge_factor, ordinal};
use super::memory::{arg, cols, count, empty, launch, len};
use crate::kernel::Attention;

/// The edges of attention on a device.
pub(super) struct Edges {
    pub(super) rows: Rows,
    /// `[num_slots]`: row of each coefficient.
    pub(super) slot_row: CubeTensor,
}

/// Tells whether a slot belongs to the self-loop added to its row.
#[cube]
pub(super) fn is_own(offset: &[u32], v: usize, slot: usize) -> bool {
    slot == offset[v + 1] as usize + v
}

/// Returns the column that a slot of row `v` reads.
#[cube]
pub(super) fn col_of(offset: &[u32], col: &[u32], v: usize, slot: usize) -> usize {
    let mut u = v;
    if !is_own(offset, v, slot) {
        u = col[slot - v] as usize;
    }
    u
}

/// Tells whether a slot belongs to a self-loop of the edge list, whose coefficient is 0.
#[cube]
pub(super) fn is_left_out(offset: &[u32], col: &[u32], v: usize, slot: usize) -> bool {
    let mut left_out = false.runtime();
    if !is_own(offset, v, slot) {
        left_out = col[slot - v] as usize == v;
    }
    left_out
}

/// Sets the factor of each coefficient: weight times dropout of its edge.
#[cube(launch)]
fn slot_factors(
    offset: &[u32],
    col: &[u32],
    slot_row: &[u32],
    weight: &[f32],
    key: &[u32],
    out: &mut [f32],
    draw: Draw,
    heads: u32,
    #[comptime] has_weight: bool,
    #[comptime] drops: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let slot = ABSOLUTE_POS / heads as usize;
    let v = slot_row[slot] as usize;
    let own = is_own(offset, v, slot);
    let mut factor = 1.0f32.runtime();
    if comptime!(has_weight) {
        if !own {
            factor = weight[slot - v];
        }
    }
    if comptime!(drops) {
        let head = (ABSOLUTE_POS % heads as usize) as u32;
        let place = ordinal((slot - v) as u32 - offset[v], own);
        let u = col_of(offset, col, v, slot);
        factor *= edge_factor(&draw, key, v, u, place, head);
    }
    out[ABSOLUTE_POS] = factor;
}

/// Turns the scores of each row into coefficients that add up to 1 for each head.
#[cube(launch)]
fn softmax(score: &[f32], offset: &[u32], col: &[u32], alpha: &mut [f32], units: u32, heads: u32) {
    if ABSOLUTE_POS >= units as usize {
        terminate!();
    }
    let heads = heads as usize;
    let v = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let first = offset[v] as usize + v;
    let own = offset[v + 1] as usize + v;
    let mut most = score[own * heads + head];
    for slot in first..own {
        if col[slot - v] as usize != v {
            most = f32::max(most, score[slot * heads + head]);
        }
    }
    let mut sum = 0.0f32.runtime();
    for slot in first..own + 1 {
        let mut power = 0.0f32.runtime();
        if !is_left_out(offset, col, v, slot) {
            power = (score[slot * heads + head] - most).exp();
        }
        alpha[slot * heads + head] = power;
        sum += power;
    }
    for slot in first..own + 1 {
        alpha[slot * heads + head] /= sum;
    }
}

/// Sets each row to the sum of the rows of `x` that it reads, each head scaled by its share.
#[cube(launch)]
fn sum_slots(
    x: &[f32],
    share: &[f32],
    offset: &[u32],
    col: &[u32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let width = heads * dim as usize;
    let v = ABSOLUTE_POS / width;
    let at = ABSOLUTE_POS % width;
    let head = at / dim as usize;
    let mut sum = 0.0f32.runtime();
    for slot in offset[v] as usize + v..offset[v + 1] as usize + v + 1 {
        let u = col_of(offset, col, v, slot);
        sum += share[slot * heads + head] * x[u * width + at];
    }
    out[ABSOLUTE_POS] = sum;
}

/// Sets the slopes of the coefficients: products of a row's slope with the rows that it reads.
#[cube(launch)]
fn share_slopes(
    x: &[f32],
    grad: &[f32],
    offset: &[u32],
    col: &[u32],
    slot_row: &[u32],
    factor: &[f32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
    #[comptime] is_scaled: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let dim = dim as usize;
    let slot = ABSOLUTE_POS / heads as usize;
    let first = ABSOLUTE_POS % heads as usize * dim;
    let width = heads as usize * dim;
    let v = slot_row[slot] as usize;
    let u = col_of(offset, col, v, slot);
    let mut sum = 0.0f32.runtime();
    for at in first..first + dim {
        sum += grad[v * width + at] * x[u * width + at];
    }
    if comptime!(is_scaled) {
        sum *= factor[ABSOLUTE_POS];
    }
    out[ABSOLUTE_POS] = sum;
}

/// Turns slopes by coefficient into slopes by score: `a (d - sum of a d)` for each row and head,
/// times the slope of the leaky non-linearity if the score passed through one.
#[cube(launch)]
fn softmax_slopes(
    alpha: &[f32],
    score: &[f32],
    offset: &[u32],
    slope: &mut [f32],
    units: u32,
    heads: u32,
    #[comptime] is_leaky: bool,
) {
    if ABSOLUTE_POS >= units as usize {
        terminate!();
    }
    let heads = heads as usize;
    let v = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let first = offset[v] as usize + v;
    let end = offset[v + 1] as usize + v + 1;
    let mut sum = 0.0f32.runtime();
    for slot in first..end {
        sum += alpha[slot * heads + head] * slope[slot * heads + head];
    }
    for slot in first..end {
        let at = slot * heads + head;
        let mut own = alpha[at] * (slope[at] - sum);
        if comptime!(is_leaky) {
            own *= leaky_slope(score[at]);
        }
        slope[at] = own;
    }
}

#[cube(launch)]
fn multiply(a: &[f32], b: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    out[ABSOLUTE_POS] = a[ABSOLUTE_POS] * b[ABSOLUTE_POS];
}

/// Returns `x` above 0 and 0.2 `x` below.
#[cube]
pub(super) fn leaky(x: f32) -> f32 {
    select(x > 0.0f32, x, 0.2f32 * x)
}

/// Returns the slope of `leaky`.
#[cube]
pub(super) fn leaky_slope(x: f32) -> f32 {
    select(x > 0.0f32, 1.0f32, 0.2f32)
}

impl Attention {
    pub(super) fn edges(&self, device: &CubeDevice) -> Edges {
        Edges {
            rows: by_row(&self.csr, device),
            slot_row: slot_rows(&self.csr, device),
        }
    }

    pub(super) fn edges_out(&self, device: &CubeDevice) -> Cols {
        by_col(&self.csr, device)
    }

    /// Returns the factors of the coefficients, or none if all are 1.
    pub(super) fn slot_factors(&self, near: &CubeTensor) -> Option<CubeTensor> {
        let edges = self.edges(&near.device);
        let weight = self.weight.as_ref().map(|of| of.on_gpu(&near.device));
        let dropout = self.dropout.as_ref();
        let key = dropout.map(|(_, key)| key.on_gpu(&near.device));
        if !self.is_scaled() {
            return None;
        }
        let out = empty(near, self.num_slots(), self.heads);
        launch!(
            slot_factors,
            len(&out),
            near,
            arg(&edges.rows.offset),
            arg(&edges.rows.col),
            arg(&edges.slot_row),
            arg(weight.as_ref().unwrap_or(near)),
            arg(key.as_ref().unwrap_or(&edges.slot_row)),
            arg(&out),
            draw(dropout.map(|(mask, _)| mask)),
            count(self.heads),
            weight.is_some(),
            dropout.is_some()
        );
        Some(out)
    }

    /// Returns coefficients from scores.
    pub(super) fn coefficients(&self, score: &CubeTensor) -> CubeTensor {
        let edges = self.edges(&score.device);
        let alpha = empty(score, self.num_slots(), self.heads);
        let units = self.csr.num_rows() * self.heads;
        launch!(
            softmax,
            units,
            score,
            arg(score),
            arg(&edges.rows.offset),
            arg(&edges.rows.col),
            arg(&alpha),
            count(units),
            count(self.heads)
        );
        alpha
    }

    /// Returns the coefficients times their factors.
    pub(super) fn shares(&self, alpha: &CubeTensor, factor: Option<&CubeTensor>) -> CubeTensor {
        let Some(factor) = factor else {
            return alpha.clone();
        };
        let out = empty(alpha, self.num_slots(), self.heads);
        launch!(
            multiply,
            len(&out),
            alpha,
            arg(alpha),
            arg(factor),
            arg(&out)
        );
        out
    }

    /// Returns the weighted sum of each row.
    pub(super) fn sums(&self, x: &CubeTensor, share: &CubeTensor) -> CubeTensor {
        let (edges, width) = (self.edges(&x.device), cols(x));
        let out = empty(x, self.csr.num_rows(), width);
        launch!(
            sum_slots,
            len(&out),
            x,
            arg(x),
            arg(share),
            arg(&edges.rows.offset),
            arg(&edges.rows.col),
            arg(&out),
            count(self.heads),
            count(width / self.heads)
        );
        out
    }

    /// Returns the slopes of the scores; `leaky` holds the scores that a leaky non-linearity gave.
    pub(super) fn slopes_of_scores(
        &self,
        (x, grad): (&CubeTensor, &CubeTensor),
        (alpha, factor): (&CubeTensor, Option<&CubeTensor>),
        leaky: Option<&CubeTensor>,
    ) -> CubeTensor {
        let (edges, width) = (self.edges(&x.device), cols(x));
        let out = empty(x, self.num_slots(), self.heads);
        launch!(
            share_slopes,
            len(&out),
            x,
            arg(x),
            arg(grad),
            arg(&edges.rows.offset),
            arg(&edges.rows.col),
            arg(&edges.slot_row),
            arg(factor.unwrap_or(alpha)),
            arg(&out),
            count(self.heads),
            count(width / self.heads),
            factor.is_some()
        );
        let units = self.csr.num_rows() * self.heads;
        launch!(
            softmax_slopes,
            units,
            x,
            arg(alpha),
            arg(leaky.unwrap_or(alpha)),
            arg(&edges.rows.offset),
            arg(&out),
            count(units),
            count(self.heads),
            leaky.is_some()
        );
        out
    }
}
