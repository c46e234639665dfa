//! Embeddings on disk: `id`, `embedding`, and `prediction` where a head was applied.

use std::path::Path;

use crate::columns::{LabelMeta, Labels};
use crate::dataset::{Manifest, Output, PartEntry};
use crate::error::Result;
use crate::ids::{IdType, Ids};

/// Writes one part of embeddings.
#[derive(Debug)]
pub struct EmbeddingsWriter {}

impl EmbeddingsWriter {
    /// Starts part `index` of `dim`-wide embeddings.
    ///
    /// `prediction` says what predictions are, where there are any: they are written as the
    /// labels were given (class number or name, list of zeros and ones, number).
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn create(
        _output: &Output,
        _index: usize,
        _id_type: IdType,
        _dim: usize,
        _prediction: Option<&LabelMeta>,
    ) -> Result<Self> {
        todo!()
    }

    /// Appends nodes.
    ///
    /// # Shapes
    ///
    /// - `ids`: `[n]`
    /// - `embedding`: `[n * dim]`, row-major
    /// - `prediction`: `[n]`, or [`Labels::None`] where predictions were not announced
    ///
    /// # Errors
    ///
    /// If the lengths disagree or the file cannot be written.
    pub fn write(&mut self, _ids: &Ids, _embedding: &[f32], _prediction: &Labels) -> Result<()> {
        todo!()
    }

    /// Finishes the file; the caller commits the part.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(self) -> Result<PartEntry> {
        todo!()
    }
}

/// Embeddings of some nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRows {
    /// `[n]`.
    pub ids: Ids,
    /// Width of an embedding.
    pub dim: usize,
    /// `[n * dim]`, row-major.
    pub embedding: Vec<f32>,
    /// `[n]`, or none.
    pub prediction: Labels,
}

/// A finished output of embeddings.
#[derive(Debug)]
pub struct EmbeddingsDataset {}

impl EmbeddingsDataset {
    /// Opens a finished output of inference.
    ///
    /// # Errors
    ///
    /// If it is not finished, or a file has another size than its manifest says.
    pub fn open(_dir: &Path) -> Result<Self> {
        todo!()
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        todo!()
    }

    /// Returns the number of parts.
    pub fn num_parts(&self) -> usize {
        todo!()
    }

    /// Reads a part.
    ///
    /// # Errors
    ///
    /// If its file is broken.
    pub fn read_part(&self, _index: usize) -> Result<EmbeddingRows> {
        todo!()
    }
}
