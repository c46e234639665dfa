//! Graph features in memory: one target's neighbourhood, and the union of many.

mod dataset;
mod dense_rows;
mod extract;
mod layout;
mod merge;
mod parts;
mod read;
mod row_batch;
#[cfg(test)]
mod tests;
mod validate;
mod write;

pub use dataset::GraphFeatureDataset;
pub use dense_rows::DenseRows;
pub use extract::ExtractScratch;
pub use merge::ShardBuilder;
pub use parts::{DrawParts, Neighborhoods};
pub use write::write_part;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::columns::{Features, GraphMeta, Labels, Split};
use crate::dataset::SplitCounts;
use crate::ids::Ids;

/// A union of some targets' neighbourhoods: each node and each edge once.
///
/// Nodes are sorted by (hop, id). A node of hop h keeps the in-edges of rank below the greatest of
/// `fanouts[h..]`, so the shard contains the neighbourhood of every target
/// ([`GraphShard::extract`]). Labels and splits are required at targets only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphShard {
    /// `[n]`.
    pub ids: Ids,
    /// `[n]`, least distance to a target of the shard.
    pub hop: Vec<u8>,
    /// `[n]`, in-degree in the input graph, before sampling.
    pub in_degree: Vec<u32>,
    /// `[n]`, sum of the weights of all in-edges, where the input has weights.
    pub in_weight: Option<Vec<f32>>,
    /// `[n]`, number of the node's self-loops in the input graph, if any node has one.
    pub self_loops: Option<Vec<u32>>,
    /// `[n]`, sum of the weights of the node's self-loops, where the input has weights and
    /// self-loops.
    pub self_weight: Option<Vec<f32>>,
    /// `[n]` rows.
    pub features: Features,
    /// `[n]` rows, or none.
    pub labels: Labels,
    /// `[n]`; all [`Split::None`] where the input has no splits.
    pub split: Vec<Split>,
    /// `[n]`.
    pub is_target: Vec<bool>,
    /// `[n + 1]`, from 0: node i has in-edges `in_offset[i]..in_offset[i + 1]`; nodes of the last
    /// hop have none.
    pub in_offset: Vec<u32>,
    /// `[e]`, position of the source; a node's in-edges are in rank order.
    pub in_src: Vec<u32>,
    /// `[e]`, where the input has weights.
    pub edge_weight: Option<Vec<f32>>,
    /// `[e * edge_dim]`, row-major, where the input has edge features.
    pub edge_feature: Option<Vec<f32>>,
}

/// One target's self-contained neighbourhood.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphFeature {
    /// The target's label, one row, or none.
    pub labels: Labels,
    /// The target's split.
    pub split: Split,
    /// `[n]`: the target, then by hop, within a hop by id.
    pub node_id: Ids,
    /// `[hops + 2]`: nodes of hop h are `hop_offset[h]..hop_offset[h + 1]`.
    pub hop_offset: Vec<u32>,
    /// `[n]`, in-degree in the input graph, before sampling.
    pub in_degree: Vec<u32>,
    /// `[n]`, sum of the weights of all in-edges, where the input has weights.
    pub in_weight: Option<Vec<f32>>,
    /// `[n]`, as in [`GraphShard`].
    pub self_loops: Option<Vec<u32>>,
    /// `[n]`, as in [`GraphShard`].
    pub self_weight: Option<Vec<f32>>,
    /// `[n]` rows.
    pub features: Features,
    /// `[m + 1]`, from 0; m = nodes before the last hop.
    pub in_offset: Vec<u32>,
    /// `[e]`, position in `node_id`; a node's in-edges are in rank order.
    pub in_src: Vec<u32>,
    /// `[e]`, where the input has weights.
    pub edge_weight: Option<Vec<f32>>,
    /// `[e * edge_dim]`, row-major, where the input has edge features.
    pub edge_feature: Option<Vec<f32>>,
}

impl GraphShard {
    /// Creates the shard of no target: columns as the graph has them, without nodes.
    pub fn empty(meta: &GraphMeta) -> Self {
        Self::with_capacity(meta, 0)
    }

    /// Creates the shard of no target with room for some nodes.
    fn with_capacity(meta: &GraphMeta, num_nodes: usize) -> Self {
        let mut in_offset = Vec::with_capacity(num_nodes + 1);
        in_offset.push(0);
        Self {
            ids: Ids::with_capacity(meta.id_type, num_nodes),
            hop: Vec::with_capacity(num_nodes),
            in_degree: Vec::with_capacity(num_nodes),
            in_weight: meta.edge_weight.then(|| Vec::with_capacity(num_nodes)),
            self_loops: meta.self_loops.then(|| Vec::with_capacity(num_nodes)),
            self_weight: meta.self_weight().then(|| Vec::with_capacity(num_nodes)),
            features: Features::with_capacity(meta.features, num_nodes),
            labels: Labels::empty(meta.label.as_ref()),
            split: Vec::with_capacity(num_nodes),
            is_target: Vec::with_capacity(num_nodes),
            in_offset,
            in_src: Vec::new(),
            edge_weight: meta.edge_weight.then(Vec::new),
            edge_feature: meta.edge_feature_dim.map(|_| Vec::new()),
        }
    }

    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.ids.len()
    }

    /// Returns the number of edges.
    pub fn num_edges(&self) -> usize {
        self.in_src.len()
    }

    /// Returns the positions of the in-edges of a node.
    pub fn in_edges(&self, node: u32) -> Range<usize> {
        self.in_offset[node as usize] as usize..self.in_offset[node as usize + 1] as usize
    }

    /// Returns the positions of the targets, ascending.
    pub fn targets(&self) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&self.is_target)
            .filter(|(_, is_target)| **is_target)
            .map(|(node, _)| node)
    }

    /// Returns the bytes of memory the columns take.
    pub fn size_bytes(&self) -> usize {
        let words = |values: &Option<Vec<f32>>| values.as_ref().map_or(0, Vec::len);
        let counts = self.self_loops.as_ref().map_or(0, Vec::len) + self.in_degree.len();
        let of_nodes = words(&self.in_weight) + words(&self.self_weight) + counts;
        let of_edges = words(&self.edge_weight) + words(&self.edge_feature) + self.in_src.len();
        let columns = self.ids.size_bytes() + self.features.size_bytes() + self.labels.size_bytes();
        columns + 4 * (of_nodes + of_edges + self.in_offset.len()) + 3 * self.hop.len()
    }

    /// Counts the targets by split.
    pub fn split_counts(&self) -> SplitCounts {
        let mut counts = SplitCounts::default();
        self.targets()
            .for_each(|target| counts.add(self.split[target as usize]));
        counts
    }
}

impl GraphFeature {
    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.node_id.len()
    }

    /// Returns the number of edges.
    pub fn num_edges(&self) -> usize {
        self.in_src.len()
    }

    /// Returns the greatest distance from the target that nodes may have.
    pub fn hops(&self) -> usize {
        self.hop_offset.len() - 2
    }

    /// Returns the positions of the in-edges of a node; none at the last hop.
    pub fn in_edges(&self, node: usize) -> Range<usize> {
        match self.in_offset.get(node + 1) {
            Some(&end) => self.in_offset[node] as usize..end as usize,
            None => 0..0,
        }
    }
}
