//! Finished flatten outputs, read back in either layout.

use std::path::Path;

use super::{GraphFeature, GraphShard};
use crate::columns::GraphMeta;
use crate::dataset::{Manifest, PartEntry};
use crate::error::Result;
use crate::fanout::FlattenMeta;

/// A finished flatten output.
#[derive(Debug)]
pub struct GraphFeatureDataset {}

impl GraphFeatureDataset {
    /// Opens a finished flatten output.
    ///
    /// # Errors
    ///
    /// If it is not finished or of another stage, or a file has another size than the manifest says.
    pub fn open(_dir: &Path) -> Result<Self> {
        todo!()
    }

    /// Compares every file's checksum with the manifest.
    ///
    /// # Errors
    ///
    /// Names the first file that differs.
    pub fn verify(&self) -> Result<()> {
        todo!()
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        todo!()
    }

    /// Returns what the tables hold.
    pub fn meta(&self) -> &GraphMeta {
        todo!()
    }

    /// Returns how the graph features were made.
    pub fn flatten(&self) -> &FlattenMeta {
        todo!()
    }

    /// Returns the number of parts.
    pub fn num_parts(&self) -> usize {
        todo!()
    }

    /// Returns the manifest's entry of a part.
    pub fn part(&self, _index: usize) -> &PartEntry {
        todo!()
    }

    /// Reads a part as one shard, whatever the layout.
    ///
    /// # Errors
    ///
    /// If a file is broken.
    pub fn read_part(&self, _index: usize) -> Result<GraphShard> {
        todo!()
    }

    /// Reads a part target by target, whatever the layout; rows come in the order of the file.
    ///
    /// # Errors
    ///
    /// If a file is broken.
    pub fn read_features(&self, _index: usize) -> Result<Vec<GraphFeature>> {
        todo!()
    }
}
