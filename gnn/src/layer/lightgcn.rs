//! `LightGCN` (He et al., 2020): `x[l + 1][v] = sum of x[l][u] / sqrt(deg[u] deg[v])` over in-edges,
//! without weights and without added self-loops. The embedding is the mean of `x[0]` to `x[K]`.
//!
//! `x[0]` is the learnable row of a node. Degrees are in-degrees in the whole graph, of all
//! relations together in a typed graph, as if its nodes and edges had no types.
//!
//! The mean is computed as `y[l + 1] = A y[l] + x[0]`, where `y[0] = x[0]` and the embedding is
//! `y[K] / (K + 1)`. So rows between layers have two halves: `y[l]` and `x[0]`. In a typed graph the
//! first half is divided by `sqrt(deg)` of the row's own node, so that a layer needs the degrees of
//! its dst nodes only.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, ConvConfig, LayerType, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows, fold, scaled_sum};
use super::pass::{Features, Pass, Summed};
use super::scope::Scope;
use crate::coefficient::round;
use crate::kernel::partial::sum_rows;
use crate::kernel::{Shared, Spmm, count_of};
use crate::ops::Fused;
use crate::parameter::ParameterList;
use crate::shared_rows::on_values;
use crate::{Block, Coefficients, GnnError, NodeColumns};

pub(super) static TYPE: LayerType = LayerType {
    name: "lightgcn",
    is_attention: false,
    takes_edge_features: false,
    takes_maximum: false,
    reads_source_degrees: true,
    conv: |config| Arc::new(LightGcn { config }),
};

/// `PyG`'s `LGConv`; the mean over layers belongs to the model ([`carry`]).
#[derive(Debug)]
struct LightGcn {
    config: ConvConfig,
}

impl Conv for LightGcn {
    fn parameters(&self, _list: &mut ParameterList) {}

    fn prepare(&self, block: &Block) {
        drop(self.coefficients(block));
    }

    fn projected_dim(&self, _is_sparse: bool) -> Option<usize> {
        let dim = self.config.carried_dim;
        (self.config.in_dim > dim).then_some(dim)
    }

    fn project(&self, scope: &Scope<'_>, input: &Features, rows: usize) -> Tensor<2> {
        let input = scope.dense(input.clone()).narrow(0, 0, rows);
        input.narrow(1, 0, self.config.carried_dim)
    }

    fn reads_own(&self) -> bool {
        true
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _own: &Features) -> Tensor<2> {
        let sum = Fused::Spmm(Spmm {
            csr: Arc::clone(block.csr()),
            rows: block.num_dst(),
            edge: self.coefficients(block),
            own: None,
        });
        sum.apply(scope.dense(src.rows)) // [num_dst, carried]
    }

    fn update(
        &self,
        _scope: &Scope<'_>,
        _block: &Block,
        aggregated: Aggregated,
        _own: &Features,
    ) -> Summed {
        Summed::of(aggregated.rows)
    }

    fn partial(
        &self,
        _scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        Ok(Some(Box::new(LightPartial {
            dim: src_dim,
            of_relation: self.config.of_relation,
        })))
    }
}

impl LightGcn {
    fn coefficients(&self, block: &Block) -> Shared<f32> {
        let of_block = Coefficients::new(block, false);
        match self.config.of_relation {
            // The rows are scaled by the degrees.
            true => of_block.sum(),
            false => of_block.light(),
        }
    }
}

/// Returns the rows after a layer, given the sums over in-edges `[num_dst, dim]` and the rows of the
/// dst nodes before the layer. `root` has `1 / sqrt(deg)` of each dst node, `[num_dst, 1]`, if sums
/// and rows are scaled by it.
pub(crate) fn carry(
    pass: &Pass<'_>,
    (layer, num_layers): (usize, usize),
    sums: Summed,
    own: Tensor<2>,
    root: Option<Tensor<2>>,
) -> Tensor<2> {
    let mut sums = pass.sum(sums, None, None);
    let [_, dim] = sums.dims();
    if let Some(root) = &root {
        sums = sums * root.clone();
    }
    let behind = own.dims()[1] - dim;
    let start = own.narrow(1, behind, dim);
    let rows = sums + start.clone();
    if layer == num_layers {
        return mean(rows, num_layers);
    }
    let rows = match root {
        Some(root) => rows * root,
        None => rows,
    };
    Tensor::cat(vec![rows, start], 1) // [num_dst, 2 * dim]
}

/// Turns the last sum over layers into the mean over the start and all layers.
pub(crate) fn mean(sum: Tensor<2>, num_layers: usize) -> Tensor<2> {
    sum.div_scalar(count_of(num_layers + 1))
}

/// Its states are sums of src rows; without types, each divided by the root of its degree.
#[derive(Debug)]
struct LightPartial {
    dim: usize,
    of_relation: bool,
}

impl PartialAggregation for LightPartial {
    fn state_dim(&self) -> usize {
        self.dim
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, _query: &[f32]) -> Vec<f32> {
        let terms: Vec<f32> = match self.of_relation {
            true => vec![1.0; edges.src.len()],
            false => {
                let roots = src.nodes.light_roots();
                let terms = edges.src.iter().map(|&u| round(roots[u as usize]));
                terms.collect()
            }
        };
        let mut out = vec![0.0; self.dim];
        on_values!(src.rows, rows => sum_rows(rows, &edges.src, &terms, &mut out));
        out
    }

    fn merge(&self, row: u32, states: &[&[f32]], nodes: &NodeColumns) -> Vec<f32> {
        match self.of_relation {
            true => fold(states, |a, b| a + b),
            false => scaled_sum(states, round(nodes.light_roots()[row as usize])),
        }
    }
}
