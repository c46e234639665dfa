//! Kernels that only typed models use, on a GPU: attention in steps, whose values are
//! `[num_edges, heads]`.
//!
//! They add no self-loops to rows, so the slots of coefficients are the edges.

mod edge_scores;
mod edge_softmax;
mod heads;
mod node_scores;
mod row_normalize;

use burn_cubecl::tensor::CubeTensor;

use super::GpuKernel;
use crate::kernel::{Relational, on_relational};

impl GpuKernel for Relational {
    fn forward(&self, inputs: &[CubeTensor]) -> (CubeTensor, Vec<CubeTensor>) {
        on_relational!(self, kernel => GpuKernel::forward(kernel, inputs))
    }

    fn backward(
        &self,
        inputs: &[CubeTensor],
        saved: &[CubeTensor],
        grad: &CubeTensor,
        needed: &[bool],
    ) -> Vec<Option<CubeTensor>> {
        on_relational!(self, kernel => GpuKernel::backward(kernel, inputs, saved, grad, needed))
    }
}
