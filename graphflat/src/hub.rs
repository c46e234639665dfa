//! Hubs: found by exact counts, re-indexed over all workers, inverted to one list again.

use crate::sample::{NodeEdges, Ranked, mix};
use crate::store::InDegrees;
use crate::sum::ExactSum;
use crate::{FlattenError, NodeIdx, Peer, Placement};
use serde::{Deserialize, Serialize};

/// The nodes with more in-edges than the threshold, ascending by node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hubs {
    nodes: Vec<(NodeIdx, u64)>,
    threshold: u64,
    /// A bit a node; empty where there is no hub.
    is_hub: Vec<u64>,
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
    pub(crate) least_src: Option<NodeIdx>,
}

/// Ranked in-edges by column, with their features.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RankedColumns {
    priority: Vec<u64>,
    ordinal: Vec<u32>,
    src: Vec<NodeIdx>,
    pub(crate) weight: Vec<f32>,
    pub(crate) feature: Vec<f32>,
}

impl Hubs {
    /// Finds all hubs from each worker's counts of the in-edges it read.
    ///
    /// A node with more than `threshold` in-edges has more than `threshold / workers` on some
    /// worker, so only such nodes are counted together, exactly.
    ///
    /// # Errors
    ///
    /// A peer's failure.
    pub(crate) fn find(
        peer: &mut Peer<'_>,
        counts: &InDegrees,
        threshold: u64,
        num_nodes: usize,
    ) -> Result<Self, FlattenError> {
        let suspects = counts.above(threshold / peer.peers() as u64);
        let mut suspects = peer.gather_all::<_, FlattenError>(Ok(suspects))?.concat();
        suspects.sort_unstable();
        suspects.dedup();
        let mine: Vec<u64> = suspects.iter().map(|&node| counts.of(node)).collect();
        let all = peer.gather_all::<_, FlattenError>(Ok(mine))?;
        let total = |i: usize| all.iter().map(|worker| worker[i]).sum::<u64>();
        let nodes = suspects
            .iter()
            .enumerate()
            .map(|(i, &node)| (node, total(i)));
        let nodes: Vec<_> = nodes
            .filter(|&(_, in_degree)| in_degree > threshold)
            .collect();
        let mut is_hub = Vec::new();
        if !nodes.is_empty() {
            is_hub.resize(num_nodes.div_ceil(64), 0);
        }
        for &(node, _) in &nodes {
            is_hub[node as usize / 64] |= 1 << (node % 64);
        }
        Ok(Self {
            nodes,
            threshold,
            is_hub,
        })
    }

    /// Returns the hubs with their in-degrees.
    pub(crate) fn nodes(&self) -> &[(NodeIdx, u64)] {
        &self.nodes
    }

    /// Returns the worker for a hub's in-edge: its shuffle key with a suffix drawn by the source,
    /// so that parallel edges stay together; and the hub's place among the hubs. `None` if the
    /// node is no hub.
    pub(crate) fn reindex(
        &self,
        node: NodeIdx,
        edge_hash: u64,
        placement: &Placement,
    ) -> Option<(usize, usize)> {
        let word = self.is_hub.get(node as usize / 64)?;
        if word >> (node % 64) & 1 == 0 {
            return None;
        }
        let hub = self.nodes.binary_search_by_key(&node, |hub| hub.0).ok()?;
        let suffixes = self.nodes[hub].1.div_ceil(self.threshold).max(1);
        let suffix = mix(edge_hash) % suffixes;
        let workers = placement.workers() as u64;
        let worker = (placement.owner(node) as u64 + suffix) % workers;
        Some((usize::try_from(worker).ok()?, hub))
    }
}

impl Totals {
    /// Sums over some in-edges of `node`.
    pub(crate) fn of(node: NodeIdx, edges: &NodeEdges<'_>) -> Self {
        let mut totals = Self {
            in_degree: edges.src.len() as u64,
            least_src: edges.src.iter().copied().min(),
            ..Self::default()
        };
        totals.in_weight.add_all(edges.weight);
        for at in (0..edges.src.len()).filter(|&at| edges.src[at] == node) {
            totals.self_loops += 1;
            totals.self_weight.add(edges.weight(at));
        }
        totals
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.in_degree += other.in_degree;
        self.in_weight.merge(&other.in_weight);
        self.self_weight.merge(&other.self_weight);
        self.self_loops += other.self_loops;
        self.least_src = self.least_src.into_iter().chain(other.least_src).min();
    }
}

impl RankedColumns {
    /// Takes ranked edges into columns, with their weights and features out of those at hand.
    pub(crate) fn from_ranked(
        ranked: &[Ranked],
        edges: &NodeEdges<'_>,
        features: &[f32],
        dim: usize,
    ) -> Self {
        let mut columns = Self::default();
        for edge in ranked {
            let at = edge.at as usize;
            columns.priority.push(edge.priority);
            columns.ordinal.push(edge.ordinal);
            columns.src.push(edge.src);
            columns.weight.push(edges.weight(at));
            columns
                .feature
                .extend_from_slice(&features[at * dim..(at + 1) * dim]);
        }
        columns
    }

    /// Appends the edges to `ranked`; their places count on from `first`.
    pub(crate) fn append_to(&self, ranked: &mut Vec<Ranked>, first: usize) {
        for i in 0..self.src.len() {
            ranked.push(Ranked {
                priority: self.priority[i],
                src: self.src[i],
                ordinal: self.ordinal[i],
                at: u32::try_from(first + i).expect("a hub's kept in-edges are below 2^32"),
            });
        }
    }
}
