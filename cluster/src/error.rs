//! What can go wrong between the workers of a job.

use schemas::ErrorKind;
use std::io;
use std::path::PathBuf;

/// Workers could not be connected, or one of them failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A hosts file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A hosts file is not one.
    #[error("{}: {problem}", path.display())]
    Hosts {
        /// The file.
        path: PathBuf,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Some processes did not come.
    #[error("not there within {seconds} s: {missing}")]
    Missing {
        /// Their numbers and addresses, with what was met there.
        missing: String,
        /// How long they were waited for.
        seconds: u64,
    },
    /// What listens at an address of the list is no process of this job.
    #[error("process {process} ({address}) {problem}")]
    Stranger {
        /// Number in the list.
        process: usize,
        /// Its address.
        address: String,
        /// What is wrong.
        problem: String,
    },
    /// A connection to another process cannot be made.
    #[error("cannot connect the processes of the job")]
    Connect(#[source] io::Error),
    /// The system refused a thread.
    #[error(transparent)]
    Thread(schemas::SchemaError),
    /// Another worker failed; its own error is reported.
    #[error("another worker failed")]
    PeerFailed,
}

impl ClusterError {
    /// Tells who can mend it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } | Self::Hosts { .. } => ErrorKind::Usage,
            Self::Listen { .. }
            | Self::Missing { .. }
            | Self::Stranger { .. }
            | Self::Connect(_)
            | Self::Thread(_)
            | Self::PeerFailed => ErrorKind::Failed,
        }
    }
}

/// The error of work that several workers do together.
pub trait WorkerError: From<ClusterError> + Send + 'static {
    /// Tells whether this error only reports the failure of another worker, which has an error of
    /// its own.
    fn is_peer_failure(&self) -> bool;
}

impl WorkerError for ClusterError {
    fn is_peer_failure(&self) -> bool {
        matches!(self, Self::PeerFailed)
    }
}
