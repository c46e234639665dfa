//! The files of a model of an untyped or of a typed graph.

use std::collections::BTreeMap;
use std::path::Path;

use gnn::typed::{TypedModelFile, load_typed_with, typed_to_files};
use gnn::{GnnError, MODEL_JSON, ModelFile, Transform, load_with, to_files};
use serde::Serialize;
use serde_json::Value;

use super::{AnyArchitecture, AnyModel};

/// The content of `model.json` of a model of an untyped or of a typed graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum AnyModelFile {
    /// Of a graph with one unnamed type and one unnamed relation.
    Untyped(Box<ModelFile>),
    /// Of a graph with named types and relations.
    Typed(Box<TypedModelFile>),
}

/// What `model.json` holds besides the architecture and the transforms.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) label_names: Option<Vec<String>>,
    pub(crate) metrics: BTreeMap<String, f64>,
    pub(crate) fanouts: Value,
    pub(crate) extra: BTreeMap<String, Value>,
}

impl AnyModel {
    /// Returns the names and contents of a model's files. `transforms` are by type.
    ///
    /// # Errors
    ///
    /// [`GnnError::Tensor`] names a tensor with a value that is not finite.
    pub(crate) fn to_files(
        &self,
        transforms: &[Transform],
        about: About,
    ) -> Result<[(&'static str, Vec<u8>); 2], GnnError> {
        let About {
            label_names,
            metrics,
            fanouts,
            extra,
        } = about;
        let label_scale = self.label_scale().cloned();
        match self {
            Self::Untyped(model) => {
                let file = ModelFile {
                    architecture: model.architecture().clone(),
                    transform: transforms.first().cloned().unwrap_or_default(),
                    label_scale,
                    label_names,
                    metrics,
                    fanouts,
                    extra,
                };
                to_files(model, &file)
            }
            Self::Typed(model) => {
                let architecture = model.architecture().clone();
                let by_type = architecture.types.iter().zip(transforms);
                let fitted = by_type.filter(|(_, transform)| **transform != Transform::None);
                let named = fitted.map(|(of, transform)| (of.name.clone(), transform.clone()));
                let file = TypedModelFile {
                    transforms: named.collect(),
                    architecture,
                    label_scale,
                    label_names,
                    metrics,
                    fanouts,
                    extra,
                };
                typed_to_files(model, &file)
            }
        }
    }
}

impl AnyModelFile {
    /// Returns the architecture.
    pub fn architecture(&self) -> AnyArchitecture {
        match self {
            Self::Untyped(file) => AnyArchitecture::Untyped(Box::new(file.architecture.clone())),
            Self::Typed(file) => AnyArchitecture::Typed(Box::new(file.architecture.clone())),
        }
    }

    /// Returns the transform of each type's features.
    pub fn transforms(&self) -> Vec<Transform> {
        match self {
            Self::Untyped(file) => vec![file.transform.clone()],
            Self::Typed(file) => {
                let of = |name| file.transforms.get(name).cloned().unwrap_or_default();
                let types = file.architecture.types.iter();
                types.map(|node_type| of(&node_type.name)).collect()
            }
        }
    }

    /// Returns the metrics of the saved parameters.
    pub fn metrics(&self) -> &BTreeMap<String, f64> {
        match self {
            Self::Untyped(file) => &file.metrics,
            Self::Typed(file) => &file.metrics,
        }
    }

    /// Returns the fan-outs that the model was trained with.
    pub fn fanouts(&self) -> &Value {
        match self {
            Self::Untyped(file) => &file.fanouts,
            Self::Typed(file) => &file.fanouts,
        }
    }

    /// Returns the other values that the trainer passes to inference.
    pub fn extra(&self) -> &BTreeMap<String, Value> {
        match self {
            Self::Untyped(file) => &file.extra,
            Self::Typed(file) => &file.extra,
        }
    }
}

/// Reads a model from a directory with a function that reads a whole file.
///
/// # Errors
///
/// Names the file, and the tensor whose name, type or shape does not fit the architecture.
pub fn load_any_with(
    dir: &Path,
    read_file: impl Fn(&Path) -> std::io::Result<Vec<u8>>,
) -> Result<(AnyModel, AnyModelFile), GnnError> {
    let path = dir.join(MODEL_JSON);
    let json = match read_file(&path) {
        Ok(bytes) => serde_json::from_slice::<Value>(&bytes),
        Err(source) => return Err(GnnError::File { path, source }),
    };
    let json = json.map_err(|source| GnnError::Json { path, source })?;
    if json["architecture"].get("types").is_some() {
        let (model, file) = load_typed_with(dir, read_file)?;
        let file = AnyModelFile::Typed(Box::new(file));
        return Ok((AnyModel::Typed(Box::new(model)), file));
    }
    let (model, file) = load_with(dir, read_file)?;
    let file = AnyModelFile::Untyped(Box::new(file));
    Ok((AnyModel::Untyped(Box::new(model)), file))
}
