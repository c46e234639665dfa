//! Shared parts of GAT and GATv2: the shape of heads, the edges, and the mean over heads.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::ConvConfig;
use super::scope::Scope;
use crate::kernel::Attention;
use crate::{Block, Coefficients};

impl ConvConfig {
    /// Returns the number of heads, the width of one head and the width of all heads together.
    pub(super) fn head_shape(&self) -> (usize, usize, usize) {
        let width = self.out_dim;
        let head_dim = if self.averages_heads {
            width
        } else {
            width / self.heads
        };
        (self.heads, head_dim, self.heads * head_dim)
    }

    /// Returns the edges and factors of an attention layer.
    pub(super) fn attention(&self, scope: &Scope<'_>, block: &Block) -> Attention {
        let dropout = scope.attention_mask(self.attention_dropout);
        Attention {
            csr: Arc::clone(block.csr()),
            heads: self.heads,
            weight: Coefficients::new(block, self.edge_weight).weights(),
            dropout: dropout.map(|mask| (mask, block.shared_key().clone())),
        }
    }

    /// Averages the heads, unless the conv concatenates them.
    pub(super) fn merge_heads(&self, out: Tensor<2>) -> Tensor<2> {
        if !self.averages_heads || self.heads == 1 {
            return out;
        }
        mean_of_heads(out, self.heads)
    }
}

/// Turns a scoring vector `[heads, dim]` into the map `[heads * dim, heads]` that applies it.
pub(crate) fn score_map(scope: &Scope<'_>, name: &str) -> Tensor<2> {
    let vector = scope.parameter(name);
    let [heads, dim] = vector.dims();
    let wide = heads * dim;
    let mut block_diagonal = vec![0.0; wide * heads];
    for at in 0..wide {
        block_diagonal[at * heads + at / dim] = 1.0;
    }
    vector.reshape([wide, 1]) * scope.constant(wide, heads, &block_diagonal)
}

/// Averages heads that stand side by side in each row.
pub(crate) fn mean_of_heads(out: Tensor<2>, heads: usize) -> Tensor<2> {
    let [rows, wide] = out.dims();
    let mean: Tensor<3> = out.reshape([rows, heads, wide / heads]).mean_dim(1);
    mean.reshape([rows, wide / heads])
}
