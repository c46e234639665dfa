//! Columns of node features, labels and splits in memory, and their descriptions on disk.

mod column_meta;
mod features;
mod graph_meta;
mod labels;
mod pairs_meta;

use serde::{Deserialize, Serialize};

pub use column_meta::{ColumnMeta, ColumnValues};
pub use features::Features;
pub use graph_meta::{GraphMeta, RelationMeta, TypeMeta, UntypedMeta};
pub use labels::{Labels, NO_CLASS};
use pairs_meta::NamedPairs;
pub use pairs_meta::PairsMeta;

use crate::config::{ColumnKind, SplitValues};

/// Split of a node.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Split {
    /// In no split.
    #[default]
    None,
    /// Nodes to train on.
    Train,
    /// Nodes that choose the best epoch.
    Val,
    /// Nodes that measure the result.
    Test,
}

impl Split {
    /// Returns the split that is written as a number; none if no split is.
    pub fn of_number(number: u32) -> Option<Self> {
        let all = [Self::None, Self::Train, Self::Val, Self::Test];
        all.into_iter().find(|split| *split as u32 == number)
    }
}

/// Shape of the features of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureMeta {
    /// No features.
    #[default]
    None,
    /// Stored in full.
    Dense {
        /// Features a node.
        dim: usize,
    },
    /// Stored as positions and values.
    Sparse {
        /// Features a node.
        dim: usize,
    },
}

/// A column of features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureColumn {
    /// Name in the table.
    pub name: String,
    /// Numbers a row; none if an older program wrote the record.
    pub width: Option<usize>,
    /// Meaning of the column.
    #[serde(default, skip_serializing_if = "ColumnKind::is_number")]
    pub kind: ColumnKind,
}

/// Description of a graph's labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelMeta {
    /// Arrow type of the input column, so that outputs carry labels as given.
    pub data_type: String,
    /// Meaning of a label.
    pub kind: LabelKind,
}

/// Meaning of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelKind {
    /// A class number.
    Class {
        /// Number of classes; numbers are below it.
        num_classes: u32,
    },
    /// A class name.
    ClassName {
        /// The names, sorted bytewise; a class number is a position in here.
        names: Vec<String>,
    },
    /// A list of zeros and ones.
    MultiLabel {
        /// Number of classes.
        width: usize,
    },
    /// A number to predict.
    Number,
}

/// Description of a graph's splits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitMeta {
    /// Arrow type of the input column, so that outputs carry splits as given.
    pub data_type: String,
    /// The numbers that stand for the splits; none if splits are words.
    pub values: Option<SplitValues>,
}

impl LabelKind {
    /// Returns the width of a model's output: classes, or 1 for a number.
    pub fn width(&self) -> usize {
        match self {
            Self::Class { num_classes } => *num_classes as usize,
            Self::ClassName { names } => names.len(),
            Self::MultiLabel { width } => *width,
            Self::Number => 1,
        }
    }
}

impl FeatureMeta {
    /// Returns the number of features a node; 0 for none.
    pub fn dim(self) -> usize {
        match self {
            Self::None => 0,
            Self::Dense { dim } | Self::Sparse { dim } => dim,
        }
    }
}

impl Split {
    /// Returns the word for a split; `none` for no split.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_read_as_people_write_them() {
        let kind = LabelKind::ClassName {
            names: vec!["admin".to_owned()],
        };
        let label = LabelMeta {
            data_type: "Utf8".to_owned(),
            kind,
        };
        assert_eq!(
            serde_json::to_string(&label).unwrap(),
            r#"{"data_type":"Utf8","kind":{"class_name":{"names":["admin"]}}}"#
        );
        assert_eq!(label.kind.width(), 1);
        let features = FeatureMeta::Sparse { dim: 9 };
        assert_eq!(
            serde_json::to_string(&features).unwrap(),
            r#"{"sparse":{"dim":9}}"#
        );
        assert_eq!(serde_json::to_string(&Split::Train).unwrap(), "\"train\"");
    }
}
