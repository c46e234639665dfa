//! The one error type of this crate.

use std::path::PathBuf;

/// Why a block, a model or a model directory could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GnnError {
    /// A block contradicts itself.
    #[error("block field `{field}`: {problem}")]
    Block {
        /// The field at fault.
        field: &'static str,
        /// Description of the fault.
        problem: String,
    },

    /// The in-edges of a relation contradict themselves, or do not fit the model.
    #[error("relation `{relation}`")]
    Relation {
        /// The relation at fault.
        relation: String,
        /// The cause.
        source: Box<GnnError>,
    },

    /// A matrix of features or a list of blocks does not fit the model.
    #[error("input: {problem}")]
    Input {
        /// Description of the fault.
        problem: String,
    },

    /// An architecture that cannot be built.
    #[error("architecture key `{key}`: {problem}")]
    Architecture {
        /// The key at fault, as written in `model.json`.
        key: &'static str,
        /// The values that are allowed.
        problem: String,
    },

    /// Labels that do not fit the task, the logits or each other.
    #[error("labels: {problem}")]
    Labels {
        /// Description of the fault.
        problem: String,
    },

    /// A feature transform that cannot be applied.
    #[error("transform: {problem}")]
    Transform {
        /// The reason.
        problem: String,
    },

    /// A device is absent, or failed.
    #[error("{problem}")]
    Device {
        /// The reason.
        problem: String,
    },

    /// A model file could not be read or written.
    #[error("cannot access {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },

    /// `model.json` cannot be parsed or written by this version.
    #[error("cannot convert {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },

    /// `model.safetensors` is damaged, or could not be written.
    #[error("cannot decode {}", path.display())]
    SafeTensors {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: safetensors::SafeTensorError,
    },

    /// A tensor of `model.safetensors` does not fit the architecture in `model.json`.
    #[error("tensor `{tensor}` of {}: {problem}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Description of the fault.
        problem: String,
    },
}
