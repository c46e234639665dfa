//! Neighbourhoods of one part, drawn on request instead of read from files.

use super::{DenseRows, GraphShard};
use crate::error::Result;

/// The neighbourhoods of one part.
pub struct Neighborhoods {
    /// Nodes and edges.
    pub shard: GraphShard,
    /// By node type, dense features that are kept outside of `shard`, whose nodes of the type then
    /// have no features.
    pub dense: Vec<Option<Box<dyn DenseRows + Send + Sync>>>,
}

/// Draws the neighbourhoods of a part, with a random seed that the caller chooses.
///
/// The flatten engine implements it on a store. Every function with the arguments and the result of
/// [`DrawParts::draw_part`] implements it too.
pub trait DrawParts: Send + Sync {
    /// Returns part `idx`, drawn with `seed`.
    ///
    /// # Errors
    ///
    /// If it cannot be drawn.
    fn draw_part(&self, idx: usize, seed: u64) -> Result<Neighborhoods>;
}

impl<F> DrawParts for F
where
    F: Fn(usize, u64) -> Result<Neighborhoods> + Send + Sync,
{
    fn draw_part(&self, idx: usize, seed: u64) -> Result<Neighborhoods> {
        self(idx, seed)
    }
}

impl From<GraphShard> for Neighborhoods {
    fn from(shard: GraphShard) -> Self {
        let dense = shard.nodes.iter().map(|_| None).collect();
        Self { shard, dense }
    }
}

impl std::fmt::Debug for Neighborhoods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighborhoods")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}
