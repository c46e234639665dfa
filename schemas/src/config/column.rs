//! `[input.nodes.columns]` as written: how feature columns are read.

use serde::{Deserialize, Serialize};

/// Greatest number of categories of a column: float32 holds every position below it.
pub const CATEGORIES_MAX: u32 = 1 << 24;

/// Number of categories above which they become learnable codes, unless the job file sets another.
pub const ONE_HOT: u32 = 32;

/// Number of categories that a column may have, unless the job file sets another.
const VALUES_MAX: u32 = 100_000;

/// `NAME = { kind, one_hot, max_values }` as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnSpec {
    /// Meaning of the column. Default: by its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ColumnKind>,
    /// Number of categories above which they become learnable codes in place of columns of 0 and 1.
    /// Default: [`ONE_HOT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_hot: Option<u32>,
    /// Number of categories that the column may have, at most [`CATEGORIES_MAX`]. More are an error.
    /// Default: 100000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_values: Option<u32>,
}

/// Meaning of a feature column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnKind {
    /// A number, or a list of numbers.
    #[default]
    Number,
    /// One of several categories.
    Category,
    /// A date or a point in time.
    Time,
}

impl ColumnSpec {
    /// Returns the number of categories that the column may have.
    pub fn max_values(&self) -> u32 {
        self.max_values.unwrap_or(VALUES_MAX)
    }
}

impl ColumnKind {
    /// Tells whether the column has plain numbers.
    pub fn is_number(&self) -> bool {
        *self == Self::Number
    }

    /// Returns the word for the kind in the job file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Category => "category",
            Self::Time => "time",
        }
    }
}
