//! The error of this crate: a job that cannot be read, checked or run.

use std::path::PathBuf;

use cluster::{ClusterError, WorkerError};
use graphflat::FlattenError;
use graphinfer::InferError;
use graphscore::ScoreError;
use graphtrainer::TrainError;
use schemas::{ErrorKind, SchemaError};
use store::StoreError;

/// A job could not be read, checked or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum JobError {
    /// The job file cannot be read.
    #[error("cannot read job file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The job file or an argument cannot be parsed.
    #[error("{place}: {problem}")]
    Syntax {
        /// File and line, or the argument.
        place: String,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// A job file is wrong, or does not fit its tables.
    #[error("{}", .0.iter().map(|mistake| &*mistake.line).collect::<Vec<_>>().join("\n"))]
    Mistakes(Vec<Mistake>),
    /// A key has a value that is not allowed.
    #[error("`{key}`: {problem}")]
    Key {
        /// Dotted name of the key.
        key: String,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// The input tables lack something that a key needs.
    #[error("`{key}`: {problem}")]
    Input {
        /// Dotted name of the key.
        key: String,
        /// What is missing, and the key that needs it.
        problem: String,
    },
    /// This program did not write the directory given to `inspect`, or it lacks what was requested.
    #[error("{} {problem}", path.display())]
    Inspect {
        /// The directory.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Files could not be written or removed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, such as `write`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A process of the job could not be started.
    #[error("cannot start the processes of the job")]
    Process {
        /// The cause.
        source: std::io::Error,
    },
    /// The processes of the job did not find each other, or lost each other.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An input table or an output cannot be read or written.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The store cannot be built or read.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// The flatten stage failed.
    #[error(transparent)]
    Flatten(Box<FlattenError>),
    /// The train stage failed.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// The infer stage failed.
    #[error(transparent)]
    Infer(Box<InferError>),
    /// The score stage failed.
    #[error(transparent)]
    Score(Box<ScoreError>),
}

/// A mistake in a job, and its position.
#[derive(Debug)]
pub(crate) struct Mistake {
    /// Position in the job file, by which mistakes are sorted; mistakes without one come last.
    pub(crate) at: usize,
    /// One line: file and line, key, problem, allowed values.
    pub(crate) line: String,
    /// Who can mend the mistake: the kind decides the exit code.
    pub(crate) kind: ErrorKind,
}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> Self {
        JobError::Store(Box::new(error))
    }
}

impl From<FlattenError> for JobError {
    fn from(error: FlattenError) -> Self {
        JobError::Flatten(Box::new(error))
    }
}

impl From<TrainError> for JobError {
    fn from(error: TrainError) -> Self {
        JobError::Train(Box::new(error))
    }
}

impl From<InferError> for JobError {
    fn from(error: InferError) -> Self {
        JobError::Infer(Box::new(error))
    }
}

impl From<ScoreError> for JobError {
    fn from(error: ScoreError) -> Self {
        JobError::Score(Box::new(error))
    }
}

impl JobError {
    /// Returns the kind of the error: who can mend it, and so the exit code.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            JobError::Read { .. }
            | JobError::Syntax { .. }
            | JobError::Key { .. }
            | JobError::Inspect { .. } => ErrorKind::Usage,
            JobError::Mistakes(mistakes) => kind_of_all(mistakes),
            JobError::Input { .. } => ErrorKind::Data,
            JobError::Io { .. } | JobError::Process { .. } => ErrorKind::Failed,
            JobError::Cluster(error) => error.kind(),
            JobError::Schema(error) => error.kind(),
            JobError::Store(error) => error.kind(),
            JobError::Flatten(error) => error.kind(),
            JobError::Train(error) => error.kind(),
            JobError::Infer(error) => error.kind(),
            JobError::Score(error) => error.kind(),
        }
    }
}

/// Returns one kind for all mistakes: `Usage` if any has it, else `Failed` if any, else `Data`.
fn kind_of_all(mistakes: &[Mistake]) -> ErrorKind {
    let is_any = |kind| mistakes.iter().any(|mistake| mistake.kind == kind);
    [ErrorKind::Usage, ErrorKind::Failed]
        .into_iter()
        .find(|kind| is_any(*kind))
        .unwrap_or(ErrorKind::Data)
}

/// Returns the exit code of a failed run: 1 failed, 2 usage or job file, 3 input data.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let kind = error.downcast_ref::<JobError>().map(JobError::kind);
    kind.unwrap_or(ErrorKind::Failed).exit_code()
}

/// Tells whether an error only reports the failure of another process, which reports its own error.
pub(crate) fn is_peer_failure(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<JobError>() {
        Some(JobError::Cluster(error)) => error.is_peer_failure(),
        Some(JobError::Store(error)) => error.is_peer_failure(),
        Some(JobError::Flatten(error)) => error.is_peer_failure(),
        Some(JobError::Infer(error)) => error.is_peer_failure(),
        Some(JobError::Score(error)) => error.is_peer_failure(),
        Some(JobError::Train(error)) => error.is_peer_failure(),
        _ => false,
    }
}

/// Returns the lines of an error: one for each mistake of a job, or one line with all causes.
pub(crate) fn lines(error: &anyhow::Error) -> Vec<String> {
    match error.downcast_ref::<JobError>() {
        Some(JobError::Mistakes(found)) => found.iter().map(|of| of.line.clone()).collect(),
        _ => vec![one_line(error)],
    }
}

/// Returns an error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let text = schemas::error_chain(error);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns an error and its causes on one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    chain(error.as_ref())
}
