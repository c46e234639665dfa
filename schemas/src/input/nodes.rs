//! The table of nodes.

use std::path::{Path, PathBuf};

use super::Unit;
use crate::columns::{FeatureMeta, Features, LabelMeta, Labels, Split, SplitMeta};
use crate::config::{NodesSpec, Transform};
use crate::error::Result;
use crate::ids::{IdType, Ids};

/// The table of nodes, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct NodesPlan {}

/// Ids of a unit, and what its labels say about the classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKeys {
    /// `[n]`.
    pub ids: Ids,
    /// Distinct class names, sorted; empty unless labels are strings.
    pub class_names: Vec<String>,
    /// Greatest class number, if labels are class numbers and the unit has one.
    pub max_class: Option<u32>,
}

/// Rows of a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRows {
    /// `[n]`.
    pub ids: Ids,
    /// `[n]` rows.
    pub features: Features,
    /// `[n]` rows, or none.
    pub labels: Labels,
    /// `[n]`.
    pub split: Vec<Split>,
}

impl NodesSpec {
    /// Checks the table's files, columns and types; reads footers only.
    ///
    /// # Errors
    ///
    /// Names the key, file or column, and what is allowed.
    pub fn into_plan(self, _base: &Path) -> Result<NodesPlan> {
        todo!()
    }
}

impl NodesPlan {
    /// Returns the specification as written.
    pub fn spec(&self) -> &NodesSpec {
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

    /// Returns the type of the ids.
    pub fn id_type(&self) -> IdType {
        todo!()
    }

    /// Returns the shape of the features.
    pub fn feature_meta(&self) -> FeatureMeta {
        todo!()
    }

    /// Returns the transform that the trainer fits.
    pub fn transform(&self) -> Option<Transform> {
        todo!()
    }

    /// Tells whether there is a label column.
    pub fn has_label(&self) -> bool {
        todo!()
    }

    /// Returns what the labels are, given what all units' [`NodeKeys`] say about the classes.
    ///
    /// `class_names` must be sorted and distinct.
    ///
    /// # Errors
    ///
    /// If there is a label column but no node has a class.
    pub fn label_meta(
        &self,
        _class_names: Vec<String>,
        _max_class: Option<u32>,
    ) -> Result<Option<LabelMeta>> {
        todo!()
    }

    /// Returns what the splits are.
    pub fn split_meta(&self) -> Option<SplitMeta> {
        todo!()
    }

    /// Reads ids and classes of a unit; no other column is decoded.
    ///
    /// # Errors
    ///
    /// Null ids, and labels outside their range.
    pub fn read_keys(&self, _unit: &Unit) -> Result<NodeKeys> {
        todo!()
    }

    /// Reads all columns of a unit; `label` is [`NodesPlan::label_meta`].
    ///
    /// # Errors
    ///
    /// Names file, column and row of the first value that is not allowed.
    pub fn read_rows(&self, _unit: &Unit, _label: Option<&LabelMeta>) -> Result<NodeRows> {
        todo!()
    }
}
