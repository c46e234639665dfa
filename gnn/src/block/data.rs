//! The plain data of blocks, and its checks.

use serde::{Deserialize, Serialize};

use super::check::{ensure, same_length};
use crate::{Dense, GnnError};

/// How the kept in-edges of a block were drawn; decides how sums are scaled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// Every in-edge had the same chance: sums are scaled by in-degree / number of kept in-edges.
    #[default]
    Uniform,
    /// In-edges were drawn in proportion to their weight, without replacement, and are in the order
    /// of the draws: a model that uses edge weights corrects sums and means for it.
    Weighted,
    /// The heaviest in-edges were kept: nothing is scaled.
    Top,
}

/// The plain data of a [`Block`](super::Block).
///
/// The dst nodes are the first `num_dst` src nodes. The in-edges of dst node `v` are
/// `in_src[in_offset[v]..in_offset[v + 1]]`, in rank order.
#[derive(Clone, Debug, Default)]
pub struct BlockData {
    /// Number of src nodes.
    pub num_src: usize,
    /// Number of dst nodes, which are the first src nodes.
    pub num_dst: usize,
    /// `[num_dst + 1]`: where the kept in-edges of each dst node start.
    pub in_offset: Vec<u32>,
    /// `[num_edges]`: src position of each in-edge.
    pub in_src: Vec<u32>,
    /// `[num_edges]`: weight of each in-edge.
    pub edge_weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`: features of each in-edge.
    pub edge_feature: Option<Dense>,
    /// `[num_src]`: in-degree in the whole graph, before sampling; self-loops and parallel edges count.
    pub in_degree: Vec<u32>,
    /// `[num_src]`: sum of in-edge weights in the whole graph; present exactly if `edge_weight` is.
    pub in_weight: Option<Vec<f32>>,
    /// `[num_src]`: number of a node's self-loops in the whole graph; none if no node has any.
    pub self_loops: Option<Vec<u32>>,
    /// `[num_src]`: sum of the weights of a node's self-loops in the whole graph; present exactly
    /// if `self_loops` and `edge_weight` are.
    pub self_weight: Option<Vec<f32>>,
    /// `[num_src]`: hash of each raw id; dropout masks depend on it.
    pub node_key: Vec<u64>,
    /// How many dst rows, from the first on, the targets need; batch norm takes its statistics from
    /// them.
    pub num_active: usize,
    /// How the kept in-edges were drawn.
    pub sampling: Sampling,
}

/// The plain data of a [`Block`](super::Block) whose src nodes are all nodes of a graph, and whose
/// dst nodes are consecutive. [`BlockData`] describes the fields of the same names.
#[derive(Clone, Debug, Default)]
pub struct RangeData {
    /// The first dst node.
    pub first: usize,
    /// `[num_dst + 1]`.
    pub in_offset: Vec<u32>,
    /// `[num_edges]`: the node that each in-edge comes from.
    pub in_src: Vec<u32>,
    /// `[num_edges]`.
    pub edge_weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`.
    pub edge_feature: Option<Dense>,
    /// How the kept in-edges were drawn.
    pub sampling: Sampling,
}

impl BlockData {
    pub(super) fn check(&self) -> Result<(), GnnError> {
        let (num_src, num_dst) = (self.num_src, self.num_dst);
        ensure(num_dst <= num_src, "num_dst", || {
            format!("{num_dst} dst nodes cannot be a prefix of {num_src} src nodes")
        })?;
        ensure(self.num_active <= num_dst, "num_active", || {
            format!("{} of {num_dst} dst rows cannot be active", self.num_active)
        })?;
        same_length("in_degree", self.in_degree.len(), num_src)?;
        same_length("node_key", self.node_key.len(), num_src)?;
        self.check_edges(&self.in_degree[..num_dst])
    }

    /// Checks the in-edges against the in-degrees of the dst nodes.
    pub(super) fn check_edges(&self, in_degree: &[u32]) -> Result<(), GnnError> {
        let (num_src, num_dst, num_edges) = (self.num_src, self.num_dst, self.in_src.len());
        same_length("in_offset", self.in_offset.len(), num_dst + 1)?;
        let ascends = self.in_offset.windows(2).all(|pair| pair[0] <= pair[1]);
        let spans = self.in_offset[0] == 0 && self.in_offset[num_dst] as usize == num_edges;
        ensure(ascends && spans, "in_offset", || {
            format!("does not ascend from 0 to the {num_edges} in-edges")
        })?;
        let greatest = self.in_src.iter().max();
        let outside = greatest.filter(|&&src| src as usize >= num_src);
        ensure(outside.is_none(), "in_src", || {
            let position = outside.copied().unwrap_or_default();
            format!("position {position} is not below {num_src} src nodes")
        })?;
        for (v, (pair, degree)) in self.in_offset.windows(2).zip(in_degree).enumerate() {
            let kept = pair[1] - pair[0];
            ensure(kept <= *degree, "in_degree", || {
                format!("node {v} keeps {kept} in-edges but has only {degree} in the whole graph")
            })?;
        }
        if let Some(weight) = &self.edge_weight {
            same_length("edge_weight", weight.len(), num_edges)?;
        }
        if let Some(feature) = &self.edge_feature {
            same_length("edge_feature", feature.rows, num_edges)?;
            same_length(
                "edge_feature",
                feature.values.len(),
                feature.rows * feature.cols,
            )?;
        }
        Ok(())
    }
}
