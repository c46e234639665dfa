//! Graph isomorphism network: `out[v] = nn(x[v] + sum over in-edges of w x[u])`, eps fixed at 0.
//!
//! `nn` is `PyG`'s two-layer perceptron: linear, norm, activation, linear. With edge features the
//! message is GINE's `relu(x[u] + lin(edge feature))`.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::coefficient::Coefficients;
use super::{Features, Pass, Place};
use crate::kernel::{Gine, Spmm};
use crate::ops::Fused;

impl Pass<'_> {
    pub(super) fn gin(&self, place: Place<'_>, input: Features) -> Tensor<2> {
        let Place { layer, block } = place;
        let name = |part: &str| format!("convs.{}.nn.{part}", layer - 1);
        let edge = Coefficients::new(block, self.arch.edge_weight).sum();
        let (csr, own) = (Arc::clone(block.csr()), Some(vec![1.0; block.num_dst()]));
        let hidden = if self.arch.edge_dim.is_some() {
            let (weight, bias) = (self.own(layer, "lin.weight"), self.own(layer, "lin.bias"));
            let sum = Fused::Gine(Gine {
                block: block.clone(),
                edge,
            });
            let summed = sum.apply_3([self.dense(input), weight, bias]); // [num_dst, in]
            self.product(&Features::Dense(summed), &name("lins.0.weight"))
        } else if self.product_first(layer, &input) {
            let sum = Fused::Spmm(Spmm { csr, edge, own });
            sum.apply(self.product(&input, &name("lins.0.weight")))
        } else {
            let summed = Fused::Spmm(Spmm { csr, edge, own }).apply(self.dense(input)); // [num_dst, in]
            self.product(&Features::Dense(summed), &name("lins.0.weight"))
        };
        let hidden = hidden + self.parameter(&name("lins.0.bias"));
        let hidden = self.norm(&name("norms.0"), block.num_active(), hidden);
        let hidden = self.activate(hidden); // [num_dst, out]
        self.linear(&name("lins.1"), &Features::Dense(hidden))
    }
}
