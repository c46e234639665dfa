//! The one error type of this crate.

use std::path::PathBuf;

use schemas::ErrorKind;

/// Training could not be planned, started or finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A key of table `[train]` has a value that is not allowed.
    #[error("`train.{key}` is {value}: {allowed}")]
    Key {
        /// The key.
        key: &'static str,
        /// The value that was written.
        value: String,
        /// The values that are allowed.
        allowed: String,
    },
    /// A required key is missing.
    #[error("`train.{key}` is missing: {needed}")]
    Missing {
        /// The key.
        key: &'static str,
        /// Why it is needed, and its possible values.
        needed: &'static str,
    },
    /// The plan needs a GPU, but there is none.
    #[error("`train.device` is \"gpu\", which is not available here; allowed: \"auto\", \"cpu\"")]
    NoGpu {
        /// The reason.
        source: gnn::GnnError,
    },
    /// The graph features do not fit the keys of `[train]`.
    #[error("{} cannot be trained on with `train.{key}` = {value}: {problem}", input.display())]
    Unfit {
        /// Directory of the graph features.
        input: PathBuf,
        /// The key.
        key: &'static str,
        /// The value that was written.
        value: String,
        /// The contradiction, and the values that are allowed.
        problem: String,
    },
    /// The graph features lack something that every training needs.
    #[error("{} cannot be trained on: {problem}", input.display())]
    Untrainable {
        /// Directory of the graph features.
        input: PathBuf,
        /// The missing part, and the key it comes from.
        problem: &'static str,
    },
    /// A split that is needed has no target.
    #[error("the {split} split of {} is empty, but {reason}", input.display())]
    EmptySplit {
        /// Directory of the graph features.
        input: PathBuf,
        /// `train` or `val`.
        split: &'static str,
        /// The need for the split.
        reason: &'static str,
    },
    /// A target that is in a split has no label.
    #[error("target {id} of {} is in the {split} split but has no label", input.display())]
    Unlabelled {
        /// Directory of the graph features.
        input: PathBuf,
        /// Its id.
        id: String,
        /// `train`, `val` or `test`.
        split: &'static str,
    },
    /// A part has other numbers of targets than its manifest.
    #[error("part {part} of {} holds {found} {split} targets, its manifest says {expected}",
        input.display())]
    Miscounted {
        /// Directory of the graph features.
        input: PathBuf,
        /// The part, from 0.
        part: usize,
        /// `train`, `val` or `test`.
        split: &'static str,
        /// Targets in the part.
        found: usize,
        /// Targets by the manifest.
        expected: usize,
    },
    /// The monitored metric has no value on the val split.
    #[error(
        "metric {metric} is undefined on the val split of {}: {why}",
        input.display()
    )]
    Undefined {
        /// Directory of the graph features.
        input: PathBuf,
        /// Name of the metric.
        metric: &'static str,
        /// What the metric needs that the split does not have.
        why: &'static str,
    },
    /// The loss, a parameter or the monitored metric is not finite.
    #[error(
        "training diverged in epoch {epoch}: {what} is {value}; `train.learning_rate` is \
        {learning_rate}, try a lower one"
    )]
    Diverged {
        /// 1-based epoch.
        epoch: u64,
        /// The value that is not finite.
        what: String,
        /// Infinity or NaN.
        value: f64,
        /// The step size.
        learning_rate: f32,
    },
    /// A table or an output could not be used.
    #[error(transparent)]
    Schema(#[from] schemas::SchemaError),
    /// A model or a block could not be used.
    #[error(transparent)]
    Gnn(#[from] gnn::GnnError),
    /// Another worker failed and reports the cause itself.
    #[error("worker {worker} failed")]
    PeerFailed {
        /// The worker that failed first.
        worker: usize,
    },
    /// A worker pushed a step out of order.
    #[error("worker {worker} pushed step {step}, but its next step is {expected}")]
    OutOfTurn {
        /// The worker.
        worker: usize,
        /// The step it pushed.
        step: u64,
        /// The step that is due.
        expected: u64,
    },
    /// A worker in another process was lost.
    #[error("worker {worker} was lost: {how}")]
    WorkerLost {
        /// The worker, from 0.
        worker: usize,
        /// The state of its connection.
        how: String,
    },
    /// A shard of the parameter server was lost.
    #[error("parameter server {server} was lost: {how}")]
    ServerLost {
        /// The server, from 0.
        server: usize,
        /// The failure of a call.
        how: String,
    },
    /// A parameter server refused a call, or sent an invalid answer.
    #[error("parameter server {server} and its caller do not agree: {problem}")]
    ServerRefused {
        /// The server, from 0.
        server: usize,
        /// Its reason.
        problem: String,
    },
    /// Another process of the job cannot continue and reports the cause itself.
    #[error("process {process} cannot go on training: {how}")]
    PeerEnded {
        /// Its number.
        process: usize,
        /// Its message, or that it was lost.
        how: String,
        /// Whether a retry would fail in the same way.
        is_bound_to_repeat: bool,
    },
    /// Two processes of the job would train different models.
    #[error("process {process} has another `train.{key}` than process 0: {problem}")]
    Differs {
        /// The process that differs from process 0.
        process: usize,
        /// The key that differs.
        key: &'static str,
        /// The difference, and the mend.
        problem: String,
    },
    /// The processes of the job cannot be connected.
    #[error(transparent)]
    Cluster(#[from] cluster::ClusterError),
    /// The system refused to start or to connect a process of the training.
    #[error("cannot {action}")]
    Process {
        /// The action that failed.
        action: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// A thread of the training panicked before its work was done. The panic reaches the caller of
    /// [`fit`](crate::fit) as soon as all threads have ended.
    #[error("{thread} ended early")]
    Ended {
        /// The task of the thread.
        thread: &'static str,
    },
    /// A checkpoint is damaged.
    #[error("checkpoint {} is broken: {problem}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        problem: String,
    },
    /// The embedding table of a model is damaged.
    #[error("embedding table {} is broken: {problem}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        problem: String,
    },
    /// The metadata of a checkpoint or a plan could not be converted.
    #[error("cannot convert the {what} to JSON")]
    Json {
        /// `plan`, `report`, `evaluation` or `checkpoint`.
        what: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action that failed, such as `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl TrainError {
    /// Builds the error of a key of `[train]`.
    pub(crate) fn of_key(
        name: &'static str,
        value: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Key {
            key: name,
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }

    /// Returns the kind of the error, which says who can mend it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Key { .. } | Self::Missing { .. } | Self::NoGpu { .. } | Self::Unfit { .. } => {
                ErrorKind::Usage
            }
            Self::Untrainable { .. }
            | Self::EmptySplit { .. }
            | Self::Unlabelled { .. }
            | Self::Undefined { .. } => ErrorKind::Data,
            Self::Schema(error) => error.kind(),
            Self::Cluster(error) => error.kind(),
            Self::Gnn(gnn::GnnError::Architecture { .. }) => ErrorKind::Usage,
            Self::Gnn(_)
            | Self::Diverged { .. }
            | Self::PeerFailed { .. }
            | Self::Miscounted { .. }
            | Self::OutOfTurn { .. }
            | Self::WorkerLost { .. }
            | Self::ServerLost { .. }
            | Self::ServerRefused { .. }
            | Self::PeerEnded { .. }
            | Self::Differs { .. }
            | Self::Process { .. }
            | Self::Ended { .. }
            | Self::Checkpoint { .. }
            | Self::Table { .. }
            | Self::Json { .. }
            | Self::Io { .. } => ErrorKind::Failed,
        }
    }

    /// Tells whether this error only reports another process's failure: that process has its own
    /// error, or is lost.
    pub fn is_peer_failure(&self) -> bool {
        matches!(
            self,
            Self::PeerFailed { .. }
                | Self::WorkerLost { .. }
                | Self::ServerLost { .. }
                | Self::PeerEnded { .. }
        )
    }

    /// Tells whether a training resumed from its checkpoint would fail in the same way.
    pub(crate) fn is_bound_to_repeat(&self) -> bool {
        match self {
            Self::PeerEnded {
                is_bound_to_repeat, ..
            } => *is_bound_to_repeat,
            Self::Io { .. }
            | Self::Cluster(_)
            | Self::Schema(_)
            | Self::NoGpu { .. }
            | Self::Gnn(gnn::GnnError::Device { .. })
            | Self::PeerFailed { .. }
            | Self::WorkerLost { .. }
            | Self::ServerLost { .. }
            | Self::ServerRefused { .. }
            | Self::Differs { .. }
            | Self::Process { .. }
            | Self::Ended { .. } => false,
            _ => true,
        }
    }

    /// Makes the error of a failed action on a file.
    pub(crate) fn io<'a>(
        action: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<'a> {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}
