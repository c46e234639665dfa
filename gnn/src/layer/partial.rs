//! Partial aggregation: aggregates a node's in-edges in parts.
//!
//! Each part of a node's in-edges is aggregated to a *state*, where the rows of its sources are.
//! The states merge into the row that the conv's kernel computes, up to rounding. AGL re-indexes
//! hubs in this way (PVLDB 13, section 3.2.2). Sums and maxima are states themselves. The states of
//! a softmax are those of its online form (Milakov & Gimelshein, 2018).

use std::fmt::Debug;

use crate::{Dense, NodeColumns, RowValues};

/// Some in-edges of a node whose in-edges are all read, without sampling.
#[derive(Clone, Debug, Default)]
pub struct SomeInEdges {
    /// The row of the src node of each in-edge, in rank order.
    pub src: Vec<u32>,
    /// Weight of each in-edge, if the model uses weights.
    pub weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`, if the model reads edge features.
    pub feature: Option<Dense>,
}

/// The rows that in-edges read, one for each node.
#[derive(Clone, Copy, Debug)]
pub struct SrcRows<'a> {
    /// `[num_rows, src_dim]`.
    pub rows: RowValues<'a>,
    /// `[num_rows, scores_dim]`, if the conv has scores.
    pub scores: Option<RowValues<'a>>,
    /// The columns of the same nodes; in a relation between two types, of the dst nodes' type.
    pub nodes: &'a NodeColumns,
}

/// Aggregates the in-edges of a node in parts, with the parameters of a conv.
pub trait PartialAggregation: Debug + Send + Sync {
    /// Returns the width of a state.
    fn state_dim(&self) -> usize;

    /// Returns the width of the dst node's [query](super::Conv::query).
    fn query_dim(&self) -> usize {
        0
    }

    /// Tells whether the conv replaces a node's self-loops by one self-loop.
    fn adds_loop(&self) -> bool {
        false
    }

    /// Aggregates some in-edges of a node: at least one, and no self-loop if the conv
    /// [replaces](PartialAggregation::adds_loop) self-loops.
    ///
    /// # Shapes
    ///
    /// - `query`: `[query_dim]`, the dst node's
    /// - returns: `[state_dim]`
    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, query: &[f32]) -> Vec<f32>;

    /// Returns the state of a node's own row, if the conv aggregates it. `mean` is the mean feature
    /// of the node's in-edges without self-loops, if features are read.
    fn own_state(
        &self,
        _row: u32,
        _mean: Option<Dense>,
        _src: SrcRows<'_>,
        _query: &[f32],
    ) -> Option<Vec<f32>> {
        None
    }

    /// Merges the states of all in-edges of a node into the row that the conv aggregates, or into one
    /// state if the layer aggregates the in-edges of all relations together. The node's own state
    /// comes first, and the order is kept. There is at least one state, unless all in-edges are
    /// self-loops that are replaced elsewhere.
    fn merge(&self, row: u32, states: &[&[f32]], nodes: &NodeColumns) -> Vec<f32>;
}

/// Merges states by a function of two values, such as their sum.
pub(super) fn fold(states: &[&[f32]], both: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    let (first, rest) = states.split_first().expect("a node that has in-edges");
    let mut merged = first.to_vec();
    for state in rest {
        for (out, &x) in merged.iter_mut().zip(*state) {
            *out = both(*out, x);
        }
    }
    merged
}

/// Adds up states and multiplies the sum.
pub(super) fn scaled_sum(states: &[&[f32]], scale: f32) -> Vec<f32> {
    let mut sum = fold(states, |a, b| a + b);
    sum.iter_mut().for_each(|x| *x *= scale);
    sum
}

/// Returns the row of a node, `dim` wide.
pub(super) fn own_row(row: u32, dim: usize, src: SrcRows<'_>) -> Vec<f32> {
    let first = row as usize * dim;
    src.rows.to_f32(first..first + dim)
}

impl SomeInEdges {
    /// Returns the self-loop that a conv adds, as an in-edge.
    pub(super) fn own_loop(row: u32, mean: Option<Dense>) -> SomeInEdges {
        SomeInEdges {
            src: vec![row],
            weight: None,
            feature: mean,
        }
    }

    /// Returns the weights, if the model uses them.
    pub(super) fn weights(&self, use_weights: bool) -> Option<&[f32]> {
        self.weight.as_deref().filter(|_| use_weights)
    }

    /// Returns the weights, 1 each if the model does not use them.
    pub(super) fn weights_or_ones(&self, use_weights: bool) -> Vec<f32> {
        let weights = self.weights(use_weights);
        weights.map_or_else(|| vec![1.0; self.src.len()], <[f32]>::to_vec)
    }

    /// Returns the features.
    pub(super) fn features(&self) -> &Dense {
        let features = self.feature.as_ref();
        features.expect("the caller passes the features that the conv reads")
    }
}
