//! The table of edges.

use std::path::{Path, PathBuf};

use super::Unit;
use crate::config::{Dangling, EdgesSpec};
use crate::error::Result;
use crate::ids::{IdType, Ids};

/// The table of edges, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct EdgesPlan {}

/// Rows of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeRows {
    /// `[n]`.
    pub src: Ids,
    /// `[n]`.
    pub dst: Ids,
    /// `[n]`, where the table has weights.
    pub weight: Option<Vec<f32>>,
    /// `[n * feature_dim]`, row-major, where the table has features.
    pub feature: Option<Vec<f32>>,
}

impl EdgesSpec {
    /// Checks the table's files, columns and types; reads footers only.
    ///
    /// # Errors
    ///
    /// Names the key, file or column, and what is allowed.
    pub fn into_plan(self, _base: &Path) -> Result<EdgesPlan> {
        todo!()
    }
}

impl EdgesPlan {
    /// Makes the plan read ends as ids of the nodes' type.
    ///
    /// # Errors
    ///
    /// If one is a string type and the other an integer type.
    pub fn with_id_type(self, _id_type: IdType) -> Result<Self> {
        todo!()
    }

    /// Makes a negative weight an error, as weighted sampling needs it.
    pub fn with_non_negative_weights(self) -> Self {
        todo!()
    }

    /// Returns the specification as written.
    pub fn spec(&self) -> &EdgesSpec {
        todo!()
    }

    /// Returns the row groups of all files, in order.
    pub fn units(&self) -> &[Unit] {
        todo!()
    }

    /// Returns the rows of all files.
    pub fn num_rows(&self) -> u64 {
        todo!()
    }

    /// Finds a row counted over all files: its file, and its 0-based row there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn locate(&self, _row: u64) -> (PathBuf, u64) {
        todo!()
    }

    /// Returns a fingerprint of the files: their names, sizes and contents.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        todo!()
    }

    /// Returns the type of the ends.
    pub fn id_type(&self) -> IdType {
        todo!()
    }

    /// Tells whether the reverse of every edge is to be added.
    pub fn undirected(&self) -> bool {
        todo!()
    }

    /// Tells what to do with an edge whose end is no node.
    pub fn dangling(&self) -> Dangling {
        todo!()
    }

    /// Tells whether edges have weights.
    pub fn has_weight(&self) -> bool {
        todo!()
    }

    /// Returns the number of features an edge, where there are any.
    pub fn feature_dim(&self) -> Option<usize> {
        todo!()
    }

    /// Reads a unit.
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    pub fn read(&self, _unit: &Unit) -> Result<EdgeRows> {
        todo!()
    }
}
