//! A checked training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gnn::typed::{RelationAggregator, TypedKind};
use gnn::{Activation, Aggregator, Norm, Readout};
use schemas::Transform;
use serde::Serialize;

use super::links::{LinkKeys, LinkPlan};
use super::{Device, Loss};
use crate::TrainError;
use crate::class_weight::ClassWeights;
use crate::metric::Metric;
use crate::schedule::ScheduleSpec;
use crate::server::{Consistency, GradientFormat, Optimizer};

/// Memory for decoded parts and kept batches where neither the job nor a small memory budget sets it.
const CACHE_BYTES: u64 = 512 << 20;

/// The values of a job outside `[train]` that a training needs.
#[derive(Clone, Debug)]
pub struct TrainContext {
    /// Output of `[flatten]`, if the job has one; for streamed training the store.
    pub input: Option<PathBuf>,
    /// The job's random seed.
    pub job_seed: u64,
    /// Transform of the node features, fitted on the train targets. Typed graphs have
    /// [`TrainPlan::with_transforms`].
    pub transform: Option<Transform>,
    /// By type (with the empty name in an untyped graph) and feature column: the number of categories
    /// above which they become learnable codes, where the job sets it.
    pub one_hot: BTreeMap<String, BTreeMap<String, u32>>,
    /// Directory that relative paths start at.
    pub base: PathBuf,
    /// Whether an existing output is replaced.
    pub fresh: bool,
}

/// A checked training: all keys are checked except those that depend on the data.
#[derive(Clone, Debug, Serialize)]
pub struct TrainPlan {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    pub(crate) result: ResultPlan,
    pub(crate) tuning: TuningPlan,
    /// Settings of the sample of streamed training, recorded in the manifest.
    pub(crate) sample: serde_json::Value,
    #[serde(skip)]
    pub(crate) fresh: bool,
}

/// The keys that the trained model depends on.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResultPlan {
    pub(crate) streamed: bool,
    pub(crate) layer: TypedKind,
    pub(crate) hidden: Vec<usize>,
    pub(crate) layers: Option<usize>,
    pub(crate) heads: usize,
    pub(crate) out_heads: usize,
    pub(crate) aggregator: Aggregator,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) relation_aggregator: Option<RelationAggregator>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) readout: Option<Readout>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) projection: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bases: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) relation_dim: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attention_residual: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) normalize_output: Option<bool>,
    pub(crate) activation: Activation,
    pub(crate) dropout: f32,
    pub(crate) input_dropout: f32,
    pub(crate) attention_dropout: f32,
    pub(crate) norm: Norm,
    pub(crate) residual: bool,
    pub(crate) edge_weight: Option<bool>,
    pub(crate) edge_features: Option<bool>,
    pub(crate) transform: Option<Transform>,
    /// By type, in a typed graph; types without a transform are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) transforms: BTreeMap<String, Transform>,
    /// By type, the bounds of its columns; types without a bound are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) one_hot: BTreeMap<String, BTreeMap<String, u32>>,
    /// By type (with the empty name in an untyped graph), the width of its nodes' learnable rows; types
    /// without such rows are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) embeddings: BTreeMap<String, usize>,
    pub(crate) optimizer: Optimizer,
    /// In epochs; the number of targets decides how many steps the optimiser gets.
    pub(crate) schedule: Option<ScheduleSpec>,
    pub(crate) weight_decay: f32,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) embedding_weight_decay: f32,
    pub(crate) weight_decay_layers: Option<Vec<usize>>,
    pub(crate) epochs: u64,
    pub(crate) batch_size: usize,
    pub(crate) evaluate_every: u64,
    pub(crate) patience: Option<u64>,
    pub(crate) monitor: Option<Metric>,
    pub(crate) loss: Option<Loss>,
    pub(crate) class_weights: Option<ClassWeights>,
    #[serde(flatten)]
    pub(crate) links: LinkKeys,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) consistency: Consistency,
    pub(crate) gradient_format: GradientFormat,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &f32) -> bool {
    *value == 0.0
}

/// The keys that only change speed and memory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TuningPlan {
    pub(crate) servers: usize,
    pub(crate) pruning: bool,
    pub(crate) edge_partitioning: bool,
    pub(crate) checkpoint_every: u64,
    pub(crate) checkpoint_every_steps: Option<u64>,
    /// As the job sets it.
    pub(crate) cache_bytes: Option<u64>,
    /// Of the job, in bytes.
    pub(crate) memory_budget: u64,
    /// Changes the last bits of results; a training may resume on another device.
    pub(crate) device: Device,
}

impl ResultPlan {
    /// Returns what decides the loss of pairs, for a graph with pairs.
    pub(crate) fn links(&self) -> LinkPlan {
        let kind = self.loss.and_then(Loss::pair_kind).unwrap_or_default();
        self.links.plan(kind, self.batch_size)
    }
}

impl TrainPlan {
    /// Returns the directory of graph features that the training reads; for streamed training the
    /// store.
    pub fn input(&self) -> &Path {
        &self.input
    }

    /// Records the settings of the sample for readers of the manifest. The identity of a streamed
    /// training is the fingerprint of its source.
    pub fn with_sample(mut self, settings: serde_json::Value) -> Self {
        self.sample = settings;
        self
    }

    /// Sets the transforms of a typed graph's node features, by type; types without a transform are
    /// left out. [`TrainContext::transform`] is then not used.
    pub fn with_transforms(mut self, transforms: BTreeMap<String, Transform>) -> Self {
        self.result.transforms = transforms;
        self
    }

    /// Makes graphs the targets of the plan, with the readout `mean` unless the job names one.
    pub fn of_graphs(mut self) -> Self {
        self.result.readout.get_or_insert_default();
        self
    }

    /// Gives the nodes of some types learnable rows: their widths by type, with the empty name in an
    /// untyped graph.
    pub fn with_embeddings(mut self, embeddings: BTreeMap<String, usize>) -> Self {
        self.result.embeddings = embeddings;
        self
    }

    /// Returns whether each epoch is drawn from the store.
    pub fn is_streamed(&self) -> bool {
        self.result.streamed
    }

    /// Sets the job's memory budget, in bytes; decoded parts and kept batches take a quarter of it at
    /// most, unless the job sets their memory.
    pub fn with_memory_budget(mut self, memory_budget: usize) -> Self {
        self.tuning.memory_budget = memory_budget as u64;
        self
    }

    /// Returns the bytes of memory for decoded parts; batches may take as many.
    pub fn part_cache_bytes(&self) -> usize {
        let default = CACHE_BYTES.min(self.tuning.memory_budget / 4);
        let cache = self.tuning.cache_bytes.unwrap_or(default);
        usize::try_from(cache / 2).unwrap_or(usize::MAX)
    }

    /// Checks that the device of the plan is available.
    ///
    /// # Errors
    ///
    /// [`TrainError::NoGpu`] if the plan needs a GPU and there is none.
    pub fn check_device(&self) -> Result<(), TrainError> {
        match self.tuning.device {
            Device::Gpu => self.tuning.device.open().map(drop),
            Device::Auto | Device::Cpu => Ok(()),
        }
    }

    /// Returns the directory the model is written to.
    pub fn output(&self) -> &Path {
        &self.output
    }
}
