//! The checked plan of an infer job.

use crate::InferError;
use crate::config::{InferDevice, InferSampling, InferSpec, InferTargets, InferTypes, Method};
use gnn::RowFormat;
use schemas::path::join;
use schemas::{IdListPlan, NodesPlan, Precision};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default number of nodes in one part: 16 MiB if an embedding has 64 numbers.
pub(crate) const ROWS_PER_PART: usize = 65_536;

/// Most layers of a model: the greatest number of hops.
const LAYERS_MAX: usize = 255;

/// Most nodes in one part: the greatest number of nodes in a graph.
const ROWS_MAX: usize = u32::MAX as usize - 1;

/// Names of the columns that inference writes; copied columns must have other names.
const WRITTEN: [&str; 5] = ["id", "embedding", "logits", "probability", "prediction"];

/// Key of the list of targets.
pub(crate) const TARGETS: &str = "infer.targets";

/// Key of the node types that are written.
const TYPES: &str = "infer.types";

/// What the job says outside of table `[infer]`.
#[derive(Clone, Debug)]
pub struct InferContext {
    /// Output of `[train]`, if the job has one.
    pub model: Option<PathBuf>,
    /// Output of `[flatten]`, if the job has one.
    pub input: Option<PathBuf>,
    /// Directory that relative paths start from.
    pub base: PathBuf,
    /// The table of nodes. Needed if its columns are copied.
    pub nodes: Option<Arc<NodesPlan>>,
    /// Directory for the rows of finished rounds, until no round reads them.
    pub work_dir: PathBuf,
    /// Whether an existing output and existing rounds are replaced.
    pub fresh: bool,
}

/// A checked infer job. [`infer`](crate::infer) checks the keys that depend on the model.
#[derive(Clone, Debug)]
pub struct InferPlan {
    pub(crate) output: PathBuf,
    pub(crate) model: PathBuf,
    pub(crate) input: Option<PathBuf>,
    pub(crate) method: Method,
    pub(crate) check_columns: bool,
    pub(crate) sampling: InferSampling,
    pub(crate) layer: Option<usize>,
    pub(crate) rows_per_part: usize,
    pub(crate) prediction: bool,
    pub(crate) logits: bool,
    pub(crate) probabilities: bool,
    pub(crate) precision: Precision,
    pub(crate) device: InferDevice,
    /// Bytes of the largest matrix on a GPU, if tests limit it.
    pub(crate) matrix_bytes: Option<u64>,
    pub(crate) rows: RowFormat,
    pub(crate) normalize: bool,
    pub(crate) targets: InferTargets,
    pub(crate) types: Option<InferTypes>,
    pub(crate) columns: Vec<String>,
    pub(crate) compare_sampling: bool,
    pub(crate) nodes: Option<Arc<NodesPlan>>,
    pub(crate) work_dir: PathBuf,
    pub(crate) fresh: bool,
    pub(crate) keeps_rows: bool,
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
            check_columns: self.check_columns,
            sampling: self.sampling,
            layer: self.layer,
            rows_per_part: self.rows_per_part.unwrap_or(ROWS_PER_PART),
            prediction: self.prediction,
            logits: self.logits,
            probabilities: self.probabilities,
            precision: self.precision,
            device: self.device,
            matrix_bytes: None,
            rows: self.rows,
            normalize: self.normalize,
            targets: match self.targets {
                InferTargets::All => InferTargets::All,
                InferTargets::Listed(path) => InferTargets::Listed(join(&ctx.base, &path)),
            },
            types: self.types,
            columns: self.columns,
            compare_sampling: self.compare_sampling,
            nodes: ctx.nodes,
            work_dir: ctx.base.join(ctx.work_dir),
            fresh: ctx.fresh,
            keeps_rows: false,
        })
    }
}

impl InferSpec {
    /// Returns all mistakes in the table, one error each. `has_input` and `has_model` tell whether
    /// the job names graph features and a model.
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
            (self.types.is_some(), "infer.types", "given"),
            (self.compare_sampling, "infer.compare_sampling", "true"),
            (self.rows_per_part.is_some(), "infer.rows_per_part", "given"),
            (self.rows != RowFormat::F32, "infer.rows", "\"bf16\""),
        ];
        let allowed = "`method = \"neighborhoods\"` computes the targets of stored graph features, \
                       part by part, on the in-edges that these hold; leave the key out, or set \
                       `method = \"layers\"`";
        for (_, name, value) in refused
            .iter()
            .filter(|(given, ..)| by_neighborhoods && *given)
        {
            found.push(key(name, value, allowed));
        }
        if self.device == InferDevice::Gpu && !gnn::Device::HAS_GPU {
            let build = "this program was built without GPUs: build it with `cargo build --release \
                         --features gpu`, or take \"cpu\"";
            found.push(key("infer.device", "\"gpu\"", build));
        }
        if self.device == InferDevice::Gpu && self.compare_sampling {
            let why = "both samplings are compared on the processor; leave it out, or set \
                       `infer.device` = \"cpu\"";
            found.push(key("infer.compare_sampling", "true", why));
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

    /// Adds a directory `name` to the path of the working directory.
    #[must_use]
    pub fn with_own_dir(mut self, name: &str) -> Self {
        self.work_dir.push(name);
        self
    }

    /// Keeps in the working directory what a version of the output is computed from.
    ///
    /// # Errors
    ///
    /// If the plan names a GPU: a version is computed on the processor, and its rows have to be those
    /// of a full run to the bit.
    pub fn keeping_rows(mut self) -> Result<Self, InferError> {
        if self.device == InferDevice::Gpu {
            return Err(InferError::Key {
                key: "infer.device",
                value: "\"gpu\"".to_owned(),
                allowed:
                    "versions are computed on the processor, bit for bit as a full run; allowed \
                          with [incremental] is \"cpu\""
                        .to_owned(),
            });
        }
        self.keeps_rows = true;
        Ok(self)
    }

    /// Checks that the device of the plan is available.
    ///
    /// # Errors
    ///
    /// [`InferError::NoGpu`] if the plan needs a GPU and there is none.
    pub fn check_device(&self) -> Result<(), InferError> {
        self.open_device().map(drop)
    }

    /// Opens the device of the plan.
    pub(crate) fn open_device(&self) -> Result<gnn::Device, InferError> {
        let opened = match self.device {
            InferDevice::Cpu => return Ok(gnn::Device::cpu()),
            InferDevice::Gpu => gnn::Device::gpu(),
        };
        let device = opened.map_err(|source| InferError::NoGpu { source })?;
        Ok(match self.matrix_bytes {
            Some(bytes) => device.with_matrix_bytes(bytes),
            None => device,
        })
    }

    /// Limits the bytes of a matrix on a GPU, so that tests need no large graph.
    #[doc(hidden)]
    #[must_use]
    pub fn with_matrix_bytes(mut self, bytes: u64) -> Self {
        self.matrix_bytes = Some(bytes);
        self
    }

    /// Returns the directory of the model.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// Tells whether logits are computed: predictions, logits or probabilities are written.
    pub(crate) fn reads_logits(&self) -> bool {
        self.prediction || self.logits || self.probabilities
    }

    /// Returns the sampling that the planned one is compared with.
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

    /// Checks that the plan asks a model of links for embeddings alone.
    ///
    /// # Errors
    ///
    /// Names the key.
    pub fn check_for_pairs(&self) -> Result<(), InferError> {
        let allowed = "a model of pairs gives embeddings and no logits";
        let by_layers = "graph features of pairs have no other targets; allowed is \"layers\"";
        let refused = [
            (self.logits, "infer.logits", "true", allowed),
            (self.probabilities, "infer.probabilities", "true", allowed),
            (
                self.method == Method::Neighborhoods,
                "infer.method",
                "\"neighborhoods\"",
                by_layers,
            ),
        ];
        let mut refused = refused.into_iter().filter(|(given, ..)| *given);
        refused.next().map_or(Ok(()), |(_, key, value, why)| {
            Err(InferError::Key {
                key,
                value: value.to_owned(),
                allowed: why.to_owned(),
            })
        })
    }

    /// Returns whether predictions of both samplings are compared.
    pub fn compares_sampling(&self) -> bool {
        self.compare_sampling
    }

    /// Returns the positions of the node types that are written, ascending. `names` are those of all
    /// types, sorted; `target` is the position of the target type.
    ///
    /// # Errors
    ///
    /// If `infer.types` names no type, an unknown one or one twice, or leaves out the target type,
    /// while another key is about its nodes.
    pub fn written_types(&self, names: &[&str], target: usize) -> Result<Vec<usize>, InferError> {
        let of_types = |allowed: String| InferError::Key {
            key: TYPES,
            value: serde_json::json!(self.types).to_string(),
            allowed,
        };
        let listed = match &self.types {
            None => return Ok(vec![target]),
            Some(InferTypes::All) => return Ok((0..names.len()).collect()),
            Some(InferTypes::Listed(listed)) => listed,
        };
        let unknown = listed.iter().find(|name| !names.contains(&&name[..]));
        if let Some(name) = unknown {
            let allowed = names.join(", ");
            let problem = format!("there is no node type `{name}`; allowed are {allowed}");
            return Err(of_types(problem));
        }
        let is_listed = |at: &usize| listed.iter().any(|name| name == names[*at]);
        let written: Vec<usize> = (0..names.len()).filter(is_listed).collect();
        if written.len() < listed.len() || written.is_empty() {
            return Err(of_types("needed are node types, each once".to_owned()));
        }
        let about_targets = [
            (self.targets != InferTargets::All, TARGETS),
            (!self.columns.is_empty(), "infer.columns"),
            (self.logits, "infer.logits"),
            (self.probabilities, "infer.probabilities"),
            (self.compare_sampling, "infer.compare_sampling"),
        ];
        let mut about_targets = about_targets.iter().filter(|(given, _)| *given);
        match about_targets.next() {
            Some((_, key)) if !written.contains(&target) => Err(of_types(format!(
                "`{key}` is about nodes of the target type, `{}`, which is not among them",
                names[target]
            ))),
            _ => Ok(written),
        }
    }

    /// Checks that a job without node types names none.
    ///
    /// # Errors
    ///
    /// If `infer.types` is given.
    pub fn refuse_types(&self) -> Result<(), InferError> {
        match &self.types {
            None => Ok(()),
            Some(types) => Err(InferError::Key {
                key: TYPES,
                value: serde_json::json!(types).to_string(),
                allowed: "nodes have no types".to_owned(),
            }),
        }
    }

    /// Returns the settings that decide the bytes of the output, except the list of targets.
    pub fn settings(&self) -> serde_json::Value {
        let mut settings = serde_json::json!({
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
        });
        // Older outputs, which do not have the key, were computed with rows in f32.
        if self.rows != RowFormat::F32 {
            settings["rows"] = serde_json::json!(self.rows);
        }
        // Older outputs were computed on the processor.
        if self.device != InferDevice::Cpu {
            settings["device"] = serde_json::json!(self.device);
        }
        settings
    }

    /// Opens the list of targets; none if all nodes are targets.
    ///
    /// # Errors
    ///
    /// If the list cannot be read, or has no column with the name of the nodes' id column.
    pub fn target_list(&self, nodes: &NodesPlan) -> Result<Option<IdListPlan>, InferError> {
        let InferTargets::Listed(path) = &self.targets else {
            return Ok(None);
        };
        let list = IdListPlan::open(TARGETS, path, &nodes.spec().id, nodes.id_type())?;
        Ok(Some(list))
    }

    /// Returns whether embeddings are divided by their lengths.
    pub fn is_normalized(&self) -> bool {
        self.normalize
    }

    /// Returns whether `infer.types` names types, but not this one.
    pub fn leaves_out(&self, type_name: &str) -> bool {
        match &self.types {
            None | Some(InferTypes::All) => false,
            Some(InferTypes::Listed(names)) => names.iter().all(|name| name != type_name),
        }
    }

    /// Returns whether all nodes of the written types are written.
    pub fn writes_all_nodes(&self) -> bool {
        self.targets == InferTargets::All
    }

    /// Returns which in-edges a layer reads.
    pub fn sampling(&self) -> InferSampling {
        self.sampling
    }

    /// Returns the layer whose output is the embedding, if the job names one.
    pub fn layer(&self) -> Option<usize> {
        self.layer
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
                       part by part, on the in-edges that these hold; leave the key out, or set \
                       `method = \"layers\"`";
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

    /// No key takes the device that a machine happens to have, and versions take the processor.
    #[test]
    fn devices_are_named() {
        check(
            r#"{"output": "o", "model": "m", "device": "auto"}"#,
            "unknown variant `auto`, expected `cpu` or `gpu` at line 1 column 46",
        );
        if !gnn::Device::HAS_GPU {
            check(
                r#"{"output": "o", "model": "m", "device": "gpu"}"#,
                "`infer.device` is \"gpu\": this program was built without GPUs: build it with \
                 `cargo build --release --features gpu`, or take \"cpu\"",
            );
        }
        let compared =
            r#"{"output": "o", "model": "m", "device": "gpu", "compare_sampling": true}"#;
        let spec: InferSpec = serde_json::from_str(compared).unwrap();
        let mistakes = spec.mistakes(false, true);
        assert_eq!(
            mistakes.last().unwrap().to_string(),
            "`infer.compare_sampling` is true: both samplings are compared on the processor; leave \
             it out, or set `infer.device` = \"cpu\""
        );
        let of_processor = plan(r#"{"output": "o", "model": "m"}"#).unwrap();
        assert!(of_processor.settings().get("device").is_none());
        let mut of_gpu = of_processor.clone();
        of_gpu.device = InferDevice::Gpu;
        assert_eq!(of_gpu.settings()["device"], "gpu");
        assert!(of_processor.keeping_rows().unwrap().keeps_rows);
        assert_eq!(
            of_gpu.keeping_rows().unwrap_err().to_string(),
            "`infer.device` is \"gpu\": versions are computed on the processor, bit for bit as a full \
             run; allowed with [incremental] is \"cpu\""
        );
    }

    #[test]
    fn types_are_named_or_all() {
        let names = ["author", "paper", "venue"];
        let written = |types: &str, more: &str| {
            let text = format!(r#"{{"output": "o", "model": "m"{types}{more}}}"#);
            let plan = plan(&text)?;
            let written = plan.written_types(&names, 1);
            written.map_err(|e| e.to_string())
        };
        assert_eq!(written("", "").unwrap(), [1]);
        assert_eq!(written(r#", "types": "all""#, "").unwrap(), [0, 1, 2]);
        let two = r#", "types": ["venue", "author"]"#;
        assert_eq!(written(two, "").unwrap(), [0, 2]);
        let checks = [
            (
                two,
                r#", "logits": true"#,
                "`infer.logits` is about nodes of the target type, `paper`",
            ),
            (
                r#", "types": ["book"]"#,
                "",
                "no node type `book`; allowed are author, paper, venue",
            ),
            (
                r#", "types": []"#,
                "",
                "`infer.types` is []: needed are node types, each once",
            ),
            (
                r#", "types": ["paper", "paper"]"#,
                "",
                "needed are node types, each once",
            ),
            (
                r#", "types": "some""#,
                "",
                "allowed is \"all\" or a list of node types",
            ),
            (
                r#", "types": 3"#,
                "",
                "allowed is \"all\" or a list of node types",
            ),
        ];
        for (types, more, expected) in checks {
            let error = written(types, more).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let untyped = plan(r#"{"output": "o", "model": "m", "types": "all"}"#).unwrap();
        let error = untyped.refuse_types().unwrap_err().to_string();
        assert_eq!(error, "`infer.types` is \"all\": nodes have no types");
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = plan(r#"{"output": "o", "colums": ["x"]}"#).unwrap_err();
        assert!(error.contains("unknown field `colums`"), "{error}");
    }
}
