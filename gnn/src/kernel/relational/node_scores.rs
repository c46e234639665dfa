//! Scores of nodes: the product of each head of a row with scoring vectors.

use crate::kernel::gat::node_scores;
use crate::kernel::heads::{add_heads, row};
use crate::kernel::split::{fixed_rows, map, split_mut, sum_in_order};
use crate::kernel::{Float, Forward, Kernel, Saved};

/// `out[u, i * heads + head] = h[u, head] . att_i[head]` for each scoring vector `att_i`.
///
/// Inputs are `h: [rows, heads * dim]`, then one or two scoring vectors, `[heads, dim]` each.
#[derive(Clone, Debug)]
pub struct NodeScores {
    /// Number of heads.
    pub heads: usize,
}

impl Kernel for NodeScores {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let vectors = &inputs[1..];
        let scores = node_scores(inputs[0], vectors, self.heads);
        Forward::of(scores, vectors.len() * self.heads)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (h, vectors, heads) = (inputs[0], &inputs[1..], self.heads);
        let width = vectors[0].len();
        let (dim, cols) = (width / heads, vectors.len() * heads);
        let mut slopes = vec![F::ZERO; h.len()];
        let ranges = fixed_rows(h.len() / width);
        let parts = split_mut(&mut slopes, &ranges, |u| u * width);
        let partial = map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let range: std::ops::Range<usize> = range;
                let mut of_vectors = vec![F::ZERO; vectors.len() * width];
                for (u, out) in range.zip(part.chunks_exact_mut(width)) {
                    let (x, grad) = (row(h, u, width), row(grad, u, cols));
                    let each = vectors.iter().zip(of_vectors.chunks_exact_mut(width));
                    for (grad, (vector, slope)) in grad.chunks_exact(heads).zip(each) {
                        add_heads(out, grad, vector, dim);
                        add_heads(slope, grad, x, dim);
                    }
                }
                of_vectors
            },
        );
        let of_vectors = sum_in_order(partial);
        let each = of_vectors.chunks_exact(width).map(<[F]>::to_vec);
        std::iter::once(slopes).chain(each).collect()
    }
}
