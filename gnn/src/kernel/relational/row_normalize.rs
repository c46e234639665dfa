//! Divides each row by its length.

use crate::kernel::heads::dot;
use crate::kernel::split::{even_pieces, for_rows};
use crate::kernel::{Float, Forward, Kernel, Saved};

/// `out[v] = x[v] / max(|x[v]|, 1e-12)`, as `torch.nn.functional.normalize`.
#[derive(Clone, Debug)]
pub struct RowNormalize {
    /// Number of columns.
    pub cols: usize,
}

/// Shortest length that a row is divided by.
const LENGTH_MIN: f64 = 1e-12;

impl RowNormalize {
    /// Returns 1 / divisor of a row, and whether the divisor is the row's length.
    #[inline(always)]
    fn scale<F: Float>(row: &[F]) -> (F, bool) {
        let length = dot(row, row).to_f64().sqrt();
        let scale = F::from_f64(1.0 / length.max(LENGTH_MIN));
        (scale, length > LENGTH_MIN)
    }

    fn each_row<F: Float>(&self, x: &[F], set: impl Fn(usize, &mut [F]) + Send + Sync) -> Vec<F> {
        let mut out = vec![F::ZERO; x.len()];
        let ranges = even_pieces(x.len() / self.cols, self.cols);
        for_rows::<F, _, _>(
            &mut out,
            self.cols,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| set(v, out),
        );
        out
    }
}

impl Kernel for RowNormalize {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let (x, cols) = (inputs[0], self.cols);
        let out = self.each_row(
            x,
            #[inline(always)]
            |v, out| {
                let x = &x[v * cols..(v + 1) * cols];
                let (scale, _) = Self::scale(x);
                out.iter_mut().zip(x).for_each(|(out, &x)| *out = x * scale);
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
        let (x, cols) = (inputs[0], self.cols);
        vec![self.each_row(
            x,
            #[inline(always)]
            |v, out| {
                let own = v * cols..(v + 1) * cols;
                let (x, grad) = (&x[own.clone()], &grad[own]);
                let (scale, is_length) = Self::scale(x);
                // With y = x / |x|, the slope is (grad - y (y . grad)) / |x|.
                let along = if is_length {
                    dot(x, grad) * scale * scale
                } else {
                    F::ZERO
                };
                for (out, (&x, &grad)) in out.iter_mut().zip(x.iter().zip(grad)) {
                    *out = (grad - x * along) * scale;
                }
            },
        )]
    }
}
