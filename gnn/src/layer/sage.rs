//! GraphSAGE: `out[v] = lin_l(mean or max over in-edges of w x[u]) + lin_r(x[v])`.
//!
//! Weights do not enter the divisor of the mean, as in DGL; a node without in-edges aggregates 0.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::coefficient::Coefficients;
use super::{Features, Pass, Place};
use crate::Aggregator;
use crate::kernel::{SegmentMax, Spmm};
use crate::ops::Fused;

impl Pass<'_> {
    pub(super) fn sage(&self, Place { layer, block }: Place<'_>, input: Features) -> Tensor<2> {
        let name = |part: &str| format!("convs.{}.{part}", layer - 1);
        let own = self.first_rows(&input, block.num_dst());
        let own = self.product(&own, &name("lin_r.weight")); // [num_dst, out]
        let coefficients = Coefficients::new(block, self.arch.edge_weight);
        let csr = Arc::clone(block.csr());
        let neighbours = match self.arch.aggregator {
            Aggregator::Max => {
                let max = Fused::SegmentMax(SegmentMax {
                    csr,
                    edge: coefficients.weights(),
                });
                let largest = max.apply(self.dense(input)); // [num_dst, in]
                self.product(&Features::Dense(largest), &name("lin_l.weight"))
            }
            Aggregator::Mean => {
                let mean = Fused::Spmm(Spmm {
                    csr,
                    edge: coefficients.mean(),
                    own: None,
                });
                if self.product_first(layer, &input) {
                    mean.apply(self.product(&input, &name("lin_l.weight")))
                } else {
                    let mean = mean.apply(self.dense(input)); // [num_dst, in]
                    self.product(&Features::Dense(mean), &name("lin_l.weight"))
                }
            }
        };
        neighbours + own + self.own(layer, "lin_l.bias")
    }
}
