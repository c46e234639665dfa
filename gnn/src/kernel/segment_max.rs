//! Takes the largest message of each row, per feature.

use std::sync::Arc;

use super::prefetch::{AHEAD, prefetch};
use super::split::{for_rows, pieces, run, split_mut};
use super::{Csr, Float, Forward, Gather, Kernel, Saved, Shared, Stored};

/// `out[v] = max over edges e of row v of edge[e] * x[col[e]]`, 0 without edges.
///
/// If messages are equal, the first edge gets the gradient.
#[derive(Clone, Debug)]
pub struct SegmentMax {
    /// Which rows of the input each output row reads.
    pub csr: Arc<Csr>,
    /// `[num_edges]`: factor of each edge's message.
    pub edge: Option<Shared<f32>>,
}

/// Marks a row without edges.
const NO_EDGE: u32 = u32::MAX;

impl SegmentMax {
    #[inline(always)]
    fn factor<F: Float>(&self, edge: usize) -> F {
        self.edge
            .as_ref()
            .map_or(F::ONE, |factors| F::from_f32(factors[edge]))
    }

    #[inline(always)]
    fn row<F: Float, S: Stored<F>>(&self, v: usize, x: &[S], out: &mut [F], winner: &mut [u32]) {
        let (csr, dim) = (&*self.csr, out.len());
        let edges = csr.offset[v]..csr.offset[v + 1];
        if edges.is_empty() {
            return;
        }
        out.fill(F::NEG_INFINITY);
        for edge in edges {
            let (at, factor) = (edge as usize, self.factor::<F>(edge as usize));
            prefetch(x, csr.col.get(at + AHEAD), dim);
            let message = &x[csr.col[at] as usize * dim..][..dim];
            for ((out, winner), &x) in out.iter_mut().zip(winner.iter_mut()).zip(message) {
                let value = factor * x.load();
                let wins = value > *out;
                *out = if wins { value } else { *out };
                *winner = if wins { edge } else { *winner };
            }
        }
    }
}

impl Gather for SegmentMax {
    const GATHERED: usize = 0;

    /// `x: [num_cols, dim]` to `[num_rows, dim]`.
    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], _inputs: &[&[F]]) -> Forward<F> {
        let csr = &*self.csr;
        let dim = x.len() / csr.num_cols;
        let mut out = vec![F::ZERO; csr.num_rows() * dim];
        let mut winner = vec![NO_EDGE; out.len()];
        let ranges = pieces(&csr.offset, csr.partitioning, dim);
        let outs = split_mut(&mut out, &ranges, |row| row * dim);
        let winners = split_mut(&mut winner, &ranges, |row| row * dim);
        run::<F, _>(
            ranges
                .into_iter()
                .zip(outs.into_iter().zip(winners))
                .collect(),
            #[inline(always)]
            |task| {
                let (range, (outs, winners)) = task;
                let rows = outs
                    .chunks_exact_mut(dim)
                    .zip(winners.chunks_exact_mut(dim));
                for (v, (out, winner)) in range.zip(rows) {
                    self.row(v, x, out, winner);
                }
            },
        );
        Forward {
            out,
            cols: dim,
            saved: Saved {
                values: Vec::new(),
                positions: winner,
            },
        }
    }
}

impl Kernel for SegmentMax {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        self.gather(inputs[0], inputs)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
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
                for at in transposed.col(u) {
                    let (edge, row) = (transposed.edge[at], transposed.row[at] as usize * dim);
                    let factor = self.factor::<F>(edge as usize);
                    let winners = &saved.positions[row..row + dim];
                    let terms = winners.iter().zip(&grad[row..row + dim]);
                    for (out, (&winner, &grad)) in out.iter_mut().zip(terms) {
                        *out += if winner == edge {
                            factor * grad
                        } else {
                            F::ZERO
                        };
                    }
                }
            },
        );
        vec![out]
    }
}
