//! The error of this crate: changes that cannot be applied, or a store that cannot be changed.

use std::path::PathBuf;

use cluster::{ClusterError, WorkerError};
use schemas::{ErrorKind, RowPlace, SchemaError};
use store::StoreError;

/// Changes of a graph could not be read or applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// A table could not be read.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A file beside the store could not be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row of a table of changes cannot be applied.
    #[error("{row} of {}: {problem}", file.display())]
    Row {
        /// File of the row.
        file: PathBuf,
        /// The row.
        row: RowPlace,
        /// What is wrong, with the ids.
        problem: String,
    },
    /// A table of changes has other columns than the table that it changes.
    #[error("the changes of `{table}` have {found}, but the table has {expected}")]
    Columns {
        /// The table in the job file, such as `input.nodes`.
        table: String,
        /// What the changes have, such as a number of features.
        found: String,
        /// What the table has.
        expected: String,
    },
    /// A feature of a changed node is null, but the table that is changed has no null in its column.
    #[error(
        "column `{column}` of `{table}` is null for node {id}; in the first table it has no null"
    )]
    Gap {
        /// The table of changes in the job file.
        table: String,
        /// The column.
        column: String,
        /// The node.
        id: String,
    },
    /// A key names a table that the graph does not have.
    #[error("`{key}`: {problem}")]
    Unknown {
        /// The key in the job file.
        key: String,
        /// What is wrong, with what is allowed.
        problem: String,
    },
    /// A snapshot lacks a table.
    #[error("`{key}` is missing: a snapshot has all tables")]
    Missing {
        /// The table in the job file.
        key: String,
    },
    /// The system refuses threads.
    #[error("cannot start threads")]
    Threads(#[source] rayon::ThreadPoolBuildError),
    /// The graph or its store is of a kind that changes cannot be applied to.
    #[error("changes cannot be applied: {0}")]
    Unsupported(String),
    /// A version cannot be computed from its parent.
    #[error("the parent {} {problem}", dir.display())]
    Parent {
        /// The directory of the parent's output.
        dir: PathBuf,
        /// Completes a sentence that starts with the parent: what is wrong and what helps.
        problem: String,
    },
    /// A value of the job or an argument cannot be used.
    #[error("`{key}` is {value}: {allowed}")]
    Key {
        /// The key in the job file, with its table, or the argument.
        key: &'static str,
        /// What was written.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file or directory of kept versions could not be written or read.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The parent of a version changes another store, or has other in-edges.
    #[error("the version at {} is one of another store", path.display())]
    OtherBase {
        /// The directory.
        path: PathBuf,
    },
    /// The out-edges belong to another store.
    #[error("the out-edges at {} are those of another store; remove them", path.display())]
    OtherStore {
        /// The directory.
        path: PathBuf,
    },
    /// A process sees other changes or another parent than process 0.
    #[error(
        "process {process} does not see the changes and the parent that process 0 sees; all need \
         the same files"
    )]
    Unlike {
        /// Number in the list of processes.
        process: usize,
    },
    /// Workers could not be connected, or another one failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl DeltaError {
    /// Returns who can mend the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Schema(e) => e.kind(),
            Self::Store(e) => e.kind(),
            Self::Row { .. } | Self::Columns { .. } | Self::Gap { .. } => ErrorKind::Data,
            Self::Unsupported(_)
            | Self::Parent { .. }
            | Self::Key { .. }
            | Self::Unknown { .. }
            | Self::Missing { .. }
            | Self::OtherBase { .. }
            | Self::OtherStore { .. } => ErrorKind::Usage,
            Self::Threads(_) | Self::Io { .. } | Self::Unlike { .. } => ErrorKind::Failed,
            Self::Cluster(e) => e.kind(),
        }
    }
}

impl WorkerError for DeltaError {
    fn is_peer_failure(&self) -> bool {
        match self {
            Self::Cluster(e) => e.is_peer_failure(),
            Self::Store(e) => e.is_peer_failure(),
            _ => false,
        }
    }
}
