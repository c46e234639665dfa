//! GPU kernels, written for `cubecl`, which makes shaders of them.
//!
//! One unit computes one value by a walk over the edges of its row or column. So no two units write
//! the same value, every sum has a fixed order, and a run repeats to the bit on the same device and
//! driver. Sums over all rows are cut into pieces of [`sum::PIECE`] rows. Constants (edges,
//! coefficients, keys) are uploaded once and kept beside the original.

#![expect(
    clippy::cast_possible_truncation,
    reason = "positions are 32 bits wide in a shader, and checked before it starts"
)]
#![expect(
    clippy::collapsible_if,
    reason = "compile-time conditions of a shader stay separate from its run-time conditions"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "shaders have no iterators over slices"
)]

mod attention;
mod elementwise;
mod gat;
mod gatv2;
mod gine;
mod graph;
mod linear;
mod mask;
mod memory;
mod norm;
mod relational;
mod segment_max;
mod spmm;
mod sum;
#[cfg(test)]
mod tests;

pub(crate) use graph::GraphOnGpu;
pub(crate) use memory::Upload;

use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use crate::ops::{Fused, FusedKernels, on_kernel};

/// A kernel as it runs on a GPU; computes the same function as its
/// [`Kernel`](crate::kernel::Kernel).
pub(crate) trait GpuKernel {
    /// Computes the output, and the values that the backward pass needs.
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>);

    /// Returns the gradient of each input that is needed.
    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        needed: &[bool],
    ) -> Vec<Option<CubeTensor>>;
}

impl FusedKernels for CubeBackend {
    type Saved = Vec<CubeTensor>;

    fn fused_forward(op: &Fused, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        let inputs = contiguous(inputs);
        on_kernel!(op, kernel => GpuKernel::forward(kernel, &inputs))
    }

    fn fused_backward(
        op: &Fused,
        inputs: &[CubeTensor],
        saved: &Vec<CubeTensor>,
        grad: CubeTensor,
        needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        let (inputs, grad) = (contiguous(inputs), into_contiguous(grad));
        on_kernel!(op, kernel => GpuKernel::backward(kernel, &inputs, saved, &grad, needed))
    }
}

fn contiguous(inputs: &[CubeTensor]) -> Vec<CubeTensor> {
    inputs.iter().cloned().map(into_contiguous).collect()
}
