//! Graph attention whose scoring vector comes after the non-linearity.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, ConvConfig, LayerType, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows};
use super::pass::{Features, Summed, plain};
use super::scope::Scope;
use crate::kernel::GatV2 as GatV2Kernel;
use crate::kernel::partial::{gatv2_scores, merge_softmax, softmax_rows};
use crate::ops::Fused;
use crate::parameter::{ParameterList, Start};
use crate::shared_rows::on_values;
use crate::{Block, Coefficients, Dense, GnnError, NodeColumns};

pub(super) static TYPE: LayerType = LayerType {
    name: "gatv2",
    is_attention: true,
    takes_edge_features: true,
    takes_maximum: false,
    reads_source_degrees: false,
    conv: |config| Arc::new(GatV2 { config }),
};

/// `PyG`'s `GATv2Conv`.
#[derive(Debug)]
struct GatV2 {
    config: ConvConfig,
}

impl Conv for GatV2 {
    fn parameters(&self, list: &mut ParameterList) {
        let cols = self.config.in_dim;
        let (heads, head_dim, wide) = self.config.head_shape();
        for side in ["lin_l", "lin_r"] {
            list.push(&format!("{side}.weight"), &[wide, cols], Start::Glorot);
            list.push(&format!("{side}.bias"), &[wide], Start::Linear(cols));
        }
        if let Some(edge_dim) = self.config.edge_dim {
            list.push("lin_edge.weight", &[wide, edge_dim], Start::Glorot);
        }
        list.push("att", &[1, heads, head_dim], Start::Glorot);
        list.push("bias", &[self.config.out_dim], Start::Zeros);
    }

    fn prepare(&self, block: &Block) {
        drop(Coefficients::new(block, self.config.edge_weight).weights());
    }

    fn projected_dim(&self, _is_sparse: bool) -> Option<usize> {
        let (_, _, wide) = self.config.head_shape();
        Some(wide)
    }

    fn project(&self, scope: &Scope<'_>, input: &Features, rows: usize) -> Tensor<2> {
        scope.linear("lin_l", input, rows)
    }

    fn reads_own(&self) -> bool {
        true
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, own: &Features) -> Tensor<2> {
        let l = scope.dense(src.rows); // [num_src, heads * dim]
        let r = scope.linear("lin_r", own, block.num_dst()); // [num_dst, heads * dim]
        let edge_feature = block
            .edge_feature()
            .filter(|_| self.config.edge_dim.is_some());
        let weight = match edge_feature {
            Some(_) => scope.parameter("lin_edge.weight"),
            None => scope.constant(1, 1, &[0.0]),
        };
        let op = GatV2Kernel {
            attention: self.config.attention(scope, block),
            edge_feature: edge_feature.map(Arc::clone),
        };
        Fused::GatV2(op).apply_4([l, r, scope.parameter("att"), weight]) // [num_dst, heads * dim]
    }

    fn update(
        &self,
        scope: &Scope<'_>,
        _block: &Block,
        aggregated: Aggregated,
        _own: &Features,
    ) -> Summed {
        Summed {
            bias: Some(scope.parameter("bias")),
            ..Summed::of(self.config.merge_heads(aggregated.rows))
        }
    }

    fn partial(
        &self,
        scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        let values = |name| Ok(plain(scope.parameter(name))?.values);
        let edge = self.config.edge_dim.map(|_| values("lin_edge.weight"));
        Ok(Some(Box::new(GatV2Partial {
            dim: src_dim,
            heads: self.config.heads,
            edge_weight: self.config.edge_weight,
            bipartite: self.config.bipartite,
            att: values("att")?,
            edge: edge.transpose()?,
        })))
    }

    fn query(
        &self,
        scope: &Scope<'_>,
        _scores: Option<&[f32]>,
        own: Option<&Features>,
    ) -> Result<Vec<f32>, GnnError> {
        match own {
            Some(row) => Ok(plain(scope.linear("lin_r", row, 1))?.values),
            None => Ok(Vec::new()),
        }
    }
}

/// Its states are those of a softmax; its query is the dst node's row, projected.
#[derive(Debug)]
struct GatV2Partial {
    dim: usize,
    heads: usize,
    edge_weight: bool,
    bipartite: bool,
    att: Vec<f32>,
    /// `[dim, edge_dim]`, where edge features are read.
    edge: Option<Vec<f32>>,
}

impl PartialAggregation for GatV2Partial {
    fn state_dim(&self) -> usize {
        self.dim + 2 * self.heads
    }

    fn query_dim(&self) -> usize {
        self.dim
    }

    fn adds_loop(&self) -> bool {
        !self.bipartite
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.state_dim()];
        let of = &edges.src[..];
        let edge = self.edge.as_deref().map(|map| (edges.features(), map));
        let weights = edges.weights(self.edge_weight);
        on_values!(src.rows, x => {
            let scores = gatv2_scores((x, of), (query, &self.att, self.heads), edge);
            softmax_rows((x, of), scores, weights, &mut out, self.heads);
        });
        out
    }

    fn own_state(
        &self,
        row: u32,
        mean: Option<Dense>,
        src: SrcRows<'_>,
        query: &[f32],
    ) -> Option<Vec<f32>> {
        let own_loop = || self.state(&SomeInEdges::own_loop(row, mean), src, query);
        (!self.bipartite).then(own_loop)
    }

    fn merge(&self, _row: u32, states: &[&[f32]], _nodes: &NodeColumns) -> Vec<f32> {
        merge_softmax(states, self.heads)
    }
}

#[cfg(test)]
mod tests {
    use crate::layer::tests::{assert_close, of_two_in_edges};
    use crate::{Aggregator, LayerKind};

    #[test]
    fn the_score_is_taken_after_the_non_linearity() {
        let (left, right) = ([0.5, 0.0], [-1.0, -0.5]);
        let (att, bias) = (2.0, 0.25);
        let flat = [&left[..], &right, &[att, bias]].concat();
        let got = of_two_in_edges(LayerKind::GatV2, Aggregator::Mean, &flat);
        // `r` of the dst node is -1.5; `l` of the sources is 0.5, 1 and 2.
        let leaky = |x: f64| if x > 0.0 { x } else { 0.2 * x };
        let terms = [0.5, 1.0, 2.0].map(|l: f64| ((2.0 * leaky(l - 1.5)).exp(), l));
        let sum: f64 = terms.iter().map(|(share, l)| share * l).sum();
        let shares: f64 = terms.iter().map(|(share, _)| share).sum();
        assert_close(got, sum / shares + 0.25);
    }
}
