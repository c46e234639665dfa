//! The memory that a training takes: one model for the engine, which limits kept parts and batches
//! by it, and for predictions.

use std::collections::BTreeMap;

use crate::TrainPlan;

/// Targets of an evaluation batch, unless training batches are larger. Results do not depend on it.
pub(crate) const EVALUATION_TARGETS: usize = 1024;

/// Features are taken as sparse if at most one value in this many is stored. That is about twice
/// the number of dense values that are multiplied in the time of one sparse value.
pub(crate) const DENSE_PER_SPARSE: usize = 32;

/// Bytes of an f32.
const NUMBER_BYTES: f64 = 4.0;

/// Bytes of an edge of a block: edges are stored by dst and by src.
pub(crate) const BLOCK_EDGE_BYTES: usize = 16;

/// Bytes of a src node of a block.
pub(crate) const BLOCK_NODE_BYTES: usize = 32;

/// Copies of the parts that are kept: decoded parts, the pages and columns that they are decoded
/// from, and memory that the allocator keeps.
const PART_COPIES: f64 = 4.0;

/// Copies of a batch: batches of training and of evaluation that wait between stages or are
/// computed, the first layer's values of their features, and memory that the allocator keeps.
const BATCH_COPIES: f64 = 6.0;

/// Copies of a batch where batches share the blocks of a part: those of training and of evaluation,
/// and memory that the allocator keeps.
const SHARED_BATCH_COPIES: f64 = 3.0;

/// Copies of dense features that are gathered before they are made sparse.
const GATHER_COPIES: f64 = 1.0;

/// Tensors of the size of a layer's output that a worker's forward and backward pass hold.
const LAYER_COPIES: f64 = 40.0;

/// Copies of the rows of a part that a worker holds where batches share the blocks of the part: its
/// rows, those after a layer, their sum and gradients. Fitted to jobs of 1 to 3 layers.
const LIGHT_COPIES: f64 = 11.0;

/// Bytes that a worker holds for a drawn negative of a pair, likewise. Fitted.
const LIGHT_NEGATIVE_BYTES: f64 = 56.0;

/// Bytes that a worker holds for a pair of such a batch: scores, gradients and lists. Fitted.
const LIGHT_PAIR_BYTES: f64 = 1200.0;

/// Copies of an embedding table alone, and of it and each vector of the optimiser: on the server, as
/// the best epoch, in a checkpoint while it is made, and memory that the allocator keeps. Fitted to
/// predicted numbers of rows, which are up to twice as many as there are.
const TABLE_COPIES: (f64, f64) = (1.5, 2.5);

/// The size of a training's input.
#[derive(Clone, Debug)]
pub struct TrainingSize {
    /// Number of parts.
    pub parts: f64,
    /// Mean nodes of a part.
    pub part_nodes: f64,
    /// Mean in-edges of a part.
    pub part_edges: f64,
    /// Mean bytes of a node of a part, with its features.
    pub part_node_bytes: f64,
    /// Nodes of a batch's union within each distance of its targets, 0 first.
    pub batch_nodes: Vec<f64>,
    /// Edges of a batch's union.
    pub batch_edges: f64,
    /// Whether batches share the blocks of a whole part, which are then this union.
    pub shares_blocks: bool,
    /// Number of pairs of a batch; 0 if targets are nodes.
    pub batch_pairs: f64,
    /// Width of dense features; 0 without dense features.
    pub dense_dim: usize,
    /// Mean number of a node's features that are not zero.
    pub stored_features: f64,
    /// Number of nodes of each type.
    pub type_nodes: BTreeMap<String, f64>,
    /// Number of train targets, as `batch_size` counts them: nodes, pairs or src nodes.
    pub train_targets: f64,
}

impl TrainPlan {
    /// Returns the largest number of targets of a batch, in training or in evaluation.
    pub fn batch_targets(&self) -> usize {
        self.result.batch_size.max(EVALUATION_TARGETS)
    }

    /// Returns the widths of the hidden layers.
    pub fn hidden(&self) -> &[usize] {
        &self.result.hidden
    }

    /// Returns the approximate peak memory, in bytes, of a training on the processor.
    pub fn memory_bytes(&self, size: &TrainingSize) -> f64 {
        let part = size.part_nodes * size.part_node_bytes + 4.0 * size.part_edges;
        // One part is in use while the next one is read.
        let room = (self.part_cache_bytes() as f64).max(2.0 * part);
        let parts = (size.parts * part).min(room);
        let nodes = size.batch_nodes.last().copied().unwrap_or(0.0);
        let sparse = 8.0 * (1.0 + size.stored_features);
        let is_dense = size.stored_features * DENSE_PER_SPARSE as f64 > size.dense_dim as f64;
        let dense = NUMBER_BYTES * size.dense_dim as f64;
        let (features, gathered) = match (size.dense_dim, is_dense) {
            (0, _) => (sparse, 0.0),
            (_, true) => (dense, 0.0),
            (_, false) => (sparse, dense),
        };
        let layers = size.batch_nodes.len().saturating_sub(1).max(1) as f64;
        let blocks = BLOCK_EDGE_BYTES as f64 * size.batch_edges + BLOCK_NODE_BYTES as f64 * nodes;
        // Each node may be of the type with the widest rows.
        let widest = self.result.embeddings.values().max();
        let learnable = NUMBER_BYTES * widest.map_or(0.0, |&dim| dim as f64);
        let batch = nodes * (features + learnable) + layers * blocks;
        let copies = match size.shares_blocks {
            true => SHARED_BATCH_COPIES,
            false => BATCH_COPIES,
        };
        let of_worker = match size.shares_blocks {
            true => {
                let drawn = LIGHT_NEGATIVE_BYTES * self.result.links().random as f64;
                LIGHT_COPIES * nodes * learnable + (LIGHT_PAIR_BYTES + drawn) * size.batch_pairs
            }
            false => LAYER_COPIES * self.layer_bytes(&size.batch_nodes),
        };
        PART_COPIES * parts
            + copies * batch
            + GATHER_COPIES * nodes * gathered
            + self.table_bytes(size, nodes)
            + self.result.workers as f64 * of_worker
    }

    /// Returns the bytes of the embedding tables, which have the rows that train batches of
    /// `batch_nodes` nodes read.
    fn table_bytes(&self, size: &TrainingSize, batch_nodes: f64) -> f64 {
        let all: f64 = size.type_nodes.values().sum();
        // Steps on one part read the same rows.
        let steps = match size.shares_blocks {
            true => size.parts,
            false => size.train_targets / self.result.batch_size as f64,
        };
        let read = 1.0 - (1.0 - (batch_nodes / all).min(1.0)).powf(steps);
        let moments = self.result.optimizer.num_moments() as f64;
        let copies = TABLE_COPIES.0 + TABLE_COPIES.1 * (1.0 + moments);
        let of_type = |(name, &dim): (&String, &usize)| {
            let nodes = size.type_nodes.get(name).copied().unwrap_or(0.0);
            copies * read * nodes * NUMBER_BYTES * dim as f64
        };
        self.result.embeddings.iter().map(of_type).sum()
    }

    /// Returns the bytes of the outputs of the hidden layers for a batch.
    fn layer_bytes(&self, batch_nodes: &[f64]) -> f64 {
        // Layer l of K computes the nodes within K - l of the targets.
        let computed = batch_nodes.iter().rev().skip(1);
        let widths = self.result.hidden.iter();
        computed
            .zip(widths)
            .map(|(nodes, &width)| nodes * NUMBER_BYTES * width as f64)
            .sum()
    }
}
