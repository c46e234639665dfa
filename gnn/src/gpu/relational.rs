//! Kernels of typed models, which run on the processor only.

use burn_cubecl::tensor::CubeTensor;

use super::GpuKernel;
use crate::kernel::Relational;

/// Typed models have no GPU among their devices, so no tensor of theirs is on one.
const ABSENT: &str = "typed models compute on the processor";

impl GpuKernel for Relational {
    fn forward(&self, _inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        panic!("{ABSENT}")
    }

    fn backward(
        &self,
        _inputs: &[CubeTensor],
        _saved: &[CubeTensor],
        _grad: &CubeTensor,
        _needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        panic!("{ABSENT}")
    }
}
