//! Table `[infer]` as written.

use gnn::RowFormat;
use schemas::Precision;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Table `[infer]` as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InferSpec {
    /// Directory to write.
    pub output: PathBuf,
    /// Directory of the model. Default: the output of `[train]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// Graph features to read with `method = "neighborhoods"`. Default: the output of `[flatten]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<PathBuf>,
    /// Whether the input tables must have the columns and the direction that the model was trained
    /// on. Default: true.
    #[serde(default = "default_true")]
    pub check_columns: bool,
    /// Which in-edges a layer reads. Default: `as_trained`.
    #[serde(default)]
    pub sampling: InferSampling,
    /// The layer whose output is the embedding, from 1. Default: the last hidden layer, or the only
    /// layer of a model without hidden layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// How embeddings are computed. Default: `layers`.
    #[serde(default)]
    pub method: Method,
    /// Nodes in one part file, 1 to 2^32 - 2. Default: 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_part: Option<usize>,
    /// Whether predictions are written beside the embeddings. Default: true.
    #[serde(default = "default_true")]
    pub prediction: bool,
    /// Whether logits are written too. Default: false.
    #[serde(default)]
    pub logits: bool,
    /// Whether the probability of each class is written too. Default: false.
    #[serde(default)]
    pub probabilities: bool,
    /// Data type of the numbers in vectors. Default: `f32`.
    #[serde(default)]
    pub precision: Precision,
    /// The device that computes the layers. Default: `cpu`.
    #[serde(default)]
    pub device: InferDevice,
    /// How rows are kept between layers. Default: `f32`.
    #[serde(default)]
    pub rows: RowFormat,
    /// Whether each embedding is divided by its Euclidean length. Default: false.
    #[serde(default)]
    pub normalize: bool,
    /// Which nodes are written. Default: all.
    #[serde(default)]
    pub targets: InferTargets,
    /// Node types that are written. Default: the target type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<InferTypes>,
    /// Columns of the node table that are copied to the output. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Whether the report compares the predictions with those of the other `sampling`, which about
    /// doubles the computing time. Default: false.
    #[serde(default)]
    pub compare_sampling: bool,
}

/// Which nodes are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum InferTargets {
    /// Every node.
    #[default]
    All,
    /// The nodes that a Parquet table lists, in a column with the name of the nodes' id column.
    Listed(PathBuf),
}

impl Serialize for InferTargets {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Listed(path) => path.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for InferTargets {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.as_str() {
            "all" => Self::All,
            _ => Self::Listed(PathBuf::from(text)),
        })
    }
}

/// Which node types are written.
#[derive(Clone, Debug, PartialEq)]
pub enum InferTypes {
    /// Every type.
    All,
    /// The types with these names.
    Listed(Vec<String>),
}

/// The forms in which types are written in a job file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "allowed is \"all\" or a list of node types")]
enum WrittenTypes {
    Word(String),
    List(Vec<String>),
}

impl Serialize for InferTypes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Listed(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for InferTypes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowed = "allowed is \"all\" or a list of node types";
        let error = |problem: String| serde::de::Error::custom(problem);
        match WrittenTypes::deserialize(deserializer) {
            Ok(WrittenTypes::Word(word)) if word == "all" => Ok(Self::All),
            Ok(WrittenTypes::List(names)) => Ok(Self::Listed(names)),
            Ok(WrittenTypes::Word(word)) => Err(error(format!("{word:?}; {allowed}"))),
            Err(_) => Err(error(allowed.to_owned())),
        }
    }
}

fn default_true() -> bool {
    true
}

/// The device that computes the layers. The results of a GPU differ from those of the processor in
/// the last bits, so the job chooses one, not the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InferDevice {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU, in programs that were built with the feature `gpu`.
    Gpu,
}

/// Which in-edges of a node a layer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InferSampling {
    /// The in-edges in the neighbourhoods that the model was trained on.
    #[default]
    AsTrained,
    /// All in-edges.
    None,
}

/// How embeddings are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Layer by layer; each node is computed once a layer.
    #[default]
    Layers,
    /// Neighbourhood by neighbourhood, from stored graph features; the same numbers up to rounding,
    /// with more work.
    Neighborhoods,
}
