//! Dense features by node, held by a shard or lent to it.

/// Dense features of a shard's nodes, in the shard or outside of it.
pub trait DenseRows {
    /// Returns the number of features a node.
    fn dim(&self) -> usize;

    /// Returns the features of the node at a position in the shard, `[dim]`.
    fn row(&self, node: usize) -> &[f32];
}

/// Features that the shard holds itself.
pub(super) struct OwnRows<'a> {
    pub(super) dim: usize,
    pub(super) values: &'a [f32],
}

impl DenseRows for OwnRows<'_> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        &self.values[node * self.dim..(node + 1) * self.dim]
    }
}
