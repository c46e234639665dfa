//! Sums rows of a matrix over edges, and adds the sums to further rows in the same pass.

use rayon::prelude::*;

use super::prefetch::{AHEAD, prefetch};
use super::split::{for_rows, pieces, run, split_mut};
use super::spmm::weighted_sum;
use super::{Csr, Float, Partitioning, Shared};

/// Edges grouped by row, with a coefficient each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeLists<'a> {
    /// Where the edges of each row start.
    offset: &'a [u32],
    /// Row of the matrix that each edge reads.
    col: &'a [u32],
    /// Coefficient of each edge.
    edge: &'a [f32],
    partitioning: Partitioning,
}

impl<'a> EdgeLists<'a> {
    /// Views the in-edges of dst nodes.
    pub(crate) fn along(csr: &'a Csr, edge: &'a Shared<f32>) -> Self {
        let (offset, col) = (&csr.offset[..], &csr.col[..]);
        Self {
            offset,
            col,
            edge,
            partitioning: csr.partitioning,
        }
    }

    /// Views the out-edges of src nodes; `edge` has the coefficients as [`against`] returns them.
    pub(crate) fn against(csr: &'a Csr, edge: &'a Shared<f32>) -> Self {
        let transposed = csr.transposed();
        Self {
            offset: &transposed.offset,
            col: &transposed.row,
            edge,
            partitioning: csr.partitioning,
        }
    }

    /// Writes the sum over the edges of row `v` to `sum`.
    #[inline(always)]
    fn sum<F: Float>(self, v: usize, x: &[F], sum: &mut [F]) {
        let row = self.offset[v] as usize..self.offset[v + 1] as usize;
        let dim = sum.len();
        let terms = row
            .clone()
            .map(|e| (F::from_f32(self.edge[e]), self.col[e] as usize));
        let first = terms.clone().zip(row).map(|(term, e)| {
            prefetch(x, self.col.get(e + AHEAD), dim);
            term
        });
        sum.fill(F::ZERO);
        weighted_sum(sum, x, first, terms);
    }

    /// Sets row `v` of `out` to `(onto[v] + sum over the edges e of row v of edge[e] * x[col[e]]) *
    /// scale`. Without `onto`, the sum is added to the row of `out`.
    pub(crate) fn sum_onto<F: Float>(
        self,
        (x, dim): (&[F], usize),
        onto: Option<&[F]>,
        scale: F,
        out: &mut [F],
    ) {
        let ranges = pieces(self.offset, self.partitioning, dim);
        for_rows::<F, _, _>(
            out,
            dim,
            ranges,
            || vec![F::ZERO; dim],
            #[inline(always)]
            |sum, v, out| {
                self.sum(v, x, sum);
                match onto {
                    Some(onto) => {
                        let onto = &onto[v * dim..(v + 1) * dim];
                        for ((out, &onto), &sum) in out.iter_mut().zip(onto).zip(&*sum) {
                            *out = (onto + sum) * scale;
                        }
                    }
                    None => {
                        for (out, &sum) in out.iter_mut().zip(&*sum) {
                            *out = (*out + sum) * scale;
                        }
                    }
                }
            },
        );
    }

    /// Sets each row of `out` to the sum over its edges, or adds the sum to it if `adds` is set, and
    /// adds the sum to the same row of `total`.
    pub(crate) fn sum_and_total<F: Float>(
        self,
        (x, dim): (&[F], usize),
        adds: bool,
        out: &mut [F],
        total: &mut [F],
    ) {
        let ranges = pieces(self.offset, self.partitioning, dim);
        let outs = split_mut(out, &ranges, |row| row * dim);
        let totals = split_mut(total, &ranges, |row| row * dim);
        let tasks = ranges.into_iter().zip(outs.into_iter().zip(totals));
        run::<F, _>(
            tasks.collect(),
            #[inline(always)]
            |(range, (out, total))| {
                let mut sum = vec![F::ZERO; dim];
                let rows = out.chunks_exact_mut(dim).zip(total.chunks_exact_mut(dim));
                for (v, (out, total)) in range.zip(rows) {
                    self.sum(v, x, &mut sum);
                    for ((out, total), &sum) in out.iter_mut().zip(total).zip(&sum) {
                        *out = if adds { *out + sum } else { sum };
                        *total += sum;
                    }
                }
            },
        );
    }

    /// As [`sum_onto`](Self::sum_onto), for some rows only.
    pub(crate) fn sum_some_onto<F: Float>(
        self,
        rows: &[u32],
        (x, dim): (&[F], usize),
        onto: Option<&[F]>,
        scale: F,
        out: &mut [F],
    ) {
        let sums = rows.par_iter().map(|&v| {
            let mut sum = vec![F::ZERO; dim];
            F::run(
                #[inline(always)]
                || self.sum(v as usize, x, &mut sum),
            );
            sum
        });
        let sums: Vec<Vec<F>> = sums.collect();
        for (&v, sum) in rows.iter().zip(sums) {
            let range = v as usize * dim..(v as usize + 1) * dim;
            let out = &mut out[range.clone()];
            if let Some(onto) = onto {
                out.copy_from_slice(&onto[range]);
            }
            for (out, sum) in out.iter_mut().zip(sum) {
                *out = (*out + sum) * scale;
            }
        }
    }

    /// Adds `edge[e] * x[v]` to row `col[e]` of `out`, for each edge e of some rows v, in their order.
    pub(crate) fn scatter_some<F: Float>(
        self,
        rows: &[u32],
        (x, dim): (&[F], usize),
        out: &mut [F],
    ) {
        F::run(
            #[inline(always)]
            || {
                for &v in rows {
                    let v = v as usize;
                    let x = &x[v * dim..(v + 1) * dim];
                    for e in self.offset[v] as usize..self.offset[v + 1] as usize {
                        let (to, edge) = (self.col[e] as usize, F::from_f32(self.edge[e]));
                        let out = &mut out[to * dim..(to + 1) * dim];
                        for (out, &x) in out.iter_mut().zip(x) {
                            *out += edge * x;
                        }
                    }
                }
            },
        );
    }
}

/// Returns the coefficients of edges in the order of their src nodes.
pub(crate) fn against(csr: &Csr, edge: &[f32]) -> Shared<f32> {
    let edges = csr.transposed().edge.iter();
    let all: Vec<f32> = edges.map(|&e| edge[e as usize]).collect();
    all.into()
}
