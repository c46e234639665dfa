//! Divides each row by its length.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::gpu::GpuKernel;
use crate::gpu::memory::{arg, count, empty, launch, len, rows};
use crate::kernel::RowNormalize;

/// Sets 1 / divisor of each row.
#[cube(launch)]
fn row_scales(x: &[f32], out: &mut [f32], cols: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let first = ABSOLUTE_POS * cols as usize;
    let mut square = 0.0f32.runtime();
    for at in first..first + cols as usize {
        square += x[at] * x[at];
    }
    out[ABSOLUTE_POS] = 1.0f32 / f32::max(square.sqrt(), 1e-12f32);
}

#[cube(launch)]
fn scale_rows(x: &[f32], scale: &[f32], out: &mut [f32], cols: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    out[ABSOLUTE_POS] = x[ABSOLUTE_POS] * scale[ABSOLUTE_POS / cols as usize];
}

/// Sets the share of each row that its slope loses: that along the row, if it was divided by its
/// length.
#[cube(launch)]
fn row_shares(x: &[f32], grad: &[f32], scale: &[f32], out: &mut [f32], cols: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let first = ABSOLUTE_POS * cols as usize;
    let scale = scale[ABSOLUTE_POS];
    let mut square = 0.0f32.runtime();
    let mut product = 0.0f32.runtime();
    for at in first..first + cols as usize {
        square += x[at] * x[at];
        product += x[at] * grad[at];
    }
    out[ABSOLUTE_POS] = select(square.sqrt() > 1e-12f32, product * scale * scale, 0.0f32);
}

#[cube(launch)]
fn row_slopes(x: &[f32], grad: &[f32], scale: &[f32], share: &[f32], out: &mut [f32], cols: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let v = ABSOLUTE_POS / cols as usize;
    out[ABSOLUTE_POS] = (grad[ABSOLUTE_POS] - x[ABSOLUTE_POS] * share[v]) * scale[v];
}

impl GpuKernel for RowNormalize {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, cols) = (&inputs[0], count(self.cols));
        let scale = empty(x, rows(x), 1);
        launch!(row_scales, len(&scale), x, arg(x), arg(&scale), cols);
        let out = empty(x, rows(x), self.cols);
        launch!(
            scale_rows,
            len(&out),
            x,
            arg(x),
            arg(&scale),
            arg(&out),
            cols
        );
        (out, vec![scale])
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, scale, cols) = (&inputs[0], &saved[0], count(self.cols));
        let share = empty(x, rows(x), 1);
        launch!(
            row_shares,
            len(&share),
            x,
            arg(x),
            arg(grad),
            arg(scale),
            arg(&share),
            cols
        );
        let out = empty(x, rows(x), self.cols);
        launch!(
            row_slopes,
            len(&out),
            x,
            arg(x),
            arg(grad),
            arg(scale),
            arg(&share),
            arg(&out),
            cols
        );
        vec![Some(out)]
    }
}
