//! Extracts a target's neighbourhood from a shard, by a breadth-first walk.

use std::ops::Range;

use super::{FeatureEdges, FeatureNodes, GraphFeature, GraphShard, ShardEdges, ShardNodes};
use crate::fanout::{Fanout, keep_at_hop};
use crate::ids::Ids;

/// Position of a node that is not in the neighbourhood.
const ABSENT: u32 = u32::MAX;

/// Memory that extractions from one shard share, and the neighbourhood last walked.
#[derive(Debug)]
pub struct ExtractScratch {
    /// By node type.
    pub(super) nodes: Vec<WalkedNodes>,
    /// By relation.
    pub(super) edges: Vec<WalkedEdges>,
}

/// The nodes of one type of a neighbourhood.
#[derive(Debug)]
pub(super) struct WalkedNodes {
    /// Position of each node of the shard in the order of ids.
    id_rank: Vec<u32>,
    /// Position of each node of the shard in the neighbourhood, or [`ABSENT`].
    local: Vec<u32>,
    /// `[n]`, position in the shard of each node of the neighbourhood.
    pub(super) nodes: Vec<u32>,
    pub(super) hop_offset: Vec<u32>,
}

/// The edges of one relation of a neighbourhood.
#[derive(Debug, Default)]
pub(super) struct WalkedEdges {
    pub(super) in_offset: Vec<u32>,
    /// `[e]`, position in the neighbourhood.
    pub(super) in_src: Vec<u32>,
    /// `[e]`, position in the shard of each edge of the neighbourhood.
    pub(super) edges: Vec<u32>,
}

impl WalkedNodes {
    fn new(ids: &Ids) -> Self {
        let mut id_rank = vec![0; ids.len()];
        for (rank, node) in (0..).zip(ids.sort_permutation()) {
            id_rank[node as usize] = rank;
        }
        Self {
            id_rank,
            local: vec![ABSENT; ids.len()],
            nodes: Vec::new(),
            hop_offset: Vec::new(),
        }
    }

    fn enter(&mut self, node: u32) {
        let local = &mut self.local[node as usize];
        if *local == ABSENT {
            // Marks the node as present; its position follows when the hop is sorted.
            *local = 0;
            self.nodes.push(node);
        }
    }

    /// Sorts the nodes that were entered since the last hop and ends the hop.
    fn end_hop(&mut self) {
        let first = self.hop_offset[self.hop_offset.len() - 1];
        let new = &mut self.nodes[first as usize..];
        let id_rank = &self.id_rank;
        new.sort_unstable_by_key(|&node| id_rank[node as usize]);
        let mut position = first;
        for &node in &*new {
            self.local[node as usize] = position;
            position += 1;
        }
        self.hop_offset.push(position);
    }

    fn hop(&self, hop: usize) -> Range<usize> {
        self.hop_offset[hop] as usize..self.hop_offset[hop + 1] as usize
    }
}

impl ExtractScratch {
    /// Prepares extractions from a shard.
    pub fn new(shard: &GraphShard) -> Self {
        let nodes = shard.nodes.iter();
        let edges = shard.edges.iter();
        Self {
            nodes: nodes.map(|of| WalkedNodes::new(&of.ids)).collect(),
            edges: edges.map(|_| WalkedEdges::default()).collect(),
        }
    }

    /// Walks from some targets, each with its type, and leaves the neighbourhood in the scratch.
    pub(super) fn walk(
        &mut self,
        shard: &GraphShard,
        targets: impl IntoIterator<Item = (usize, u32)>,
        fanouts: &[impl AsRef<[Fanout]>],
    ) {
        let of_shard = self.nodes.iter().map(|nodes| nodes.local.len());
        assert!(
            of_shard.eq(shard.nodes.iter().map(ShardNodes::len)),
            "the scratch was made for this shard"
        );
        for nodes in &mut self.nodes {
            nodes.nodes.clear();
            nodes.hop_offset.clear();
            nodes.hop_offset.push(0);
        }
        for (target_type, target) in targets {
            self.nodes[target_type].enter(target);
        }
        self.nodes.iter_mut().for_each(WalkedNodes::end_hop);
        for hop in 0..fanouts.len() {
            for (relation, edges) in shard.edges.iter().enumerate() {
                let limit = keep_at_hop(fanouts, relation, hop);
                for i in self.nodes[edges.to].hop(hop) {
                    let dst = self.nodes[edges.to].nodes[i];
                    let sources = &mut self.nodes[edges.from];
                    for &src in &edges.in_src[kept(edges, dst, limit)] {
                        sources.enter(src);
                    }
                }
            }
            self.nodes.iter_mut().for_each(WalkedNodes::end_hop);
        }
        self.collect_edges(shard, fanouts);
        for WalkedNodes { nodes, local, .. } in &mut self.nodes {
            nodes.iter().for_each(|&node| local[node as usize] = ABSENT);
        }
    }

    fn collect_edges(&mut self, shard: &GraphShard, fanouts: &[impl AsRef<[Fanout]>]) {
        for (relation, (walked, edges)) in self.edges.iter_mut().zip(&shard.edges).enumerate() {
            let (dsts, local) = (&self.nodes[edges.to], &self.nodes[edges.from].local);
            walked.in_offset.clear();
            walked.in_src.clear();
            walked.edges.clear();
            walked.in_offset.push(0);
            let mut num_edges = 0;
            for hop in 0..fanouts.len() {
                let limit = keep_at_hop(fanouts, relation, hop);
                for &node in &dsts.nodes[dsts.hop(hop)] {
                    let range = kept(edges, node, limit);
                    let first = edges.in_offset[node as usize];
                    for (edge, &src) in (first..).zip(&edges.in_src[range]) {
                        walked.edges.push(edge);
                        walked.in_src.push(local[src as usize]);
                        num_edges += 1;
                    }
                    walked.in_offset.push(num_edges);
                }
            }
        }
    }
}

/// The in-edges that a node keeps, the first by rank.
fn kept(edges: &ShardEdges, node: u32, limit: usize) -> Range<usize> {
    let all = edges.in_edges(node);
    all.start..all.end.min(all.start.saturating_add(limit))
}

pub(super) fn gather<T: Copy>(values: &[T], positions: &[u32]) -> impl Iterator<Item = T> {
    positions.iter().map(|&i| values[i as usize])
}

/// Gathers a column that may be missing.
pub(super) fn gather_opt<T: Copy>(values: &Option<Vec<T>>, positions: &[u32]) -> Option<Vec<T>> {
    let values = values.as_ref()?;
    Some(gather(values, positions).collect())
}

/// Appends rows of `dim` values each.
pub(super) fn gather_rows(out: &mut Vec<f32>, values: &[f32], dim: usize, positions: &[u32]) {
    for &i in positions {
        out.extend_from_slice(&values[i as usize * dim..(i as usize + 1) * dim]);
    }
}

impl GraphShard {
    /// Extracts the neighbourhood of the target at position `target` among the nodes of the target
    /// type, as [`Self::extract_of`].
    ///
    /// # Panics
    ///
    /// If `scratch` was made for another shard.
    pub fn extract(
        &self,
        target: u32,
        fanouts: &[impl AsRef<[Fanout]>],
        scratch: &mut ExtractScratch,
    ) -> GraphFeature {
        self.extract_of((self.target_type, target), fanouts, scratch)
    }

    /// Extracts the neighbourhood of a target: its type, and its position among the nodes of the
    /// type.
    ///
    /// A node at distance h from the target keeps its first `keep_at_hop(fanouts, r, h)` in-edges
    /// of relation r, as far as the shard has them: `fanouts` must be the ones that the shard was
    /// made with.
    ///
    /// # Panics
    ///
    /// If `scratch` was made for another shard.
    pub fn extract_of(
        &self,
        (target_type, target): (usize, u32),
        fanouts: &[impl AsRef<[Fanout]>],
        scratch: &mut ExtractScratch,
    ) -> GraphFeature {
        scratch.walk(self, [(target_type, target)], fanouts);
        let targets = &self.nodes[target_type];
        let nodes = self.nodes.iter().zip(&scratch.nodes);
        let edges = self.edges.iter().zip(&scratch.edges);
        GraphFeature {
            target_type,
            labels: targets.labels.gather(&[target]),
            split: targets.split[target as usize],
            pairs: None,
            nodes: nodes.map(|(all, walked)| all.gather(walked)).collect(),
            edges: edges
                .map(|(all, walked)| all.gather(&scratch.nodes[all.to].nodes, walked))
                .collect(),
        }
    }
}

impl ShardNodes {
    fn gather(&self, walked: &WalkedNodes) -> FeatureNodes {
        FeatureNodes {
            node_id: self.ids.gather(&walked.nodes),
            hop_offset: walked.hop_offset.clone(),
            features: self.features.gather(&walked.nodes),
        }
    }
}

impl ShardEdges {
    /// `dsts` are the nodes of type `to` of the neighbourhood.
    fn gather(&self, dsts: &[u32], walked: &WalkedEdges) -> FeatureEdges {
        let (edges, dim) = (&walked.edges, self.edge_dim());
        FeatureEdges {
            from: self.from,
            to: self.to,
            in_degree: gather(&self.in_degree, dsts).collect(),
            in_weight: gather_opt(&self.in_weight, dsts),
            self_loops: gather_opt(&self.self_loops, dsts),
            self_weight: gather_opt(&self.self_weight, dsts),
            in_offset: walked.in_offset.clone(),
            in_src: walked.in_src.clone(),
            edge_weight: gather_opt(&self.edge_weight, edges),
            edge_feature: self.edge_feature.as_ref().map(|values| {
                let mut gathered = Vec::with_capacity(edges.len() * dim);
                gather_rows(&mut gathered, values, dim, edges);
                gathered
            }),
        }
    }
}
