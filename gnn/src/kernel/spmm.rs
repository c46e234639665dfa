//! Sums rows of a matrix over edges with constant coefficients.

use std::sync::Arc;

use super::prefetch::{AHEAD, prefetch};
use super::split::{for_rows, pieces};
use super::{Csr, Float, Forward, Gather, Kernel, Saved, Shared, Stored};

/// `out[v] = own[v] * x[csr.own(v)] + sum over edges e of row v of edge[e] * x[col[e]]`.
///
/// GCN, SAGE mean and GIN sums are of this form, and so is a sparse feature matrix times a dense
/// weight.
#[derive(Clone, Debug)]
pub struct Spmm {
    /// Which rows of the input each output row reads.
    pub csr: Arc<Csr>,
    /// How many rows, from the first on, are computed.
    pub rows: usize,
    /// `[num_edges]`: coefficient of each edge.
    pub edge: Shared<f32>,
    /// `[rows]`: coefficient of the input row of the row's own node.
    pub own: Option<Shared<f32>>,
}

impl Gather for Spmm {
    const GATHERED: usize = 0;

    /// `x: [num_cols, dim]` to `[rows, dim]`.
    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], _inputs: &[&[F]]) -> Forward<F> {
        let csr = &*self.csr;
        let dim = x.len() / csr.num_cols;
        let mut out = vec![F::ZERO; self.rows * dim];
        let ranges = pieces(&csr.offset[..=self.rows], csr.partitioning, dim);
        for_rows::<F, _, _>(
            &mut out,
            dim,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| {
                let own = self.own.as_ref();
                let own = own.map(|own| (F::from_f32(own[v]), csr.own(v)));
                let edges = csr
                    .row(v)
                    .map(|e| (F::from_f32(self.edge[e]), csr.col[e] as usize));
                let first = edges.clone().zip(csr.row(v)).map(|(term, e)| {
                    prefetch(x, csr.col.get(e + AHEAD), dim);
                    term
                });
                let terms = own.into_iter();
                weighted_sum(out, x, terms.clone().chain(first), terms.chain(edges));
            },
        );
        Forward::of(out, dim)
    }
}

impl Kernel for Spmm {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        self.gather(inputs[0], inputs)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, transposed) = (&*self.csr, self.csr.transposed());
        let dim = inputs[0].len() / csr.num_cols;
        let mut out = vec![F::ZERO; inputs[0].len()];
        let ranges = pieces(&transposed.offset, csr.partitioning, dim);
        for_rows::<F, _, _>(
            &mut out,
            dim,
            ranges,
            || (),
            #[inline(always)]
            |(), u, out| {
                let own = self.own.as_ref().and_then(|own| own.get(u));
                let own = own.map(|&own| (F::from_f32(own), u));
                let edges = transposed.col(u).map(|at| {
                    let edge = self.edge[transposed.edge[at] as usize];
                    (F::from_f32(edge), transposed.row[at] as usize)
                });
                // Rows ascend, so rows that were not computed come last.
                let edges = edges.take_while(|&(_, row)| row < self.rows);
                let terms = own.into_iter().chain(edges);
                weighted_sum(out, grad, terms.clone(), terms);
            },
        );
        vec![out]
    }
}

/// Features summed in registers at a time: 8 vectors of 8 f32.
const TILE: usize = 64;

/// Sets `out` to the sum of `coefficient * x[row]` in the order of `terms`. `first` yields the same
/// terms and prefetches their rows, for the first pass.
#[inline(always)]
pub(super) fn weighted_sum<F: Float, S: Stored<F>>(
    out: &mut [F],
    x: &[S],
    first: impl Iterator<Item = (F, usize)>,
    terms: impl Iterator<Item = (F, usize)> + Clone,
) {
    let dim = out.len();
    let mut at = TILE.min(dim / 16 * 16);
    match dim {
        TILE.. => sum_tile::<F, S, TILE>(out, x, 0, first),
        48.. => sum_tile::<F, S, 48>(out, x, 0, first),
        32.. => sum_tile::<F, S, 32>(out, x, 0, first),
        16.. => sum_tile::<F, S, 16>(out, x, 0, first),
        _ => return sum_rest(out, x, 0, first),
    }
    while at + TILE <= dim {
        sum_tile::<F, S, TILE>(out, x, at, terms.clone());
        at += TILE;
    }
    while at + 16 <= dim {
        sum_tile::<F, S, 16>(out, x, at, terms.clone());
        at += 16;
    }
    if at < dim {
        sum_rest(out, x, at, terms);
    }
}

/// Sums the features from `at` on, fewer than a tile.
#[inline(always)]
fn sum_rest<F: Float, S: Stored<F>>(
    out: &mut [F],
    x: &[S],
    at: usize,
    terms: impl Iterator<Item = (F, usize)>,
) {
    let dim = out.len();
    for (coefficient, row) in terms {
        let x = &x[row * dim + at..(row + 1) * dim];
        for (out, &x) in out[at..].iter_mut().zip(x) {
            *out += coefficient * x.load();
        }
    }
}

#[inline(always)]
fn sum_tile<F: Float, S: Stored<F>, const N: usize>(
    out: &mut [F],
    x: &[S],
    at: usize,
    terms: impl Iterator<Item = (F, usize)>,
) {
    let (dim, mut sum) = (out.len(), [F::ZERO; N]);
    for (coefficient, row) in terms {
        let x = &x[row * dim + at..row * dim + at + N];
        for (sum, &x) in sum.iter_mut().zip(x) {
            *sum += coefficient * x.load();
        }
    }
    out[at..at + N].copy_from_slice(&sum);
}
