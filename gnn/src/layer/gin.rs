//! Graph isomorphism network: `out[v] = nn(x[v] + sum over in-edges of w x[u])`, eps fixed at 0.
//!
//! `nn` is `PyG`'s two-layer perceptron: linear, norm, activation, linear. With edge features the
//! message is GINE's `relu(x[u] + lin(edge feature))`.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::{Coefficients, Features, Pass, Place, Src, Summed};
use crate::Norm;
use crate::kernel::{Gine, Spmm};
use crate::ops::Fused;

impl Pass<'_> {
    /// Returns the sum, without the bias of the second linear map.
    pub(super) fn gin(&self, place: Place<'_>, src: Src) -> Tensor<2> {
        let Place { layer, block } = place;
        let name = |part: &str| format!("convs.{}.nn.{part}", layer - 1);
        let rows = block.num_dst();
        let sum = src
            .aggregated
            .unwrap_or_else(|| self.gin_sum(place, self.dense(src.rows))); // [num_dst, in], or [num_dst, out] if projected
        let first = if src.is_projected {
            sum
        } else {
            self.product(&Features::Dense(sum), rows, &name("lins.0.weight"))
        };
        let (bias, norm, relu) = (name("lins.0.bias"), name("norms.0"), self.arch.activation);
        let summed = Summed {
            x: first,
            addend: None,
            bias: Some(&bias),
        };
        let hidden = match self.arch.norm {
            Norm::None => self.update(summed, Some(relu), None),
            Norm::Batch | Norm::Layer => {
                let out = self.update(summed, None, None);
                let out = self.norm(&norm, block.num_active(), out);
                self.update(Summed::of(out), Some(relu), None)
            }
        }; // [num_dst, out]
        self.product(&Features::Dense(hidden), rows, &name("lins.1.weight"))
    }

    fn gin_sum(&self, Place { layer, block }: Place<'_>, src: Tensor<2>) -> Tensor<2> {
        let edge = Coefficients::new(block, self.arch.edge_weight).sum();
        if self.arch.edge_dim.is_some() {
            let (weight, bias) = (self.own(layer, "lin.weight"), self.own(layer, "lin.bias"));
            let sum = Fused::Gine(Gine {
                block: block.clone(),
                edge,
            });
            return sum.apply_3([src, weight, bias]);
        }
        let rows = block.num_dst();
        let sum = Fused::Spmm(Spmm {
            csr: Arc::clone(block.csr()),
            rows,
            edge,
            own: Some(vec![1.0; rows].into()),
        });
        sum.apply(src)
    }
}
