//! GraphSAGE: `out[v] = lin_l(mean or max over in-edges of w x[u]) + lin_r(x[v])`.
//!
//! Weights do not enter the divisor of the mean, as in DGL; a node without in-edges aggregates 0.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::{Coefficients, Features, Pass, Place, Src};
use crate::Aggregator;
use crate::kernel::{SegmentMax, Spmm};
use crate::ops::Fused;

impl Pass<'_> {
    /// Returns two matrices to add up, or one, without the bias.
    pub(super) fn sage(
        &self,
        Place { layer, block }: Place<'_>,
        src: Src,
        own: Features,
    ) -> (Tensor<2>, Option<Tensor<2>>) {
        let name = |part: &str| format!("convs.{}.{part}", layer - 1);
        let (lin_l, lin_r) = (name("lin_l.weight"), name("lin_r.weight"));
        let rows = block.num_dst();
        let coefficients = Coefficients::new(block, self.arch.edge_weight);
        let csr = Arc::clone(block.csr());
        let aggregate = match self.arch.aggregator {
            Aggregator::Max => Fused::SegmentMax(SegmentMax {
                csr,
                edge: coefficients.weights(),
            }),
            Aggregator::Mean => {
                let mean = Fused::Spmm(Spmm {
                    csr,
                    rows,
                    edge: coefficients.mean(),
                    own: None,
                });
                if src.is_projected {
                    let own = self.product(&own, rows, &lin_r); // [num_dst, out]
                    return (mean.apply(self.dense(src.rows)), Some(own));
                }
                mean
            }
        };
        let neighbours = aggregate.apply(self.dense(src.rows)); // [num_dst, in]
        let sum = self.product_of_two(rows, (neighbours, &lin_l), (self.dense(own), &lin_r));
        (sum, None)
    }
}
