//! Batch and layer normalisation of node rows.

use super::split::{even_pieces, for_rows};
use super::{Float, Forward, Kernel, Saved};

/// Added to variances, as in `PyTorch`.
const EPSILON: f64 = 1e-5;

/// `out = (x - mean) / sqrt(var + eps) * weight + bias`, per column.
///
/// Inputs are `x: [rows, cols]`, `weight: [cols]` and `bias: [cols]`.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// `[cols]`: mean of each column.
    pub mean: Vec<f64>,
    /// `[cols]`: biased variance of each column.
    pub var: Vec<f64>,
    /// How many rows, from the first on, `mean` and `var` were computed from; 0 if they are running
    /// statistics, which have no gradient.
    pub active: usize,
}

/// Returns the mean and the biased variance of each column of the first `active` rows.
pub fn column_statistics<F: Float>(x: &[F], cols: usize, active: usize) -> (Vec<f64>, Vec<f64>) {
    F::run(
        #[inline(always)]
        || statistics(x, cols, active),
    )
}

/// Does the work of [`column_statistics`].
#[inline(always)]
fn statistics<F: Float>(x: &[F], cols: usize, active: usize) -> (Vec<f64>, Vec<f64>) {
    let count = count_of(active.max(1));
    let (mut mean, mut var) = (vec![0.0; cols], vec![0.0; cols]);
    for row in x.chunks_exact(cols).take(active) {
        for (mean, x) in mean.iter_mut().zip(row) {
            *mean += x.to_f64();
        }
    }
    mean.iter_mut().for_each(|mean| *mean /= count);
    for row in x.chunks_exact(cols).take(active) {
        for ((var, mean), x) in var.iter_mut().zip(&mean).zip(row) {
            let delta = x.to_f64() - mean;
            *var += delta * delta;
        }
    }
    var.iter_mut().for_each(|var| *var /= count);
    (mean, var)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "row and column counts are far below 2^52"
)]
pub(crate) fn count_of(count: usize) -> f64 {
    count as f64
}

impl BatchNorm {
    /// Returns mean and 1 / deviation of each column.
    pub(crate) fn columns<F: Float>(&self) -> (Vec<F>, Vec<F>) {
        let mean = self.mean.iter().map(|&mean| F::from_f64(mean)).collect();
        let inverse = self
            .var
            .iter()
            .map(|var| F::from_f64(1.0 / (var + EPSILON).sqrt()));
        (mean, inverse.collect())
    }
}

impl Kernel for BatchNorm {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        F::run(
            #[inline(always)]
            || {
                let (x, weight, bias) = (inputs[0], inputs[1], inputs[2]);
                let (mean, inverse) = self.columns::<F>();
                let cols = mean.len();
                let mut out = vec![F::ZERO; x.len()];
                for (out, x) in out.chunks_exact_mut(cols).zip(x.chunks_exact(cols)) {
                    for at in 0..cols {
                        out[at] = (x[at] - mean[at]) * inverse[at] * weight[at] + bias[at];
                    }
                }
                Forward::of(out, cols)
            },
        )
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        F::run(
            #[inline(always)]
            || {
                let (x, weight) = (inputs[0], inputs[1]);
                let (mean, inverse) = self.columns::<F>();
                let cols = mean.len();
                let (mut d_weight, mut d_bias) = (vec![0.0; cols], vec![0.0; cols]);
                for (g, x) in grad.chunks_exact(cols).zip(x.chunks_exact(cols)) {
                    for at in 0..cols {
                        d_weight[at] += (g[at] * (x[at] - mean[at]) * inverse[at]).to_f64();
                        d_bias[at] += g[at].to_f64();
                    }
                }
                // Mean and variance also depend on the rows that they were computed from.
                let share = 1.0 / count_of(self.active.max(1));
                let pull =
                    |sums: &[f64]| sums.iter().map(|&sum| F::from_f64(sum * share)).collect();
                let (of_bias, of_weight): (Vec<F>, Vec<F>) = (pull(&d_bias), pull(&d_weight));
                let mut d_x = vec![F::ZERO; x.len()];
                let rows = d_x
                    .chunks_exact_mut(cols)
                    .zip(grad.chunks_exact(cols))
                    .zip(x.chunks_exact(cols));
                for (row, ((d_x, g), x)) in rows.enumerate() {
                    for at in 0..cols {
                        let normal = (x[at] - mean[at]) * inverse[at];
                        let pulled = if row < self.active {
                            of_bias[at] + normal * of_weight[at]
                        } else {
                            F::ZERO
                        };
                        d_x[at] = weight[at] * inverse[at] * (g[at] - pulled);
                    }
                }
                vec![d_x, rounded(&d_weight), rounded(&d_bias)]
            },
        )
    }
}

fn rounded<F: Float>(values: &[f64]) -> Vec<F> {
    values.iter().map(|&value| F::from_f64(value)).collect()
}

/// `out = (x - mean of row) / sqrt(var of row + eps) * weight + bias`.
///
/// Inputs are `x: [rows, cols]`, `weight: [cols]` and `bias: [cols]`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Number of columns.
    pub cols: usize,
}

/// Returns mean and 1 / deviation of a row.
#[inline(always)]
fn row_statistics<F: Float>(x: &[F]) -> (F, F) {
    let count = count_of(x.len());
    let mean = x.iter().map(|x| x.to_f64()).sum::<f64>() / count;
    let square = x.iter().map(|x| (x.to_f64() - mean).powi(2)).sum::<f64>();
    (
        F::from_f64(mean),
        F::from_f64(1.0 / (square / count + EPSILON).sqrt()),
    )
}

impl Kernel for LayerNorm {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let (x, weight, bias, cols) = (inputs[0], inputs[1], inputs[2], self.cols);
        let mut out = vec![F::ZERO; x.len()];
        let ranges = even_pieces(x.len() / cols, cols);
        for_rows::<F, _, _>(
            &mut out,
            cols,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| {
                let x = &x[v * cols..(v + 1) * cols];
                let (mean, inverse) = row_statistics(x);
                for at in 0..cols {
                    out[at] = (x[at] - mean) * inverse * weight[at] + bias[at];
                }
            },
        );
        Forward::of(out, cols)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        F::run(
            #[inline(always)]
            || {
                let (x, weight, cols) = (inputs[0], inputs[1], self.cols);
                let (mut d_weight, mut d_bias) = (vec![0.0; cols], vec![0.0; cols]);
                let mut d_x = vec![F::ZERO; x.len()];
                let share = F::from_f64(1.0 / count_of(cols));
                let rows = d_x
                    .chunks_exact_mut(cols)
                    .zip(grad.chunks_exact(cols))
                    .zip(x.chunks_exact(cols));
                for ((d_x, g), x) in rows {
                    let (mean, inverse) = row_statistics(x);
                    let (mut plain, mut scaled) = (F::ZERO, F::ZERO);
                    for at in 0..cols {
                        let normal = (x[at] - mean) * inverse;
                        plain += g[at] * weight[at];
                        scaled += g[at] * weight[at] * normal;
                        d_weight[at] += (g[at] * normal).to_f64();
                        d_bias[at] += g[at].to_f64();
                    }
                    for at in 0..cols {
                        let normal = (x[at] - mean) * inverse;
                        d_x[at] =
                            inverse * (g[at] * weight[at] - share * (plain + normal * scaled));
                    }
                }
                vec![d_x, rounded(&d_weight), rounded(&d_bias)]
            },
        )
    }
}
