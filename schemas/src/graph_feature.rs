//! Graph features in memory: one target's neighbourhood, and the union of many.

mod dataset;
mod dense_rows;
mod extract;
mod layout;
mod merge;
mod pairs;
mod parts;
mod read;
mod row_batch;
#[cfg(test)]
mod tests;
mod validate;
mod version;
mod write;

pub use dataset::GraphFeatureDataset;
pub use dense_rows::DenseRows;
pub use extract::ExtractScratch;
pub use merge::ShardBuilder;
pub use pairs::{HardNegatives, PartPairs};
pub use parts::{DrawParts, Neighborhoods};
pub use version::write_changed_degrees;
pub use write::{write_changed_part, write_part};

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::columns::{Features, GraphMeta, Labels, RelationMeta, Split, TypeMeta};
use crate::dataset::SplitCounts;
use crate::ids::Ids;

/// A union of some targets' neighbourhoods: each node and each edge once.
///
/// Nodes of a type are sorted by (hop, id). A node of hop h keeps the in-edges of a relation of rank
/// below the greatest of the relation's `fanouts[h..]`, so the shard contains the neighbourhood of
/// every target ([`GraphShard::extract`]). Labels and splits are required at targets only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphShard {
    /// Position in `nodes` of the targets' type.
    pub target_type: usize,
    /// By node type.
    pub nodes: Vec<ShardNodes>,
    /// By relation.
    pub edges: Vec<ShardEdges>,
    /// The pairs whose ends are the targets, where the input has pairs.
    pub pairs: Option<PartPairs>,
}

/// The nodes of one type of a [`GraphShard`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardNodes {
    /// `[n]`.
    pub ids: Ids,
    /// `[n]`, least distance to a target of the shard.
    pub hop: Vec<u8>,
    /// `[n]` rows.
    pub features: Features,
    /// `[n]` rows, or none; none if targets are of another type.
    pub labels: Labels,
    /// `[n]`; all [`Split::None`] where the input has no splits.
    pub split: Vec<Split>,
    /// `[n]`; all false if targets are of other types.
    pub is_target: Vec<bool>,
}

/// The edges of one relation of a [`GraphShard`], and the degrees of the nodes that they lead to.
///
/// `n` is the number of nodes of type `to`, and `e` the number of edges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardEdges {
    /// Position in [`GraphShard::nodes`] of the sources' type.
    pub from: usize,
    /// Position in [`GraphShard::nodes`] of the destinations' type.
    pub to: usize,
    /// `[n]`, in-degree in the input graph, before sampling.
    pub in_degree: Vec<u32>,
    /// `[n]`, sum of the weights of all in-edges, where the input has weights.
    pub in_weight: Option<Vec<f32>>,
    /// `[n]`, number of the node's self-loops in the input graph, if any node has one.
    pub self_loops: Option<Vec<u32>>,
    /// `[n]`, sum of the weights of the node's self-loops, where the input has weights and
    /// self-loops.
    pub self_weight: Option<Vec<f32>>,
    /// `[n + 1]`, from 0: node i has in-edges `in_offset[i]..in_offset[i + 1]`; nodes of the last
    /// hop have none.
    pub in_offset: Vec<u32>,
    /// `[e]`, position of the source among the nodes of type `from`; a node's in-edges are in rank
    /// order.
    pub in_src: Vec<u32>,
    /// `[e]`, where the input has weights.
    pub edge_weight: Option<Vec<f32>>,
    /// `[e * edge_dim]`, row-major, where the input has edge features.
    pub edge_feature: Option<Vec<f32>>,
}

/// One target's self-contained neighbourhood, or that of a pair's ends and hard negatives.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphFeature {
    /// Position in `nodes` of the target's type, or of the type of src ends.
    pub target_type: usize,
    /// The target's label, one row, or none.
    pub labels: Labels,
    /// The target's split; of a pair it is in `pairs`.
    pub split: Split,
    /// The pair, or the random negative, whose neighbourhood this is; none if it is that of one
    /// target. Positions are those in `nodes`, all of them of hop 0.
    pub pairs: Option<PartPairs>,
    /// By node type.
    pub nodes: Vec<FeatureNodes>,
    /// By relation.
    pub edges: Vec<FeatureEdges>,
}

/// The nodes of one type of a [`GraphFeature`].
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureNodes {
    /// `[n]`: the target if it is of this type, or the ends and hard negatives of a pair; then by hop,
    /// within a hop by id.
    pub node_id: Ids,
    /// `[hops + 2]`: nodes of hop h are `hop_offset[h]..hop_offset[h + 1]`.
    pub hop_offset: Vec<u32>,
    /// `[n]` rows.
    pub features: Features,
}

/// The edges of one relation of a [`GraphFeature`], and the degrees of the nodes that they lead to.
///
/// `n` is the number of nodes of type `to`, `m` the number of those before the last hop, and `e` the
/// number of edges.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureEdges {
    /// Position in [`GraphFeature::nodes`] of the sources' type.
    pub from: usize,
    /// Position in [`GraphFeature::nodes`] of the destinations' type.
    pub to: usize,
    /// `[n]`, in-degree in the input graph, before sampling.
    pub in_degree: Vec<u32>,
    /// `[n]`, sum of the weights of all in-edges, where the input has weights.
    pub in_weight: Option<Vec<f32>>,
    /// `[n]`, as in [`ShardEdges`].
    pub self_loops: Option<Vec<u32>>,
    /// `[n]`, as in [`ShardEdges`].
    pub self_weight: Option<Vec<f32>>,
    /// `[m + 1]`, from 0.
    pub in_offset: Vec<u32>,
    /// `[e]`, position in `node_id` of type `from`; a node's in-edges are in rank order.
    pub in_src: Vec<u32>,
    /// `[e]`, where the input has weights.
    pub edge_weight: Option<Vec<f32>>,
    /// `[e * edge_dim]`, row-major, where the input has edge features.
    pub edge_feature: Option<Vec<f32>>,
}

impl GraphShard {
    /// Creates the shard of no target: columns as the graph has them, without nodes.
    pub fn empty(meta: &GraphMeta) -> Self {
        let nodes = meta.types.iter();
        let edges = meta.relations.iter();
        Self {
            target_type: meta.target_type,
            nodes: nodes.map(|of| ShardNodes::with_capacity(of, 0)).collect(),
            edges: edges.map(|of| ShardEdges::with_capacity(of, 0)).collect(),
            pairs: meta.pairs.as_ref().map(PartPairs::empty),
        }
    }

    /// Returns the number of nodes of all types.
    pub fn num_nodes(&self) -> usize {
        self.nodes.iter().map(ShardNodes::len).sum()
    }

    /// Returns the number of edges of all relations.
    pub fn num_edges(&self) -> usize {
        self.edges.iter().map(ShardEdges::len).sum()
    }

    /// Returns the nodes of the targets' type.
    pub fn target_nodes(&self) -> &ShardNodes {
        &self.nodes[self.target_type]
    }

    /// Returns the positions of the targets of the target type among its nodes, ascending.
    pub fn targets(&self) -> impl Iterator<Item = u32> {
        self.targets_of(self.target_type)
    }

    /// Returns the positions of the targets of a type among its nodes, ascending.
    pub fn targets_of(&self, type_idx: usize) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&self.nodes[type_idx].is_target)
            .filter(|(_, is_target)| **is_target)
            .map(|(node, _)| node)
    }

    /// Returns the bytes of memory the columns take.
    pub fn size_bytes(&self) -> usize {
        let nodes: usize = self.nodes.iter().map(ShardNodes::size_bytes).sum();
        let edges: usize = self.edges.iter().map(ShardEdges::size_bytes).sum();
        let pairs = self.pairs.as_ref().map_or(0, PartPairs::size_bytes);
        nodes + edges + pairs
    }

    /// Counts the pairs by split, or the targets where the input has no pairs.
    pub fn split_counts(&self) -> SplitCounts {
        if let Some(pairs) = &self.pairs {
            return pairs.split_counts();
        }
        let split = &self.target_nodes().split;
        let mut counts = SplitCounts::default();
        self.targets()
            .for_each(|target| counts.add(split[target as usize]));
        counts
    }
}

impl ShardNodes {
    /// Creates columns without nodes, with room for some.
    fn with_capacity(meta: &TypeMeta, num_nodes: usize) -> Self {
        Self {
            ids: Ids::with_capacity(meta.id_type, num_nodes),
            hop: Vec::with_capacity(num_nodes),
            features: Features::with_capacity(meta.features, num_nodes),
            labels: Labels::empty(meta.label.as_ref()),
            split: Vec::with_capacity(num_nodes),
            is_target: Vec::with_capacity(num_nodes),
        }
    }

    /// Returns the number of nodes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there are none"
    )]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the bytes of memory the columns take.
    pub fn size_bytes(&self) -> usize {
        let columns = self.ids.size_bytes() + self.features.size_bytes();
        columns + self.labels.size_bytes() + 3 * self.hop.len()
    }
}

impl ShardEdges {
    /// Creates columns without edges, with room for some nodes of type `to`.
    fn with_capacity(meta: &RelationMeta, num_nodes: usize) -> Self {
        let mut in_offset = Vec::with_capacity(num_nodes + 1);
        in_offset.push(0);
        Self {
            from: meta.from,
            to: meta.to,
            in_degree: Vec::with_capacity(num_nodes),
            in_weight: meta.edge_weight.then(|| Vec::with_capacity(num_nodes)),
            self_loops: meta.self_loops.then(|| Vec::with_capacity(num_nodes)),
            self_weight: meta.self_weight().then(|| Vec::with_capacity(num_nodes)),
            in_offset,
            in_src: Vec::new(),
            edge_weight: meta.edge_weight.then(Vec::new),
            edge_feature: meta.edge_feature_dim.map(|_| Vec::new()),
        }
    }

    /// Returns the number of edges.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there are none"
    )]
    pub fn len(&self) -> usize {
        self.in_src.len()
    }

    /// Returns the positions of the in-edges of a node of type `to`.
    pub fn in_edges(&self, node: u32) -> Range<usize> {
        self.in_offset[node as usize] as usize..self.in_offset[node as usize + 1] as usize
    }

    /// Returns the number of features an edge; 0 without edges.
    pub fn edge_dim(&self) -> usize {
        let len = self.edge_feature.as_ref().map_or(0, Vec::len);
        len.checked_div(self.len()).unwrap_or(0)
    }

    /// Returns the bytes of memory the columns take.
    pub fn size_bytes(&self) -> usize {
        let words = |values: &Option<Vec<f32>>| values.as_ref().map_or(0, Vec::len);
        let counts = self.self_loops.as_ref().map_or(0, Vec::len) + self.in_degree.len();
        let of_nodes = words(&self.in_weight) + words(&self.self_weight) + counts;
        let of_edges = words(&self.edge_weight) + words(&self.edge_feature) + self.in_src.len();
        4 * (of_nodes + of_edges + self.in_offset.len())
    }
}

impl GraphFeature {
    /// Returns the number of nodes of all types.
    pub fn num_nodes(&self) -> usize {
        self.nodes.iter().map(|nodes| nodes.node_id.len()).sum()
    }

    /// Returns the number of edges of all relations.
    pub fn num_edges(&self) -> usize {
        self.edges.iter().map(|edges| edges.in_src.len()).sum()
    }

    /// Returns the nodes of the target's type; the target is the first, if this is not of a pair.
    pub fn target_nodes(&self) -> &FeatureNodes {
        &self.nodes[self.target_type]
    }

    /// Returns the greatest distance from the target that nodes may have.
    pub fn hops(&self) -> usize {
        self.target_nodes().hop_offset.len() - 2
    }
}

impl FeatureEdges {
    /// Returns the positions of the in-edges of a node of type `to`; none at the last hop.
    pub fn in_edges(&self, node: usize) -> Range<usize> {
        match self.in_offset.get(node + 1) {
            Some(&end) => self.in_offset[node] as usize..end as usize,
            None => 0..0,
        }
    }
}
