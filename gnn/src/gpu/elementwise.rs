//! GPU kernels that compute element by element: dropout, and the update that ends a layer.
//!
//! The update computes `dropout(activation(x + addend + bias))`; only `x` is always there. In the
//! kernels `v` is a row, `key` the keys of the dropout mask, and `slope` a gradient.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::mask::{Draw, DrawLaunch, draw, node_factor};
use super::memory::{arg, count, empty, launch, len, rows, shaped_like};
use super::sum::sum_rows;
use crate::Activation;
use crate::kernel::{Dropout, Mask, Shared, Update};

/// Which steps an [`Update`] has; kernels are compiled for each combination.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct UpdateArgs {
    addend: bool,
    bias: bool,
    dropout: bool,
    activation: Option<Activation>,
}

#[cube(launch)]
fn drop_out(x: &[f32], key: &[u32], out: &mut [f32], draw: Draw, cols: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let v = ABSOLUTE_POS / cols as usize;
    let at = ABSOLUTE_POS % cols as usize;
    out[ABSOLUTE_POS] = x[ABSOLUTE_POS] * node_factor(&draw, key, v, at as u32);
}

/// Returns `x + addend + bias` of one element, which is the input of the activation.
#[cube]
fn read(x: &[f32], addend: &[f32], bias: &[f32], cols: u32, #[comptime] parts: &UpdateArgs) -> f32 {
    let mut sum = x[ABSOLUTE_POS];
    if comptime!(parts.addend) {
        sum += addend[ABSOLUTE_POS];
    }
    if comptime!(parts.bias) {
        sum += bias[ABSOLUTE_POS % cols as usize];
    }
    sum
}

#[cube(launch)]
fn update_forward(
    x: &[f32],
    addend: &[f32],
    bias: &[f32],
    key: &[u32],
    out: &mut [f32],
    draw: Draw,
    cols: u32,
    #[comptime] parts: UpdateArgs,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let mut value = read(x, addend, bias, cols, comptime!(&parts));
    if comptime!(parts.activation == Some(Activation::Relu)) {
        value = select(value > 0.0f32, value, 0.0f32);
    }
    if comptime!(parts.activation == Some(Activation::Elu)) {
        value = select(value > 0.0f32, value, value.exp() - 1.0f32);
    }
    if comptime!(parts.dropout) {
        let v = ABSOLUTE_POS / cols as usize;
        value *= node_factor(&draw, key, v, (ABSOLUTE_POS % cols as usize) as u32);
    }
    out[ABSOLUTE_POS] = value;
}

#[cube(launch)]
fn update_backward(
    x: &[f32],
    addend: &[f32],
    bias: &[f32],
    key: &[u32],
    grad: &[f32],
    out: &mut [f32],
    draw: Draw,
    cols: u32,
    #[comptime] parts: UpdateArgs,
) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let mut slope = grad[ABSOLUTE_POS];
    if comptime!(parts.dropout) {
        let v = ABSOLUTE_POS / cols as usize;
        slope *= node_factor(&draw, key, v, (ABSOLUTE_POS % cols as usize) as u32);
    }
    if comptime!(parts.activation.is_some()) {
        let value = read(x, addend, bias, cols, comptime!(&parts));
        if comptime!(parts.activation == Some(Activation::Elu)) {
            slope *= select(value > 0.0f32, 1.0f32, value.exp());
        } else {
            slope = select(value > 0.0f32, slope, 0.0f32);
        }
    }
    out[ABSOLUTE_POS] = slope;
}

impl Dropout {
    fn on_gpu(&self, x: &CubeTensor) -> CubeTensor {
        let out = empty(x, rows(x), self.cols);
        let key = self.key.on_gpu(&x.device);
        launch!(
            drop_out,
            len(x),
            x,
            arg(x),
            arg(&key),
            arg(&out),
            draw(Some(&self.mask)),
            count(self.cols)
        );
        out
    }
}

impl GpuKernel for Dropout {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        (self.on_gpu(&inputs[0]), Vec::new())
    }

    fn backward(
        &self,
        _inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        vec![Some(self.on_gpu(grad))]
    }
}

/// The arguments of an [`Update`]; `x` stands in for an absent tensor, which no kernel reads.
struct Inputs<'a> {
    x: &'a CubeTensor,
    addend: &'a CubeTensor,
    bias: &'a CubeTensor,
    key: CubeTensor,
    draw: DrawLaunch,
    parts: UpdateArgs,
}

/// Returns the keys of the dropout mask, or without dropout `other`, which only fills the argument.
fn key(
    dropout: Option<&(Mask, Shared<u64>)>,
    device: &CubeDevice,
    other: &CubeTensor,
) -> CubeTensor {
    dropout.map_or_else(|| other.clone(), |(_, key)| key.on_gpu(device))
}

impl Update {
    fn on_gpu<'a>(&self, inputs: &'a [CubeTensor]) -> Inputs<'a> {
        let x = &inputs[0];
        let mut rest = inputs[1..].iter();
        let mut next = |is_there: bool| is_there.then(|| rest.next()).flatten().unwrap_or(x);
        let dropout = self.dropout.as_ref();
        Inputs {
            x,
            addend: next(self.addend),
            bias: next(self.bias),
            key: key(dropout, &x.device, x),
            draw: draw(dropout.map(|(mask, _)| mask)),
            parts: UpdateArgs {
                addend: self.addend,
                bias: self.bias,
                dropout: dropout.is_some(),
                activation: self.activation,
            },
        }
    }
}

impl GpuKernel for Update {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let of = self.on_gpu(inputs);
        let out = empty(of.x, rows(of.x), self.cols);
        launch!(
            update_forward,
            len(&out),
            out,
            arg(of.x),
            arg(of.addend),
            arg(of.bias),
            arg(&of.key),
            arg(&out),
            of.draw,
            count(self.cols),
            of.parts
        );
        (out, Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let of = self.on_gpu(inputs);
        let slope = if self.activation.is_none() && self.dropout.is_none() {
            grad.clone()
        } else {
            let out = empty(of.x, rows(of.x), self.cols);
            launch!(
                update_backward,
                len(&out),
                out,
                arg(of.x),
                arg(of.addend),
                arg(of.bias),
                arg(&of.key),
                arg(grad),
                arg(&out),
                of.draw,
                count(self.cols),
                of.parts
            );
            out
        };
        let bias = self
            .bias
            .then(|| Some(shaped_like(sum_rows(&slope), of.bias)));
        let addend = self.addend.then(|| Some(slope.clone()));
        std::iter::once(Some(slope))
            .chain(addend)
            .chain(bias)
            .collect()
    }
}
