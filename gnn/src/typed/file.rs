//! A typed model on disk: `model.safetensors` and `model.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::architecture::TypedArchitecture;
use super::model::TypedModel;
use crate::weights::{check_finite, check_room, decode, encode};
use crate::{GnnError, LabelScale, MODEL_JSON, MODEL_WEIGHTS, Transform};

/// The content of a typed model's `model.json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TypedModelFile {
    /// The architecture.
    pub architecture: TypedArchitecture,
    /// By type, the transform of raw features before they are projected; types that are not here
    /// have none.
    #[serde(default)]
    pub transforms: BTreeMap<String, Transform>,
    /// Unit of a regression's labels; without it, labels are not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_scale: Option<LabelScale>,
    /// Name of each class, if labels were names.
    #[serde(default)]
    pub label_names: Option<Vec<String>>,
    /// Metrics of the saved parameters, such as `test_accuracy`.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Fan-outs the model was trained with, as the job file has them.
    #[serde(default)]
    pub fanouts: serde_json::Value,
    /// Other values that the trainer passes to inference.
    #[serde(default)]
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// Writes a typed model into an existing directory.
///
/// # Errors
///
/// [`GnnError::File`] if a file cannot be written, and as [`typed_to_files`].
pub fn save_typed(dir: &Path, model: &TypedModel, file: &TypedModelFile) -> Result<(), GnnError> {
    for (name, bytes) in typed_to_files(model, file)? {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|source| GnnError::File { path, source })?;
    }
    Ok(())
}

/// Returns the names and contents of a typed model's files.
///
/// # Errors
///
/// [`GnnError::Tensor`] names a tensor with a value that is not finite: such a model could not be
/// loaded.
pub fn typed_to_files(
    model: &TypedModel,
    file: &TypedModelFile,
) -> Result<[(&'static str, Vec<u8>); 2], GnnError> {
    let path = Path::new(MODEL_WEIGHTS);
    check_finite(path, &model.state)?;
    let weights = encode(&model.state).map_err(|source| GnnError::SafeTensors {
        path: path.to_owned(),
        source,
    })?;
    let mut json = serde_json::to_vec_pretty(file).map_err(|source| GnnError::Json {
        path: PathBuf::from(MODEL_JSON),
        source,
    })?;
    json.push(b'\n');
    Ok([(MODEL_WEIGHTS, weights), (MODEL_JSON, json)])
}

/// Reads a typed model from a directory.
///
/// # Errors
///
/// Names the file, and the tensor whose name, type or shape does not fit the architecture.
pub fn load_typed(dir: &Path) -> Result<(TypedModel, TypedModelFile), GnnError> {
    load_typed_with(dir, |path| std::fs::read(path))
}

/// Reads a typed model with a function that reads a whole file.
///
/// # Errors
///
/// As [`load_typed`].
pub fn load_typed_with(
    dir: &Path,
    read_file: impl Fn(&Path) -> std::io::Result<Vec<u8>>,
) -> Result<(TypedModel, TypedModelFile), GnnError> {
    let read = |path: &Path| {
        read_file(path).map_err(|source| GnnError::File {
            path: path.to_owned(),
            source,
        })
    };
    let path = dir.join(MODEL_JSON);
    let file: TypedModelFile = match serde_json::from_slice(&read(&path)?) {
        Ok(file) => file,
        Err(source) => return Err(GnnError::Json { path, source }),
    };
    let path_weights = dir.join(MODEL_WEIGHTS);
    let bytes = read(&path_weights)?;
    file.architecture.validate()?;
    check_room(&file.architecture.parameters(), bytes.len())?;
    let mut model = TypedModel::init(&file.architecture, 0)?;
    if let Some(scale) = &file.label_scale {
        model.set_label_scale(scale.clone())?;
    }
    check_transforms(&file)?;
    decode(&path_weights, &bytes, &mut model.state)?;
    Ok((model, file))
}

fn check_transforms(file: &TypedModelFile) -> Result<(), GnnError> {
    for (name, transform) in &file.transforms {
        let of = file.architecture.types.iter().find(|of| of.name == *name);
        let problem = match (of, transform) {
            (None, _) => format!("there is no type `{name}`"),
            (Some(of), Transform::Standardize { mean, scale }) => {
                let in_dim = of.features_dim();
                if (mean.len(), scale.len()) == (in_dim, in_dim) {
                    continue;
                }
                let fitted = mean.len();
                format!("fitted to {fitted} features of `{name}`, but the model reads {in_dim}")
            }
            (Some(of), Transform::Encode(encoder)) => {
                encoder.validate()?;
                let (encoded, in_dim) = (encoder.width(), of.features_dim());
                if encoded == in_dim {
                    continue;
                }
                format!("makes {encoded} features of `{name}`, but the model reads {in_dim}")
            }
            (Some(_), Transform::None | Transform::RowNormalize) => continue,
        };
        return Err(GnnError::Transform { problem });
    }
    Ok(())
}
