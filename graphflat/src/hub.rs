//! Hubs: found by exact counts, re-indexed over all workers, inverted to one list again.

use crate::sample::{InEdge, RankedEdge, mix};
use crate::sum::ExactSum;
use crate::{FlattenError, NodeIdx, Peer, Placement};
use serde::{Deserialize, Serialize};

/// The nodes with more in-edges than the threshold, ascending by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hubs {
    nodes: Vec<(NodeIdx, u64)>,
    threshold: u64,
}

/// One worker's share of a hub's in-edges, already cut to what may be kept.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct HubPart {
    pub(crate) node: NodeIdx,
    pub(crate) totals: Totals,
    /// The least of this share for each sample.
    pub(crate) samples: Vec<RankedColumns>,
}

/// What is summed over all in-edges of a node, kept or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) in_degree: u64,
    pub(crate) in_weight: ExactSum,
    pub(crate) self_weight: ExactSum,
    pub(crate) self_loops: u64,
}

/// Ranked in-edges by column, with their features.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RankedColumns {
    priority: Vec<u64>,
    ordinal: Vec<u32>,
    src: Vec<NodeIdx>,
    weight: Vec<f32>,
    pub(crate) feature: Vec<f32>,
}

impl Hubs {
    /// Finds all hubs from each worker's counts of the in-edges it read.
    ///
    /// A node with more than `threshold` in-edges has more than `threshold / workers` on some
    /// worker, so only such nodes are counted together, exactly.
    ///
    /// # Shapes
    ///
    /// - `counts`: `[distinct nodes]`, ascending by node
    ///
    /// # Errors
    ///
    /// A peer's failure.
    pub(crate) fn find(
        peer: &mut Peer<'_>,
        counts: &[(NodeIdx, u64)],
        threshold: u64,
    ) -> Result<Self, FlattenError> {
        let share = threshold / peer.peers() as u64;
        let suspects: Vec<NodeIdx> = counts
            .iter()
            .filter(|(_, count)| *count > share)
            .map(|(node, _)| *node)
            .collect();
        let mut suspects = peer.gather_all::<_, FlattenError>(Ok(suspects))?.concat();
        suspects.sort_unstable();
        suspects.dedup();
        let count_of = |node: &NodeIdx| match counts.binary_search_by_key(node, |c| c.0) {
            Ok(i) => counts[i].1,
            Err(_) => 0,
        };
        let mine: Vec<u64> = suspects.iter().map(count_of).collect();
        let all = peer.gather_all::<_, FlattenError>(Ok(mine))?;
        let total = |i: usize| all.iter().map(|worker| worker[i]).sum::<u64>();
        let nodes = suspects
            .iter()
            .enumerate()
            .map(|(i, &node)| (node, total(i)));
        Ok(Self {
            nodes: nodes
                .filter(|&(_, in_degree)| in_degree > threshold)
                .collect(),
            threshold,
        })
    }

    /// Returns the hubs with their in-degrees.
    pub(crate) fn nodes(&self) -> &[(NodeIdx, u64)] {
        &self.nodes
    }

    /// Returns the worker for a hub's in-edge: its shuffle key with a suffix drawn by the source,
    /// so that parallel edges stay together; `None` if the node is no hub.
    pub(crate) fn reindex(
        &self,
        node: NodeIdx,
        edge_hash: u64,
        placement: &Placement,
    ) -> Option<usize> {
        let hub = self.nodes.binary_search_by_key(&node, |hub| hub.0).ok()?;
        let suffixes = self.nodes[hub].1.div_ceil(self.threshold).max(1);
        let suffix = mix(edge_hash) % suffixes;
        let workers = placement.workers() as u64;
        usize::try_from((placement.owner(node) as u64 + suffix) % workers).ok()
    }
}

impl Totals {
    pub(crate) fn add(&mut self, node: NodeIdx, edge: &InEdge) {
        self.in_degree += 1;
        self.in_weight.add(edge.weight);
        if edge.src == node {
            self.self_weight.add(edge.weight);
            self.self_loops += 1;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.in_degree += other.in_degree;
        self.in_weight.merge(&other.in_weight);
        self.self_weight.merge(&other.self_weight);
        self.self_loops += other.self_loops;
    }
}

impl RankedColumns {
    /// Takes ranked edges into columns; their features stand at `slot` in `features`.
    pub(crate) fn from_ranked(ranked: &[RankedEdge], features: &[f32], dim: usize) -> Self {
        let mut columns = Self::default();
        for in_edge in ranked {
            columns.priority.push(in_edge.priority);
            columns.ordinal.push(in_edge.ordinal);
            columns.src.push(in_edge.edge.src);
            columns.weight.push(in_edge.edge.weight);
            let start = in_edge.edge.slot as usize * dim;
            columns
                .feature
                .extend_from_slice(&features[start..start + dim]);
        }
        columns
    }

    /// Appends the edges to `ranked`; their slots count on from `first_slot`.
    pub(crate) fn append_to(&self, ranked: &mut Vec<RankedEdge>, first_slot: u32) {
        for i in 0..self.src.len() {
            let slot = first_slot + u32::try_from(i).expect("a hub's in-edges are below 2^32");
            let edge = InEdge {
                src: self.src[i],
                row: 0,
                hash: 0,
                weight: self.weight[i],
                slot,
            };
            let (priority, ordinal) = (self.priority[i], self.ordinal[i]);
            ranked.push(RankedEdge {
                priority,
                ordinal,
                edge,
            });
        }
    }

    /// Returns the number of edges.
    pub(crate) fn len(&self) -> usize {
        self.src.len()
    }
}
