//! A model on disk: `model.safetensors` and `model.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Architecture, GnnError, Model, Transform};

/// File name of the weights.
pub const MODEL_WEIGHTS: &str = "model.safetensors";

/// File name of everything else.
pub const MODEL_JSON: &str = "model.json";

/// The content of `model.json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ModelFile {
    /// What the model is made of.
    pub architecture: Architecture,
    /// What is done to raw features before layer 1 reads them.
    pub transform: Transform,
    /// Name of each class, where labels were names.
    pub label_names: Option<Vec<String>>,
    /// Metrics of the saved parameters, such as `test_accuracy`.
    pub metrics: BTreeMap<String, f64>,
    /// Fan-outs the model was trained with, as the job file has them.
    pub fanouts: serde_json::Value,
    /// Whatever else the trainer wants inference to know.
    #[serde(default)]
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// Writes a model into an existing directory.
///
/// # Errors
///
/// [`GnnError::File`] if a file cannot be written.
pub fn save(dir: &Path, model: &Model, file: &ModelFile) -> Result<(), GnnError> {
    let _ = (dir, model, file);
    todo!()
}

/// Reads a model back.
///
/// # Errors
///
/// Names the file, and the tensor whose name, type or shape is not what the architecture needs.
pub fn load(dir: &Path) -> Result<(Model, ModelFile), GnnError> {
    let _ = dir;
    todo!()
}
