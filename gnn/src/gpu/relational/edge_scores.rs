//! Scores of edges: a sum of one number of each end and one of the edge or its relation.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::gpu::GpuKernel;
use crate::gpu::attention::{leaky, leaky_slope};
use crate::gpu::graph::{by_col, by_row, edge_rows};
use crate::gpu::memory::{arg, cols, count, empty, launch, len, rows, shaped_like};
use crate::gpu::sum::{PIECE, sum_rows};
use crate::kernel::{EdgeScores, EdgeTerm};

/// What the third input holds; kernels are compiled for each.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Term {
    None,
    Edge,
    Relation,
}

/// Sets the scores of the edges, after the non-linearity.
#[cube(launch)]
fn scores(
    src: &[f32],
    dst: &[f32],
    z: &[f32],
    col: &[u32],
    edge_row: &[u32],
    relation: &[u32],
    out: &mut [f32],
    heads: u32,
    stride: u32,
    first: u32,
    #[comptime] term: Term,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let e = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let of_src = col[e] as usize * stride as usize + first as usize + head;
    let mut score = src[of_src] + dst[edge_row[e] as usize * heads + head];
    if comptime!(term == Term::Edge) {
        score += z[ABSOLUTE_POS];
    }
    if comptime!(term == Term::Relation) {
        score += z[relation[e] as usize * heads + head];
    }
    out[ABSOLUTE_POS] = leaky(score);
}

/// Sets the slopes of the sums inside the non-linearity.
#[cube(launch)]
fn sum_slopes(score: &[f32], grad: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    out[ABSOLUTE_POS] = grad[ABSOLUTE_POS] * leaky_slope(score[ABSOLUTE_POS]);
}

/// Adds up the slopes of each row's edges.
#[cube(launch)]
fn dst_slopes(slope: &[f32], offset: &[u32], out: &mut [f32], heads: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let v = ABSOLUTE_POS / heads;
    let head = ABSOLUTE_POS % heads;
    let mut sum = 0.0f32.runtime();
    for e in offset[v] as usize..offset[v + 1] as usize {
        sum += slope[e * heads + head];
    }
    out[ABSOLUTE_POS] = sum;
}

/// Adds up the slopes of each column's edges; columns of `out` that are not read get 0.
#[cube(launch)]
fn src_slopes(
    slope: &[f32],
    col_offset: &[u32],
    col_edge: &[u32],
    out: &mut [f32],
    heads: u32,
    stride: u32,
    first: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let u = ABSOLUTE_POS / stride as usize;
    let column = (ABSOLUTE_POS % stride as usize) as u32;
    let mut sum = 0.0f32.runtime();
    if column >= first && column < first + heads {
        let head = (column - first) as usize;
        for e in col_offset[u] as usize..col_offset[u + 1] as usize {
            sum += slope[col_edge[e] as usize * heads as usize + head];
        }
    }
    out[ABSOLUTE_POS] = sum;
}

/// Adds up the slopes of each relation over the edges of each piece.
#[cube(launch)]
fn relation_slopes(
    slope: &[f32],
    relation: &[u32],
    out: &mut [f32],
    heads: u32,
    relations: u32,
    edges: u32,
    #[comptime] piece: u32,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let head = ABSOLUTE_POS % heads as usize;
    let own = (ABSOLUTE_POS / heads as usize) as u32;
    let first = own / relations * piece;
    let own = own % relations;
    let mut sum = 0.0f32.runtime();
    for e in first as usize..u32::min(edges, first + piece) as usize {
        if relation[e] == own {
            sum += slope[e * heads as usize + head];
        }
    }
    out[ABSOLUTE_POS] = sum;
}

impl EdgeScores {
    /// Returns the slopes of the third input from the slopes of the sums.
    fn term_slopes(&self, z: &CubeTensor, slope: &CubeTensor) -> Option<CubeTensor> {
        let relation = match &self.term {
            EdgeTerm::None => return None,
            EdgeTerm::Edge => return Some(slope.clone()),
            EdgeTerm::Relation(relation) => relation,
        };
        let num_edges = self.csr.num_edges();
        let out = empty(z, num_edges.div_ceil(PIECE), len(z));
        launch!(
            relation_slopes,
            len(&out),
            z,
            arg(slope),
            arg(&relation.on_gpu(&z.device)),
            arg(&out),
            count(self.heads),
            count(rows(z)),
            count(num_edges),
            count(PIECE)
        );
        Some(shaped_like(sum_rows(&out), z))
    }
}

impl GpuKernel for EdgeScores {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let [src, dst, z] = [0, 1, 2].map(|at| &inputs[at]);
        let edges = by_row(&self.csr, &src.device);
        let (term, relation) = match &self.term {
            EdgeTerm::None => (Term::None, None),
            EdgeTerm::Edge => (Term::Edge, None),
            EdgeTerm::Relation(relation) => (Term::Relation, Some(relation.on_gpu(&src.device))),
        };
        let out = empty(src, self.csr.num_edges(), self.heads);
        launch!(
            scores,
            len(&out),
            src,
            arg(src),
            arg(dst),
            arg(z),
            arg(&edges.col),
            arg(&edge_rows(&self.csr, &src.device)),
            arg(relation.as_ref().unwrap_or(&edges.col)),
            arg(&out),
            count(self.heads),
            count(cols(src)),
            count(self.first),
            term
        );
        // A score has the sign of the sum inside the non-linearity.
        (out.clone(), vec![out])
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let [src, dst, z] = [0, 1, 2].map(|at| &inputs[at]);
        let (edges, out_edges) = (
            by_row(&self.csr, &src.device),
            by_col(&self.csr, &src.device),
        );
        let slope = empty(grad, self.csr.num_edges(), self.heads);
        launch!(
            sum_slopes,
            len(&slope),
            src,
            arg(&saved[0]),
            arg(grad),
            arg(&slope)
        );
        let of_dst = empty(dst, rows(dst), self.heads);
        launch!(
            dst_slopes,
            len(&of_dst),
            src,
            arg(&slope),
            arg(&edges.offset),
            arg(&of_dst),
            count(self.heads)
        );
        let of_src = empty(src, rows(src), cols(src));
        launch!(
            src_slopes,
            len(&of_src),
            src,
            arg(&slope),
            arg(&out_edges.offset),
            arg(&out_edges.edge),
            arg(&of_src),
            count(self.heads),
            count(cols(src)),
            count(self.first)
        );
        let of_z = self.term_slopes(z, &slope);
        vec![Some(of_src), Some(of_dst), of_z]
    }
}
