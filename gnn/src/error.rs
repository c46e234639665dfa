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
        /// What is wrong with it.
        problem: String,
    },

    /// A feature matrix contradicts itself or the place it is used in.
    #[error("input: {problem}")]
    Input {
        /// What is wrong with it.
        problem: String,
    },

    /// An architecture that cannot be built.
    #[error("architecture key `{key}`: {problem}")]
    Architecture {
        /// The key at fault, as written in `model.json`.
        key: &'static str,
        /// What is allowed instead.
        problem: String,
    },

    /// Labels that do not fit the task, the logits or each other.
    #[error("labels: {problem}")]
    Labels {
        /// What is wrong with them.
        problem: String,
    },

    /// A feature transform that cannot be applied.
    #[error("transform: {problem}")]
    Transform {
        /// Why not.
        problem: String,
    },

    /// A device that is not there, or that failed.
    #[error("{problem}")]
    Device {
        /// Why it cannot be used.
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

    /// `model.json` is not what this version reads or writes.
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
        /// What is wrong with it.
        problem: String,
    },
}
