//! Reads a trained model and the record of its training from the directory of the model.

use crate::InferError;
use crate::config::InferSampling;
use crate::plan::InferPlan;
use gnn::{Model, Task, Transform};
use schemas::dataset::{holds_output, verify_checksums};
use schemas::storage::entries;
use schemas::xxh::file_checksum;
use schemas::{
    FlattenMeta, GraphColumns, GraphMeta, LabelKind, LabelMeta, Sampling, SchemaError, keep_at_hop,
    read_manifest, use_at_layer,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a store must hold for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNeed {
    /// In-edges kept per node; `usize::MAX`: all.
    pub keep: usize,
    /// The sample of in-edges; none: the model reads all in-edges, so the store must keep all.
    pub sample: Option<Sample>,
}

/// How the kept in-edges of a node are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// How in-edges are ranked.
    pub sampling: Sampling,
    /// Random seed of the ranking.
    pub seed: u64,
}

/// A model with the record of its training.
#[derive(Debug)]
pub(crate) struct TrainedModel {
    pub(crate) dir: PathBuf,
    pub(crate) model: Model,
    pub(crate) transform: Transform,
    /// Checksum of each file, by name.
    pub(crate) files: BTreeMap<String, String>,
    /// How the neighbourhoods of the training were sampled; none if only all in-edges are read.
    pub(crate) sampled: Option<FlattenMeta>,
    /// Whether all in-edges are read, for the output or for the comparison.
    reads_all: bool,
    /// The graph of the training; none if the model does not record it.
    trained_on: Option<GraphMeta>,
    /// The columns of that graph; none in models of older programs.
    pub(crate) columns: Option<GraphColumns>,
    label_names: Option<Vec<String>>,
}

impl TrainedModel {
    /// Reads the model of a plan and checks its files.
    pub(crate) fn open(plan: &InferPlan) -> Result<Self, InferError> {
        let dir = plan.model.clone();
        let broken = |problem: String| InferError::Model {
            dir: dir.clone(),
            problem,
        };
        let files = files(&dir)?;
        let (model, file) = gnn::load_with(&dir, schemas::storage::read_existing_io)?;
        let sampled = match (plan.sampling, plan.compare_sampling) {
            (InferSampling::None, false) => None,
            (InferSampling::AsTrained, _) | (_, true) => {
                let meta: Option<FlattenMeta> = entry(&file.extra, "flatten").map_err(broken)?;
                let silent = "does not say which in-edges it was trained on; \
                              `infer.sampling` = \"none\" reads all";
                Some(meta.ok_or_else(|| broken(silent.to_owned()))?)
            }
        };
        let layers = model.architecture().num_layers;
        if let Some(fanouts) = sampled.as_ref().map(|meta| meta.fanouts.len())
            && fanouts != layers
        {
            return Err(broken(format!(
                "has {layers} layers but {fanouts} fan-outs"
            )));
        }
        Ok(Self {
            model,
            transform: file.transform,
            files,
            sampled,
            reads_all: plan.sampling == InferSampling::None || plan.compare_sampling,
            trained_on: entry(&file.extra, "graph").map_err(broken)?,
            columns: entry(&file.extra, "columns").map_err(broken)?,
            label_names: file.label_names,
            dir,
        })
    }

    /// Returns what a store must hold so that the slices find their in-edges.
    pub(crate) fn store_need(&self) -> Result<StoreNeed, InferError> {
        let Some(meta) = &self.sampled else {
            return Ok(StoreNeed {
                keep: usize::MAX,
                sample: None,
            });
        };
        let sample = Sample {
            sampling: meta.sampling,
            seed: meta.seed,
        };
        Ok(StoreNeed {
            keep: match self.reads_all {
                true => usize::MAX,
                false => keep_at_hop(&meta.fanouts, 0, 0),
            },
            sample: Some(sample),
        })
    }

    /// Returns the layer whose output is the embedding: the planned layer, or else the last hidden
    /// layer. A model of one layer without a linear head has no hidden layer; then its layer is
    /// returned, whose output are the logits.
    pub(crate) fn embedding_layer(&self, plan: &InferPlan) -> Result<usize, InferError> {
        let arch = self.model.architecture();
        let layers = arch.num_layers;
        match plan.layer {
            None => Ok(arch.hidden.len().max(1)),
            Some(layer) if (1..=layers).contains(&layer) => Ok(layer),
            Some(layer) => Err(InferError::Key {
                key: "infer.layer",
                value: layer.to_string(),
                allowed: format!("the model has layers 1 to {layers}"),
            }),
        }
    }

    /// Returns the settings that decide the bytes of the output, with the layer of the embedding.
    /// The layer is null if the plan names none and the embedding is the output of the last layer.
    pub(crate) fn settings(&self, plan: &InferPlan) -> Result<Value, InferError> {
        let found = self.embedding_layer(plan)?;
        let inner = Some(found).filter(|&layer| layer < self.model.architecture().num_layers);
        let mut settings = plan.settings();
        settings["layer"] = serde_json::json!(plan.layer.or(inner));
        Ok(settings)
    }

    /// Returns the entry of the report that describes the embedding.
    pub(crate) fn embedding_report(&self, layer: usize) -> Value {
        let layers = self.model.architecture().num_layers;
        serde_json::json!({
            "layer": layer,
            "layers": layers,
            "is_logits": self.gives_logits(layer),
        })
    }

    /// Logs warnings: columns cannot be checked, or the embeddings are the logits.
    pub(crate) fn warn(&self, plan: &InferPlan) {
        let dir = self.dir.display();
        if plan.check_columns && self.columns.is_none() {
            tracing::warn!(
                "the model in {dir} does not record the columns it was trained on (models of \
                 older versions do not), so columns and direction of the graph are not checked"
            );
        }
        if plan.layer.is_none() && self.model.architecture().hidden.is_empty() {
            tracing::warn!("the model in {dir} has no hidden layer: its embeddings are the logits");
        }
    }

    /// Tells whether the output of a layer are logits.
    fn gives_logits(&self, layer: usize) -> bool {
        !self.model.architecture().is_hidden(layer)
    }

    /// Returns for each of the first `layers` layers how many in-edges of a node it reads.
    pub(crate) fn limits(&self, layers: usize, sampling: InferSampling) -> Vec<usize> {
        let sampled = self.sampled.as_ref();
        let sampled = sampled.filter(|_| sampling == InferSampling::AsTrained);
        let limit = |layer| match sampled {
            Some(meta) => use_at_layer(&meta.fanouts, 0, layer),
            None => usize::MAX,
        };
        (1..=layers).map(limit).collect()
    }

    /// Checks that the model has the planned layer and can give the planned columns.
    pub(crate) fn check_plan(&self, plan: &InferPlan) -> Result<(), InferError> {
        self.embedding_layer(plan)?;
        if plan.probabilities && self.model.architecture().task == Task::Regression {
            return Err(InferError::Key {
                key: "infer.probabilities",
                value: "true".to_owned(),
                allowed: "the model gives a number, which has no probability".to_owned(),
            });
        }
        Ok(())
    }

    /// Returns the type of predictions: the type of the labels that the model was trained on.
    pub(crate) fn prediction(&self) -> LabelMeta {
        if let Some(label) = self
            .trained_on
            .as_ref()
            .and_then(|graph| graph.target().label.clone())
        {
            return label;
        }
        let arch = self.model.architecture();
        let (data_type, kind) = match (arch.task, &self.label_names) {
            (Task::Classes, Some(names)) => (
                "Utf8",
                LabelKind::ClassName {
                    names: names.clone(),
                },
            ),
            (Task::Classes, None) => {
                let num_classes = u32::try_from(arch.out_dim).expect("classes fit 32 bits");
                ("Int64", LabelKind::Class { num_classes })
            }
            (Task::MultiLabel, _) => (
                "List(Float32)",
                LabelKind::MultiLabel {
                    width: arch.out_dim,
                },
            ),
            (Task::Regression, _) => ("Float32", LabelKind::Number),
        };
        LabelMeta {
            data_type: data_type.to_owned(),
            kind,
        }
    }
}

/// Returns the checksum of each file of a model, by name.
///
/// The output of a finished training has a manifest, whose checksums are verified. If a directory
/// has only the two files of a model and no manifest, the files are hashed.
fn files(dir: &Path) -> Result<BTreeMap<String, String>, InferError> {
    let broken = |problem: String| InferError::Model {
        dir: dir.to_owned(),
        problem,
    };
    let manifest = match read_manifest(dir) {
        Ok(manifest) => manifest,
        Err(unfinished @ SchemaError::NotFinished { .. }) => {
            let own = [gnn::MODEL_JSON, gnn::MODEL_WEIGHTS];
            let names = entries(dir)?;
            let is_there = own.map(|own| names.iter().any(|name| name == own));
            return match is_there {
                _ if holds_output(dir)? => Err(unfinished.into()),
                [false, false] => Err(unfinished.into()),
                [true, true] => own
                    .into_iter()
                    .map(|name| Ok((name.to_owned(), file_checksum(&dir.join(name))?)))
                    .collect(),
                [has_json, _] => {
                    let missing = own[usize::from(has_json)];
                    Err(broken(format!("has no file {missing}")))
                }
            };
        }
        Err(error) => return Err(error.into()),
    };
    if manifest.stage != "train" {
        let stage = manifest.stage;
        return Err(broken(format!(
            "is none: the directory is output of stage `{stage}`"
        )));
    }
    verify_checksums(dir, &manifest.parts)?;
    let files = manifest.parts.into_iter().flat_map(|part| part.files);
    Ok(files.map(|entry| (entry.path, entry.checksum)).collect())
}

/// Reads an entry that the trainer adds to `model.json`; none if it is missing or null.
fn entry<T: serde::de::DeserializeOwned>(
    extra: &BTreeMap<String, Value>,
    name: &str,
) -> Result<Option<T>, String> {
    let value = extra.get(name).cloned().filter(|value| !value.is_null());
    let broken = |e| format!("has an entry `{name}` in model.json that cannot be read: {e}");
    value
        .map(serde_json::from_value)
        .transpose()
        .map_err(broken)
}
