//! A target's neighbourhood out of a shard, by a local breadth-first walk.

use super::{GraphFeature, GraphShard};
use crate::fanout::Fanout;

/// Memory that extractions from one shard share.
#[derive(Debug)]
pub struct ExtractScratch {}

impl ExtractScratch {
    /// Prepares extractions from a shard.
    pub fn new(_shard: &GraphShard) -> Self {
        todo!()
    }
}

impl GraphShard {
    /// Extracts the neighbourhood of the node at position `target`.
    ///
    /// A node at distance h from the target keeps its first `keep_at_hop(fanouts, h)` in-edges.
    /// `scratch` must have been made for this shard.
    pub fn extract(
        &self,
        _target: u32,
        _fanouts: &[Fanout],
        _scratch: &mut ExtractScratch,
    ) -> GraphFeature {
        todo!()
    }
}
