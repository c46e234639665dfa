//! The memory that flattening takes: one model for the engine, which limits its waves by it, and
//! for predictions.

use schemas::FeatureMeta;

/// Largest number of waves of a worker in flight: one is written while the next ones run their
/// rounds. Each holds its neighbourhoods in memory.
const WAVES_IN_FLIGHT: usize = 3;

/// Bytes of a node of a group: its number, row and list, and the place of its columns.
pub(crate) const GROUP_NODE_BYTES: usize = 64;

/// Bytes of a node of a part: its entry in the group; its id, degrees, label and split; its offset
/// and its rows in the part. Features are not included.
const PART_NODE_BYTES: usize = GROUP_NODE_BYTES + 64;

/// Bytes of an edge of a part: a source, its row and a weight, in the group and in the shard.
const PART_EDGE_BYTES: usize = 16;

/// Largest number of bytes of a row group while it is written: its columns, their pages and their
/// encoders.
pub(crate) const WRITER_BYTES: usize = 48_000_000;

/// Copies of a part's columns that a writer holds, if they are smaller than [`WRITER_BYTES`].
const WRITER_COPIES: usize = 3;

/// The size of a part.
#[derive(Clone, Copy, Debug)]
pub struct PartSize {
    /// Nodes.
    pub nodes: usize,
    /// In-edges.
    pub edges: usize,
    /// Mean bytes of a node's features.
    pub feature_bytes: usize,
    /// Whether features are dense: they then stay in the store's map until they are written.
    pub is_dense: bool,
    /// Features of an edge.
    pub edge_dim: usize,
}

impl PartSize {
    /// Makes the size of a part from its counts and the features of its graph.
    pub fn new(
        (nodes, edges): (usize, usize),
        (features, feature_bytes): (FeatureMeta, usize),
        edge_dim: Option<usize>,
    ) -> Self {
        Self {
            nodes,
            edges,
            feature_bytes,
            is_dense: matches!(features, FeatureMeta::Dense { .. }),
            edge_dim: edge_dim.unwrap_or(0),
        }
    }

    /// Returns the bytes of a part while it is assembled and written.
    pub fn bytes(&self) -> usize {
        self.travelling_bytes().saturating_add(self.writer_bytes())
    }

    /// Returns the bytes of a part while its rounds run and it is assembled.
    fn travelling_bytes(&self) -> usize {
        let copied = if self.is_dense { 0 } else { self.feature_bytes };
        let of_nodes = self.nodes.saturating_mul(PART_NODE_BYTES + copied);
        // The group and the shard both hold edge features.
        let of_edges = PART_EDGE_BYTES + 8 * self.edge_dim;
        of_nodes.saturating_add(self.edges.saturating_mul(of_edges))
    }

    /// Returns the bytes that a writer of this part holds.
    fn writer_bytes(&self) -> usize {
        let node = PART_NODE_BYTES - GROUP_NODE_BYTES + self.feature_bytes;
        let edge = PART_EDGE_BYTES + 4 * self.edge_dim;
        let columns = self.nodes.saturating_mul(node);
        let columns = columns.saturating_add(self.edges.saturating_mul(edge));
        columns.saturating_mul(WRITER_COPIES).min(WRITER_BYTES)
    }

    /// Returns the bytes of flattening `parts` parts of this size on the workers of one process.
    pub fn flatten_bytes(&self, parts: usize, memory_budget: usize, workers: usize) -> f64 {
        let allowed = waves_allowed(memory_budget, self.bytes(), (workers, workers));
        let in_flight = (parts as u64).min(allowed) as f64;
        // A worker writes one part at a time.
        let written = in_flight.min(workers as f64);
        in_flight * self.travelling_bytes() as f64 + written * self.writer_bytes() as f64
    }
}

/// Returns how many waves of all workers may be in flight: as many as fit half of the memory budget
/// of each process. A wave takes `part_bytes`; `threads` are the workers of a process, `workers`
/// those of all processes.
pub(crate) fn waves_allowed(
    memory_budget: usize,
    part_bytes: usize,
    (threads, workers): (usize, usize),
) -> u64 {
    let here = memory_budget / 2 / part_bytes.max(1);
    // Of this many consecutive waves, at most `here` belong to one process.
    let waves = (here / threads)
        .saturating_mul(workers)
        .saturating_add(here % threads);
    waves.clamp(1, WAVES_IN_FLIGHT * workers) as u64
}
