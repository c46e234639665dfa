//! Hubs: found while their edges move, re-indexed over all workers, inverted to one list again.

use crate::sample::{InEdge, Ranked, mix};
use crate::sum::{ExactSum, WeightSum};
use crate::{FlattenError, NodeIdx, Peer};
use serde::{Deserialize, Serialize};

/// Tells one worker which of the in-edges that it sends to spread over all workers.
pub(crate) struct HubCounts {
    /// By node: in-edges that went to its owner; one more than `limit` once others do not.
    sent: Vec<u32>,
    limit: u32,
    reindexed: Vec<NodeIdx>,
}

/// One worker's share of a hub's in-edges, already cut to what may be kept.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct HubPart {
    pub(crate) node: NodeIdx,
    pub(crate) totals: Totals<ExactSum>,
    /// The least of this share for each sample.
    pub(crate) samples: Vec<RankedColumns>,
}

/// What is summed over in-edges of a node, kept or not; the weights so that sums merge, or rounded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Totals<W> {
    pub(crate) in_degree: u64,
    pub(crate) in_weight: W,
    pub(crate) self_weight: W,
    pub(crate) self_loops: u64,
    pub(crate) least_src: Option<NodeIdx>,
}

/// Ranked in-edges by column, with their features.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RankedColumns {
    priority: Vec<u64>,
    ordinal: Vec<u32>,
    src: Vec<NodeIdx>,
    weight: Vec<f32>,
    feature: Vec<f32>,
}

impl HubCounts {
    /// Lets each of `workers` workers send an equal share of `threshold` in-edges of a node to its
    /// owner.
    ///
    /// A node with more has more than that share at some worker, unless there are more workers than
    /// in-edges.
    pub(crate) fn new(num_nodes: usize, threshold: u64, workers: usize) -> Self {
        let share = (threshold / workers as u64).max(1);
        Self {
            sent: vec![0; num_nodes],
            limit: u32::try_from(share).unwrap_or(u32::MAX).min(u32::MAX - 1),
            reindexed: Vec::new(),
        }
    }

    /// Counts an in-edge of `node`; tells whether it is to be spread.
    pub(crate) fn is_beyond(&mut self, node: NodeIdx) -> bool {
        let sent = &mut self.sent[node as usize];
        let before = *sent;
        // No branch on what comes late from memory but the one that is hardly ever taken.
        *sent += u32::from(before <= self.limit);
        if before == self.limit {
            self.reindexed.push(node);
        }
        before >= self.limit
    }

    /// Returns the nodes of which any worker has spread in-edges, ascending.
    ///
    /// # Errors
    ///
    /// A peer's failure.
    pub(crate) fn reindexed(self, peer: &mut Peer<'_>) -> Result<Vec<NodeIdx>, FlattenError> {
        let mut nodes = peer
            .gather_all::<_, FlattenError>(Ok(self.reindexed))?
            .concat();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }
}

/// Returns the worker for an in-edge that is spread: its shuffle key has a suffix drawn by the
/// edge's ends, so that parallel edges stay together.
pub(crate) fn reindex(edge_hash: u64, workers: usize) -> usize {
    let drawn = mix(edge_hash) >> 32;
    usize::try_from((drawn * workers as u64) >> 32).expect("< workers")
}

impl<W: WeightSum> Totals<W> {
    /// Sums over in-edges of `node`.
    pub(crate) fn of(node: NodeIdx, edges: &[InEdge]) -> Self {
        let loops = edges.iter().filter(|edge| edge.src == node);
        let self_loops = loops.clone().count();
        Self {
            in_degree: edges.len() as u64,
            in_weight: W::of(edges.iter().map(|edge| edge.weight)),
            self_weight: if self_loops > 0 {
                W::of(loops.map(|edge| edge.weight))
            } else {
                W::default()
            },
            self_loops: self_loops as u64,
            least_src: edges.iter().map(|edge| edge.src).min(),
        }
    }
}

impl Totals<ExactSum> {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.in_degree += other.in_degree;
        self.in_weight.merge(&other.in_weight);
        self.self_weight.merge(&other.self_weight);
        self.self_loops += other.self_loops;
        self.least_src = self.least_src.into_iter().chain(other.least_src).min();
    }

    pub(crate) fn rounded(&self) -> Totals<f32> {
        Totals {
            in_degree: self.in_degree,
            in_weight: self.in_weight.value(),
            self_weight: self.self_weight.value(),
            self_loops: self.self_loops,
            least_src: self.least_src,
        }
    }
}

impl RankedColumns {
    /// Takes ranked edges into columns, with their features out of those at hand.
    pub(crate) fn from_ranked(ranked: &[Ranked], features: &[f32], dim: usize) -> Self {
        let mut columns = Self::default();
        for edge in ranked {
            let at = edge.at as usize;
            columns.priority.push(edge.priority);
            columns.ordinal.push(edge.ordinal);
            columns.src.push(edge.src);
            columns.weight.push(edge.weight);
            columns
                .feature
                .extend_from_slice(&features[at * dim..(at + 1) * dim]);
        }
        columns
    }

    /// Appends the edges to `ranked`, and their features to `feature`.
    pub(crate) fn append_to(&self, ranked: &mut Vec<Ranked>, feature: &mut Vec<f32>) {
        let first = ranked.len();
        feature.extend_from_slice(&self.feature);
        for i in 0..self.src.len() {
            ranked.push(Ranked {
                priority: self.priority[i],
                src: self.src[i],
                ordinal: self.ordinal[i],
                weight: self.weight[i],
                at: u32::try_from(first + i).expect("a hub's kept in-edges are below 2^32"),
            });
        }
    }
}
