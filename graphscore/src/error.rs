//! Errors of scoring.

use std::path::PathBuf;

use cluster::{ClusterError, WorkerError};
use gnn::GnnError;
use schemas::{ErrorKind, SchemaError};

/// Scores could not be planned, computed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// A table or an output could not be read or written.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The model could not be read.
    #[error(transparent)]
    Gnn(#[from] GnnError),
    /// A value of the job cannot be used, or a key is missing.
    #[error("`{key}` {problem}")]
    Key {
        /// The key in the job file, with its table.
        key: &'static str,
        /// Completes a sentence that starts with the key: the problem, and what is allowed.
        problem: String,
    },
    /// The model gives no scores, or is not the one of the embeddings.
    #[error("the model in {} {problem}", dir.display())]
    Model {
        /// Directory of the model.
        dir: PathBuf,
        /// Completes a sentence that starts with the model.
        problem: String,
    },
    /// The embeddings do not fit the decoder or the tables.
    #[error("the embeddings in {} {problem}", dir.display())]
    Embeddings {
        /// Directory of the embeddings.
        dir: PathBuf,
        /// Completes a sentence that starts with the embeddings.
        problem: String,
    },
    /// A file of the output could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Workers could not be connected, or another worker failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A process has other embeddings, another model or another plan than process 0.
    #[error(
        "process {process} has other embeddings, another model or another job than process 0; all \
         processes need the same files"
    )]
    Unlike {
        /// Number of the process, from 0.
        process: usize,
    },
}

impl WorkerError for ScoreError {
    fn is_peer_failure(&self) -> bool {
        matches!(self, Self::Cluster(e) if e.is_peer_failure())
    }
}

impl ScoreError {
    /// Returns who can mend the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Schema(e) => e.kind(),
            Self::Cluster(e) => e.kind(),
            Self::Key { .. } | Self::Model { .. } | Self::Embeddings { .. } | Self::Gnn(_) => {
                ErrorKind::Usage
            }
            Self::Write { .. } | Self::Unlike { .. } => ErrorKind::Failed,
        }
    }

    /// Tells whether the error only reports the failure of another process.
    pub fn is_peer_failure(&self) -> bool {
        WorkerError::is_peer_failure(self)
    }
}
