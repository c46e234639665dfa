//! A model on disk: `model.safetensors` and `model.json`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::model::ModelState;
use crate::{Architecture, GnnError, LabelScale, Model, ParameterInfo, Transform};

/// File name of the weights.
pub const MODEL_WEIGHTS: &str = "model.safetensors";

/// File name of the architecture and of everything else.
pub const MODEL_JSON: &str = "model.json";

/// How many bytes larger than the weights file an architecture may be and still be allocated; the
/// comparison of tensors then reports the fault.
const HARMLESS_BYTES: usize = 64 << 20;

/// The content of `model.json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ModelFile {
    /// The architecture.
    pub architecture: Architecture,
    /// The transform of raw features before layer 1 reads them.
    pub transform: Transform,
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

/// Writes a model into an existing directory.
///
/// # Errors
///
/// [`GnnError::File`] if a file cannot be written, and as [`to_files`].
pub fn save(dir: &Path, model: &Model, file: &ModelFile) -> Result<(), GnnError> {
    for (name, bytes) in to_files(model, file)? {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|source| GnnError::File { path, source })?;
    }
    Ok(())
}

/// Returns the names and contents of a model's files.
///
/// # Errors
///
/// [`GnnError::Tensor`] names a tensor with a value that is not finite: such a model could not be
/// loaded.
pub fn to_files(model: &Model, file: &ModelFile) -> Result<[(&'static str, Vec<u8>); 2], GnnError> {
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

pub(crate) fn check_finite(path: &Path, state: &ModelState) -> Result<(), GnnError> {
    for slice in slices(state) {
        let source = if slice.is_buffer {
            &state.buffers
        } else {
            &state.flat
        };
        if let Some(problem) = not_finite(&source[slice.range()]) {
            return Err(GnnError::Tensor {
                path: path.to_owned(),
                tensor: slice.name,
                problem,
            });
        }
    }
    Ok(())
}

/// Describes the fault of values that are not all finite.
fn not_finite(values: &[f32]) -> Option<String> {
    let all = values.iter().all(|value| value.is_finite());
    (!all).then(|| "holds a value that is not a finite number".to_owned())
}

pub(crate) fn encode(state: &ModelState) -> Result<Vec<u8>, SafeTensorError> {
    let mut tensors = Vec::new();
    for slice in slices(state) {
        let source = if slice.is_buffer {
            &state.buffers
        } else {
            &state.flat
        };
        let bytes = bytes_of(&source[slice.range()]);
        tensors.push((slice.name, slice.shape, Dtype::F32, bytes));
    }
    for (name, dtype) in constants(state) {
        let (shape, bytes) = match dtype {
            Dtype::I64 => (vec![], vec![0; 8]),
            _ => (vec![1], vec![0; 4]),
        };
        tensors.push((name, shape, dtype, bytes));
    }
    let mut views = Vec::with_capacity(tensors.len());
    for (name, shape, dtype, bytes) in &tensors {
        views.push((name, TensorView::new(*dtype, shape.clone(), bytes)?));
    }
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(format))
}

/// Reads a model from a directory.
///
/// # Errors
///
/// Names the file, and the tensor whose name, type or shape does not fit the architecture.
pub fn load(dir: &Path) -> Result<(Model, ModelFile), GnnError> {
    load_with(dir, |path| std::fs::read(path))
}

/// Reads a model with a function that reads a whole file.
///
/// # Errors
///
/// As [`load`].
pub fn load_with(
    dir: &Path,
    read_file: impl Fn(&Path) -> std::io::Result<Vec<u8>>,
) -> Result<(Model, ModelFile), GnnError> {
    let read = |path: &Path| {
        read_file(path).map_err(|source| GnnError::File {
            path: path.to_owned(),
            source,
        })
    };
    let path = dir.join(MODEL_JSON);
    let file: ModelFile = match serde_json::from_slice(&read(&path)?) {
        Ok(file) => file,
        Err(source) => return Err(GnnError::Json { path, source }),
    };
    let path_weights = dir.join(MODEL_WEIGHTS);
    let bytes = read(&path_weights)?;
    file.architecture.validate()?;
    check_room(&file.architecture.parameters(), bytes.len())?;
    let mut model = Model::init(&file.architecture, 0)?;
    if let Some(scale) = &file.label_scale {
        model.set_label_scale(scale.clone())?;
    }
    check_transform(&file)?;
    decode(&path_weights, &bytes, &mut model.state)?;
    Ok((model, file))
}

/// Refuses parameters much larger than the weights file, before memory is allocated for them.
pub(crate) fn check_room(parameters: &[ParameterInfo], num_bytes: usize) -> Result<(), GnnError> {
    let num_values: usize = parameters.iter().map(ParameterInfo::len).sum();
    if num_values.saturating_mul(4) <= num_bytes.saturating_add(HARMLESS_BYTES) {
        return Ok(());
    }
    Err(GnnError::Architecture {
        key: "hidden",
        problem: format!(
            "the model has {num_values} parameters of 4 bytes, {MODEL_WEIGHTS} has {num_bytes} \
             bytes"
        ),
    })
}

/// Fills a model with the tensors of a file, which must be exactly those of its architecture.
pub(crate) fn decode(path: &Path, bytes: &[u8], state: &mut ModelState) -> Result<(), GnnError> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|source| GnnError::SafeTensors {
        path: path.to_owned(),
        source,
    })?;
    let (mut flat, mut buffers) = (Vec::new(), Vec::new());
    let slices = slices(state);
    for slice in &slices {
        let values = if slice.is_buffer {
            &mut buffers
        } else {
            &mut flat
        };
        read_tensor(path, &tensors, slice, values)?;
    }
    let constants = constants(state);
    let known = |name: &str| {
        slices.iter().any(|slice| slice.name == name)
            || constants.iter().any(|(constant, _)| constant == name)
    };
    let mut names = tensors.names();
    names.sort_unstable();
    if let Some(stray) = names.into_iter().find(|name| !known(name)) {
        let (path, tensor) = (path.to_owned(), stray.to_owned());
        let problem = "is not a tensor of this architecture".to_owned();
        return Err(GnnError::Tensor {
            path,
            tensor,
            problem,
        });
    }
    for (name, dtype) in constants {
        let moved = tensors
            .tensor(&name)
            .is_ok_and(|view| view.data().iter().any(|&b| b != 0));
        if dtype == Dtype::F32 && moved {
            let (path, tensor) = (path.to_owned(), name);
            let problem = "is not 0, the only value supported".to_owned();
            return Err(GnnError::Tensor {
                path,
                tensor,
                problem,
            });
        }
    }
    state.flat.copy_from_slice(&flat);
    state.buffers.copy_from_slice(&buffers);
    Ok(())
}

/// A named tensor as a slice of the flat parameters or of the flat buffers.
struct Slice {
    name: String,
    shape: Vec<usize>,
    start: usize,
    is_buffer: bool,
}

impl Slice {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.shape.iter().product::<usize>()
    }
}

fn slices(state: &ModelState) -> Vec<Slice> {
    let mut slices = Vec::new();
    let mut start = 0;
    for info in &state.infos {
        let (name, shape) = (info.name.clone(), info.shape.clone());
        slices.push(Slice {
            name,
            shape,
            start,
            is_buffer: false,
        });
        start += info.len();
    }
    start = 0;
    for info in &state.buffer_infos {
        slices.push(Slice {
            name: info.name.clone(),
            shape: vec![info.len],
            start,
            is_buffer: true,
        });
        start += info.len;
    }
    slices
}

/// Lists the tensors that `PyG` expects beside parameters and statistics, all of them 0 here.
fn constants(state: &ModelState) -> Vec<(String, Dtype)> {
    let dtype = |is_integer| if is_integer { Dtype::I64 } else { Dtype::F32 };
    let zeros = state.zeros.iter();
    zeros
        .map(|zero| (zero.name.clone(), dtype(zero.is_integer)))
        .collect()
}

fn read_tensor(
    path: &Path,
    tensors: &SafeTensors<'_>,
    slice: &Slice,
    values: &mut Vec<f32>,
) -> Result<(), GnnError> {
    let error = |problem: String| {
        let (path, tensor) = (path.to_owned(), slice.name.clone());
        GnnError::Tensor {
            path,
            tensor,
            problem,
        }
    };
    let Ok(tensor) = tensors.tensor(&slice.name) else {
        return Err(error("is missing".to_owned()));
    };
    if tensor.dtype() != Dtype::F32 {
        return Err(error(format!("is {:?} and not F32", tensor.dtype())));
    }
    if tensor.shape() != slice.shape {
        let (got, wanted) = (tensor.shape(), &slice.shape);
        return Err(error(format!(
            "has shape {got:?} where the architecture needs {wanted:?}"
        )));
    }
    let chunks = tensor.data().chunks_exact(4);
    let first = values.len();
    values.extend(chunks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    not_finite(&values[first..]).map_or(Ok(()), |problem| Err(error(problem)))
}

fn check_transform(file: &ModelFile) -> Result<(), GnnError> {
    let in_dim = file.architecture.features_dim();
    let (mean, scale) = match &file.transform {
        Transform::None | Transform::RowNormalize => return Ok(()),
        Transform::Standardize { mean, scale } => (mean, scale),
        Transform::Encode(encoder) => {
            encoder.validate()?;
            if encoder.width() == in_dim {
                return Ok(());
            }
            let width = encoder.width();
            let problem = format!("encodes rows as {width} features but the model reads {in_dim}");
            return Err(GnnError::Transform { problem });
        }
    };
    if mean.len() == in_dim && scale.len() == in_dim {
        return Ok(());
    }
    let problem = format!(
        "fitted to {} features but the model reads {in_dim}",
        mean.len()
    );
    Err(GnnError::Transform { problem })
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
