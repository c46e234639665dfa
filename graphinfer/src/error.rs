//! Errors of inference.

use cluster::{ClusterError, WorkerError};
use gnn::GnnError;
use schemas::{ErrorKind, SchemaError};
use std::path::{Path, PathBuf};

/// Embeddings could not be planned, computed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// A table or an output could not be read or written.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Graph features could not be vectorised.
    #[error(transparent)]
    Train(#[from] graphtrainer::TrainError),
    /// The model could not be read or run.
    #[error(transparent)]
    Gnn(#[from] GnnError),
    /// The rows of versions of this model or job cannot be kept.
    #[error("[incremental] cannot be used here: {0}; leave it out")]
    FullRun(&'static str),
    /// Changes could not be read or applied.
    #[error(transparent)]
    Changes(#[from] graphdelta::DeltaError),
    /// A file of kept rows could not be written or read.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// An output is finished, but what versions of it need was not kept.
    #[error(
        "{} was computed without [incremental], so versions cannot start from it; compute it again \
         with --stage infer --fresh", output.display()
    )]
    NotKept {
        /// The directory of the output.
        output: PathBuf,
    },
    /// A value of the job cannot be used.
    #[error("`{key}` is {value}: {allowed}")]
    Key {
        /// The key in the job file, with its table.
        key: &'static str,
        /// What was written.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A required key is missing.
    #[error("`{key}` is missing: {needed}")]
    Missing {
        /// The key in the job file, with its table.
        key: &'static str,
        /// Why it is needed and what it can be.
        needed: &'static str,
    },
    /// The plan needs a GPU, but there is none.
    #[error("`infer.device` is \"gpu\", which is not available here; allowed: \"cpu\"")]
    NoGpu {
        /// The reason.
        source: GnnError,
    },
    /// Rows do not fit a buffer of the GPU.
    #[error(
        "the rows that layer {layer} reads take {bytes} bytes; a buffer of {device} holds {most}: \
         set `infer.device` = \"cpu\", or run more processes with a GPU each"
    )]
    GpuTooSmall {
        /// The layer, from 1.
        layer: usize,
        /// Bytes of the rows in f32.
        bytes: u64,
        /// Bytes of the largest buffer.
        most: u64,
        /// Name of the GPU.
        device: String,
    },
    /// The directory holds no model that inference can use.
    #[error("the model in {} {problem}", dir.display())]
    Model {
        /// Directory of the model.
        dir: PathBuf,
        /// Completes a sentence that starts with the model: what is wrong and what helps.
        problem: String,
    },
    /// The graph lacks something that the model reads, or was sampled in another way.
    #[error("the model in {} does not fit the graph: {problem}", dir.display())]
    Unfit {
        /// Directory of the model.
        dir: PathBuf,
        /// What the model reads and what the graph has.
        problem: String,
    },
    /// The columns or the direction of the graph differ from those of the training.
    #[error(
        "the model in {} does not fit these tables: {differences}; where the columns are the same \
         under other names, `infer.check_columns` = false takes them as they are", dir.display()
    )]
    Columns {
        /// Directory of the model.
        dir: PathBuf,
        /// A sentence for each key that differs.
        differences: String,
    },
    /// An embedding or a logit is not a finite number.
    #[error(
        "layer {layer} of the model gives no number for node {id}: its features, or the model in \
         {}, are broken", dir.display()
    )]
    NotFinite {
        /// Directory of the model.
        dir: PathBuf,
        /// The layer, from 1.
        layer: usize,
        /// Id of the node.
        id: String,
    },
    /// A file or directory of the working directory could not be written or read.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The threads could not be started.
    #[error("cannot start threads")]
    Threads(#[source] rayon::ThreadPoolBuildError),
    /// The system gives no memory for rows.
    #[error("cannot take memory for the rows of a group of nodes")]
    Memory(#[source] std::io::Error),
    /// Workers could not be connected, or another worker failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A process has another model, list of targets, plan or graph than process 0.
    #[error(
        "process {process} has another model, list of targets or job than process 0; all processes \
         need the same files"
    )]
    Unlike {
        /// Number of the process, from 0.
        process: usize,
    },
}

impl WorkerError for InferError {
    fn is_peer_failure(&self) -> bool {
        match self {
            Self::Cluster(e) => e.is_peer_failure(),
            Self::Changes(e) => e.is_peer_failure(),
            Self::Store(e) => e.is_peer_failure(),
            _ => false,
        }
    }
}

impl InferError {
    /// Returns who can mend the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Schema(e) => e.kind(),
            Self::Train(e) => e.kind(),
            Self::Changes(e) => e.kind(),
            Self::Store(e) => e.kind(),
            Self::Key { .. }
            | Self::Missing { .. }
            | Self::NoGpu { .. }
            | Self::GpuTooSmall { .. }
            | Self::Model { .. }
            | Self::Unfit { .. }
            | Self::FullRun(_)
            | Self::NotKept { .. }
            | Self::Columns { .. } => ErrorKind::Usage,
            Self::NotFinite { .. } => ErrorKind::Data,
            // Errors in the files of the model: the user must name another model.
            Self::Gnn(
                GnnError::Architecture { .. }
                | GnnError::Json { .. }
                | GnnError::SafeTensors { .. }
                | GnnError::Tensor { .. }
                | GnnError::Transform { .. },
            ) => ErrorKind::Usage,
            Self::Cluster(e) => e.kind(),
            Self::Gnn(_)
            | Self::Io { .. }
            | Self::Memory(_)
            | Self::Threads(_)
            | Self::Unlike { .. } => ErrorKind::Failed,
        }
    }

    /// Wraps an error of the file system; for `map_err`.
    pub(crate) fn io<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<'a> {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}
