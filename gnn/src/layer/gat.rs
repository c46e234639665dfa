//! Graph attention: a softmax over in-edges and one self-loop weighs the projected src nodes.
//!
//! Edge weights multiply the coefficients after the softmax, as in DGL. The self-loop's edge
//! feature is the mean over the node's other kept in-edges, as in `PyG`.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::attention::score_map;
use super::conv::{Aggregated, Conv, ConvConfig, LayerType, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows};
use super::pass::{Features, Summed, plain};
use super::scope::Scope;
use crate::kernel::partial::{gat_scores, merge_softmax, softmax_rows};
use crate::kernel::{
    EdgeDropout, EdgeScores, EdgeSoftmax, EdgeTerm, Gat as GatKernel, HeadSum, Linear, NodeScores,
    RawGat, Relational, node_scores,
};
use crate::ops::Fused;
use crate::parameter::{ParameterList, Start};
use crate::shared_rows::on_values;
use crate::{Block, Coefficients, Dense, GnnError, NodeColumns};

pub(super) static TYPE: LayerType = LayerType {
    name: "gat",
    is_attention: true,
    takes_edge_features: true,
    takes_maximum: false,
    reads_source_degrees: false,
    conv: |config| Arc::new(Gat { config }),
};

/// `PyG`'s `GATConv`.
#[derive(Debug)]
struct Gat {
    config: ConvConfig,
}

impl Gat {
    /// Names the maps of nodes: one, or one for src and one for dst nodes.
    fn maps(&self) -> &'static [&'static str] {
        if self.config.bipartite {
            &["lin_src.weight", "lin_dst.weight"]
        } else {
            &["lin.weight"]
        }
    }

    /// Names the scoring vectors of the projected rows.
    fn score_vectors(&self) -> &'static [&'static str] {
        if self.config.bipartite {
            &["att_src"]
        } else {
            &["att_src", "att_dst"]
        }
    }

    /// Returns the scores of the first `rows` rows of another type as dst nodes, `[rows, heads]`.
    fn dst_scores(&self, scope: &Scope<'_>, own: &Features, rows: usize) -> Tensor<2> {
        let map = scope.parameter("lin_dst.weight").transpose(); // [in, heads * dim]
        let map = map.matmul(score_map(scope, "att_dst")).transpose(); // [heads, in]
        let own = scope.dense(own.clone());
        let cols = self.config.heads;
        Fused::Linear(Linear { rows, cols }).apply_2([own, map])
    }

    /// Returns the scores of a block's edges, `[num_edges, heads]`, if edges have features.
    fn edge_scores(&self, scope: &Scope<'_>, block: &Block) -> Option<Tensor<2>> {
        self.config.edge_dim?;
        let feature = block.edge_feature().filter(|feature| feature.rows > 0)?;
        let map = self.edge_map(scope);
        let feature_rows = scope.constant(feature.rows, feature.cols, &feature.values);
        let (rows, cols) = (feature.rows, map.dims()[1]);
        Some(Fused::Linear(Linear { rows, cols }).apply_2([feature_rows, map.transpose()]))
    }

    /// Aggregates rows of another type: no row is a dst node's own, and there are no self-loops.
    fn aggregate_bipartite(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        src: Src,
        own: &Features,
    ) -> Tensor<2> {
        let (heads, _, width) = self.config.head_shape();
        let num_dst = block.num_dst();
        if block.num_edges() == 0 {
            return scope.constant(num_dst, width, &vec![0.0; num_dst * width]);
        }
        let csr = || Arc::clone(block.csr());
        let h = scope.dense(src.rows); // [num_src, heads * dim]
        let of_src = src.scores.unwrap_or_else(|| {
            let scores = Relational::NodeScores(NodeScores { heads });
            Fused::Relational(scores).apply_2([h.clone(), scope.parameter("att_src")])
        });
        let of_dst = self.dst_scores(scope, own, num_dst);
        let z = self.edge_scores(scope, block);
        let scores = Relational::EdgeScores(EdgeScores {
            csr: csr(),
            heads,
            first: 0,
            term: z.as_ref().map_or(EdgeTerm::None, |_| EdgeTerm::Edge),
        });
        let z = z.unwrap_or_else(|| scope.constant(1, 1, &[0.0]));
        let scores = Fused::Relational(scores).apply_3([of_src, of_dst, z]); // [num_edges, heads]
        let mask = scope.attention_mask(self.config.attention_dropout);
        let softmax = Relational::EdgeSoftmax(EdgeSoftmax {
            csr: csr(),
            heads,
            weight: Coefficients::new(block, self.config.edge_weight).weights(),
            dropout: mask.map(|mask| EdgeDropout {
                mask,
                key: block.shared_key().clone(),
                relation: None,
            }),
        });
        let alpha = Fused::Relational(softmax).apply(scores);
        let sum = Relational::HeadSum(HeadSum {
            csr: csr(),
            heads,
            width,
        });
        Fused::Relational(sum).apply_2([alpha, h]) // [num_dst, heads * dim]
    }

    /// Returns the map of edge features to scores, `[edge_dim, heads]`.
    fn edge_map(&self, scope: &Scope<'_>) -> Tensor<2> {
        let map = scope.parameter("lin_edge.weight").transpose(); // [edge_dim, heads * dim]
        map.matmul(score_map(scope, "att_edge"))
    }
}

impl Conv for Gat {
    fn parameters(&self, list: &mut ParameterList) {
        let (heads, head_dim, wide) = self.config.head_shape();
        for name in self.maps() {
            list.push(name, &[wide, self.config.in_dim], Start::Glorot);
        }
        list.push("att_src", &[1, heads, head_dim], Start::Glorot);
        list.push("att_dst", &[1, heads, head_dim], Start::Glorot);
        if let Some(edge_dim) = self.config.edge_dim {
            list.push("lin_edge.weight", &[wide, edge_dim], Start::Glorot);
            list.push("att_edge", &[1, heads, head_dim], Start::Glorot);
        }
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
        scope.product(input, rows, self.maps()[0])
    }

    fn reads_own(&self) -> bool {
        self.config.bipartite
    }

    fn scores_dim(&self) -> Option<usize> {
        Some(self.score_vectors().len() * self.config.heads)
    }

    fn scores(&self, scope: &Scope<'_>, rows: &Dense) -> Result<Dense, GnnError> {
        let heads = self.config.heads;
        let names = self.score_vectors().iter();
        let vectors = names.map(|name| Ok(plain(scope.parameter(name))?.values));
        let vectors = vectors.collect::<Result<Vec<Vec<f32>>, GnnError>>()?;
        let vectors: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        Ok(Dense {
            rows: rows.rows,
            cols: vectors.len() * heads,
            values: node_scores(&rows.values, &vectors, heads),
        })
    }

    fn aggregates_raw(&self) -> bool {
        let (_, head_dim, _) = self.config.head_shape();
        !self.config.bipartite && RawGat::pays(self.config.in_dim, head_dim)
    }

    fn aggregate_raw(&self, scope: &Scope<'_>, block: &Block, rows: Tensor<2>) -> Tensor<2> {
        let weight = scope.parameter("lin.weight"); // [heads * dim, in]
        let vectors = self.score_vectors().iter();
        let vectors = vectors.map(|name| score_map(scope, name).transpose());
        let vectors = Tensor::cat(vectors.collect(), 0); // [2 * heads, heads * dim]
        let (rows_of_maps, cols) = (vectors.dims()[0], self.config.in_dim);
        let linear = Fused::Linear(Linear {
            rows: rows_of_maps,
            cols,
        });
        let maps = linear.apply_2([vectors, weight.clone().transpose()]); // [2 * heads, in]
        let z = self.edge_scores(scope, block);
        let op = RawGat(GatKernel {
            attention: self.config.attention(scope, block),
            edge_scores: z.is_some(),
            scored: true,
        });
        let z = z.unwrap_or_else(|| scope.constant(1, 1, &[0.0]));
        Fused::RawGat(op).apply_4([rows, weight, maps, z]) // [num_dst, heads * dim]
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, own: &Features) -> Tensor<2> {
        if self.config.bipartite {
            return self.aggregate_bipartite(scope, block, src, own);
        }
        let h = scope.dense(src.rows); // [num_src, heads * dim]
        let z = self.edge_scores(scope, block);
        let op = GatKernel {
            attention: self.config.attention(scope, block),
            edge_scores: z.is_some(),
            scored: src.scores.is_some(),
        };
        let z = z.unwrap_or_else(|| scope.constant(1, 1, &[0.0]));
        let from_src = src.scores.unwrap_or_else(|| scope.parameter("att_src"));
        let from_dst = scope.parameter("att_dst");
        Fused::Gat(op).apply_4([h, from_src, from_dst, z]) // [num_dst, heads * dim]
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
        let edge = self.config.edge_dim.map(|_| plain(self.edge_map(scope)));
        Ok(Some(Box::new(GatPartial {
            dim: src_dim,
            heads: self.config.heads,
            edge_weight: self.config.edge_weight,
            bipartite: self.config.bipartite,
            edge: edge.transpose()?,
        })))
    }

    fn query(
        &self,
        scope: &Scope<'_>,
        scores: Option<&[f32]>,
        own: Option<&Features>,
    ) -> Result<Vec<f32>, GnnError> {
        if self.config.bipartite {
            let of_own = own.map(|own| plain(self.dst_scores(scope, own, 1)));
            return Ok(of_own
                .transpose()?
                .map(|row| row.values)
                .unwrap_or_default());
        }
        let as_dst = scores.map(|scores| scores[scores.len() / 2..].to_vec());
        Ok(as_dst.unwrap_or_default())
    }
}

/// Its states are those of a softmax; its query is the dst node's score.
#[derive(Debug)]
struct GatPartial {
    dim: usize,
    heads: usize,
    edge_weight: bool,
    bipartite: bool,
    /// `[edge_dim, heads]`, where edges have scores.
    edge: Option<Dense>,
}

impl PartialAggregation for GatPartial {
    fn state_dim(&self) -> usize {
        self.dim + 2 * self.heads
    }

    fn query_dim(&self) -> usize {
        self.heads
    }

    fn adds_loop(&self) -> bool {
        !self.bipartite
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.state_dim()];
        let of_edges = self.edge.as_ref();
        let z = of_edges.map(|map| edge_scores(edges.features(), map));
        let of_nodes = src
            .scores
            .expect("the caller passes the scores that the conv computed")
            .f32();
        let scores_dim = if self.bipartite { 1 } else { 2 } * self.heads;
        let scores = gat_scores((of_nodes, scores_dim, 0), &edges.src, query, z.as_deref());
        let weights = edges.weights(self.edge_weight);
        on_values!(src.rows, rows => {
            softmax_rows((rows, &edges.src), scores, weights, &mut out, self.heads);
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

/// Returns the scores of edges, `[num_edges, heads]`, by `map: [edge_dim, heads]`.
fn edge_scores(feature: &Dense, map: &Dense) -> Vec<f32> {
    let mut scores = vec![0.0; feature.rows * map.cols];
    for (e, of_edge) in scores.chunks_exact_mut(map.cols).enumerate() {
        for (&x, weights) in feature.row(e).iter().zip(map.values.chunks_exact(map.cols)) {
            for (score, &weight) in of_edge.iter_mut().zip(weights) {
                *score += x * weight;
            }
        }
    }
    scores
}

#[cfg(test)]
mod tests {
    use crate::layer::tests::{assert_close, of_two_in_edges};
    use crate::{Aggregator, LayerKind};

    #[test]
    fn a_softmax_of_scores_weighs_neighbours_and_node() {
        let (weight, att_src, att_dst, bias) = (0.5, 1.0, -4.0, 0.25);
        let flat = [weight, att_src, att_dst, bias];
        let got = of_two_in_edges(LayerKind::Gat, Aggregator::Mean, &flat);
        // Projected rows are 0.5, 1 and 2. The dst node subtracts 2 from every score: none is above
        // 0.
        let terms = [0.5, 1.0, 2.0].map(|h: f64| ((0.2 * (h - 2.0)).exp(), h));
        let sum: f64 = terms.iter().map(|(share, h)| share * h).sum();
        let shares: f64 = terms.iter().map(|(share, _)| share).sum();
        assert_close(got, sum / shares + 0.25);
    }
}
