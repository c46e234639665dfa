//! The update that ends a layer, element by element: bias, non-linearity, and dropout for the next
//! layer.

use super::split::{even_pieces, fixed_rows, for_rows, map, split_mut, sum_in_order};
use super::{Float, Forward, Kernel, Mask, RowMask, Saved, Shared};
use crate::Activation;

/// `out[v] = mask(key[v]) * activation(x[v] + addend[v] + bias)`.
///
/// Inputs are `x: [rows, cols]`, then `addend: [rows, cols]` and `bias: [cols]` if they are
/// present.
#[derive(Clone, Debug)]
pub struct Update {
    /// Number of columns.
    pub cols: usize,
    /// Whether there is an addend.
    pub addend: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// The non-linearity, if there is one.
    pub activation: Option<Activation>,
    /// Dropout: its mask, and the key of each row's node.
    pub dropout: Option<(Mask, Shared<u64>)>,
}

/// The inputs; absent ones are empty.
struct Inputs<'a, F> {
    x: &'a [F],
    addend: &'a [F],
    bias: &'a [F],
}

impl Update {
    fn inputs<'a, F>(&self, inputs: &[&'a [F]]) -> Inputs<'a, F> {
        let mut rest = inputs[1..].iter().copied();
        let mut next = |is_there: bool| is_there.then(|| rest.next()).flatten().unwrap_or_default();
        Inputs {
            x: inputs[0],
            addend: next(self.addend),
            bias: next(self.bias),
        }
    }

    /// Sets `out` to the input of the non-linearity.
    #[inline(always)]
    fn read<F: Float>(&self, inputs: &Inputs<'_, F>, v: usize, out: &mut [F]) {
        let row = v * self.cols..(v + 1) * self.cols;
        out.copy_from_slice(&inputs.x[row.clone()]);
        if self.addend {
            for (out, &addend) in out.iter_mut().zip(&inputs.addend[row]) {
                *out += addend;
            }
        }
        for (out, &bias) in out.iter_mut().zip(inputs.bias) {
            *out += bias;
        }
    }

    #[inline(always)]
    fn mask(&self, v: usize) -> Option<RowMask> {
        let (mask, key) = self.dropout.as_ref()?;
        Some(mask.row(key[v]))
    }

    #[inline(always)]
    fn forward_row<F: Float>(&self, inputs: &Inputs<'_, F>, v: usize, out: &mut [F]) {
        self.read(inputs, v, out);
        match self.activation {
            None => {}
            Some(Activation::Relu) => {
                for x in &mut *out {
                    *x = if *x > F::ZERO { *x } else { F::ZERO };
                }
            }
            Some(Activation::Elu) => {
                for x in &mut *out {
                    *x = if *x > F::ZERO { *x } else { x.exp() - F::ONE };
                }
            }
        }
        self.drop_out(v, out);
    }

    /// Replaces the slope of the output by the slope of the sum; `inner` is scratch memory.
    #[inline(always)]
    fn backward_row<F: Float>(
        &self,
        inputs: &Inputs<'_, F>,
        v: usize,
        inner: &mut [F],
        slope: &mut [F],
    ) {
        self.drop_out(v, slope);
        let Some(activation) = self.activation else {
            return;
        };
        self.read(inputs, v, inner);
        match activation {
            Activation::Relu => {
                for (slope, &x) in slope.iter_mut().zip(&*inner) {
                    *slope = if x > F::ZERO { *slope } else { F::ZERO };
                }
            }
            Activation::Elu => {
                for (slope, &x) in slope.iter_mut().zip(&*inner) {
                    *slope *= if x > F::ZERO { F::ONE } else { x.exp() };
                }
            }
        }
    }

    #[inline(always)]
    fn drop_out<F: Float>(&self, v: usize, row: &mut [F]) {
        let Some(mask) = self.mask(v) else { return };
        for (x, at) in row.iter_mut().zip(0_u32..) {
            *x *= mask.factor(at);
        }
    }
}

impl Kernel for Update {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let (inputs, cols) = (self.inputs(inputs), self.cols);
        let mut out = vec![F::ZERO; inputs.x.len()];
        let ranges = even_pieces(out.len() / cols, cols);
        for_rows::<F, _, _>(
            &mut out,
            cols,
            ranges,
            || (),
            #[inline(always)]
            |(), v, out| {
                self.forward_row(&inputs, v, out);
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
        let (inputs, cols) = (self.inputs(inputs), self.cols);
        let mut slopes = grad.to_vec();
        let ranges = fixed_rows(slopes.len() / cols);
        let parts = split_mut(&mut slopes, &ranges, |row| row * cols);
        let partial = map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let range: std::ops::Range<usize> = range;
                let (mut inner, mut bias) = (vec![F::ZERO; cols], vec![F::ZERO; inputs.bias.len()]);
                for (v, slope) in range.zip(part.chunks_exact_mut(cols)) {
                    self.backward_row(&inputs, v, &mut inner, slope);
                    for (bias, &slope) in bias.iter_mut().zip(&*slope) {
                        *bias += slope;
                    }
                }
                bias
            },
        );
        let addend = self.addend.then(|| slopes.clone());
        let bias = self.bias.then(|| sum_in_order(partial));
        std::iter::once(slopes).chain(addend).chain(bias).collect()
    }
}
