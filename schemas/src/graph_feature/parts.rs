//! Parts of neighbourhoods that are drawn when they are asked for, in place of being read.

use super::{DenseRows, GraphShard};
use crate::error::Result;

/// The neighbourhoods of one part.
pub struct Neighborhoods {
    /// Its tables.
    pub shard: GraphShard,
    /// Dense features that lie elsewhere; the shard has none then.
    pub dense: Option<Box<dyn DenseRows + Send + Sync>>,
}

/// Draws the neighbourhoods of a part with any random seed.
///
/// The flatten engine implements it on a store, a function on whatever it likes.
pub trait DrawParts: Send + Sync {
    /// Returns part `idx` as it is drawn with a seed.
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
        Self { shard, dense: None }
    }
}

impl std::fmt::Debug for Neighborhoods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighborhoods")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}
