//! Graph convolution: `out[v] = sum of w / sqrt(deg[u] deg[v]) * W x[u], self-loop included, + b`.
//!
//! Degrees are those of the whole graph. The self-loop is added as by `PyG`'s
//! `add_remaining_self_loops`: every node has exactly one. With edge weights, its weight is the sum
//! of the weights of the node's own self-loops.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, ConvConfig, LayerType, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows, own_row, scaled_sum};
use super::pass::{Features, Summed};
use super::scope::Scope;
use crate::coefficient::round;
use crate::kernel::Spmm;
use crate::kernel::partial::sum_rows;
use crate::ops::Fused;
use crate::parameter::{ParameterList, Start};
use crate::shared_rows::on_values;
use crate::{Block, Coefficients, Dense, GnnError, NodeColumns};

pub(super) static TYPE: LayerType = LayerType {
    name: "gcn",
    is_attention: false,
    takes_edge_features: false,
    takes_maximum: false,
    reads_source_degrees: true,
    conv: |config| Arc::new(Gcn { config }),
};

/// `PyG`'s `GCNConv`.
#[derive(Debug)]
struct Gcn {
    config: ConvConfig,
}

impl Conv for Gcn {
    fn parameters(&self, list: &mut ParameterList) {
        let (rows, cols) = (self.config.out_dim, self.config.in_dim);
        list.push("lin.weight", &[rows, cols], Start::Glorot);
        list.push("bias", &[rows], Start::Zeros);
    }

    fn prepare(&self, block: &Block) {
        drop(Coefficients::new(block, self.config.edge_weight).gcn());
    }

    fn projected_dim(&self, is_sparse: bool) -> Option<usize> {
        let is_first = self.config.product_first(is_sparse);
        is_first.then_some(self.config.out_dim)
    }

    fn project(&self, scope: &Scope<'_>, input: &Features, rows: usize) -> Tensor<2> {
        scope.product(input, rows, "lin.weight")
    }

    fn has_parameters_before(&self, is_sparse: bool) -> bool {
        self.projected_dim(is_sparse).is_some()
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _own: &Features) -> Tensor<2> {
        let (edge, own) = Coefficients::new(block, self.config.edge_weight).gcn();
        let sum = Fused::Spmm(Spmm {
            csr: Arc::clone(block.csr()),
            rows: block.num_dst(),
            edge,
            own: Some(own),
        });
        sum.apply(scope.dense(src.rows)) // [num_dst, in], or [num_dst, out] if projected
    }

    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        _own: &Features,
    ) -> Summed {
        let x = if aggregated.is_projected {
            aggregated.rows
        } else {
            let rows = Features::Dense(aggregated.rows);
            scope.product(&rows, block.num_dst(), "lin.weight")
        };
        Summed {
            bias: Some(scope.parameter("bias")),
            ..Summed::of(x)
        }
    }

    fn partial(
        &self,
        _scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        Ok(Some(Box::new(GcnPartial {
            dim: src_dim,
            edge_weight: self.config.edge_weight,
        })))
    }
}

/// Its states are sums of src rows, each divided by the root of its degree.
#[derive(Debug)]
struct GcnPartial {
    dim: usize,
    edge_weight: bool,
}

impl PartialAggregation for GcnPartial {
    fn state_dim(&self) -> usize {
        self.dim
    }

    fn adds_loop(&self) -> bool {
        true
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, _query: &[f32]) -> Vec<f32> {
        let inverse = src.nodes.inverse_roots(self.edge_weight);
        let weights = edges.weights(self.edge_weight);
        let weight = |e: usize| weights.map_or(1.0, |weights| f64::from(weights[e]));
        let terms = edges.src.iter().enumerate();
        let terms = terms.map(|(e, &u)| round(weight(e) * inverse[u as usize]));
        let terms: Vec<f32> = terms.collect();
        let mut out = vec![0.0; self.dim];
        on_values!(src.rows, rows => sum_rows(rows, &edges.src, &terms, &mut out));
        out
    }

    fn own_state(
        &self,
        row: u32,
        _mean: Option<Dense>,
        src: SrcRows<'_>,
        _query: &[f32],
    ) -> Option<Vec<f32>> {
        let (nodes, at) = (src.nodes, row as usize);
        let factor =
            nodes.own_weight(at, self.edge_weight) * nodes.inverse_roots(self.edge_weight)[at];
        let own = own_row(row, self.dim, src).into_iter();
        Some(own.map(|x| round(factor) * x).collect())
    }

    fn merge(&self, row: u32, states: &[&[f32]], nodes: &NodeColumns) -> Vec<f32> {
        let inverse = nodes.inverse_roots(self.edge_weight)[row as usize];
        scaled_sum(states, round(inverse))
    }
}

#[cfg(test)]
mod tests {
    use crate::layer::tests::{assert_close, of_two_in_edges};
    use crate::{Aggregator, LayerKind};

    #[test]
    fn neighbours_are_weighed_by_the_roots_of_degrees_in_the_graph() {
        let (weight, bias) = (2.0, 0.5);
        let got = of_two_in_edges(LayerKind::Gcn, Aggregator::Mean, &[weight, bias]);
        // Degrees with a self-loop are 3, 1 and 2.
        let sum = 1.0 / 3.0 + 2.0 / 3_f64.sqrt() + 4.0 / 6_f64.sqrt();
        assert_close(got, 2.0 * sum + 0.5);
    }
}
