//! Dense features by node, held by a shard or lent to it.

use super::ShardNodes;
use crate::columns::Features;

/// Dense features of a shard's nodes of one type, in the shard or outside of it.
pub trait DenseRows: Sync {
    /// Returns the number of features a node.
    fn dim(&self) -> usize;

    /// Returns the features of the node at a position among the nodes of its type, `[dim]`.
    fn row(&self, node: usize) -> &[f32];
}

/// Features that the shard holds itself.
pub(super) struct OwnRows<'a> {
    pub(super) dim: usize,
    pub(super) values: &'a [f32],
}

impl<'a> OwnRows<'a> {
    /// Returns the dense features of some nodes; none if they have none.
    pub(super) fn of(nodes: &'a ShardNodes) -> Option<Self> {
        match &nodes.features {
            Features::Dense { dim, values } => Some(Self { dim: *dim, values }),
            Features::None | Features::Sparse { .. } => None,
        }
    }
}

impl DenseRows for OwnRows<'_> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        &self.values[node * self.dim..(node + 1) * self.dim]
    }
}
