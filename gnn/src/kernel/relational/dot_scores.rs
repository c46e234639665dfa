//! Scores of edges: the product of a query of the edge's row with a key of its src node.

use std::sync::Arc;

use crate::kernel::heads::{add_heads, dot_heads, row};
use crate::kernel::prefetch::{AHEAD, prefetch};
use crate::kernel::split::{for_rows, map, pieces, split_mut};
use crate::kernel::{Csr, Float, Forward, Gather, Kernel, Saved, Stored};

/// `out[e, head] = query[v, head] . key[col[e], head]` for each edge `e` of row `v`.
///
/// Inputs are `query: [num_rows, heads * dim]` and `key: [num_cols, heads * dim]`.
#[derive(Clone, Debug)]
pub struct DotScores {
    /// The edges.
    pub csr: Arc<Csr>,
    /// Number of heads.
    pub heads: usize,
    /// Width of all heads.
    pub width: usize,
}

impl Gather for DotScores {
    const GATHERED: usize = 1;

    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], inputs: &[&[F]]) -> Forward<F> {
        let (csr, heads, width) = (&*self.csr, self.heads, self.width);
        let (query, key) = (inputs[0], x);
        let mut out = vec![F::ZERO; csr.num_edges() * heads];
        let ranges = pieces(&csr.offset, csr.partitioning, width);
        let parts = split_mut(&mut out, &ranges, |v| csr.offset[v] as usize * heads);
        map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let range: std::ops::Range<usize> = range;
                let edges = range.flat_map(|v| csr.row(v).map(move |edge| (v, edge)));
                for ((v, edge), out) in edges.zip(part.chunks_exact_mut(heads)) {
                    prefetch(key, csr.col.get(edge + AHEAD), width);
                    let key = row(key, csr.col[edge] as usize, width);
                    dot_heads(out, row(query, v, width), key, width / heads);
                }
            },
        );
        Forward::of(out, heads)
    }
}

impl Kernel for DotScores {
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
        let (query, key, dim) = (inputs[0], inputs[1], width / heads);
        let mut of_query = vec![F::ZERO; query.len()];
        let ranges = pieces(&csr.offset, csr.partitioning, width);
        for_rows::<F, _, _>(
            &mut of_query,
            width,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| {
                for edge in csr.row(v) {
                    let key = row(key, csr.col[edge] as usize, width);
                    add_heads(out, row(grad, edge, heads), key, dim);
                }
            },
        );
        let transposed = csr.transposed();
        let mut of_key = vec![F::ZERO; key.len()];
        let ranges = pieces(&transposed.offset, csr.partitioning, width);
        for_rows::<F, _, _>(
            &mut of_key,
            width,
            ranges,
            || (),
            #[inline(always)]
            |(), u, out| {
                for at in transposed.col(u) {
                    let slope = row(grad, transposed.edge[at] as usize, heads);
                    let query = row(query, transposed.row[at] as usize, width);
                    add_heads(out, slope, query, dim);
                }
            },
        );
        vec![of_query, of_key]
    }
}
