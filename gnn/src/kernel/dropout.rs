//! Dropout that draws its mask again in the backward pass, so that no mask is stored.

use super::split::{even_pieces, for_rows};
use super::{Float, Forward, Kernel, Mask, Saved, Shared};

/// `out[v] = x[v] * mask(key[v], feature)`.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// The mask.
    pub mask: Mask,
    /// Key of each row's node, `[rows or more]`.
    pub key: Shared<u64>,
    /// Number of columns.
    pub cols: usize,
}

impl Dropout {
    fn apply<F: Float>(&self, x: &[F]) -> Vec<F> {
        let cols = self.cols;
        let mut out = vec![F::ZERO; x.len()];
        let ranges = even_pieces(x.len() / cols, cols);
        for_rows::<F, _, _>(
            &mut out,
            cols,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| {
                let mask = self.mask.row(self.key[v]);
                let features = (0_u32..).zip(&x[v * cols..(v + 1) * cols]);
                for (out, (at, &x)) in out.iter_mut().zip(features) {
                    *out = x * mask.factor(at);
                }
            },
        );
        out
    }
}

impl Kernel for Dropout {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        Forward::of(self.apply(inputs[0]), self.cols)
    }

    fn backward<F: Float>(
        &self,
        _inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        vec![self.apply(grad)]
    }
}
