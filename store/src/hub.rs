//! Hubs: detected while edges are exchanged, re-indexed over all workers, inverted to one list
//! again.

use crate::StoreError;
use crate::plan::ListPlan;
use crate::sample::{InEdge, Ranked, keep_least, mix};
use crate::sum::{ExactSum, WeightSum};
use cluster::Peer;
use hashbrown::HashMap;
use prefetch_index::prefetch_index;
use schemas::NodeIdx;
use serde::{Deserialize, Serialize};

/// Slots of [`HubCounts`] for each share of in-edges: at most an eighth of the slots fill up.
const SLOTS_PER_SHARE: u64 = 16;

/// Decides which of the in-edges that one worker sends are spread over all workers.
///
/// Each worker sends an equal share of the threshold to a node's owner and spreads the rest. Nodes
/// of one slot are counted together up to half a share, and then each on its own. So there are few
/// counts (4 MB for 268 million edges), and no worker sends an owner more than its share.
pub(crate) struct HubCounts {
    /// `[2^n]`, count of all nodes whose hashes have the same first n bits.
    slots: Vec<u32>,
    slot_shift: u32,
    slot_max: u32,
    /// Counts of nodes in full slots; one more than `node_max` when in-edges of the node are
    /// spread.
    nodes: HashMap<NodeIdx, u32>,
    node_max: u32,
    reindexed: Vec<NodeIdx>,
}

/// One worker's share of a hub's in-edges, cut to the number that each list keeps.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct HubPart {
    pub(crate) node: NodeIdx,
    pub(crate) totals: Totals<ExactSum>,
    /// The first in-edges of this share, for each list of the store.
    pub(crate) lists: Vec<RankedColumns>,
}

/// Sums over all in-edges of a node, kept or not. The sums of weights are exact, so that they
/// merge, or rounded.
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
    /// Makes counts for at most `num_edges` in-edges.
    ///
    /// Of a node with more than `threshold` in-edges, at least one worker sends more than a share,
    /// unless there are more workers than in-edges.
    pub(crate) fn new(num_nodes: usize, num_edges: u64, threshold: u64, workers: usize) -> Self {
        let share = (threshold / workers as u64).max(1);
        let slots = (num_edges / share).saturating_mul(SLOTS_PER_SHARE);
        // At least two slots, so that a shift selects the slot.
        let slots = usize::try_from(slots).unwrap_or(usize::MAX).min(num_nodes);
        let slots = slots.max(2).next_power_of_two();
        let bounded = |count: u64| u32::try_from(count).unwrap_or(u32::MAX).min(u32::MAX - 1);
        Self {
            slots: vec![0; slots],
            slot_shift: 32 - slots.trailing_zeros(),
            slot_max: bounded(share / 2),
            nodes: HashMap::new(),
            node_max: bounded(share - share / 2),
            reindexed: Vec::new(),
        }
    }

    /// Makes counts by which no node is spread.
    pub(crate) fn none() -> Self {
        let mut counts = Self::new(0, 0, u64::MAX, 1);
        counts.slots.clear();
        counts
    }

    /// Returns the position of a node's slot.
    #[inline]
    fn slot(&self, node: NodeIdx) -> usize {
        // Multiplication by the golden section of 2^32 spreads close and consecutive numbers over
        // the slots.
        (node.raw().wrapping_mul(0x9e37_79b1) >> self.slot_shift) as usize
    }

    /// Prefetches the count of a node.
    #[inline]
    pub(crate) fn prefetch(&self, node: NodeIdx) {
        prefetch_index(&self.slots, self.slot(node));
    }

    /// Counts an in-edge of `node`; tells whether it must be spread.
    pub(crate) fn is_beyond(&mut self, node: NodeIdx) -> bool {
        let at = self.slot(node);
        let Some(slot) = self.slots.get_mut(at) else {
            return false;
        };
        if *slot < self.slot_max {
            *slot += 1;
            return false;
        }
        let count = self.nodes.entry(node).or_default();
        if *count < self.node_max {
            *count += 1;
            return false;
        }
        if *count == self.node_max {
            *count += 1;
            self.reindexed.push(node);
        }
        true
    }

    /// Returns the nodes whose in-edges any worker has spread, ascending.
    ///
    /// # Errors
    ///
    /// If a peer fails.
    pub(crate) fn reindexed(self, peer: &mut Peer<'_>) -> Result<Vec<NodeIdx>, StoreError> {
        let mut nodes = peer
            .gather_all::<_, StoreError>(Ok(self.reindexed))?
            .concat();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }
}

/// Returns the worker for an in-edge that is spread: its shuffle key has a suffix drawn from the
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

impl HubPart {
    /// Merges another worker's part and keeps the first in-edges of both, as many as each list
    /// keeps.
    pub(crate) fn merge(&mut self, other: &Self, lists: &[ListPlan], dim: usize) {
        self.totals.merge(&other.totals);
        let both = self.lists.iter_mut().zip(&other.lists);
        for ((mine, theirs), list) in both.zip(lists) {
            let (mut ranked, mut feature) = mine.to_ranked();
            theirs.append_to(&mut ranked, &mut feature);
            keep_least(&mut ranked, list.keep);
            *mine = RankedColumns::from_ranked(&ranked, &feature, dim);
        }
    }
}

impl RankedColumns {
    /// Makes columns of ranked edges; `features` are the features of all edges that were ranked.
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

    /// Returns the edges, and their features.
    pub(crate) fn to_ranked(&self) -> (Vec<Ranked>, Vec<f32>) {
        let (mut ranked, mut feature) = (Vec::new(), Vec::new());
        self.append_to(&mut ranked, &mut feature);
        (ranked, feature)
    }

    fn append_to(&self, ranked: &mut Vec<Ranked>, feature: &mut Vec<f32>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the given number of in-edges of each node in turn; returns how many were sent to the
    /// owner.
    fn sent(counts: &mut HubCounts, in_edges: &[u64]) -> Vec<u64> {
        let mut sent = vec![0; in_edges.len()];
        for turn in 0..in_edges.iter().copied().max().unwrap_or(0) {
            for (node, _) in (0..).zip(in_edges).filter(|(_, all)| turn < **all) {
                sent[node as usize] += u64::from(!counts.is_beyond(NodeIdx::from_raw(node)));
            }
        }
        sent
    }

    #[test]
    fn counts_of_none_spread_no_node() {
        let mut counts = HubCounts::none();
        let in_edges = [3, 0, 10_000];
        assert_eq!(sent(&mut counts, &in_edges), in_edges);
        counts.prefetch(NodeIdx::from_raw(2));
        assert!(counts.reindexed.is_empty());
    }

    #[test]
    fn no_node_gets_more_than_its_share_and_few_get_less() {
        for (threshold, workers) in [(1, 1), (1, 3), (2, 2), (3, 1), (100, 4), (50, 1)] {
            let share = (threshold / workers as u64).max(1);
            let mut in_edges: Vec<u64> = (0..2000u64).map(|node| mix(node) % 4).collect();
            (0..20).for_each(|hub| in_edges[97 * hub] = 20 + 40 * hub as u64);
            let num_edges = in_edges.iter().sum();
            let mut counts = HubCounts::new(in_edges.len(), num_edges, threshold, workers);
            let by_node = sent(&mut counts, &in_edges);
            counts.reindexed.sort_unstable();
            for (node, (&sent, &all)) in (0..).zip(by_node.iter().zip(&in_edges)) {
                let is_reindexed = counts
                    .reindexed
                    .binary_search(&NodeIdx::from_raw(node))
                    .is_ok();
                assert!(sent <= share && is_reindexed == (sent < all), "{node}");
                // Other nodes of its slot use at most half of its share.
                assert!(
                    sent == all || sent >= share.div_ceil(2),
                    "{node}: {sent} of {all}"
                );
            }
            assert!(counts.reindexed.len() >= 10 || threshold > 50);
        }
    }

    #[test]
    fn without_a_threshold_nothing_is_spread() {
        let mut counts = HubCounts::new(1, u64::MAX, u64::MAX, 2);
        assert_eq!(sent(&mut counts, &[5000]), [5000]);
    }
}
