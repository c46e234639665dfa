//! Partial aggregation: what a conv makes of the in-edges of one node, some of them at a time.
//!
//! Each part of a node's in-edges comes to a *state*, wherever the rows of their sources lie, and the
//! states merge into the row that the conv's kernel would have given, up to rounding. AGL re-indexes
//! hubs so (PVLDB 13, section 3.2.2); sums and maxima are states themselves, and those of a softmax are
//! those of its online form (Milakov & Gimelshein, 2018).

use crate::kernel::partial::{
    gat_scores, gatv2_scores, gine_rows, max_rows, merge_softmax, softmax_rows, sum_rows,
};
use crate::layer::round;
use crate::{Dense, NodeColumns};

/// Some in-edges of a node of which all are read, none left out by sampling.
#[derive(Clone, Debug, Default)]
pub struct SomeInEdges {
    /// The row of the src node of each in-edge, in rank order.
    pub src: Vec<u32>,
    /// Weight of each in-edge, where the model uses them.
    pub weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`, where the model reads them.
    pub feature: Option<Dense>,
}

/// What is aggregated of all nodes that have a row.
#[derive(Clone, Copy, Debug)]
pub struct SrcRows<'a> {
    /// `[num_rows, src_dim]`.
    pub rows: &'a [f32],
    /// `[num_rows, scores_dim]`, where the conv has such.
    pub scores: Option<&'a [f32]>,
    /// The columns of the same nodes.
    pub nodes: &'a NodeColumns,
}

/// How a conv aggregates, with the parameters that takes; made by [`crate::Conv::aggregation`].
#[derive(Debug)]
pub struct Aggregation {
    pub(crate) kind: Kind,
    /// Width of what is aggregated.
    pub(crate) dim: usize,
    pub(crate) edge_weight: bool,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Gcn,
    Mean,
    Max,
    /// GIN's sum, with the node's own row.
    Sum,
    Gine {
        /// `[dim, edge_dim]`.
        weight: Vec<f32>,
        bias: Vec<f32>,
    },
    Gat {
        heads: usize,
        /// `[edge_dim, heads]`, where edges have scores.
        edge: Option<Dense>,
    },
    GatV2 {
        heads: usize,
        att: Vec<f32>,
        /// `[dim, edge_dim]`, where edge features are read.
        edge: Option<Vec<f32>>,
    },
}

impl Aggregation {
    /// Returns the width of a state.
    #[must_use]
    pub fn state_dim(&self) -> usize {
        self.dim + 2 * self.heads()
    }

    /// Returns the width of what is to be known of the dst node, see [`crate::Conv::query`].
    #[must_use]
    pub fn query_dim(&self) -> usize {
        match self.kind {
            Kind::Gat { heads, .. } => heads,
            Kind::GatV2 { .. } => self.dim,
            _ => 0,
        }
    }

    /// 0 where there is no softmax.
    fn heads(&self) -> usize {
        match self.kind {
            Kind::Gat { heads, .. } | Kind::GatV2 { heads, .. } => heads,
            _ => 0,
        }
    }

    /// Aggregates some in-edges of a node; at least one, and no self-loop where the conv adds one
    /// ([`adds_loop`](Self::adds_loop)).
    ///
    /// # Shapes
    ///
    /// - `query`: `[query_dim]`, the dst node's
    /// - returns: `[state_dim]`
    #[must_use]
    pub fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.state_dim()];
        let weight = edges.weight.as_deref().filter(|_| self.edge_weight);
        let (x, of) = (src.rows, &edges.src[..]);
        match &self.kind {
            Kind::Gcn => {
                let inverse = src.nodes.inverse_roots(self.edge_weight);
                let weight = |e: usize| weight.map_or(1.0, |weight| f64::from(weight[e]));
                let terms = of.iter().enumerate();
                let terms = terms.map(|(e, &u)| round(weight(e) * inverse[u as usize]));
                sum_rows(x, of, &terms.collect::<Vec<f32>>(), &mut out);
            }
            Kind::Mean | Kind::Sum => sum_rows(x, of, &or_ones(weight, of.len()), &mut out),
            Kind::Max => max_rows(x, of, weight, &mut out),
            Kind::Gine { weight: map, bias } => {
                let factor = or_ones(weight, of.len());
                gine_rows((x, of), &factor, (features(edges), map, bias), &mut out);
            }
            Kind::Gat { heads, edge } => {
                let z = edge.as_ref().map(|map| edge_scores(features(edges), map));
                let scores = gat_scores(of_nodes(src), of, query, z.as_deref());
                softmax_rows((x, of), scores, weight, &mut out, *heads);
            }
            Kind::GatV2 { heads, att, edge } => {
                let edge = edge.as_deref().map(|map| (features(edges), map));
                let scores = gatv2_scores((x, of), (query, att, *heads), edge);
                softmax_rows((x, of), scores, weight, &mut out, *heads);
            }
        }
        out
    }

    /// Tells whether the conv adds a self-loop to every node in place of those that it has.
    #[must_use]
    pub fn adds_loop(&self) -> bool {
        matches!(self.kind, Kind::Gcn | Kind::Gat { .. } | Kind::GatV2 { .. })
    }

    /// Returns the state of a node's own row, where that takes part; `mean` is the mean feature of its
    /// in-edges but self-loops, where features are read.
    #[must_use]
    pub fn own_state(
        &self,
        row: u32,
        mean: Option<Dense>,
        src: SrcRows<'_>,
        query: &[f32],
    ) -> Option<Vec<f32>> {
        let own = || src.rows[row as usize * self.dim..][..self.dim].to_vec();
        match &self.kind {
            Kind::Mean | Kind::Max => None,
            Kind::Sum | Kind::Gine { .. } => Some(own()),
            Kind::Gcn => {
                let (nodes, at) = (src.nodes, row as usize);
                let factor = nodes.own_weight(at, self.edge_weight)
                    * nodes.inverse_roots(self.edge_weight)[at];
                Some(own().into_iter().map(|x| round(factor) * x).collect())
            }
            Kind::Gat { .. } | Kind::GatV2 { .. } => {
                let own_loop = SomeInEdges {
                    src: vec![row],
                    weight: None,
                    feature: mean,
                };
                Some(self.state(&own_loop, src, query))
            }
        }
    }

    /// Merges the states of all in-edges of a node, in the order given, into the row that the conv
    /// aggregates; its own state comes first, if it has one.
    ///
    /// # Panics
    ///
    /// If there is no state.
    #[must_use]
    pub fn merge(&self, row: u32, states: &[&[f32]], nodes: &NodeColumns) -> Vec<f32> {
        if self.heads() > 0 {
            return merge_softmax(states, self.heads());
        }
        let (first, rest) = states.split_first().expect("a node that has in-edges");
        let mut merged = first.to_vec();
        for state in rest {
            for (out, &x) in merged.iter_mut().zip(*state) {
                *out = match self.kind {
                    Kind::Max if x > *out => x,
                    Kind::Max => *out,
                    _ => *out + x,
                };
            }
        }
        let scale = match self.kind {
            Kind::Gcn => nodes.inverse_roots(self.edge_weight)[row as usize],
            Kind::Mean => 1.0 / f64::from(nodes.in_degree()[row as usize]),
            _ => return merged,
        };
        merged.iter_mut().for_each(|x| *x *= round(scale));
        merged
    }
}

fn or_ones(weight: Option<&[f32]>, len: usize) -> Vec<f32> {
    weight.map_or_else(|| vec![1.0; len], <[f32]>::to_vec)
}

fn features(edges: &SomeInEdges) -> &Dense {
    let features = edges.feature.as_ref();
    features.expect("a conv that reads edge features is given them")
}

fn of_nodes(src: SrcRows<'_>) -> &[f32] {
    src.scores.expect("a conv that scores nodes is given them")
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
