//! The error of this crate: a graph that could not be stored or read.

use cluster::{ClusterError, WorkerError};
use schemas::{ErrorKind, RowPlace, SchemaError};
use std::path::PathBuf;

/// A graph could not be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A table could not be read.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Two rows of the node table have one id.
    #[error(
        "node id {id} occurs twice: {first_row} of {} and {second_row} of {}",
        first_file.display(), second_file.display()
    )]
    DuplicateNode {
        /// The id.
        id: String,
        /// File of the first row.
        first_file: PathBuf,
        /// The first row.
        first_row: RowPlace,
        /// File of the second row.
        second_file: PathBuf,
        /// The second row.
        second_row: RowPlace,
    },
    /// An edge leads to or from an id that no node has.
    #[error(
        "column `{column}`, {row} of {}: no node has the id {id}; {rows} of {num_rows} rows have \
         an end that is no node, {}",
        file.display(), advice(*rows, *num_rows, table)
    )]
    DanglingEdge {
        /// File of the first row with an end that is no node.
        file: PathBuf,
        /// The row.
        row: RowPlace,
        /// The column.
        column: Box<str>,
        /// The id.
        id: Box<str>,
        /// Rows of the table with an end that is no node.
        rows: u64,
        /// Rows of the table.
        num_rows: u64,
        /// The table in the job file, such as `input.edges`.
        table: Box<str>,
    },
    /// The graph is larger than a store can hold.
    #[error("{what}: {count}, at most {limit} are possible")]
    TooLarge {
        /// Things that are too many, such as nodes.
        what: &'static str,
        /// Their number.
        count: u64,
        /// Greatest number that is possible.
        limit: u64,
    },
    /// A file of the store could not be written or read.
    #[error("cannot {verb} the store at {}", path.display())]
    File {
        /// What was tried: `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: StoreCause,
    },
    /// A process sees other tables than the first one.
    #[error(
        "process {process} does not see the tables that process 0 sees; all need the same files"
    )]
    Tables {
        /// Number in the list of processes.
        process: usize,
    },
    /// Workers could not be connected, or another one failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Why a file of the store could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreCause {
    /// An operation of the file system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The content of the file has changed since it was written.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// The store's description cannot be decoded.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The content of the file has changed since it was written.
    #[error("{0}")]
    Damaged(String),
}

/// Returns the share of rows with an end that is no node, and how to mend it.
fn advice(rows: u64, num_rows: u64, table: &str) -> String {
    let percent = 100.0 * rows as f64 / num_rows.max(1) as f64;
    let share = match percent {
        _ if percent < 0.1 => "less than 0.1 %".to_owned(),
        _ if percent < 10.0 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    };
    let drop = format!("`dangling = \"drop\"` under [{table}] leaves them out");
    match rows * 10 > num_rows {
        true => format!("{share}: are these the ids of the nodes? {drop}"),
        false => format!("{share}; {drop}"),
    }
}

impl StoreError {
    /// Returns who can mend the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Schema(e) => e.kind(),
            Self::DuplicateNode { .. } | Self::DanglingEdge { .. } | Self::TooLarge { .. } => {
                ErrorKind::Data
            }
            Self::File { .. } | Self::Tables { .. } => ErrorKind::Failed,
            Self::Cluster(e) => e.kind(),
        }
    }
}

impl WorkerError for StoreError {
    fn is_peer_failure(&self) -> bool {
        matches!(self, Self::Cluster(e) if e.is_peer_failure())
    }
}
