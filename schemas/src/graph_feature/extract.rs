//! Extracts a target's neighbourhood from a shard, by a breadth-first walk.

use super::{GraphFeature, GraphShard};
use crate::fanout::{Fanout, keep_at_hop};

/// Position of a node that is not in the neighbourhood.
const ABSENT: u32 = u32::MAX;

/// Memory that extractions from one shard share, and the neighbourhood last walked.
#[derive(Debug)]
pub struct ExtractScratch {
    /// Position of each node of the shard in the order of ids.
    id_rank: Vec<u32>,
    /// Position of each node of the shard in the neighbourhood, or [`ABSENT`].
    local: Vec<u32>,
    /// `[n]`, position in the shard of each node of the neighbourhood.
    pub(super) nodes: Vec<u32>,
    pub(super) hop_offset: Vec<u32>,
    pub(super) in_offset: Vec<u32>,
    /// `[e]`, position in the neighbourhood.
    pub(super) in_src: Vec<u32>,
    /// `[e]`, position in the shard of each edge of the neighbourhood.
    pub(super) edges: Vec<u32>,
}

impl ExtractScratch {
    /// Prepares extractions from a shard.
    pub fn new(shard: &GraphShard) -> Self {
        let mut id_rank = vec![0; shard.num_nodes()];
        for (rank, node) in (0..).zip(shard.ids.sort_permutation()) {
            id_rank[node as usize] = rank;
        }
        Self {
            id_rank,
            local: vec![ABSENT; shard.num_nodes()],
            nodes: Vec::new(),
            hop_offset: Vec::new(),
            in_offset: Vec::new(),
            in_src: Vec::new(),
            edges: Vec::new(),
        }
    }

    /// Walks from a target and leaves the neighbourhood in the scratch.
    pub(super) fn walk(&mut self, shard: &GraphShard, target: u32, fanouts: &[Fanout]) {
        assert_eq!(
            self.local.len(),
            shard.num_nodes(),
            "the scratch was made for this shard"
        );
        self.nodes.clear();
        self.hop_offset.clear();
        self.hop_offset.extend([0, 1]);
        self.nodes.push(target);
        self.local[target as usize] = 0;
        for hop in 0..fanouts.len() {
            let limit = keep_at_hop(fanouts, hop);
            let outermost = self.hop_offset[hop] as usize..self.nodes.len();
            let first_new = self.nodes.len();
            for i in outermost {
                for &src in &shard.in_src[kept(shard, self.nodes[i], limit)] {
                    if self.local[src as usize] == ABSENT {
                        // Marks the node as present; its position follows when the hop is sorted.
                        self.local[src as usize] = 0;
                        self.nodes.push(src);
                    }
                }
            }
            let id_rank = &self.id_rank;
            self.nodes[first_new..].sort_unstable_by_key(|&node| id_rank[node as usize]);
            let mut position = self.hop_offset[hop + 1];
            for &node in &self.nodes[first_new..] {
                self.local[node as usize] = position;
                position += 1;
            }
            self.hop_offset.push(position);
        }
        self.collect_edges(shard, fanouts);
        for &node in &self.nodes {
            self.local[node as usize] = ABSENT;
        }
    }

    fn collect_edges(&mut self, shard: &GraphShard, fanouts: &[Fanout]) {
        self.in_offset.clear();
        self.in_src.clear();
        self.edges.clear();
        self.in_offset.push(0);
        let mut num_edges = 0;
        for hop in 0..fanouts.len() {
            let limit = keep_at_hop(fanouts, hop);
            let hop_nodes = self.hop_offset[hop] as usize..self.hop_offset[hop + 1] as usize;
            for &node in &self.nodes[hop_nodes] {
                let range = kept(shard, node, limit);
                let first = shard.in_offset[node as usize];
                for (edge, &src) in (first..).zip(&shard.in_src[range]) {
                    self.edges.push(edge);
                    self.in_src.push(self.local[src as usize]);
                    num_edges += 1;
                }
                self.in_offset.push(num_edges);
            }
        }
    }
}

/// The in-edges that a node keeps, the first by rank.
fn kept(shard: &GraphShard, node: u32, limit: usize) -> std::ops::Range<usize> {
    let all = shard.in_edges(node);
    all.start..all.end.min(all.start.saturating_add(limit))
}

pub(super) fn gather<T: Copy>(values: &[T], positions: &[u32]) -> impl Iterator<Item = T> {
    positions.iter().map(|&i| values[i as usize])
}

/// Gathers a column that may be missing.
pub(super) fn of_nodes<T: Copy>(values: &Option<Vec<T>>, nodes: &[u32]) -> Option<Vec<T>> {
    let values = values.as_ref()?;
    Some(gather(values, nodes).collect())
}

/// Appends rows of `dim` values each.
pub(super) fn gather_rows(out: &mut Vec<f32>, values: &[f32], dim: usize, positions: &[u32]) {
    for &i in positions {
        out.extend_from_slice(&values[i as usize * dim..(i as usize + 1) * dim]);
    }
}

impl GraphShard {
    /// Extracts the neighbourhood of the node at position `target`.
    ///
    /// A node at distance h from the target keeps its first `keep_at_hop(fanouts, h)` in-edges, as
    /// far as the shard has them: `fanouts` must be the ones that the shard was made with.
    ///
    /// # Panics
    ///
    /// If `scratch` was made for another shard.
    pub fn extract(
        &self,
        target: u32,
        fanouts: &[Fanout],
        scratch: &mut ExtractScratch,
    ) -> GraphFeature {
        scratch.walk(self, target, fanouts);
        let ExtractScratch { nodes, edges, .. } = &*scratch;
        let edge_dim = self.edge_dim();
        GraphFeature {
            labels: self.labels.gather(&[target]),
            split: self.split[target as usize],
            node_id: self.ids.gather(nodes),
            hop_offset: scratch.hop_offset.clone(),
            in_degree: gather(&self.in_degree, nodes).collect(),
            in_weight: of_nodes(&self.in_weight, nodes),
            self_loops: of_nodes(&self.self_loops, nodes),
            self_weight: of_nodes(&self.self_weight, nodes),
            features: self.features.gather(nodes),
            in_offset: scratch.in_offset.clone(),
            in_src: scratch.in_src.clone(),
            edge_weight: self
                .edge_weight
                .as_ref()
                .map(|values| gather(values, edges).collect()),
            edge_feature: self.edge_feature.as_ref().map(|values| {
                let mut gathered = Vec::with_capacity(edges.len() * edge_dim);
                gather_rows(&mut gathered, values, edge_dim, edges);
                gathered
            }),
        }
    }

    /// Returns the number of features an edge; 0 without edges.
    pub fn edge_dim(&self) -> usize {
        let len = self.edge_feature.as_ref().map_or(0, Vec::len);
        len.checked_div(self.num_edges()).unwrap_or(0)
    }
}
