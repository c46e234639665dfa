//! GPU kernels shared by all attention: factors of in-edges, softmax over a row, weighted sums.
//!
//! Coefficients are laid out as in `kernel::attention`, `[num_slots, heads]`: a row has one slot
//! for each in-edge, then one for the self-loop added to the row, if there is one. Where self-loops
//! are added, those of the edge list have coefficient 0.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::graph::{Cols, Rows, by_col, by_row, edge_rows, slot_rows};
use super::mask::{Draw, draw, edge_factor, ordinal};
use super::memory::{arg, cols, count, empty, launch, len, rows};
use crate::kernel::{Attention, Csr};

/// The slots of coefficients.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Slots {
    /// `[num_rows + 1]`: where the edges of each row start.
    pub(super) offset: Box<[u32]>,
    /// `[num_edges]`: column of each edge.
    pub(super) col: Box<[u32]>,
    /// Number of self-loops added to each row: 0 or 1.
    pub(super) loops: u32,
    /// Column of the own node of row 0.
    pub(super) first: u32,
    /// Position of the key of row 0 among the keys.
    pub(super) own_key: u32,
}

/// Returns the first slot of row `v`.
#[cube]
pub(super) fn first_slot(slots: &Slots, v: usize) -> usize {
    slot_of(slots, v, slots.offset[v] as usize)
}

/// Returns the slot of edge `e` of row `v`.
#[cube]
pub(super) fn slot_of(slots: &Slots, v: usize, e: usize) -> usize {
    e + v * slots.loops as usize
}

/// Returns the edge of a slot of row `v`, if the slot is not that of the added self-loop.
#[cube]
pub(super) fn edge_of(slots: &Slots, v: usize, slot: usize) -> usize {
    slot - v * slots.loops as usize
}

/// Tells whether a slot of row `v` belongs to the self-loop added to the row.
#[cube]
pub(super) fn is_own(slots: &Slots, v: usize, slot: usize) -> bool {
    // Without added self-loops, this is the first slot of another row.
    slot == slot_of(slots, v, slots.offset[v + 1] as usize)
}

/// Returns the column of the own node of row `v`.
#[cube]
pub(super) fn own_col(slots: &Slots, v: usize) -> usize {
    v + slots.first as usize
}

/// Returns the column that a slot of row `v` reads.
#[cube]
pub(super) fn col_of(slots: &Slots, v: usize, slot: usize) -> usize {
    let mut u = own_col(slots, v);
    if !is_own(slots, v, slot) {
        u = slots.col[edge_of(slots, v, slot)] as usize;
    }
    u
}

/// Tells whether a slot belongs to a self-loop of the edge list whose coefficient is 0.
#[cube]
pub(super) fn is_left_out(slots: &Slots, v: usize, slot: usize) -> bool {
    let mut left_out = false.runtime();
    if slots.loops > 0 {
        if !is_own(slots, v, slot) {
            left_out = slots.col[edge_of(slots, v, slot)] as usize == own_col(slots, v);
        }
    }
    left_out
}

/// Sets the factor of each coefficient: weight times dropout of its edge.
#[cube(launch)]
fn slot_factors(
    slots: &Slots,
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
    let own = is_own(slots, v, slot);
    let mut factor = 1.0f32.runtime();
    if comptime!(has_weight) {
        if !own {
            factor = weight[edge_of(slots, v, slot)];
        }
    }
    if comptime!(drops) {
        let head = (ABSOLUTE_POS % heads as usize) as u32;
        let place = ordinal(edge_of(slots, v, slot) as u32 - slots.offset[v], own);
        let u = col_of(slots, v, slot);
        factor *= edge_factor(&draw, key, slots.own_key as usize + v, u, place, head);
    }
    out[ABSOLUTE_POS] = factor;
}

/// Turns the scores of each row into coefficients that add up to 1 for each head.
#[cube(launch)]
fn softmax(slots: &Slots, score: &[f32], alpha: &mut [f32], units: u32, heads: u32) {
    if ABSOLUTE_POS >= units as usize {
        terminate!();
    }
    let heads = heads as usize;
    let v = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let first = first_slot(slots, v);
    let end = first_slot(slots, v + 1);
    if first < end {
        // The last slot is never left out.
        let mut most = score[(end - 1) * heads + head];
        for slot in first..end - 1 {
            if !is_left_out(slots, v, slot) {
                most = f32::max(most, score[slot * heads + head]);
            }
        }
        let mut sum = 0.0f32.runtime();
        for slot in first..end {
            let mut power = 0.0f32.runtime();
            if !is_left_out(slots, v, slot) {
                power = (score[slot * heads + head] - most).exp();
            }
            alpha[slot * heads + head] = power;
            sum += power;
        }
        for slot in first..end {
            alpha[slot * heads + head] /= sum;
        }
    }
}

/// Sets each row to the sum of the rows of `x` that it reads, each head scaled by its share.
#[cube(launch)]
fn sum_slots(slots: &Slots, x: &[f32], share: &[f32], out: &mut [f32], heads: u32, dim: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let width = heads * dim as usize;
    let v = ABSOLUTE_POS / width;
    let at = ABSOLUTE_POS % width;
    let head = at / dim as usize;
    let mut sum = 0.0f32.runtime();
    for slot in first_slot(slots, v)..first_slot(slots, v + 1) {
        let u = col_of(slots, v, slot);
        sum += share[slot * heads + head] * x[u * width + at];
    }
    out[ABSOLUTE_POS] = sum;
}

/// Sets, for each slot and head, the product of a row of `of_row` with the row of `x` that it
/// reads, times the slot's factor if there are factors.
#[cube(launch)]
fn slot_products(
    slots: &Slots,
    x: &[f32],
    of_row: &[f32],
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
    let u = col_of(slots, v, slot);
    let mut sum = 0.0f32.runtime();
    for at in first..first + dim {
        sum += of_row[v * width + at] * x[u * width + at];
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
    slots: &Slots,
    alpha: &[f32],
    score: &[f32],
    slope: &[f32],
    out: &mut [f32],
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
    let mut sum = 0.0f32.runtime();
    for slot in first_slot(slots, v)..first_slot(slots, v + 1) {
        sum += alpha[slot * heads + head] * slope[slot * heads + head];
    }
    for slot in first_slot(slots, v)..first_slot(slots, v + 1) {
        let at = slot * heads + head;
        let mut own = alpha[at] * (slope[at] - sum);
        if comptime!(is_leaky) {
            own *= leaky_slope(score[at]);
        }
        out[at] = own;
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

/// Returns the product of two matrices of one shape, value by value; the first if there is no
/// second.
pub(super) fn scaled(x: &CubeTensor, factor: Option<&CubeTensor>) -> CubeTensor {
    let Some(factor) = factor else {
        return x.clone();
    };
    let out = empty(x, rows(x), cols(x));
    launch!(multiply, len(&out), x, arg(x), arg(factor), arg(&out));
    out
}

/// The edges of attention on a device.
pub(super) struct Edges {
    pub(super) rows: Rows,
    /// `[num_slots]`: row of each coefficient.
    pub(super) slot_row: CubeTensor,
    /// Number of self-loops added to each row: 0 or 1.
    pub(super) loops: usize,
    /// Column of the own node of row 0.
    pub(super) first: usize,
    own_key: usize,
    num_rows: usize,
    num_slots: usize,
    heads: usize,
}

impl Edges {
    /// Returns the edges with some self-loops added to each row.
    pub(super) fn of(csr: &Csr, loops: usize, heads: usize, device: &CubeDevice) -> Edges {
        let slot_row = match loops {
            0 => edge_rows(csr, device),
            _ => slot_rows(csr, device),
        };
        Edges {
            rows: by_row(csr, device),
            slot_row,
            loops,
            first: csr.first,
            own_key: csr.own_key(0),
            num_rows: csr.num_rows(),
            num_slots: csr.num_edges() + csr.num_rows() * loops,
            heads,
        }
    }

    /// Passes the slots to a kernel.
    pub(super) fn slots(&self) -> SlotsLaunch {
        SlotsLaunch::new(
            arg(&self.rows.offset),
            arg(&self.rows.col),
            count(self.loops),
            count(self.first),
            count(self.own_key),
        )
    }

    /// Returns coefficients from scores.
    pub(super) fn softmax(&self, score: &CubeTensor) -> CubeTensor {
        let alpha = empty(score, self.num_slots, self.heads);
        let units = self.num_rows * self.heads;
        launch!(
            softmax,
            units,
            score,
            self.slots(),
            arg(score),
            arg(&alpha),
            count(units),
            count(self.heads)
        );
        alpha
    }

    /// Returns slopes of scores from slopes of coefficients; `leaky` holds the scores that a leaky
    /// non-linearity gave.
    pub(super) fn softmax_slopes(
        &self,
        (alpha, slope): (&CubeTensor, &CubeTensor),
        leaky: Option<&CubeTensor>,
    ) -> CubeTensor {
        let out = empty(alpha, self.num_slots, self.heads);
        let units = self.num_rows * self.heads;
        launch!(
            softmax_slopes,
            units,
            alpha,
            self.slots(),
            arg(alpha),
            arg(leaky.unwrap_or(alpha)),
            arg(slope),
            arg(&out),
            count(units),
            count(self.heads),
            leaky.is_some()
        );
        out
    }

    /// Returns the weighted sum of each row.
    pub(super) fn sums(&self, x: &CubeTensor, share: &CubeTensor) -> CubeTensor {
        let out = empty(x, self.num_rows, cols(x));
        launch!(
            sum_slots,
            len(&out),
            x,
            self.slots(),
            arg(x),
            arg(share),
            arg(&out),
            count(self.heads),
            count(cols(x) / self.heads)
        );
        out
    }

    /// Returns, for each slot and head, the product of a row of `of_row` with the row of `x` that
    /// it reads, times the slot's factor if there are factors.
    pub(super) fn products(
        &self,
        (x, of_row): (&CubeTensor, &CubeTensor),
        factor: Option<&CubeTensor>,
    ) -> CubeTensor {
        let out = empty(x, self.num_slots, self.heads);
        launch!(
            slot_products,
            len(&out),
            x,
            self.slots(),
            arg(x),
            arg(of_row),
            arg(&self.slot_row),
            arg(factor.unwrap_or(x)),
            arg(&out),
            count(self.heads),
            count(cols(x) / self.heads),
            factor.is_some()
        );
        out
    }
}

impl Attention {
    pub(super) fn edges(&self, device: &CubeDevice) -> Edges {
        Edges::of(&self.csr, self.loops(), self.heads, device)
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
            edges.slots(),
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

    /// Returns the slopes of the scores; `leaky` holds the scores that a leaky non-linearity gave.
    pub(super) fn slopes_of_scores(
        &self,
        (x, grad): (&CubeTensor, &CubeTensor),
        (alpha, factor): (&CubeTensor, Option<&CubeTensor>),
        leaky: Option<&CubeTensor>,
    ) -> CubeTensor {
        let edges = self.edges(&x.device);
        let slope = edges.products((x, grad), factor);
        edges.softmax_slopes((alpha, &slope), leaky)
    }
}
