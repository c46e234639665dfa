//! Scores of nodes: the product of each head of a row with scoring vectors.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::gpu::GpuKernel;
use crate::gpu::gat::{scores_of_nodes, vector_slope};
use crate::gpu::memory::{arg, cols, count, empty, launch, len, rows};
use crate::kernel::NodeScores;

/// Sets the slopes of the rows. With one scoring vector, `src`, `dst` is not read.
#[cube(launch)]
fn row_slopes(
    grad: &[f32],
    src: &[f32],
    dst: &[f32],
    out: &mut [f32],
    heads: u32,
    dim: u32,
    #[comptime] has_dst: bool,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let heads = heads as usize;
    let width = heads * dim as usize;
    let u = ABSOLUTE_POS / width;
    let at = ABSOLUTE_POS % width;
    let head = at / dim as usize;
    let mut columns = heads;
    if comptime!(has_dst) {
        columns = 2 * heads;
    }
    let mut sum = grad[u * columns + head] * src[at];
    if comptime!(has_dst) {
        sum += grad[u * columns + heads + head] * dst[at];
    }
    out[ABSOLUTE_POS] = sum;
}

impl GpuKernel for NodeScores {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let out = scores_of_nodes(&inputs[0], &inputs[1..], self.heads);
        (out, Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (h, vectors) = (&inputs[0], &inputs[1..]);
        let out = empty(h, rows(h), cols(h));
        launch!(
            row_slopes,
            len(&out),
            h,
            arg(grad),
            arg(&vectors[0]),
            arg(vectors.get(1).unwrap_or(&vectors[0])),
            arg(&out),
            count(self.heads),
            count(cols(h) / self.heads),
            vectors.len() > 1
        );
        let of_vectors = vectors.iter().enumerate();
        let of_vectors =
            of_vectors.map(|(at, vector)| vector_slope(h, grad, (vector, at), self.heads));
        std::iter::once(out).chain(of_vectors).map(Some).collect()
    }
}
