//! Input tables: their checked plans and their rows.

mod column_kind;
mod decode;
mod dense;
mod doubts;
mod edges;
mod features;
mod file_input;
mod filter;
mod graph;
mod graphs;
mod hints;
mod id_column;
mod known;
pub(crate) mod label;
mod list;
mod nodes;
mod pair_list;
mod pairs;
mod passed;
mod path;
mod rows;
mod source;
pub(crate) mod split;
mod table;
#[cfg(test)]
mod tests;
mod type_words;
mod versioned;

use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow::error::ArrowError;

pub use dense::Categories;
pub use edges::{EdgeRows, EdgesPlan};
pub use graph::{FileFingerprints, GraphPlan, RelationPlan, TypePlan};
pub use known::{KnownInput, KnownNodes};
pub use list::IdListPlan;
pub use nodes::{DescribedColumns, NodeKeys, NodeReader, NodeRows, NodesPlan, SplitRows};
pub use pair_list::{PairListPlan, PairListSpec};
pub use pairs::{NoPair, PairRows, PairsPlan};
pub use passed::PassedColumns;
pub use rows::RowNumbers;
pub use source::{EdgeSource, NodeSource};
pub(crate) use table::{OpenFiles, TableName};

use table::Table;

use crate::error::{Result, RowPlace, SchemaError};
use crate::storage::CsvInput;

/// A file of a table, and its name relative to the path under which it was found.
type NamedFile = (PathBuf, String);

/// Greatest number of rows for which memory is reserved before they are read.
const RESERVED_ROWS_MAX: usize = 1 << 22;

/// Rows that one worker reads at a time: a row group of a Parquet file or a part of one, or a whole
/// CSV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Position of the file among the table's files, which are sorted by path.
    pub file: usize,
    /// Row group within the file; 0 in a CSV file.
    pub row_group: usize,
    /// Its first row, counted over all files.
    pub first_row: u64,
    /// Its number of rows.
    pub num_rows: usize,
    /// Number of rows of the row group before the first row.
    skipped_rows: usize,
    /// Whether some of its rows can be read without reading all of them: those of a local Parquet
    /// file.
    is_divisible: bool,
}

/// File and first row of a batch, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// Row of the file, from 0.
    pub(crate) first_row: u64,
    /// Positions of the batch's rows from `first_row` on, if some rows were left out.
    pub(crate) kept: Option<&'a [u32]>,
    /// The file, if it is CSV.
    pub(crate) csv: Option<&'a CsvInput>,
}

impl Place<'_> {
    /// The error for a value of row `row` of the batch.
    fn value(&self, column: &str, row: usize, problem: impl Into<String>) -> SchemaError {
        let at = self.kept.map_or(row as u64, |kept| u64::from(kept[row]));
        let row_there = self.first_row + at;
        SchemaError::Value {
            path: self.path.to_owned(),
            column: column.to_owned(),
            row: self
                .csv
                .map_or(RowPlace::Row(row_there), |csv| csv.line(row_there)),
            problem: problem.into(),
        }
    }

    /// Wraps an error of a conversion.
    fn convert(&self) -> impl FnOnce(arrow::error::ArrowError) -> SchemaError + use<> {
        let path = self.path.to_owned();
        move |source| SchemaError::Arrow {
            action: "convert",
            path,
            source,
        }
    }
}

impl Unit {
    /// Returns the number of rows to reserve memory for. The footer may claim too many, so beyond a
    /// limit memory grows with the rows that are read.
    pub fn num_rows_reserved(&self) -> usize {
        self.num_rows.min(RESERVED_ROWS_MAX)
    }

    /// Returns whether some of its rows can be read without reading all of them. A row group of a file
    /// on S3 or HDFS is fetched as a whole.
    pub fn is_divisible(&self) -> bool {
        self.is_divisible
    }

    /// Returns the unit of some of its rows, which are counted from its first row.
    ///
    /// # Panics
    ///
    /// If it has no such rows, or is not divisible and these are not all its rows.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let is_all = rows == (0..self.num_rows);
        assert!(rows.start <= rows.end && rows.end <= self.num_rows);
        assert!(is_all || self.is_divisible);
        Self {
            first_row: self.first_row + rows.start as u64,
            num_rows: rows.len(),
            skipped_rows: self.skipped_rows + rows.start,
            ..*self
        }
    }
}

/// The error of a file whose footer and pages do not agree.
fn unreadable(path: &Path, problem: String) -> SchemaError {
    SchemaError::Unreadable {
        path: path.to_owned(),
        source: ArrowError::ParquetError(problem),
    }
}

/// Returns the result of a check, or adds its error to `found`.
fn keep<T>(checked: Result<T>, found: &mut Vec<SchemaError>) -> Option<T> {
    checked.map_err(|error| found.push(error)).ok()
}

/// Returns the name most like the one written, if at most a third of its letters differ.
pub(crate) fn closest<'a>(written: &str, names: &[&'a str]) -> Option<&'a str> {
    let allowed = (written.chars().count() / 3).max(1);
    let distance = |name: &str| strsim::levenshtein(&written.to_lowercase(), &name.to_lowercase());
    let best = names.iter().copied().min_by_key(|name| distance(name))?;
    (distance(best) <= allowed).then_some(best)
}
