//! Table `[infer]`: as written ([`InferSpec`]) and as it will run ([`InferPlan`]).

use crate::InferError;
use crate::slice::{StoreNeed, TrainedModel};
use schemas::path::join;
use schemas::{GraphMeta, IdListPlan, NodesPlan, Precision};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Nodes in one part unless the job says otherwise: 16 MiB with 64 numbers an embedding.
const ROWS_PER_PART: usize = 65_536;

/// Layers of a model at most: as many as hops.
const LAYERS_MAX: usize = 255;

/// Nodes in one part at most: a graph has no more.
const ROWS_MAX: usize = u32::MAX as usize - 1;

/// Names of the columns that inference writes.
const WRITTEN: [&str; 5] = ["id", "embedding", "logits", "probability", "prediction"];

/// The key of a list of targets.
pub(crate) const TARGETS: &str = "infer.targets";

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
    /// Which in-edges a layer reads. Default: `as_trained`.
    #[serde(default)]
    pub sampling: InferSampling,
    /// The layer whose output is the embedding, from 1. Default: the last one before a head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// How embeddings are computed. Default: `layers`.
    #[serde(default)]
    pub method: Method,
    /// Nodes in one part file. Default: 65536.
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
    /// How the numbers of vectors are written. Default: `f32`.
    #[serde(default)]
    pub precision: Precision,
    /// Whether embeddings are divided by their length. Default: false.
    #[serde(default)]
    pub normalize: bool,
    /// Which nodes are written. Default: all.
    #[serde(default)]
    pub targets: InferTargets,
    /// Columns of the node table that are handed on. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Whether the report says how far predictions with the other `sampling` differ, which takes as
    /// long again. Default: false.
    #[serde(default)]
    pub compare_sampling: bool,
}

/// Which nodes are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum InferTargets {
    /// Every node.
    #[default]
    All,
    /// The ids in a Parquet table, in a column named as the nodes' id.
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

fn default_true() -> bool {
    true
}

/// Which in-edges a layer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InferSampling {
    /// Those that the neighbourhoods the model was trained on hold.
    #[default]
    AsTrained,
    /// All of them.
    None,
}

/// How embeddings are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Layer by layer, each node once.
    #[default]
    Layers,
    /// Neighbourhood by neighbourhood, from stored graph features: the same numbers, for comparison.
    Neighborhoods,
}

/// What a job knows beyond `[infer]`.
#[derive(Clone, Debug)]
pub struct InferContext {
    /// Output of `[train]`, if the job has one.
    pub model: Option<PathBuf>,
    /// Output of `[flatten]`, if the job has one.
    pub input: Option<PathBuf>,
    /// What relative paths are relative to.
    pub base: PathBuf,
    /// The table of nodes, where columns of it are handed on.
    pub nodes: Option<Arc<NodesPlan>>,
    /// Where the rows of a layer lie until the next ones are computed.
    pub work_dir: PathBuf,
    /// Whether an output that is there already is replaced.
    pub fresh: bool,
}

/// A checked infer job; what depends on the model is checked by [`infer`](crate::infer).
#[derive(Clone, Debug)]
pub struct InferPlan {
    pub(crate) output: PathBuf,
    pub(crate) model: PathBuf,
    pub(crate) input: Option<PathBuf>,
    pub(crate) method: Method,
    pub(crate) sampling: InferSampling,
    pub(crate) layer: Option<usize>,
    pub(crate) rows_per_part: usize,
    pub(crate) prediction: bool,
    pub(crate) logits: bool,
    pub(crate) probabilities: bool,
    pub(crate) precision: Precision,
    pub(crate) normalize: bool,
    pub(crate) targets: InferTargets,
    pub(crate) columns: Vec<String>,
    pub(crate) compare_sampling: bool,
    pub(crate) nodes: Option<Arc<NodesPlan>>,
    pub(crate) work_dir: PathBuf,
    pub(crate) fresh: bool,
}

impl InferSpec {
    /// Checks the keys and resolves the paths.
    ///
    /// # Errors
    ///
    /// The first of [`InferSpec::mistakes`]; a column or a list of targets that cannot be read.
    pub fn into_plan(self, ctx: InferContext) -> Result<InferPlan, InferError> {
        let input = self.input.clone().or(ctx.input);
        let model = self.model.clone().or(ctx.model);
        if let Some(first) = self
            .mistakes(input.is_some(), model.is_some())
            .into_iter()
            .next()
        {
            return Err(first);
        }
        let model = model.expect("it was checked to be there");
        if !self.columns.is_empty() {
            let nodes = ctx.nodes.as_ref().ok_or(InferError::Missing {
                key: "input.nodes",
                needed: "the table that `infer.columns` are of",
            })?;
            nodes.check_passed(&self.columns, &WRITTEN)?;
        }
        if let (InferTargets::Listed(path), Some(nodes)) = (&self.targets, &ctx.nodes) {
            let column = &nodes.spec().id;
            IdListPlan::open(TARGETS, &join(&ctx.base, path), column, nodes.id_type())?;
        }
        Ok(InferPlan {
            output: join(&ctx.base, &self.output),
            model: join(&ctx.base, &model),
            input: input.map(|input| join(&ctx.base, &input)),
            method: self.method,
            sampling: self.sampling,
            layer: self.layer,
            rows_per_part: self.rows_per_part.unwrap_or(ROWS_PER_PART),
            prediction: self.prediction,
            logits: self.logits,
            probabilities: self.probabilities,
            precision: self.precision,
            normalize: self.normalize,
            targets: match self.targets {
                InferTargets::All => InferTargets::All,
                InferTargets::Listed(path) => InferTargets::Listed(join(&ctx.base, &path)),
            },
            columns: self.columns,
            compare_sampling: self.compare_sampling,
            nodes: ctx.nodes,
            work_dir: ctx.base.join(ctx.work_dir),
            fresh: ctx.fresh,
        })
    }
}

impl InferSpec {
    /// Returns everything that is wrong with the table, one error a mistake, given whether the job
    /// has graph features to read, and a model.
    pub fn mistakes(&self, has_input: bool, has_model: bool) -> Vec<InferError> {
        let mut found = Vec::new();
        let key = |key, value: &str, allowed: &str| InferError::Key {
            key,
            value: value.to_owned(),
            allowed: allowed.to_owned(),
        };
        let by_neighborhoods = self.method == Method::Neighborhoods;
        let refused = [
            (
                self.sampling == InferSampling::None,
                "infer.sampling",
                "\"none\"",
            ),
            (self.targets != InferTargets::All, "infer.targets", "a list"),
            (!self.columns.is_empty(), "infer.columns", "given"),
            (self.compare_sampling, "infer.compare_sampling", "true"),
            (self.rows_per_part.is_some(), "infer.rows_per_part", "given"),
        ];
        let allowed = "`method = \"neighborhoods\"` computes the targets of stored graph features, \
                       part by part, on the in-edges that these hold";
        for (_, name, value) in refused
            .iter()
            .filter(|(given, ..)| by_neighborhoods && *given)
        {
            found.push(key(name, value, allowed));
        }
        if by_neighborhoods && !has_input {
            found.push(InferError::Missing {
                key: "infer.input",
                needed: "graph features, where the job has no table [flatten]",
            });
        }
        if let Some(input) = self.input.as_ref().filter(|_| !by_neighborhoods) {
            let why = "is read by `method = \"neighborhoods\"` alone";
            found.push(key("infer.input", &format!("{input:?}"), why));
        }
        for (name, count, most) in [
            ("infer.layer", self.layer, LAYERS_MAX),
            ("infer.rows_per_part", self.rows_per_part, ROWS_MAX),
        ] {
            if let Some(count) = count.filter(|count| !(1..=most).contains(count)) {
                let bounds = format!("allowed is 1 to {most}");
                found.push(key(name, &count.to_string(), &bounds));
            }
        }
        if !has_model {
            found.push(InferError::Missing {
                key: "infer.model",
                needed: "a directory with a trained model, where the job has no table [train]",
            });
        }
        found
    }
}

impl InferPlan {
    /// Returns how embeddings are computed.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns the directory that will be written.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Moves what rounds leave into a directory of its own below the working directory.
    #[must_use]
    pub fn with_own_dir(mut self, name: &str) -> Self {
        self.work_dir.push(name);
        self
    }

    /// Returns the directory of the model.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// Tells whether layers behind the embedding are computed too.
    pub(crate) fn reads_logits(&self) -> bool {
        self.prediction || self.logits || self.probabilities
    }

    /// Returns the sampling that this one is compared with.
    pub(crate) fn other_sampling(&self) -> InferSampling {
        match self.sampling {
            InferSampling::AsTrained => InferSampling::None,
            InferSampling::None => InferSampling::AsTrained,
        }
    }

    /// Returns whether probabilities are written.
    pub fn gives_probabilities(&self) -> bool {
        self.probabilities
    }

    /// Returns whether predictions of both samplings are compared.
    pub fn compares_sampling(&self) -> bool {
        self.compare_sampling
    }

    /// Returns the settings that decide what is written, but for the list of targets.
    pub fn settings(&self) -> serde_json::Value {
        serde_json::json!({
            "method": self.method,
            "sampling": self.sampling,
            "layer": self.layer,
            "prediction": self.prediction,
            "logits": self.logits,
            "probabilities": self.probabilities,
            "precision": self.precision,
            "normalize": self.normalize,
            "columns": self.columns,
            "compare_sampling": self.compare_sampling,
            "rows_per_part": self.rows_per_part,
        })
    }

    /// Opens the list of targets, where there is one.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or lacks a column of the nodes' ids.
    pub fn target_list(&self, nodes: &NodesPlan) -> Result<Option<IdListPlan>, InferError> {
        let InferTargets::Listed(path) = &self.targets else {
            return Ok(None);
        };
        let list = IdListPlan::open(TARGETS, path, &nodes.spec().id, nodes.id_type())?;
        Ok(Some(list))
    }

    /// Returns which in-edges a layer reads.
    pub fn sampling(&self) -> InferSampling {
        self.sampling
    }

    /// Returns the layer whose output is the embedding, if the job names one.
    pub fn layer(&self) -> Option<usize> {
        self.layer
    }

    /// Returns what the store must hold for this plan, as the finished model has it.
    ///
    /// # Errors
    ///
    /// The model is not there, broken, or does not say what it was trained on.
    pub fn store_need(&self) -> Result<StoreNeed, InferError> {
        TrainedModel::open(self)?.store_need()
    }

    /// Checks that the finished model has the layer of the plan and fits a graph.
    ///
    /// # Errors
    ///
    /// The model is not there, broken, or reads what the graph does not have.
    pub fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        let trained = TrainedModel::open(self)?;
        trained.check_plan(self)?;
        trained.check_graph(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<InferPlan, String> {
        let spec: InferSpec = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let base = PathBuf::from("/base");
        let ctx = InferContext {
            model: None,
            base,
            input: None,
            nodes: None,
            work_dir: PathBuf::from("/work"),
            fresh: false,
        };
        spec.into_plan(ctx).map_err(|e| e.to_string())
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(plan(text).unwrap_err(), expected);
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let plan = plan(r#"{"output": "o", "model": "m"}"#).unwrap();
        assert_eq!(plan.output(), Path::new("/base/o"));
        assert_eq!(plan.model(), Path::new("/base/m"));
        assert_eq!(plan.sampling(), InferSampling::AsTrained);
        assert_eq!(
            (plan.rows_per_part, plan.prediction, plan.layer),
            (65_536, true, None)
        );
    }

    #[test]
    fn impossible_settings_name_the_key() {
        check(
            r#"{"output": "o", "model": "m", "method": "neighborhoods"}"#,
            "`infer.input` is missing: graph features, where the job has no table [flatten]",
        );
        check(
            r#"{"output": "o", "model": "m", "input": "f"}"#,
            "`infer.input` is \"f\": is read by `method = \"neighborhoods\"` alone",
        );
        let refused = "`method = \"neighborhoods\"` computes the targets of stored graph features, \
                       part by part, on the in-edges that these hold";
        check(
            r#"{"output": "o", "model": "m", "input": "f", "method": "neighborhoods",
                "sampling": "none"}"#,
            &format!("`infer.sampling` is \"none\": {refused}"),
        );
        check(
            r#"{"output": "o", "model": "m", "layer": 0}"#,
            "`infer.layer` is 0: allowed is 1 to 255",
        );
        check(
            r#"{"output": "o", "model": "m", "rows_per_part": 0}"#,
            "`infer.rows_per_part` is 0: allowed is 1 to 4294967294",
        );
        check(
            r#"{"output": "o"}"#,
            "`infer.model` is missing: a directory with a trained model, where the job has no \
             table [train]",
        );
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = plan(r#"{"output": "o", "colums": ["x"]}"#).unwrap_err();
        assert!(error.contains("unknown field `colums`"), "{error}");
    }
}
