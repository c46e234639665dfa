//! Blocks of one relation: its dst nodes may be of another type than its src nodes.

use std::sync::Arc;

use super::check::{ensure, same_length};
use super::{Block, BlockData, NodeColumns, RangeData};
use crate::GnnError;

impl Block {
    /// Makes a block whose dst nodes are of another type than its src nodes.
    ///
    /// Degrees and the other columns of nodes are those of the first nodes of the dst nodes' type,
    /// at least `num_dst`. `dst_key` has the hash of the raw id of each dst node, or of more nodes.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first field that contradicts the others.
    pub(crate) fn bipartite(mut data: BlockData, dst_key: &[u64]) -> Result<Block, GnnError> {
        let (num_dst, num_nodes) = (data.num_dst, data.in_degree.len());
        ensure(num_nodes >= num_dst, "in_degree", || {
            format!("has {num_nodes} entries for {num_dst} dst nodes")
        })?;
        ensure(dst_key.len() >= num_dst, "node_key", || {
            format!("has {} entries for {num_dst} dst nodes", dst_key.len())
        })?;
        same_length("node_key", data.node_key.len(), data.num_src)?;
        data.check_edges(&data.in_degree[..num_dst])?;
        let nodes = NodeColumns::of(
            std::mem::take(&mut data.in_degree),
            data.in_weight.take(),
            data.self_loops.take(),
            data.self_weight.take(),
        );
        nodes.check(data.edge_weight.is_some())?;
        data.node_key.extend_from_slice(&dst_key[..num_dst]);
        Ok(Self::wrap(data, 0, true, Arc::new(nodes)))
    }

    /// Makes a block whose dst nodes are a range of the nodes of one type, and whose src nodes are
    /// all `num_src` nodes of another, for forward passes without dropout.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first field that contradicts the others.
    pub(crate) fn bipartite_range(
        data: RangeData,
        num_src: usize,
        nodes: &Arc<NodeColumns>,
    ) -> Result<Block, GnnError> {
        let (first, data) = Self::range_data(data, num_src, nodes)?;
        Ok(Self::wrap(data, first, true, Arc::clone(nodes)))
    }

    /// Checks a range of the dst nodes, whose columns are `nodes`, and returns its first node.
    pub(super) fn range_data(
        data: RangeData,
        num_src: usize,
        nodes: &NodeColumns,
    ) -> Result<(usize, BlockData), GnnError> {
        let (num_nodes, first) = (nodes.in_degree().len(), data.first);
        let num_dst = data.in_offset.len().saturating_sub(1);
        let end = first.saturating_add(num_dst);
        ensure(end <= num_nodes, "first", || {
            format!("{num_dst} dst nodes from {first} on are not among {num_nodes} nodes")
        })?;
        let data = BlockData {
            num_src,
            num_dst,
            in_offset: data.in_offset,
            in_src: data.in_src,
            edge_weight: data.edge_weight,
            edge_feature: data.edge_feature,
            num_active: num_dst,
            sampling: data.sampling,
            ..BlockData::default()
        };
        ensure(
            nodes.in_weight().is_some() || data.edge_weight.is_none(),
            "in_weight",
            || "must be present where edge_weight is".to_owned(),
        )?;
        data.check_edges(&nodes.in_degree()[first..end])?;
        Ok((first, data))
    }
}
