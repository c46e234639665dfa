//! What can go wrong while embeddings are computed.

use gnn::GnnError;
use graphflat::PeerFailed;
use schemas::{ErrorKind, SchemaError};
use std::path::PathBuf;

/// Embeddings could not be planned, computed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// A table or an output could not be read or written.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The model could not be read or run.
    #[error(transparent)]
    Gnn(#[from] GnnError),
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
    /// A key that has to be there is missing.
    #[error("`{key}` is missing: {needed}")]
    Missing {
        /// The key in the job file, with its table.
        key: &'static str,
        /// Why it is needed and what it can be.
        needed: &'static str,
    },
    /// The model does not say something that inference has to know.
    #[error("the model in {} {problem}", dir.display())]
    Model {
        /// Directory of the model.
        dir: PathBuf,
        /// What is missing and what helps.
        problem: String,
    },
    /// The graph is not what the model was trained on.
    #[error("the model in {} does not fit the graph: {problem}", dir.display())]
    Unfit {
        /// Directory of the model.
        dir: PathBuf,
        /// What the model reads and what the graph has.
        problem: String,
    },
    /// An embedding is no number.
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
    /// Another worker failed; its own error is reported.
    #[error("another worker failed")]
    PeerFailed,
}

impl InferError {
    /// Tells who can mend it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Schema(e) => e.kind(),
            Self::Key { .. } | Self::Missing { .. } | Self::Model { .. } | Self::Unfit { .. } => {
                ErrorKind::Usage
            }
            Self::NotFinite { .. } => ErrorKind::Data,
            Self::Gnn(_) | Self::PeerFailed => ErrorKind::Failed,
        }
    }

    pub(crate) fn is_peer_failure(&self) -> bool {
        matches!(self, Self::PeerFailed)
    }
}

impl From<PeerFailed> for InferError {
    fn from(_: PeerFailed) -> Self {
        Self::PeerFailed
    }
}
