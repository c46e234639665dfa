//! Sums rows of a matrix over edges, each head times the edge's coefficient for that head.

use std::sync::Arc;

use crate::kernel::heads::{dot_heads, row, sum_heads};
use crate::kernel::prefetch::{AHEAD, prefetch};
use crate::kernel::split::{for_rows, map, pieces, split_mut};
use crate::kernel::{Csr, Float, Forward, Gather, Kernel, Saved, Stored};

/// `out[v, head] = sum over edges e of row v of alpha[e, head] * x[col[e], head]`.
///
/// Inputs are `alpha: [num_edges, heads]` and `x: [num_cols, heads * dim]`.
#[derive(Clone, Debug)]
pub struct HeadSum {
    /// The edges.
    pub csr: Arc<Csr>,
    /// Number of heads.
    pub heads: usize,
    /// Width of all heads.
    pub width: usize,
}

impl Gather for HeadSum {
    const GATHERED: usize = 1;

    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], inputs: &[&[F]]) -> Forward<F> {
        let (csr, heads, width) = (&*self.csr, self.heads, self.width);
        let alpha = inputs[0];
        let mut out = vec![F::ZERO; csr.num_rows() * width];
        let ranges = pieces(&csr.offset, csr.partitioning, width);
        for_rows::<F, _, _>(
            &mut out,
            width,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| {
                let edges = csr.row(v).map(|edge| {
                    prefetch(x, csr.col.get(edge + AHEAD), width);
                    (row(alpha, edge, heads), csr.col[edge] as usize)
                });
                sum_heads(out, heads, x, edges);
            },
        );
        Forward::of(out, width)
    }
}

impl Kernel for HeadSum {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        self.gather(inputs[Self::GATHERED], inputs)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, heads, width) = (&*self.csr, self.heads, self.width);
        let (alpha, x) = (inputs[0], inputs[1]);
        let mut of_alpha = vec![F::ZERO; alpha.len()];
        let ranges = pieces(&csr.offset, csr.partitioning, width);
        let parts = split_mut(&mut of_alpha, &ranges, |v| csr.offset[v] as usize * heads);
        map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let range: std::ops::Range<usize> = range;
                let edges = range.flat_map(|v| csr.row(v).map(move |edge| (v, edge)));
                for ((v, edge), out) in edges.zip(part.chunks_exact_mut(heads)) {
                    let x = row(x, csr.col[edge] as usize, width);
                    dot_heads(out, row(grad, v, width), x, width / heads);
                }
            },
        );
        let transposed = csr.transposed();
        let mut of_x = vec![F::ZERO; x.len()];
        let ranges = pieces(&transposed.offset, csr.partitioning, width);
        for_rows::<F, _, _>(
            &mut of_x,
            width,
            ranges,
            || (),
            #[inline(always)]
            |(), u, out| {
                let edges = transposed.col(u).map(|at| {
                    let alpha = row(alpha, transposed.edge[at] as usize, heads);
                    (alpha, transposed.row[at] as usize)
                });
                sum_heads(out, heads, grad, edges);
            },
        );
        vec![of_alpha, of_x]
    }
}
