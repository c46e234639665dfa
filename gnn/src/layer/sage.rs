//! GraphSAGE: `out[v] = lin_l(mean or max over in-edges of w x[u]) + lin_r(x[v])`.
//!
//! Weights do not enter the divisor of the mean, as in DGL; a node without in-edges aggregates 0.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::{Coefficients, Features, Pass, Place, Src};
use crate::kernel::{SegmentMax, Spmm};
use crate::ops::Fused;
use crate::{Aggregator, Block};

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
        let neighbours = src.aggregated.unwrap_or_else(|| {
            let aggregate = self.sage_aggregate(block);
            aggregate.apply(self.dense(src.rows))
        }); // [num_dst, in], or [num_dst, out] if projected
        if src.is_projected {
            let own = self.product(&own, rows, &lin_r); // [num_dst, out]
            return (neighbours, Some(own));
        }
        let sum = self.product_of_two(rows, (neighbours, &lin_l), (self.dense(own), &lin_r));
        (sum, None)
    }

    fn sage_aggregate(&self, block: &Block) -> Fused {
        let coefficients = Coefficients::new(block, self.arch.edge_weight);
        let csr = Arc::clone(block.csr());
        match self.arch.aggregator {
            Aggregator::Max => Fused::SegmentMax(SegmentMax {
                csr,
                edge: coefficients.weights(),
            }),
            Aggregator::Mean => Fused::Spmm(Spmm {
                csr,
                rows: block.num_dst(),
                edge: coefficients.mean(),
                own: None,
            }),
        }
    }
}
