//! Neighbourhoods of several targets into their union.

use super::{GraphFeature, GraphShard};
use crate::columns::GraphMeta;
use crate::error::Result;

/// Collects graph features of one sample into a shard.
#[derive(Debug)]
pub struct ShardBuilder {}

impl ShardBuilder {
    /// Starts an empty union.
    pub fn new(_meta: &GraphMeta) -> Self {
        todo!()
    }

    /// Adds a neighbourhood.
    ///
    /// # Errors
    ///
    /// If it was drawn otherwise than the ones before: of two in-edge lists of a node the shorter
    /// must be a prefix of the longer.
    pub fn push(&mut self, _feature: &GraphFeature) -> Result<()> {
        todo!()
    }

    /// Returns the union.
    pub fn finish(self) -> GraphShard {
        todo!()
    }
}

impl GraphShard {
    /// Unites neighbourhoods: a node keeps its longest in-edge list and its least hop.
    ///
    /// # Errors
    ///
    /// As [`ShardBuilder::push`].
    pub fn from_features<'a>(
        features: impl IntoIterator<Item = &'a GraphFeature>,
        meta: &GraphMeta,
    ) -> Result<Self> {
        let mut builder = ShardBuilder::new(meta);
        for feature in features {
            builder.push(feature)?;
        }
        Ok(builder.finish())
    }
}
