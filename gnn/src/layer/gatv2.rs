//! Graph attention whose scoring vector comes after the non-linearity.

use burn::tensor::Tensor;

use super::{Features, Pass, Place, Src};
use crate::kernel::GatV2;
use crate::ops::Fused;

impl Pass<'_> {
    /// Returns the sum, without the bias.
    pub(super) fn gatv2(&self, place: Place<'_>, src: Src, own: &Features) -> Tensor<2> {
        let Place { layer, block } = place;
        if let Some(aggregated) = src.aggregated {
            return self.merge_heads(layer, aggregated);
        }
        let l = self.dense(src.rows); // [num_src, heads * dim]
        let r = self.project_dst(layer, own, block.num_dst());
        let edge_feature = self.arch.edge_dim.map(|_| block.clone());
        let weight = match edge_feature {
            Some(_) => self.own(layer, "lin_edge.weight"),
            None => self.constant(1, 1, &[0.0]),
        };
        let op = GatV2 {
            attention: self.attention(place),
            edge_feature,
        };
        let out = Fused::GatV2(op).apply_4([l, r, self.own(layer, "att"), weight]);
        self.merge_heads(layer, out)
    }

    /// Returns what the first `rows` rows are as dst nodes, `[rows, heads * dim]`.
    pub(crate) fn project_dst(&self, layer: usize, own: &Features, rows: usize) -> Tensor<2> {
        self.linear(&format!("convs.{}.lin_r", layer - 1), own, rows)
    }
}
