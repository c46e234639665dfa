//! Batch and layer normalisation on a GPU.
//!
//! A matrix of statistics is `[rows or columns, 2]`: mean, then 1 / deviation.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::memory::{arg, cols, count, empty, launch, len, rows, shaped_like, upload};
use super::sum::sum_rows;
use crate::kernel::{BatchNorm, LayerNorm};

/// Sets mean and 1 / deviation of each row.
#[cube(launch)]
fn row_statistics(x: &[f32], out: &mut [f32], cols: u32) {
    if 2 * ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let first = ABSOLUTE_POS * cols as usize;
    let share = 1.0f32 / f32::cast_from(cols);
    let mut mean = 0.0f32.runtime();
    for at in first..first + cols as usize {
        mean += x[at];
    }
    mean *= share;
    let mut square = 0.0f32.runtime();
    for at in first..first + cols as usize {
        let delta = x[at] - mean;
        square += delta * delta;
    }
    out[2 * ABSOLUTE_POS] = mean;
    out[2 * ABSOLUTE_POS + 1] = 1.0f32 / (square * share + 1e-5f32).sqrt();
}

/// Returns this unit's value, normalised by the statistics of its row or its column.
#[cube]
fn normal(x: &[f32], statistics: &[f32], cols: u32, #[comptime] by_row: bool) -> f32 {
    let mut at = ABSOLUTE_POS % cols as usize;
    if comptime!(by_row) {
        at = ABSOLUTE_POS / cols as usize;
    }
    (x[ABSOLUTE_POS] - statistics[2 * at]) * statistics[2 * at + 1]
}

#[cube(launch)]
fn normalise(
    x: &[f32],
    statistics: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    cols: u32,
    #[comptime] by_row: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let at = ABSOLUTE_POS % cols as usize;
    out[ABSOLUTE_POS] = normal(x, statistics, cols, by_row) * weight[at] + bias[at];
}

/// Sets the terms of the weight's slope.
#[cube(launch)]
fn weight_terms(
    x: &[f32],
    statistics: &[f32],
    grad: &[f32],
    out: &mut [f32],
    cols: u32,
    #[comptime] by_row: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    out[ABSOLUTE_POS] = grad[ABSOLUTE_POS] * normal(x, statistics, cols, by_row);
}

/// Sets two sums over each row of `grad * weight`: plain, and times the normalised values.
#[cube(launch)]
fn row_slopes(
    x: &[f32],
    statistics: &[f32],
    grad: &[f32],
    weight: &[f32],
    out: &mut [f32],
    cols: u32,
) {
    if 2 * ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let first = ABSOLUTE_POS * cols as usize;
    let mean = statistics[2 * ABSOLUTE_POS];
    let inverse = statistics[2 * ABSOLUTE_POS + 1];
    let mut plain = 0.0f32.runtime();
    let mut scaled = 0.0f32.runtime();
    for at in 0..cols as usize {
        let slope = grad[first + at] * weight[at];
        plain += slope;
        scaled += slope * (x[first + at] - mean) * inverse;
    }
    out[2 * ABSOLUTE_POS] = plain;
    out[2 * ABSOLUTE_POS + 1] = scaled;
}

#[cube(launch)]
fn layer_slopes(
    x: &[f32],
    statistics: &[f32],
    grad: &[f32],
    weight: &[f32],
    sums: &[f32],
    out: &mut [f32],
    cols: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let v = ABSOLUTE_POS / cols as usize;
    let share = 1.0f32 / f32::cast_from(cols);
    let pulled = sums[2 * v] + normal(x, statistics, cols, true) * sums[2 * v + 1];
    let slope = grad[ABSOLUTE_POS] * weight[ABSOLUTE_POS % cols as usize];
    out[ABSOLUTE_POS] = statistics[2 * v + 1] * (slope - share * pulled);
}

#[cube(launch)]
fn batch_slopes(
    x: &[f32],
    statistics: &[f32],
    grad: &[f32],
    weight: &[f32],
    of_weight: &[f32],
    of_bias: &[f32],
    out: &mut [f32],
    cols: u32,
    active: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let at = ABSOLUTE_POS % cols as usize;
    let mut slope = grad[ABSOLUTE_POS];
    // Mean and variance also depend on the rows that they were computed from.
    if ABSOLUTE_POS / (cols as usize) < active as usize {
        let pulled = of_bias[at] + normal(x, statistics, cols, false) * of_weight[at];
        slope -= pulled / f32::cast_from(active);
    }
    out[ABSOLUTE_POS] = weight[at] * statistics[2 * at + 1] * slope;
}

fn forward(inputs: &[CubeTensor], statistics: &CubeTensor, by_row: bool) -> CubeTensor {
    let (x, width) = (&inputs[0], cols(&inputs[0]));
    let out = empty(x, rows(x), width);
    launch!(
        normalise,
        len(x),
        x,
        arg(x),
        arg(statistics),
        arg(&inputs[1]),
        arg(&inputs[2]),
        arg(&out),
        count(width),
        by_row
    );
    out
}

/// Returns the slopes of weight and bias.
fn parameter_slopes(
    inputs: &[CubeTensor],
    statistics: &CubeTensor,
    grad: &CubeTensor,
    by_row: bool,
) -> [CubeTensor; 2] {
    let (x, width) = (&inputs[0], cols(&inputs[0]));
    let terms = empty(x, rows(x), width);
    launch!(
        weight_terms,
        len(x),
        x,
        arg(x),
        arg(statistics),
        arg(grad),
        arg(&terms),
        count(width),
        by_row
    );
    [
        shaped_like(sum_rows(&terms), &inputs[1]),
        shaped_like(sum_rows(grad), &inputs[2]),
    ]
}

impl GpuKernel for LayerNorm {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let x = &inputs[0];
        let statistics = empty(x, rows(x), 2);
        launch!(
            row_statistics,
            rows(x),
            x,
            arg(x),
            arg(&statistics),
            count(self.cols)
        );
        (forward(inputs, &statistics, true), vec![statistics])
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, weight, statistics) = (&inputs[0], &inputs[1], &saved[0]);
        let (sums, out) = (empty(x, rows(x), 2), empty(x, rows(x), self.cols));
        launch!(
            row_slopes,
            rows(x),
            x,
            arg(x),
            arg(statistics),
            arg(grad),
            arg(weight),
            arg(&sums),
            count(self.cols)
        );
        launch!(
            layer_slopes,
            len(x),
            x,
            arg(x),
            arg(statistics),
            arg(grad),
            arg(weight),
            arg(&sums),
            arg(&out),
            count(self.cols)
        );
        let [of_weight, of_bias] = parameter_slopes(inputs, statistics, grad, true);
        vec![Some(out), Some(of_weight), Some(of_bias)]
    }
}

impl GpuKernel for BatchNorm {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (mean, inverse) = self.columns::<f32>();
        let pairs: Vec<f32> = mean
            .into_iter()
            .zip(inverse)
            .flat_map(<[f32; 2]>::from)
            .collect();
        let statistics = upload(&pairs, &inputs[0].device);
        (forward(inputs, &statistics, false), vec![statistics])
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, width) = (&inputs[0], cols(&inputs[0]));
        let [of_weight, of_bias] = parameter_slopes(inputs, &saved[0], grad, false);
        let out = empty(x, rows(x), width);
        launch!(
            batch_slopes,
            len(x),
            x,
            arg(x),
            arg(&saved[0]),
            arg(grad),
            arg(&inputs[1]),
            arg(&of_weight),
            arg(&of_bias),
            arg(&out),
            count(width),
            count(self.active)
        );
        vec![Some(out), Some(of_weight), Some(of_bias)]
    }
}
