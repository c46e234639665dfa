//! Input tables: checked plans of them, and their rows.

mod edges;
mod nodes;

pub use edges::{EdgeRows, EdgesPlan};
pub use nodes::{NodeKeys, NodeRows, NodesPlan};

/// A row group of an input file: what one worker reads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Position of the file among the table's files, which are sorted by path.
    pub file: usize,
    /// Row group within the file.
    pub row_group: usize,
    /// Its first row, counted over all files.
    pub first_row: u64,
    /// Its rows.
    pub num_rows: usize,
}
