//! Parts of graph features to Parquet, in either layout.

use super::GraphShard;
use crate::columns::GraphMeta;
use crate::dataset::{Output, PartEntry};
use crate::error::Result;
use crate::fanout::FlattenMeta;

/// Writes part `index` of a flatten output; the caller commits it with [`Output::commit_part`].
///
/// Layout `rows` extracts each target in the order of the shard's nodes and streams the rows to
/// the file in bounded batches.
///
/// # Errors
///
/// If the shard is invalid or does not agree with `meta`, or a file cannot be written.
pub fn write_part(
    _output: &Output,
    _index: usize,
    _shard: &GraphShard,
    _meta: &GraphMeta,
    _flatten: &FlattenMeta,
) -> Result<PartEntry> {
    todo!()
}
