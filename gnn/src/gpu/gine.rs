//! GINE's sum of messages `relu(x[u] + lin(edge feature))` on a GPU.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::graph::{by_col, by_row, edge_rows};
use super::memory::{arg, cols, count, empty, launch, len, rows, shaped_like};
use super::sum::{PIECE, sum_rows};
use crate::kernel::Gine;

/// The inputs of a message.
#[derive(CubeLaunch, CubeType)]
struct Source {
    /// `[num_cols, dim]`.
    x: Box<[f32]>,
    /// `[dim, edge_dim]`.
    weight: Box<[f32]>,
    bias: Box<[f32]>,
    /// `[num_edges, edge_dim]`, and each edge's coefficient.
    feature: Box<[f32]>,
    edge: Box<[f32]>,
    dim: u32,
    edge_dim: u32,
}

/// Returns value `at` of an edge's message before the non-linearity.
#[cube]
fn message(source: &Source, e: usize, u: usize, at: usize) -> f32 {
    let edge_dim = source.edge_dim as usize;
    let mut sum = source.x[u * source.dim as usize + at] + source.bias[at];
    for k in 0..edge_dim {
        sum += source.weight[at * edge_dim + k] * source.feature[e * edge_dim + k];
    }
    sum
}

#[cube(launch)]
fn sums(
    source: &Source,
    offset: &[u32],
    col: &[u32],
    out: &mut [f32],
    first: u32,
    #[comptime] has_own: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let v = ABSOLUTE_POS / source.dim as usize;
    let at = ABSOLUTE_POS % source.dim as usize;
    let mut sum = 0.0f32.runtime();
    if comptime!(has_own) {
        sum = source.x[(v + first as usize) * source.dim as usize + at];
    }
    for e in offset[v] as usize..offset[v + 1] as usize {
        let message = message(source, e, col[e] as usize, at);
        sum += select(message > 0.0f32, source.edge[e] * message, 0.0f32);
    }
    out[ABSOLUTE_POS] = sum;
}

/// Returns the slope of value `at` of an edge's message.
#[cube]
fn slope(source: &Source, grad: &[f32], e: usize, v: usize, u: usize, at: usize) -> f32 {
    let of_row = source.edge[e] * grad[v * source.dim as usize + at];
    select(message(source, e, u, at) > 0.0f32, of_row, 0.0f32)
}

#[cube(launch)]
fn x_slopes(
    source: &Source,
    grad: &[f32],
    col_offset: &[u32],
    col_edge: &[u32],
    col_row: &[u32],
    out: &mut [f32],
    own_rows: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let u = ABSOLUTE_POS / source.dim as usize;
    let at = ABSOLUTE_POS % source.dim as usize;
    let mut sum = 0.0f32.runtime();
    if u < own_rows as usize {
        sum = grad[ABSOLUTE_POS];
    }
    for e in col_offset[u] as usize..col_offset[u + 1] as usize {
        sum += slope(
            source,
            grad,
            col_edge[e] as usize,
            col_row[e] as usize,
            u,
            at,
        );
    }
    out[ABSOLUTE_POS] = sum;
}

/// Adds up the slope of the weight, or of the bias, over the edges of each piece.
#[cube(launch)]
fn weight_terms(
    source: &Source,
    grad: &[f32],
    col: &[u32],
    edge_row: &[u32],
    out: &mut [f32],
    edges: u32,
    #[comptime] piece: u32,
    #[comptime] of_bias: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let mut each = source.edge_dim as usize;
    if comptime!(of_bias) {
        each = 1usize.runtime();
    }
    let k = ABSOLUTE_POS % each;
    let at = ABSOLUTE_POS / each % source.dim as usize;
    let first = (ABSOLUTE_POS / each / source.dim as usize) as u32 * piece;
    let mut sum = 0.0f32.runtime();
    for e in first as usize..u32::min(edges, first + piece) as usize {
        let mut term = slope(source, grad, e, edge_row[e] as usize, col[e] as usize, at);
        if comptime!(!of_bias) {
            term *= source.feature[e * source.edge_dim as usize + k];
        }
        sum += term;
    }
    out[ABSOLUTE_POS] = sum;
}

impl Gine {
    fn source(&self, inputs: &[CubeTensor]) -> SourceLaunch {
        let (x, weight) = (&inputs[0], &inputs[1]);
        SourceLaunch::new(
            arg(x),
            arg(weight),
            arg(&inputs[2]),
            arg(&self.feature.on_gpu(&x.device)),
            arg(&self.edge.on_gpu(&x.device)),
            count(cols(x)),
            count(cols(weight)),
        )
    }

    /// Returns the slope of the weight or of the bias, in the shape of `like`.
    fn weight_slope(
        &self,
        inputs: &[CubeTensor],
        grad: &CubeTensor,
        like: &CubeTensor,
        of_bias: bool,
    ) -> CubeTensor {
        let (csr, device) = (&self.csr, &grad.device);
        let num_edges = csr.num_edges();
        // At least one piece, so that the sum has a row.
        let out = empty(like, num_edges.div_ceil(PIECE).max(1), len(like));
        launch!(
            weight_terms,
            len(&out),
            grad,
            self.source(inputs),
            arg(grad),
            arg(&by_row(csr, device).col),
            arg(&edge_rows(csr, device)),
            arg(&out),
            count(num_edges),
            count(PIECE),
            of_bias
        );
        shaped_like(sum_rows(&out), like)
    }
}

impl GpuKernel for Gine {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let (x, csr) = (&inputs[0], &self.csr);
        let graph = by_row(csr, &x.device);
        let out = empty(x, csr.num_rows(), cols(x));
        launch!(
            sums,
            len(&out),
            x,
            self.source(inputs),
            arg(&graph.offset),
            arg(&graph.col),
            arg(&out),
            count(csr.first),
            !csr.bipartite
        );
        (out, Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (x, csr) = (&inputs[0], &self.csr);
        let of_x = needed[0].then(|| {
            let graph = by_col(csr, &x.device);
            let out = empty(x, rows(x), cols(x));
            let own_rows = if csr.bipartite { 0 } else { csr.num_rows() };
            launch!(
                x_slopes,
                len(&out),
                x,
                self.source(inputs),
                arg(grad),
                arg(&graph.offset),
                arg(&graph.edge),
                arg(&graph.row),
                arg(&out),
                count(own_rows)
            );
            out
        });
        let weight = self.weight_slope(inputs, grad, &inputs[1], false);
        let bias = self.weight_slope(inputs, grad, &inputs[2], true);
        vec![of_x, Some(weight), Some(bias)]
    }
}
