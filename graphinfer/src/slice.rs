//! A trained model cut into slices: one a conv and one for the prediction.

use crate::{InferError, InferPlan, InferSampling};
use gnn::{Model, Task, Transform};
use schemas::dataset::verify_checksums;
use schemas::{
    FeatureMeta, FlattenMeta, GraphMeta, LabelKind, LabelMeta, Sampling, keep_at_hop,
    read_manifest, use_at_layer,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use store::StoreMeta;

/// What a store must hold for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNeed {
    /// In-edges kept per node; `usize::MAX`: all.
    pub keep: usize,
    /// The sample; none: every in-edge is used, and any store that keeps all will do.
    pub sample: Option<Sample>,
}

/// Which in-edges of a node are kept before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Order in which in-edges are ranked.
    pub sampling: Sampling,
    /// Random seed of the order.
    pub seed: u64,
}

/// A model with what its directory says of its training.
#[derive(Debug)]
pub(crate) struct TrainedModel {
    pub(crate) dir: PathBuf,
    pub(crate) model: Model,
    pub(crate) transform: Transform,
    /// Checksum of each file, by name.
    pub(crate) files: BTreeMap<String, String>,
    /// The neighbourhoods it was trained on, where it is to read the same in-edges at all.
    sampled: Option<FlattenMeta>,
    /// Whether it is to read all in-edges, be it for comparison.
    reads_all: bool,
    /// The graph it was trained on.
    trained_on: Option<GraphMeta>,
    label_names: Option<Vec<String>>,
}

/// The part of a model that one round runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The conv, from 1.
    pub(crate) layer: usize,
    /// In-edges of a node that it reads, those of the lowest ranks.
    pub(crate) limit: usize,
}

impl TrainedModel {
    /// Reads the finished model of a plan and checks its files.
    pub(crate) fn open(plan: &InferPlan) -> Result<Self, InferError> {
        let dir = plan.model.clone();
        let manifest = read_manifest(&dir)?;
        let broken = |problem: String| InferError::Model {
            dir: dir.clone(),
            problem,
        };
        if manifest.stage != "train" {
            let problem = format!(
                "is none: the directory is output of stage `{}`",
                manifest.stage
            );
            return Err(broken(problem));
        }
        verify_checksums(&dir, &manifest.parts)?;
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
        let files = manifest.parts.into_iter().flat_map(|part| part.files);
        Ok(Self {
            model,
            transform: file.transform,
            files: files.map(|entry| (entry.path, entry.checksum)).collect(),
            sampled,
            reads_all: plan.sampling == InferSampling::None || plan.compare_sampling,
            trained_on: entry(&file.extra, "graph").map_err(broken)?,
            label_names: file.label_names,
            dir,
        })
    }

    /// Returns what a store must hold for the in-edges that the slices read.
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
                false => keep_at_hop(&meta.fanouts, 0),
            },
            sample: Some(sample),
        })
    }

    /// Cuts off the slices of the first `layers` convs.
    pub(crate) fn slices(&self, layers: usize, sampling: InferSampling) -> Vec<Slice> {
        let sampled = self.sampled.as_ref();
        let sampled = sampled.filter(|_| sampling == InferSampling::AsTrained);
        let limit = |layer| match sampled {
            Some(meta) => use_at_layer(&meta.fanouts, layer),
            None => usize::MAX,
        };
        (1..=layers)
            .map(|layer| Slice {
                layer,
                limit: limit(layer),
            })
            .collect()
    }

    /// Returns the layer whose output is the embedding.
    pub(crate) fn embedding_layer(&self, plan: &InferPlan) -> Result<usize, InferError> {
        let layers = self.model.architecture().num_layers;
        match plan.layer {
            None => Ok(layers),
            Some(layer) if (1..=layers).contains(&layer) => Ok(layer),
            Some(layer) => Err(InferError::Key {
                key: "infer.layer",
                value: layer.to_string(),
                allowed: format!("the model has layers 1 to {layers}"),
            }),
        }
    }

    /// Checks that graph features were drawn as those that the model was trained on.
    pub(crate) fn check_flatten(&self, found: &FlattenMeta) -> Result<(), InferError> {
        let wanted = self.sampled.as_ref();
        let is_same = wanted.is_some_and(|wanted| {
            (&wanted.fanouts, wanted.sampling, wanted.seed)
                == (&found.fanouts, found.sampling, found.seed)
        });
        if found.samples_per_target != 1 {
            let samples = found.samples_per_target;
            let problem = format!(
                "the graph features hold {samples} samples a target, of which only the first is the \
                 one it was trained on; `flatten.samples_per_target` has to be 1"
            );
            let dir = self.dir.clone();
            return Err(InferError::Unfit { dir, problem });
        }
        if is_same {
            return Ok(());
        }
        Err(InferError::Unfit {
            dir: self.dir.clone(),
            problem: format!(
                "the graph features were drawn otherwise than those it was trained on: {found:?}"
            ),
        })
    }

    /// Checks that the model gives what is to be written.
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

    /// Returns how predictions are written: as the labels that the model was trained on.
    pub(crate) fn prediction(&self) -> LabelMeta {
        if let Some(label) = self
            .trained_on
            .as_ref()
            .and_then(|graph| graph.label.clone())
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

    /// Checks that the graph of a store has what the model reads, and the sample it was trained on.
    pub(crate) fn check(&self, store: &StoreMeta) -> Result<(), InferError> {
        self.check_graph(&store.graph)?;
        self.check_sample(store)
    }

    /// Checks that a graph has what the model reads.
    pub(crate) fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        let unfit = |problem| {
            Err(InferError::Unfit {
                dir: self.dir.clone(),
                problem,
            })
        };
        let arch = self.model.architecture();
        let dim = graph.features.dim();
        if dim != arch.in_dim {
            return unfit(format!(
                "it reads {} features a node, the nodes have {dim}",
                arch.in_dim
            ));
        }
        let is_sparse = matches!(graph.features, FeatureMeta::Sparse { .. });
        if is_sparse && matches!(self.transform, Transform::Standardize { .. }) {
            let problem = "it standardises features, which would fill the nodes' sparse ones";
            return unfit(problem.to_owned());
        }
        if arch.edge_weight && !graph.edge_weight {
            return unfit("it uses edge weights, the edges have none".to_owned());
        }
        let edge_dim = graph.edge_feature_dim.unwrap_or(0);
        if let Some(wanted) = arch.edge_dim.filter(|&wanted| wanted != edge_dim) {
            let problem = format!("it reads {wanted} features an edge, the edges have {edge_dim}");
            return unfit(problem);
        }
        let kind = self.prediction().kind;
        if kind.width() != arch.out_dim {
            let (width, out_dim) = (kind.width(), arch.out_dim);
            return unfit(format!(
                "it gives {out_dim} numbers a node, its labels have {width}"
            ));
        }
        Ok(())
    }

    fn check_sample(&self, store: &StoreMeta) -> Result<(), InferError> {
        let unfit = |problem| {
            Err(InferError::Unfit {
                dir: self.dir.clone(),
                problem,
            })
        };
        let need = self.store_need()?;
        if store.keep.is_some_and(|keep| keep < need.keep as u64) {
            let keep = store.keep.unwrap_or_default();
            return unfit(format!(
                "it reads more in-edges a node than the store's {keep}"
            ));
        }
        match need.sample {
            Some(sample) if (sample.sampling, sample.seed) != (store.sampling, store.seed) => {
                unfit(format!(
                    "it was trained on sampling {:?} with seed {}, the store has {:?} with seed {}; \
                     `infer.sampling` = \"none\" reads all in-edges",
                    sample.sampling, sample.seed, store.sampling, store.seed
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Reads one of the trainer's own entries of `model.json`.
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
