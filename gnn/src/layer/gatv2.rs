//! Graph attention whose scoring vector comes after the non-linearity.

use burn::tensor::Tensor;

use super::{Features, Pass, Place, Src};
use crate::kernel::GatV2;
use crate::ops::Fused;

impl Pass<'_> {
    /// Returns the sum, without the bias.
    pub(super) fn gatv2(&self, place: Place<'_>, src: Src, own: &Features) -> Tensor<2> {
        let Place { layer, block } = place;
        let name = |side: &str| format!("convs.{}.{side}", layer - 1);
        let l = self.dense(src.rows); // [num_src, heads * dim]
        let r = self.linear(&name("lin_r"), own, block.num_dst()); // [num_dst, heads * dim]
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
}
