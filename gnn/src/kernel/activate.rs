//! Non-linearities, element by element.

use super::split::{even_pieces, run, split_mut};
use super::{Float, Forward, Kernel, Saved};
use crate::Activation;

/// `out = activation(x)`.
#[derive(Clone, Debug)]
pub struct Activate {
    /// The non-linearity.
    pub activation: Activation,
    /// Number of columns.
    pub cols: usize,
}

/// Elements one thread handles at a time.
const CHUNK: usize = 1 << 12;

/// Sets each element from the elements of `a` and `b` at the same place.
fn zip_with<F: Float>(a: &[F], b: &[F], value: impl Fn(F, F) -> F + Send + Sync) -> Vec<F> {
    let mut out = vec![F::ZERO; a.len()];
    let chunks = a.len().div_ceil(CHUNK);
    let ranges = even_pieces(chunks, CHUNK);
    let end = |chunk: usize| (chunk * CHUNK).min(a.len());
    let parts = split_mut(&mut out, &ranges, end);
    run(ranges.into_iter().zip(parts).collect(), |(range, part)| {
        let (a, b) = (
            &a[end(range.start)..end(range.end)],
            &b[end(range.start)..end(range.end)],
        );
        for (out, (&a, &b)) in part.iter_mut().zip(a.iter().zip(b)) {
            *out = value(a, b);
        }
    });
    out
}

impl Kernel for Activate {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let x = inputs[0];
        let out = match self.activation {
            Activation::Relu => zip_with(x, x, |x, _| if x > F::ZERO { x } else { F::ZERO }),
            Activation::Elu => {
                zip_with(x, x, |x, _| if x > F::ZERO { x } else { x.exp() - F::ONE })
            }
        };
        Forward {
            out,
            cols: self.cols,
            saved: Saved::default(),
        }
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let x = inputs[0];
        vec![match self.activation {
            Activation::Relu => zip_with(x, grad, |x, g| if x > F::ZERO { g } else { F::ZERO }),
            Activation::Elu => zip_with(x, grad, |x, g| if x > F::ZERO { g } else { g * x.exp() }),
        }]
    }
}
