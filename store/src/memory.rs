//! The memory that building a store takes: one model for the limits of the engine and for
//! predictions.

use crate::buckets::Edge;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of a node while nodes are numbered, for any budget; the bytes of string ids are extra.
const NUMBER_BYTES: usize = 40;

/// Bytes of a node's row beside its features and its id: position, label, split and degrees.
const ROW_BYTES: usize = 40;

/// Bytes of an edge beside its weight and its features: with its hash, which edges between ids
/// without gaps do not have.
const EDGE_BYTES: usize = size_of::<Edge>() + size_of::<u64>();

/// Size of the input of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreSize {
    /// Number of nodes.
    pub nodes: usize,
    /// Mean bytes of a node's features and id.
    pub node_bytes: f64,
    /// Number of in-edges, including reversed ones.
    pub in_edges: u64,
    /// Number of features of an edge.
    pub edge_dim: usize,
}

impl StoreSize {
    /// Returns the peak memory of building in bytes: the numbers of all nodes, and node rows or
    /// edges up to their share of the budget; the rest is in files.
    pub fn build_bytes(&self, memory_budget: usize) -> f64 {
        let rows = self.nodes as f64 * (self.node_bytes + ROW_BYTES as f64);
        let edges = self.in_edges as f64 * (EDGE_BYTES + 4 * self.edge_dim) as f64;
        let received = rows.max(edges).min(turn_bytes(memory_budget) as f64);
        (self.nodes * NUMBER_BYTES) as f64 + received
    }
}

/// Returns the bytes that node rows, and later edges, may take: half of the budget each.
pub(crate) fn turn_bytes(memory_budget: usize) -> usize {
    memory_budget / 2
}

/// Bytes that rows may take in memory; its clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    used: Rc<Cell<usize>>,
    bytes_max: usize,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            used: Rc::default(),
            bytes_max,
        }
    }

    /// The bytes that rows may take.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Uses bytes, unless they would be beyond the budget; tells whether they are used.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let used = self.used.get().saturating_add(bytes);
        let fits = used <= self.bytes_max;
        if fits {
            self.used.set(used);
        }
        fits
    }

    /// Uses bytes that are in memory in any case.
    pub(crate) fn charge(&self, bytes: usize) {
        self.used.set(self.used.get().saturating_add(bytes));
    }
}
