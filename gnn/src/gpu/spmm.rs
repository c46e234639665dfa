//! Weighted sums of rows over edges, on a GPU.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::graph::{by_col, by_row};
use super::memory::{arg, cols, count, empty, launch, len, rows};
use crate::kernel::Spmm;

#[cube(launch)]
fn spmm_rows(
    x: &[f32],
    offset: &[u32],
    col: &[u32],
    edge: &[f32],
    own: &[f32],
    out: &mut [f32],
    dim: u32,
    first: u32,
    #[comptime] has_own: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let dim = dim as usize;
    let v = ABSOLUTE_POS / dim;
    let at = ABSOLUTE_POS % dim;
    let mut sum = 0.0f32.runtime();
    if comptime!(has_own) {
        sum += own[v] * x[(v + first as usize) * dim + at];
    }
    for e in offset[v] as usize..offset[v + 1] as usize {
        sum += edge[e] * x[col[e] as usize * dim + at];
    }
    out[ABSOLUTE_POS] = sum;
}

#[cube(launch)]
fn spmm_cols(
    grad: &[f32],
    offset: &[u32],
    of_edge: &[u32],
    row: &[u32],
    edge: &[f32],
    own: &[f32],
    out: &mut [f32],
    dim: u32,
    rows: u32,
    #[comptime] has_own: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let dim = dim as usize;
    let u = ABSOLUTE_POS / dim;
    let at = ABSOLUTE_POS % dim;
    let mut sum = 0.0f32.runtime();
    if comptime!(has_own) {
        if u < rows as usize {
            sum += own[u] * grad[u * dim + at];
        }
    }
    for e in offset[u] as usize..offset[u + 1] as usize {
        // Only the first `rows` rows were computed.
        if row[e] < rows {
            sum += edge[of_edge[e] as usize] * grad[row[e] as usize * dim + at];
        }
    }
    out[ABSOLUTE_POS] = sum;
}

impl GpuKernel for Spmm {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, dim) = (&inputs[0], cols(&inputs[0]));
        let (graph, edge) = (by_row(&self.csr, &x.device), self.edge.on_gpu(&x.device));
        let own = self.own.as_ref().map(|own| own.on_gpu(&x.device));
        let out = empty(x, self.rows, dim);
        launch!(
            spmm_rows,
            len(&out),
            x,
            arg(x),
            arg(&graph.offset),
            arg(&graph.col),
            arg(&edge),
            arg(own.as_ref().unwrap_or(&edge)),
            arg(&out),
            count(dim),
            count(self.csr.first),
            own.is_some()
        );
        (out, Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, dim) = (&inputs[0], cols(&inputs[0]));
        let (graph, edge) = (by_col(&self.csr, &x.device), self.edge.on_gpu(&x.device));
        let own = self.own.as_ref().map(|own| own.on_gpu(&x.device));
        let out = empty(x, rows(x), dim);
        launch!(
            spmm_cols,
            len(&out),
            x,
            arg(grad),
            arg(&graph.offset),
            arg(&graph.edge),
            arg(&graph.row),
            arg(&edge),
            arg(own.as_ref().unwrap_or(&edge)),
            arg(&out),
            count(dim),
            count(self.rows),
            own.is_some()
        );
        vec![Some(out)]
    }
}
