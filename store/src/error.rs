//! What can go wrong while a graph is stored.

use cluster::{ClusterError, WorkerError};
use schemas::{ErrorKind, SchemaError};
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
        "node id {id} stands twice: row {first_row} of {} and row {second_row} of {}",
        first_file.display(), second_file.display()
    )]
    DuplicateNode {
        /// The id.
        id: String,
        /// File of the first row.
        first_file: PathBuf,
        /// The first row, from 0.
        first_row: u64,
        /// File of the second row.
        second_file: PathBuf,
        /// The second row, from 0.
        second_row: u64,
    },
    /// An edge leads to or from an id that no node has.
    #[error(
        "column `{column}`, row {row} of {}: no node has the id {id} ({count} such edge ends \
         in all; `dangling = \"drop\"` under [input.edges] leaves such edges out)",
        file.display()
    )]
    DanglingEdge {
        /// File of the first such edge.
        file: PathBuf,
        /// Its row, from 0.
        row: u64,
        /// The column.
        column: String,
        /// The id.
        id: String,
        /// Edge ends without a node in the whole table.
        count: u64,
    },
    /// The graph is larger than a store can hold.
    #[error("{what}: {count}, at most {limit} are possible")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many are possible.
        limit: u64,
    },
    /// A file of the store could not be written or read.
    #[error("cannot {verb} the store at {}", path.display())]
    File {
        /// What was tried.
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
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is not what was written.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// The store's description cannot be read.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The file is not what was written.
    #[error("{0}")]
    Damaged(String),
}

impl StoreError {
    /// Tells who can mend it.
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
