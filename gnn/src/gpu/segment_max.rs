//! Max aggregation on a GPU: the largest message of each row, for each feature.
//!
//! A message is the feature of an edge's source, times the edge's factor if there are factors. In
//! the kernels `v` is a row, `u` a column, and `edge` holds the factors (`x` if none).

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::graph::{by_col, by_row};
use super::memory::{arg, cols, count, empty, empty_positions, launch, len, rows};
use crate::kernel::SegmentMax;

// Forward: the largest message, and the number of its edge (`winner`).
#[cube(launch)]
fn max_rows(
    x: &[f32],
    offset: &[u32],
    col: &[u32],
    edge: &[f32],
    out: &mut [f32],
    winner: &mut [u32],
    dim: u32,
    #[comptime] has_factor: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let dim = dim as usize;
    let v = ABSOLUTE_POS / dim;
    let at = ABSOLUTE_POS % dim;
    let first = offset[v];
    let mut best = 0.0f32.runtime();
    let mut best_edge = u32::MAX.runtime();
    for e in first..offset[v + 1] {
        let mut value = x[col[e as usize] as usize * dim + at];
        if comptime!(has_factor) {
            value *= edge[e as usize];
        }
        // The first of several equal messages wins.
        if e == first || value > best {
            best = value;
            best_edge = e;
        }
    }
    out[ABSOLUTE_POS] = best;
    winner[ABSOLUTE_POS] = best_edge;
}

// Backward: each source gets the gradient of the rows where one of its edges won.
#[cube(launch)]
fn max_cols(
    grad: &[f32],
    winner: &[u32],
    offset: &[u32],
    of_edge: &[u32],
    row: &[u32],
    edge: &[f32],
    out: &mut [f32],
    dim: u32,
    #[comptime] has_factor: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let dim = dim as usize;
    let u = ABSOLUTE_POS / dim;
    let at = ABSOLUTE_POS % dim;
    let mut sum = 0.0f32.runtime();
    for e in offset[u] as usize..offset[u + 1] as usize {
        let place = row[e] as usize * dim + at;
        if winner[place] == of_edge[e] {
            let mut slope = grad[place];
            if comptime!(has_factor) {
                slope *= edge[of_edge[e] as usize];
            }
            sum += slope;
        }
    }
    out[ABSOLUTE_POS] = sum;
}

impl GpuKernel for SegmentMax {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, dim) = (&inputs[0], cols(&inputs[0]));
        let graph = by_row(&self.csr, &x.device);
        let edge = self.edge.as_ref().map(|edge| edge.on_gpu(&x.device));
        let out = empty(x, self.csr.num_rows(), dim);
        let winner = empty_positions(x, self.csr.num_rows(), dim);
        launch!(
            max_rows,
            len(&out),
            x,
            arg(x),
            arg(&graph.offset),
            arg(&graph.col),
            arg(edge.as_ref().unwrap_or(x)),
            arg(&out),
            arg(&winner),
            count(dim),
            edge.is_some()
        );
        (out, vec![winner])
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, dim) = (&inputs[0], cols(&inputs[0]));
        let graph = by_col(&self.csr, &x.device);
        let edge = self.edge.as_ref().map(|edge| edge.on_gpu(&x.device));
        let out = empty(x, rows(x), dim);
        launch!(
            max_cols,
            len(&out),
            x,
            arg(grad),
            arg(&saved[0]),
            arg(&graph.offset),
            arg(&graph.edge),
            arg(&graph.row),
            arg(edge.as_ref().unwrap_or(x)),
            arg(&out),
            count(dim),
            edge.is_some()
        );
        vec![Some(out)]
    }
}
