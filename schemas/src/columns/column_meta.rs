//! Description of the columns of dense features.

use serde::{Deserialize, Serialize};

use crate::config::{ColumnKind, ONE_HOT};

/// Description of a column of dense features, whose values are float32 in every table of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnMeta {
    /// Name in the input table.
    pub name: String,
    /// Numbers in a row.
    pub width: usize,
    /// Meaning of the numbers.
    pub values: ColumnValues,
    /// Whether values are missing; a missing value is NaN.
    pub gaps: bool,
}

/// Meaning of the numbers of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnValues {
    /// Numbers as in the input table, rounded to float32.
    Number,
    /// Days since 1970-01-01 00:00 UTC.
    Time,
    /// Positions in this list: the distinct values of the input table as text, sorted bytewise.
    Category(Vec<String>),
}

impl ColumnMeta {
    /// Returns the columns as a graph describes them: none if all are plain.
    pub fn of_graph(columns: Vec<Self>) -> Vec<Self> {
        match columns.iter().all(Self::is_plain) {
            true => Vec::new(),
            false => columns,
        }
    }

    /// Tells whether the column has numbers without gaps.
    pub fn is_plain(&self) -> bool {
        self.values == ColumnValues::Number && !self.gaps
    }

    /// Returns the number of categories; 0 if the column has none.
    pub fn num_categories(&self) -> usize {
        match &self.values {
            ColumnValues::Category(values) => values.len(),
            ColumnValues::Number | ColumnValues::Time => 0,
        }
    }

    /// Tells whether the column has many categories and most of them belong to one node only: there
    /// are more than one for two nodes.
    pub fn is_unshared(&self, num_nodes: u64) -> bool {
        let count = self.num_categories() as u64;
        count > u64::from(ONE_HOT) && count.saturating_mul(2) > num_nodes
    }

    /// Returns the meaning of the column.
    pub fn kind(&self) -> ColumnKind {
        match self.values {
            ColumnValues::Number => ColumnKind::Number,
            ColumnValues::Time => ColumnKind::Time,
            ColumnValues::Category(_) => ColumnKind::Category,
        }
    }
}
