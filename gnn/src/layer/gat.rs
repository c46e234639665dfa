//! Graph attention: a softmax over in-edges and one self-loop weighs the projected src nodes.
//!
//! Edge weights multiply the coefficients after the softmax, as in DGL. The self-loop's edge
//! feature is the mean over the node's other kept in-edges, as in `PyG`.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::{Coefficients, MaskKind, Pass, Place, Src};
use crate::kernel::{Attention, Gat, Linear};
use crate::ops::Fused;
use crate::parameter::head_shape;

impl Pass<'_> {
    /// Returns the sum, without the bias.
    pub(super) fn gat(&self, place: Place<'_>, src: Src) -> Tensor<2> {
        let Place { layer, block } = place;
        if let Some(aggregated) = src.aggregated {
            return self.merge_heads(layer, aggregated);
        }
        let h = self.dense(src.rows); // [num_src, heads * dim]
        let feature = block
            .edge_feature()
            .filter(|_| self.arch.edge_dim.is_some());
        let feature = feature.filter(|feature| feature.rows > 0);
        let z = feature.map(|feature| {
            let map = self.edge_map(layer);
            let feature_rows = self.constant(feature.rows, feature.cols, &feature.values);
            let cols = map.dims()[1];
            let rows = feature.rows;
            Fused::Linear(Linear { rows, cols }).apply_2([feature_rows, map.transpose()])
        });
        let op = Gat {
            attention: self.attention(place),
            edge_scores: z.is_some(),
            scored: src.scores.is_some(),
        };
        let z = z.unwrap_or_else(|| self.constant(1, 1, &[0.0]));
        let from_src = src.scores.unwrap_or_else(|| self.own(layer, "att_src"));
        let from_dst = self.own(layer, "att_dst");
        self.merge_heads(layer, Fused::Gat(op).apply_4([h, from_src, from_dst, z]))
    }

    /// Returns the edges and factors of an attention layer.
    pub(super) fn attention(&self, Place { layer, block }: Place<'_>) -> Attention {
        let dropout = self.mask(layer, MaskKind::Attention, self.arch.attention_dropout);
        Attention {
            csr: Arc::clone(block.csr()),
            heads: self.arch.heads_of(layer).0,
            weight: Coefficients::new(block, self.arch.edge_weight).weights(),
            dropout: dropout.map(|mask| (mask, block.shared_key().clone())),
        }
    }

    /// Returns the map of edge features to scores, `[edge_dim, heads]`.
    pub(crate) fn edge_map(&self, layer: usize) -> Tensor<2> {
        let map = self.own(layer, "lin_edge.weight").transpose(); // [edge_dim, heads * dim]
        map.matmul(self.score_map(layer, "att_edge"))
    }

    /// Turns a scoring vector `[heads, dim]` into the map `[heads * dim, heads]` that applies it.
    fn score_map(&self, layer: usize, name: &str) -> Tensor<2> {
        let (heads, dim, wide) = head_shape(self.arch, layer);
        let column = self.own(layer, name).reshape([wide, 1]);
        let mut block_diagonal = vec![0.0; wide * heads];
        for at in 0..wide {
            block_diagonal[at * heads + at / dim] = 1.0;
        }
        column * self.constant(wide, heads, &block_diagonal)
    }

    /// Averages the heads where they do not stand side by side.
    pub(super) fn merge_heads(&self, layer: usize, out: Tensor<2>) -> Tensor<2> {
        let (heads, averaged) = self.arch.heads_of(layer);
        if !averaged || heads == 1 {
            return out;
        }
        let [rows, wide] = out.dims();
        let dim = wide / heads;
        let mean: Tensor<3> = out.reshape([rows, heads, dim]).mean_dim(1);
        mean.reshape([rows, dim])
    }
}
