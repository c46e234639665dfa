//! Linear maps of rows on a GPU, by the backend's matrix product.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::Slice;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::GpuKernel;
use super::memory::{arg, cols, empty, launch, len, rows};
use crate::kernel::Linear;

/// Copies rows and pads them with zeros.
#[cube(launch)]
fn pad(x: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let mut value = 0.0f32.runtime();
    if ABSOLUTE_POS < x.len() {
        value = x[ABSOLUTE_POS];
    }
    out[ABSOLUTE_POS] = value;
}

/// Returns the first rows of a matrix.
fn first_rows(x: &CubeTensor, num_rows: usize) -> CubeTensor {
    if rows(x) == num_rows {
        return x.clone();
    }
    CubeBackend::float_slice(x.clone(), &[Slice::from(0..num_rows)])
}

/// Returns `a * b`.
fn product(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    into_contiguous(CubeBackend::float_matmul(a, b))
}

fn transpose(x: &CubeTensor) -> CubeTensor {
    CubeBackend::float_transpose(x.clone())
}

impl Linear {
    /// Computes the slopes of one pair of inputs.
    fn slopes(
        &self,
        [x, weight]: [&CubeTensor; 2],
        grad: &CubeTensor,
        needed: &[bool],
    ) -> [Option<CubeTensor>; 2] {
        let of_x = needed[0].then(|| {
            let computed = product(grad.clone(), weight.clone());
            if rows(x) == self.rows {
                return computed;
            }
            let out = empty(x, rows(x), cols(x));
            launch!(pad, len(&out), x, arg(&computed), arg(&out));
            out
        });
        let of_weight = needed[1].then(|| product(transpose(grad), first_rows(x, self.rows)));
        [of_x, of_weight]
    }
}

impl GpuKernel for Linear {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let products = inputs
            .chunks_exact(2)
            .map(|pair| product(first_rows(&pair[0], self.rows), transpose(&pair[1])));
        let sum = products.reduce(CubeBackend::float_add);
        (sum.expect("there is a pair of inputs"), Vec::new())
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        grad: &CubeTensor,
        needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let pairs = inputs.chunks_exact(2).zip(needed.chunks_exact(2));
        let slopes =
            pairs.flat_map(|(pair, wanted)| self.slopes([&pair[0], &pair[1]], grad, wanted));
        slopes.collect()
    }
}
