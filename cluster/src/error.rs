//! The error of this crate.

use schemas::ErrorKind;
use std::io;
use std::path::PathBuf;

/// Workers cannot be connected, or one of them failed.
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
    /// A hosts file has a wrong line.
    #[error("{}: {problem}", path.display())]
    Hosts {
        /// The file.
        path: PathBuf,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// This process cannot listen on its address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Some processes did not connect in time.
    #[error("not there within {seconds} s: {missing}")]
    Missing {
        /// Their numbers and addresses, each with the last failure of a connection.
        missing: String,
        /// How long this process waited, in seconds.
        seconds: u64,
    },
    /// The process at an address of the list does not belong to this job.
    #[error("process {process} ({address}) {problem}")]
    Stranger {
        /// Number in the list.
        process: usize,
        /// The address of that process.
        address: String,
        /// What is wrong.
        problem: String,
    },
    /// A connection to another process cannot be made.
    #[error("cannot connect the processes of the job")]
    Connect(#[source] io::Error),
    /// A file that processes copy cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The system refused a thread.
    #[error(transparent)]
    Thread(schemas::SchemaError),
    /// Another worker failed, and reports its own error.
    #[error("another worker failed")]
    PeerFailed,
}

impl ClusterError {
    /// Tells who can mend the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } | Self::Hosts { .. } => ErrorKind::Usage,
            Self::Listen { .. }
            | Self::Missing { .. }
            | Self::Stranger { .. }
            | Self::Connect(_)
            | Self::File { .. }
            | Self::Thread(_)
            | Self::PeerFailed => ErrorKind::Failed,
        }
    }
}

/// The error type of a function that several workers run together.
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
