//! Table `[train]`: as written ([`TrainSpec`]) and as checked ([`TrainPlan`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use gnn::typed::{RelationAggregator, TypedKind};
use gnn::{Activation, Aggregator, Decoder, LayerKind, Norm, Readout};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::class_weight::ClassWeights;
use crate::metric::Metric;
use crate::schedule::ScheduleSpec;
use crate::server::{GradientFormat, Optimizer, OptimizerKind};

mod check;
mod kinds;
mod links;
mod plan;

pub(crate) use check::quoted;
pub use kinds::{Device, Loss, UpdateMode};
pub(crate) use links::LinkPlan;
pub(crate) use links::NEGATIVES_MAX;
pub use links::{BatchBy, DrawBy, InBatch, NegativesSpec};
pub(crate) use plan::{ResultPlan, TuningPlan};
pub use plan::{TrainContext, TrainPlan};

/// Default dropout on the input of layers.
const DROPOUT: f32 = 0.5;

/// Table `[train]` as written.
///
/// Only `model`, `epochs` and `output` are required. The keys below give the defaults of the
/// others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// Kind of layer: `gcn`, `sage`, `gat`, `gatv2`, `gin` or `lightgcn`; for a typed graph also
    /// `rgcn`, `simple_hgn` or `hgt`.
    pub model: TypedKind,
    /// Widths of the hidden layers. With one width fewer than hops, the last layer computes the
    /// prediction; with as many as hops, a linear head does. Default: none, which fits one hop.
    #[serde(default)]
    pub hidden: Vec<usize>,
    /// Number of layers; must equal the hops of the graph features, which is the default.
    pub layers: Option<usize>,
    /// Attention heads of a hidden layer, concatenated to its width. Default 1.
    pub heads: Option<usize>,
    /// Attention heads of the last layer, averaged; a linear head has none. Default 1.
    pub out_heads: Option<usize>,
    /// `mean` (default) or `max`, for `sage`.
    pub aggregator: Option<Aggregator>,
    /// Typed graphs: how a node's outputs of several relations are joined: `sum` (default), `mean`
    /// or `max`; for kinds with a conv for each relation.
    pub relation_aggregator: Option<RelationAggregator>,
    /// Graphs as targets: how the rows of a graph's nodes become its row: `mean` (default), `sum` or
    /// `max`.
    pub readout: Option<Readout>,
    /// Typed graphs: width that the features of every type are projected to, before layer 1.
    /// Default: the first width in `hidden`.
    pub projection: Option<usize>,
    /// `rgcn`: number of bases; the weight of a relation is a combination of them. Default: each
    /// relation has its own weight.
    pub bases: Option<usize>,
    /// `simple_hgn`: width of a relation's embedding. Default 64.
    pub relation_dim: Option<usize>,
    /// `simple_hgn`: share of the layer before in the attention of a hidden layer. Default 0.05.
    pub attention_residual: Option<f32>,
    /// Typed graphs: whether the logits of a node are divided by their length. Default: for
    /// `simple_hgn`.
    pub normalize_output: Option<bool>,
    /// Non-linearity of hidden layers: `relu` (default) or `elu`; `lightgcn` has none.
    pub activation: Option<Activation>,
    /// Dropout on the input of every layer but the first. Default 0.5; `lightgcn` has none.
    pub dropout: Option<f32>,
    /// Dropout on the features. Default 0.
    #[serde(default)]
    pub input_dropout: f32,
    /// Dropout on attention coefficients. Default 0.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Normalisation of hidden layers: `none` (default), `batch` or `layer`. `batch` takes its
    /// statistics from all rows that the batch of one worker needs of a layer. So mode `sync`
    /// refuses it with more than one worker.
    #[serde(default)]
    pub norm: Norm,
    /// Whether a layer adds its input to its output. Default false.
    #[serde(default)]
    pub residual: bool,
    /// Whether edge weights are used. Default: if the edges have them.
    pub edge_weight: Option<bool>,
    /// Whether edge features are used. Default: if the edges have them and the layer takes them.
    pub edge_features: Option<bool>,
    /// Update rule: `sgd`, `adam` (default) or `adamw`.
    #[serde(default)]
    pub optimizer: OptimizerKind,
    /// Step size. Default 0.01.
    #[serde(default = "default_learning_rate")]
    pub learning_rate: f32,
    /// How the step size changes: `{ kind = "cosine", warmup = 5 }`. Default: it does not.
    pub schedule: Option<ScheduleSpec>,
    /// Largest norm of an update's gradient, over all parameters; a longer gradient is scaled down
    /// to it. Default: no limit.
    pub clip_norm: Option<f32>,
    /// Momentum of `sgd`. Default 0.
    pub momentum: Option<f32>,
    /// Weight decay; `adamw` decouples it from the gradient. Default 0.
    #[serde(default)]
    pub weight_decay: f32,
    /// Weight decay of learnable rows that have a gradient; as `weight_decay`. Default 0.
    #[serde(default)]
    pub embedding_weight_decay: f32,
    /// 1-based layers whose parameters decay; the head counts as the last. Default: all.
    pub weight_decay_layers: Option<Vec<usize>>,
    /// Largest number of passes over the train targets.
    pub epochs: u64,
    /// Targets of a worker in one step. Default 512.
    #[serde(default = "default_batch_size")]
    pub batch_size: usize,
    /// Epochs between evaluations on the val split; the last epoch is always evaluated. Only
    /// evaluated epochs can be the best. Default 1.
    #[serde(default = "default_evaluate_every")]
    pub evaluate_every: u64,
    /// Ends the training after this many evaluations without a better val metric. Default: never.
    pub patience: Option<u64>,
    /// Metric on the val split that chooses the best epoch: `accuracy`, `micro_f1`, `macro_f1`,
    /// `auc`, `loss`, `r2`, `mae` or `rmse`, if the labels allow it; with pairs `mrr`, `hits@1`,
    /// `hits@10`, `hits@50`, `ndcg@10`, `ndcg@50`, `auc`, `average_precision` or `loss`, and
    /// `recall@20` or `ndcg@20` where pairs are ranked among all nodes. Default: `accuracy` for
    /// classes, `micro_f1` for several labels, `loss` for numbers, `mrr` for pairs.
    pub monitor: Option<Metric>,
    /// The loss, which must fit the labels: `cross_entropy` for classes, `binary_cross_entropy` for
    /// several labels, `mean_squared_error` for numbers. Default: the one that fits. With pairs
    /// `softmax` (default), `binary_cross_entropy`, `bpr` or `margin`.
    pub loss: Option<Loss>,
    /// Pairs: how two embeddings become a score: `dot` (default), `cosine`, `distmult` or `mlp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder: Option<Decoder>,
    /// Pairs: divisor of every score in the loss. Default: 0.1 for `cosine`, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Pairs: wanted distance between the scores of a pair and of its negatives, for loss `margin`.
    /// Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<f32>,
    /// Pairs: `{ in_batch = true, random = 32, hard = 0, evaluation = 100 }`, which are the
    /// defaults: whether dst nodes of other pairs of the batch are negatives (or in sections of how
    /// many pairs), random negatives of a pair, listed negatives of a pair, and random negatives that
    /// a val or test pair is ranked among. `all = true`: all random negatives of the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negatives: Option<NegativesSpec>,
    /// Pairs: the unit of batches: `pair` (default), or `src`: a batch has `batch_size` src nodes, each
    /// with all train pairs of its part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_by: Option<BatchBy>,
    /// Pairs: the d train pairs of a src node in its part weigh `d ^ src_power` together. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_power: Option<f32>,
    /// Pairs: whether all batches of a part share the blocks of its targets; `lightgcn` only.
    /// Default: as `negatives.all`.
    pub whole_parts: Option<bool>,
    /// Weight of a target's loss by its class: a list, or `"balanced"`. Default: 1 for all.
    pub class_weights: Option<ClassWeights>,
    /// Random seed of weights, order and dropout. Default: the job's.
    pub seed: Option<u64>,
    /// Workers that compute steps: 1 (default) to 1024, on any machine. In sync mode an update has
    /// `workers` x `batch_size` targets, so this key changes results.
    pub workers: Option<usize>,
    /// Shards of the parameter server. Default 1; changes no result.
    #[serde(default = "default_servers")]
    pub servers: usize,
    /// `sync` (default), `async` or `bounded`.
    #[serde(default)]
    pub mode: UpdateMode,
    /// Steps a worker may be ahead of the slowest, for mode `bounded`.
    pub staleness: Option<u64>,
    /// Format of gradients on the way to the parameter server: `f32` (default) or `bf16`. `bf16`
    /// halves the bytes sent; results then differ from `f32`, and several workers no longer equal
    /// one worker to 1e-5.
    #[serde(default)]
    pub gradient_format: GradientFormat,
    /// `auto` (default), `cpu` or `gpu`. Results of a GPU differ from the processor's in the last
    /// bits.
    #[serde(default)]
    pub device: Device,
    /// Whether layers skip rows that no target of the batch needs. Default true; changes only
    /// speed.
    #[serde(default = "default_true")]
    pub pruning: bool,
    /// Whether threads get rows with equal numbers of edges. Default true; changes only speed.
    #[serde(default = "default_true")]
    pub edge_partitioning: bool,
    /// Epochs between checkpoints. Default 1; changes no result.
    #[serde(default = "default_checkpoint_every")]
    pub checkpoint_every: u64,
    /// Steps between checkpoints, also within epochs. In every mode, workers wait for each other at
    /// these checkpoints. Default: only the checkpoints of `checkpoint_every`; changes no result.
    pub checkpoint_every_steps: Option<u64>,
    /// Memory for decoded parts and kept batches, such as "512MiB". Default: that, or a quarter of
    /// the job's memory budget if this is less. Parts that do not fit are decoded again each epoch.
    pub cache_bytes: Option<ByteSize>,
    /// Whether neighbourhoods are drawn from the store while the model trains, with a new sample
    /// each epoch, instead of being read from files. Default false.
    #[serde(default)]
    pub streamed: bool,
    /// Directory of graph features. Default: the output of `[flatten]`.
    pub input: Option<PathBuf>,
    /// Directory of the model.
    pub output: PathBuf,
}

impl TrainSpec {
    /// Checks the keys and resolves the paths.
    ///
    /// [`train`](crate::train) checks keys that depend on the data (hops, labels, splits) before
    /// its first step.
    ///
    /// # Errors
    ///
    /// The first of [`TrainSpec::mistakes`]; a path that is not valid.
    pub fn into_plan(self, ctx: TrainContext) -> Result<TrainPlan, TrainError> {
        let input = self.input.clone().or(ctx.input);
        if let Some(first) = self.mistakes(input.is_some()).into_iter().next() {
            return Err(first);
        }
        let input = input.expect("it was checked to be there");
        let consistency = self.consistency()?;
        let schedule = self.schedule.map(|written| written.checked(self.epochs));
        let (optimizer, links, dropout) = (self.update_rule(), self.link_keys(), self.dropout());
        Ok(TrainPlan {
            input: resolve(&ctx.base, &input, "input")?,
            output: resolve(&ctx.base, &self.output, "output")?,
            result: ResultPlan {
                streamed: self.streamed,
                layer: self.model,
                hidden: self.hidden,
                layers: self.layers,
                heads: self.heads.unwrap_or(1),
                out_heads: self.out_heads.unwrap_or(1),
                aggregator: self.aggregator.unwrap_or_default(),
                relation_aggregator: self.relation_aggregator,
                readout: self.readout,
                projection: self.projection,
                bases: self.bases,
                relation_dim: self.relation_dim,
                attention_residual: self.attention_residual,
                normalize_output: self.normalize_output,
                activation: self.activation.unwrap_or_default(),
                dropout,
                input_dropout: self.input_dropout,
                attention_dropout: self.attention_dropout,
                norm: self.norm,
                residual: self.residual,
                edge_weight: self.edge_weight,
                edge_features: self.edge_features,
                transform: ctx.transform,
                transforms: BTreeMap::new(),
                one_hot: ctx.one_hot,
                embeddings: BTreeMap::new(),
                optimizer,
                schedule: schedule.transpose()?.flatten(),
                weight_decay: self.weight_decay,
                embedding_weight_decay: self.embedding_weight_decay,
                weight_decay_layers: self.weight_decay_layers,
                epochs: self.epochs,
                batch_size: self.batch_size,
                evaluate_every: self.evaluate_every,
                patience: self.patience,
                monitor: self.monitor,
                loss: self.loss,
                class_weights: self.class_weights,
                links,
                seed: self.seed.unwrap_or(ctx.job_seed),
                workers: self.workers.unwrap_or(1),
                consistency,
                gradient_format: self.gradient_format,
            },
            tuning: TuningPlan {
                servers: self.servers,
                pruning: self.pruning,
                edge_partitioning: self.edge_partitioning,
                checkpoint_every: self.checkpoint_every,
                checkpoint_every_steps: self.checkpoint_every_steps,
                cache_bytes: self.cache_bytes.map(|bytes| bytes.as_u64()),
                memory_budget: u64::MAX,
                device: self.device,
            },
            sample: serde_json::Value::Null,
            fresh: ctx.fresh,
        })
    }
}

impl TrainSpec {
    /// Returns the share of outputs that are dropped: what is written, or the model's default.
    fn dropout(&self) -> f32 {
        self.dropout.unwrap_or(match self.model {
            TypedKind::Conv(LayerKind::LightGcn) => 0.0,
            _ => DROPOUT,
        })
    }

    /// Returns the update rule, without a schedule.
    fn update_rule(&self) -> Optimizer {
        Optimizer {
            kind: self.optimizer,
            learning_rate: self.learning_rate,
            momentum: self.momentum.unwrap_or(0.0),
            schedule: None,
            clip_norm: self.clip_norm,
        }
    }
}

fn resolve(base: &Path, path: &Path, name: &'static str) -> Result<PathBuf, TrainError> {
    Ok(schemas::path::resolve(
        &format!("train.{name}"),
        base,
        path,
    )?)
}

fn default_learning_rate() -> f32 {
    0.01
}

fn default_batch_size() -> usize {
    512
}

fn default_evaluate_every() -> u64 {
    1
}

fn default_servers() -> usize {
    1
}

fn default_checkpoint_every() -> u64 {
    1
}

fn default_true() -> bool {
    true
}

#[cfg(test)]
pub(crate) mod tests;
