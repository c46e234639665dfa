//! Graph convolution: `out[v] = sum of w / sqrt(deg[u] deg[v]) * W x[u], self-loop included, + b`.
//!
//! Degrees are those of the whole graph. The self-loop is added as `PyG`'s
//! `add_remaining_self_loops` does: every node ends up with one. Of parallel ones that have weights
//! it keeps the sum of them.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::{Coefficients, Features, Pass, Place, Src};
use crate::kernel::Spmm;
use crate::ops::Fused;

impl Pass<'_> {
    /// Returns the sum, without the bias.
    pub(super) fn gcn(&self, Place { layer, block }: Place<'_>, src: Src) -> Tensor<2> {
        let sum = |rows| {
            let (edge, own) = Coefficients::new(block, self.arch.edge_weight).gcn();
            let sum = Fused::Spmm(Spmm {
                csr: Arc::clone(block.csr()),
                rows: block.num_dst(),
                edge,
                own: Some(own),
            });
            sum.apply(self.dense(rows))
        };
        let name = format!("convs.{}.lin.weight", layer - 1);
        let summed = src.aggregated.unwrap_or_else(|| sum(src.rows)); // [num_dst, in], or [num_dst, out] if projected
        if src.is_projected {
            summed
        } else {
            self.product(&Features::Dense(summed), block.num_dst(), &name)
        }
    }
}
