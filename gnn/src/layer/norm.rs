//! Batch and layer norm of a forward pass: parameters and running statistics.

use burn::tensor::Tensor;

use super::pass::{Pass, read};
use crate::kernel::{BatchNorm, LayerNorm, column_statistics, count_of};
use crate::ops::Fused;
use crate::{GnnError, Norm};

/// Weight of the newest batch in the running statistics, as in `PyTorch`.
const MOMENTUM: f64 = 0.1;

impl Pass<'_> {
    /// Normalises all rows of `x`.
    ///
    /// In training, batch norm takes its statistics from the first `active` rows only. Without
    /// active rows, and in inference, it uses the running statistics.
    pub(crate) fn norm(&self, kind: Norm, name: &str, active: usize, x: Tensor<2>) -> Tensor<2> {
        match kind {
            Norm::None => x,
            Norm::Layer => {
                let (weight, bias) = self.scale_and_shift(name);
                let norm = LayerNorm { cols: x.dims()[1] };
                Fused::LayerNorm(norm).apply_3([x, weight, bias])
            }
            Norm::Batch => {
                // PyTorch Geometric's `BatchNorm` holds its parameters in `module`.
                let name = format!("{name}.module");
                let (weight, bias) = self.scale_and_shift(&name);
                let norm = self.batch_norm(&name, active, &x);
                Fused::BatchNorm(norm).apply_3([x, weight, bias])
            }
        }
    }

    fn scale_and_shift(&self, name: &str) -> (Tensor<2>, Tensor<2>) {
        (
            self.parameter(&format!("{name}.weight")),
            self.parameter(&format!("{name}.bias")),
        )
    }

    fn batch_norm(&self, name: &str, active: usize, x: &Tensor<2>) -> BatchNorm {
        let (start, cols) = (self.buffer(&format!("{name}.running_mean")), x.dims()[1]);
        let mut buffers = self.buffers.borrow_mut();
        let (running_mean, running_var) = buffers[start..start + 2 * cols].split_at_mut(cols);
        if self.train.is_none() || active == 0 {
            let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect();
            return BatchNorm {
                mean: wide(running_mean),
                var: wide(running_var),
                active: 0,
            };
        }
        let (mean, var) = if self.on_gpu {
            let read = statistics_on_gpu(x.clone().inner().narrow(0, 0, active));
            read.unwrap_or_else(|error| {
                self.failure.replace(Some(error));
                (vec![0.0; cols], vec![1.0; cols])
            })
        } else {
            let rows = x.clone().into_data().convert::<f64>();
            let rows = rows.as_slice::<f64>().expect("converted to f64");
            column_statistics(rows, cols, active)
        };
        // Running variances are unbiased, as in PyTorch; the variance of a single row stays 0.
        let unbiased = count_of(active) / count_of((active - 1).max(1));
        for at in 0..cols {
            running_mean[at] = blend(running_mean[at], mean[at]);
            running_var[at] = blend(running_var[at], var[at] * unbiased);
        }
        BatchNorm { mean, var, active }
    }

    /// Returns the start of a buffer in `buffers`; the running variance follows the running mean.
    fn buffer(&self, name: &str) -> usize {
        let place = self.buffer_infos.iter().position(|info| info.name == name);
        let place = place.expect("every batch norm has listed its buffers");
        self.buffer_infos[..place].iter().map(|info| info.len).sum()
    }
}

/// Computes mean and biased variance of each column on the GPU; the rows are not read back.
fn statistics_on_gpu(rows: Tensor<2>) -> Result<(Vec<f64>, Vec<f64>), GnnError> {
    let cols = rows.dims()[1];
    let mean = rows.clone().mean_dim(0);
    let delta = rows - mean.clone();
    let var = (delta.clone() * delta).mean_dim(0);
    let both: Vec<f32> = read(Tensor::cat(vec![mean, var], 1))?;
    let mut both = both.into_iter().map(f64::from);
    Ok((both.by_ref().take(cols).collect(), both.collect()))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "running statistics are f32"
)]
fn blend(running: f32, batch: f64) -> f32 {
    (f64::from(running) * (1.0 - MOMENTUM) + batch * MOMENTUM) as f32
}
