//! How much memory building a store takes: one model for the engine, which keeps to it, and for
//! predictions.

use crate::buckets::Edge;

/// Bytes of a node while nodes are numbered, whatever the budget; strings take their bytes too.
const NUMBER_BYTES: usize = 40;

/// Bytes of a node's row beside its features and its id: position, label, split and degrees.
const ROW_BYTES: usize = 40;

/// What a store is built of.
#[derive(Clone, Copy, Debug)]
pub struct StoreSize {
    /// Nodes.
    pub nodes: usize,
    /// Mean bytes of a node's features and id.
    pub node_bytes: f64,
    /// In-edges, reversed ones counted too.
    pub in_edges: u64,
    /// Features of an edge.
    pub edge_dim: usize,
}

impl StoreSize {
    /// Returns the greatest number of bytes that building takes at a time: the numbers of all nodes,
    /// and node rows or edges, which go to files beyond their share of the budget.
    pub fn build_bytes(&self, memory_budget: usize) -> f64 {
        let rows = self.nodes as f64 * (self.node_bytes + ROW_BYTES as f64);
        let edges = self.in_edges as f64 * (size_of::<Edge>() + 4 * self.edge_dim) as f64;
        let received = rows.max(edges).min(turn_bytes(memory_budget) as f64);
        (self.nodes * NUMBER_BYTES) as f64 + received
    }
}

/// Returns the bytes that node rows may take, and edges after them: nodes and edges take turns, and
/// each may have half of the memory.
pub(crate) fn turn_bytes(memory_budget: usize) -> usize {
    memory_budget / 2
}
