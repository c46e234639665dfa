//! GraphSAGE: `out[v] = lin_l(mean or max over in-edges of w x[u]) + lin_r(x[v])`.
//!
//! Weights do not enter the divisor of the mean, as in DGL; a node without in-edges aggregates 0.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, ConvConfig, LayerType, LinearTerms, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows, fold, scaled_sum};
use super::pass::{Features, Summed};
use super::scope::Scope;
use crate::coefficient::round;
use crate::kernel::partial::{max_rows, sum_rows};
use crate::kernel::{SegmentMax, Spmm};
use crate::ops::Fused;
use crate::parameter::ParameterList;
use crate::shared_rows::on_values;
use crate::{Aggregator, Block, Coefficients, GnnError, NodeColumns};

pub(super) static TYPE: LayerType = LayerType {
    name: "sage",
    is_attention: false,
    takes_edge_features: false,
    takes_maximum: true,
    reads_source_degrees: false,
    conv: |config| Arc::new(Sage { config }),
};

/// `PyG`'s `SAGEConv`.
#[derive(Debug)]
struct Sage {
    config: ConvConfig,
}

impl Sage {
    fn is_mean(&self) -> bool {
        self.config.aggregator == Aggregator::Mean
    }
}

impl Conv for Sage {
    fn parameters(&self, list: &mut ParameterList) {
        let (rows, cols) = (self.config.out_dim, self.config.in_dim);
        list.linear("lin_l", rows, cols, true);
        list.linear("lin_r", rows, cols, false);
    }

    fn prepare(&self, block: &Block) {
        let coefficients = Coefficients::new(block, self.config.edge_weight);
        if self.is_mean() {
            drop(coefficients.mean());
        } else {
            drop(coefficients.weights());
        }
    }

    fn projected_dim(&self, is_sparse: bool) -> Option<usize> {
        let is_first = self.is_mean() && self.config.product_first(is_sparse);
        is_first.then_some(self.config.out_dim)
    }

    fn project(&self, scope: &Scope<'_>, input: &Features, rows: usize) -> Tensor<2> {
        scope.product(input, rows, "lin_l.weight")
    }

    fn has_parameters_before(&self, is_sparse: bool) -> bool {
        self.projected_dim(is_sparse).is_some()
    }

    fn reads_own(&self) -> bool {
        true
    }

    fn aggregates_own(&self) -> bool {
        false
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _own: &Features) -> Tensor<2> {
        let coefficients = Coefficients::new(block, self.config.edge_weight);
        let csr = Arc::clone(block.csr());
        let aggregate = match self.config.aggregator {
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
        };
        aggregate.apply(scope.dense(src.rows)) // [num_dst, in], or [num_dst, out] if projected
    }

    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        own: &Features,
    ) -> Summed {
        let rows = block.num_dst();
        let (x, addend) = if aggregated.is_projected {
            let of_own = scope.product(own, rows, "lin_r.weight"); // [num_dst, out]
            (aggregated.rows, Some(of_own))
        } else {
            let pairs = (aggregated.rows, "lin_l.weight");
            let own = scope.dense(own.clone());
            let x = scope.product_of_two(rows, pairs, (own, "lin_r.weight"));
            (x, None)
        };
        let bias = Some(scope.parameter("lin_l.bias"));
        Summed { x, addend, bias }
    }

    fn is_linear(&self) -> bool {
        self.is_mean()
    }

    fn linear_terms(&self, scope: &Scope<'_>, block: &Block) -> Option<LinearTerms> {
        self.is_mean().then(|| LinearTerms {
            edge: Coefficients::new(block, self.config.edge_weight).mean(),
            weight: scope.parameter("lin_l.weight"),
            root: Some(scope.parameter("lin_r.weight")),
            bias: Some(scope.parameter("lin_l.bias")),
        })
    }

    fn partial(
        &self,
        _scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        let (edge_weight, is_mean) = (self.config.edge_weight, self.is_mean());
        Ok(Some(Box::new(SagePartial::new(
            src_dim,
            edge_weight,
            is_mean,
        ))))
    }
}

/// Returns the partial aggregation of a mean.
pub(super) fn mean_partial(dim: usize, edge_weight: bool) -> Box<dyn PartialAggregation> {
    Box::new(SagePartial::new(dim, edge_weight, true))
}

/// Its states are sums, or maxima, of src rows.
#[derive(Debug)]
pub(super) struct SagePartial {
    dim: usize,
    edge_weight: bool,
    is_mean: bool,
}

impl SagePartial {
    /// Makes the partial aggregation of a mean, or of a maximum, of rows `dim` wide.
    pub(super) fn new(dim: usize, edge_weight: bool, is_mean: bool) -> Self {
        Self {
            dim,
            edge_weight,
            is_mean,
        }
    }
}

impl PartialAggregation for SagePartial {
    fn state_dim(&self) -> usize {
        self.dim
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, _query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.dim];
        if self.is_mean {
            let weights = edges.weights_or_ones(self.edge_weight);
            on_values!(src.rows, rows => sum_rows(rows, &edges.src, &weights, &mut out));
        } else {
            let weights = edges.weights(self.edge_weight);
            on_values!(src.rows, rows => max_rows(rows, &edges.src, weights, &mut out));
        }
        out
    }

    fn merge(&self, row: u32, states: &[&[f32]], nodes: &NodeColumns) -> Vec<f32> {
        if self.is_mean {
            let degree = nodes.in_degree()[row as usize];
            return scaled_sum(states, round(1.0 / f64::from(degree)));
        }
        fold(states, |most, x| if x > most { x } else { most })
    }
}

#[cfg(test)]
mod tests {
    use crate::layer::tests::{assert_close, of_two_in_edges};
    use crate::{Aggregator, LayerKind};

    #[test]
    fn the_mean_or_the_maximum_is_added_to_the_own_row() {
        let (near, bias, own) = (2.0, 0.5, 3.0);
        for (aggregator, of_neighbours) in [(Aggregator::Mean, 3.0), (Aggregator::Max, 4.0)] {
            let got = of_two_in_edges(LayerKind::Sage, aggregator, &[near, bias, own]);
            assert_close(got, 2.0 * of_neighbours + 0.5 + 3.0);
        }
    }
}
