//! Graph isomorphism network: `out[v] = nn(x[v] + sum over in-edges of w x[u])`, eps fixed at 0.
//!
//! `nn` is `PyG`'s two-layer perceptron: linear, norm, activation, linear. With edge features the
//! message is GINE's `relu(x[u] + lin(edge feature))`.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, ConvConfig, LayerType, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows, fold, own_row};
use super::pass::{Features, Summed, plain};
use super::scope::Scope;
use crate::kernel::partial::{gine_rows, sum_rows};
use crate::kernel::{Gine, Spmm};
use crate::ops::Fused;
use crate::parameter::ParameterList;
use crate::shared_rows::on_values;
use crate::{Block, Coefficients, Dense, GnnError, NodeColumns, Norm};

pub(super) static TYPE: LayerType = LayerType {
    name: "gin",
    is_attention: false,
    takes_edge_features: true,
    takes_maximum: false,
    reads_source_degrees: false,
    conv: |config| Arc::new(Gin { config }),
};

/// `PyG`'s `GINConv`, or `GINEConv` with edge features.
#[derive(Debug)]
struct Gin {
    config: ConvConfig,
}

impl Conv for Gin {
    fn parameters(&self, list: &mut ParameterList) {
        let ConvConfig {
            in_dim,
            out_dim,
            norm,
            ..
        } = self.config;
        if let Some(edge_dim) = self.config.edge_dim {
            list.linear("lin", in_dim, edge_dim, true);
        }
        list.linear("nn.lins.0", out_dim, in_dim, true);
        list.norm("nn.norms.0", norm, out_dim);
        list.linear("nn.lins.1", out_dim, out_dim, true);
        list.zero("eps");
    }

    fn prepare(&self, block: &Block) {
        drop(Coefficients::new(block, self.config.edge_weight).sum());
    }

    fn projected_dim(&self, is_sparse: bool) -> Option<usize> {
        let is_first = self.config.edge_dim.is_none() && self.config.product_first(is_sparse);
        is_first.then_some(self.config.out_dim)
    }

    fn project(&self, scope: &Scope<'_>, input: &Features, rows: usize) -> Tensor<2> {
        scope.product(input, rows, "nn.lins.0.weight")
    }

    fn has_parameters_before(&self, is_sparse: bool) -> bool {
        self.config.edge_dim.is_some() || self.projected_dim(is_sparse).is_some()
    }

    fn reads_own(&self) -> bool {
        self.config.bipartite
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _own: &Features) -> Tensor<2> {
        let src = scope.dense(src.rows);
        let edge = Coefficients::new(block, self.config.edge_weight).sum();
        let csr = Arc::clone(block.csr());
        if self.config.edge_dim.is_some() {
            let (weight, bias) = (scope.parameter("lin.weight"), scope.parameter("lin.bias"));
            let feature = block.edge_feature().expect("a model checks its blocks");
            let feature = Arc::clone(feature);
            return Fused::Gine(Gine { csr, feature, edge }).apply_3([src, weight, bias]);
        }
        let rows = block.num_dst();
        let sum = Fused::Spmm(Spmm {
            csr,
            rows,
            edge,
            own: (!self.config.bipartite).then(|| vec![1.0; rows].into()),
        });
        sum.apply(src) // [num_dst, in], or [num_dst, out] if projected
    }

    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        own: &Features,
    ) -> Summed {
        let rows = block.num_dst();
        let own = self.config.bipartite.then_some(own);
        let summed = if aggregated.is_projected {
            let own = own.map(|own| scope.product(own, rows, "nn.lins.0.weight"));
            Summed::of(aggregated.rows).plus(own)
        } else {
            let own = own.map(|own| scope.dense(own.clone()).narrow(0, 0, rows));
            let sum = match own {
                Some(own) => own + aggregated.rows,
                None => aggregated.rows,
            };
            Summed::of(scope.product(&Features::Dense(sum), rows, "nn.lins.0.weight"))
        };
        let summed = Summed {
            bias: Some(scope.parameter("nn.lins.0.bias")),
            ..summed
        };
        let activation = Some(self.config.activation);
        let hidden = match self.config.norm {
            Norm::None => scope.sum(summed, activation),
            norm @ (Norm::Batch | Norm::Layer) => {
                let out = scope.sum(summed, None);
                let out = scope.norm(norm, "nn.norms.0", block.num_active(), out);
                scope.sum(Summed::of(out), activation)
            }
        }; // [num_dst, out]
        let x = scope.product(&Features::Dense(hidden), rows, "nn.lins.1.weight");
        Summed {
            bias: Some(scope.parameter("nn.lins.1.bias")),
            ..Summed::of(x)
        }
    }

    fn partial(
        &self,
        scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        let values = |name| Ok(plain(scope.parameter(name))?.values);
        let edge = match self.config.edge_dim {
            Some(_) => Some((values("lin.weight")?, values("lin.bias")?)),
            None => None,
        };
        Ok(Some(Box::new(GinPartial {
            dim: src_dim,
            edge_weight: self.config.edge_weight,
            bipartite: self.config.bipartite,
            edge,
        })))
    }
}

/// Its states are sums of messages.
#[derive(Debug)]
struct GinPartial {
    dim: usize,
    edge_weight: bool,
    bipartite: bool,
    /// Weight, `[dim, edge_dim]`, and bias of the map of edge features, where they are read.
    edge: Option<(Vec<f32>, Vec<f32>)>,
}

impl PartialAggregation for GinPartial {
    fn state_dim(&self) -> usize {
        self.dim
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, _query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.dim];
        let weights = edges.weights_or_ones(self.edge_weight);
        let of = &edges.src[..];
        on_values!(src.rows, x => match &self.edge {
            Some((map, bias)) => {
                gine_rows((x, of), &weights, (edges.features(), map, bias), &mut out);
            }
            None => sum_rows(x, of, &weights, &mut out),
        });
        out
    }

    fn own_state(
        &self,
        row: u32,
        _mean: Option<Dense>,
        src: SrcRows<'_>,
        _query: &[f32],
    ) -> Option<Vec<f32>> {
        (!self.bipartite).then(|| own_row(row, self.dim, src))
    }

    fn merge(&self, _row: u32, states: &[&[f32]], _nodes: &NodeColumns) -> Vec<f32> {
        fold(states, |a, b| a + b)
    }
}

#[cfg(test)]
mod tests {
    use crate::layer::tests::{assert_close, of_two_in_edges};
    use crate::{Aggregator, LayerKind};

    #[test]
    fn a_perceptron_reads_the_sum_of_neighbours_and_node() {
        let (first, second) = ([1.5, -0.5], [2.0, 1.0]);
        let flat = [first, second].concat();
        let got = of_two_in_edges(LayerKind::Gin, Aggregator::Mean, &flat);
        assert_close(got, 2.0 * (1.5 * 7.0 - 0.5) + 1.0);
        // The activation between the two maps sets negative values to 0.
        let cut = of_two_in_edges(LayerKind::Gin, Aggregator::Mean, &[-1.0, 0.5, 2.0, 1.0]);
        assert_close(cut, 1.0);
    }
}
