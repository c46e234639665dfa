//! Errors of flattening a graph.

use cluster::{ClusterError, WorkerError};
use graphdelta::DeltaError;
use schemas::{ErrorKind, SchemaError};
use store::StoreError;

/// A graph could not be flattened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlattenError {
    /// A table or an output could not be read or written.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A value of the job cannot be used.
    #[error("`{key}` is {value}: {allowed}")]
    Key {
        /// The key in the job file, with its table.
        key: &'static str,
        /// The value that was written.
        value: String,
        /// The values that are allowed.
        allowed: String,
    },
    /// The job selects no node.
    #[error("no node is a target: {reason}")]
    NoTargets {
        /// The reason, and the mend.
        reason: String,
    },
    /// The store could not be built or read.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// Changes could not be read or applied, or what versions need could not be kept.
    #[error(transparent)]
    Changes(Box<DeltaError>),
    /// Workers could not be connected, or another one failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl From<StoreError> for FlattenError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<DeltaError> for FlattenError {
    fn from(error: DeltaError) -> Self {
        Self::Changes(Box::new(error))
    }
}

impl FlattenError {
    /// Returns the kind of the error, which says who can mend it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Schema(e) => e.kind(),
            Self::Key { .. } => ErrorKind::Usage,
            Self::Changes(e) => e.kind(),
            Self::NoTargets { .. } => ErrorKind::Data,
            Self::Store(e) => e.kind(),
            Self::Cluster(e) => e.kind(),
        }
    }
}

impl WorkerError for FlattenError {
    fn is_peer_failure(&self) -> bool {
        match self {
            Self::Store(e) => e.is_peer_failure(),
            Self::Cluster(e) => e.is_peer_failure(),
            Self::Changes(e) => e.is_peer_failure(),
            Self::Schema(_) | Self::Key { .. } | Self::NoTargets { .. } => false,
        }
    }
}
