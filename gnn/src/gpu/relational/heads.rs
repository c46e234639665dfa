//! Products and sums of rows over edges, head by head.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::gpu::GpuKernel;
use crate::gpu::attention::Edges;
use crate::gpu::graph::by_col;
use crate::gpu::memory::{arg, cols, count, empty, launch, len};
use crate::kernel::{Csr, DotScores, HeadSum};

/// Sets each column to the sum of the rows of `x` that read it, each head scaled by its share.
#[cube(launch)]
fn sum_of_rows(
    x: &[f32],
    share: &[f32],
    col_offset: &[u32],
    col_edge: &[u32],
    col_row: &[u32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
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
        sum += share[col_edge[e] as usize * heads + head] * x[col_row[e] as usize * width + at];
    }
    out[ABSOLUTE_POS] = sum;
}

/// Returns, for each column, the sum of the rows of `x` that read it, each head scaled by its
/// share.
fn sums_of_rows(csr: &Csr, heads: usize, x: &CubeTensor, share: &CubeTensor) -> CubeTensor {
    let out_edges = by_col(csr, &x.device);
    let out = empty(x, csr.num_cols, cols(x));
    launch!(
        sum_of_rows,
        len(&out),
        x,
        arg(x),
        arg(share),
        arg(&out_edges.offset),
        arg(&out_edges.edge),
        arg(&out_edges.row),
        arg(&out),
        count(heads),
        count(cols(x) / heads)
    );
    out
}

impl GpuKernel for DotScores {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (query, key) = (&inputs[0], &inputs[1]);
        let edges = Edges::of(&self.csr, 0, self.heads, &query.device);
        (edges.products((key, query), None), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (query, key) = (&inputs[0], &inputs[1]);
        let edges = Edges::of(&self.csr, 0, self.heads, &query.device);
        let of_query = edges.sums(key, grad);
        let of_key = sums_of_rows(&self.csr, self.heads, query, grad);
        vec![Some(of_query), Some(of_key)]
    }
}

impl GpuKernel for HeadSum {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (alpha, x) = (&inputs[0], &inputs[1]);
        let edges = Edges::of(&self.csr, 0, self.heads, &x.device);
        (edges.sums(x, alpha), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (alpha, x) = (&inputs[0], &inputs[1]);
        let edges = Edges::of(&self.csr, 0, self.heads, &x.device);
        let of_alpha = edges.products((x, grad), None);
        let of_x = sums_of_rows(&self.csr, self.heads, grad, alpha);
        vec![Some(of_alpha), Some(of_x)]
    }
}
