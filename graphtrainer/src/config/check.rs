//! Checks of the keys of table `[train]`, alone and together.

use std::fmt::Display;
use std::ops::RangeInclusive;

use gnn::typed::{RelationAggregator, TypedKind};
use gnn::{Aggregator, LayerKind, Norm};

use serde::Serialize;

use super::{Device, TrainSpec, UpdateMode};
use crate::TrainError;
use crate::class_weight::ClassWeights;
use crate::server::{Consistency, OptimizerKind};

/// Largest number of workers or servers: more is a typing error.
const WORKERS_MAX: usize = 1024;

/// Largest number of epochs, and of everything counted in epochs or evaluations.
const EPOCHS_MAX: u64 = 1_000_000;

/// Largest number of steps in a key.
const STEPS_MAX: u64 = 1_000_000_000_000;

/// Largest width of a hidden layer.
const WIDTH_MAX: usize = 1 << 20;

/// Largest number of layers: as many as hops.
const LAYERS_MAX: usize = 255;

/// Largest number of attention heads of a layer.
const HEADS_MAX: usize = 1024;

/// Largest number of targets in a batch: a graph has no more nodes.
const BATCH_MAX: usize = u32::MAX as usize - 1;

/// Largest learning rate and weight decay; largest gradient norm and class weight. More is a typing
/// error, and results stay finite.
const RATE_MAX: f32 = 1e3;
const NORM_MAX: f32 = 1e9;

/// Largest memory of a key: 1 PiB.
const BYTES_MAX: u64 = 1 << 50;

/// Collects mistakes.
#[derive(Default)]
struct Mistakes(Vec<TrainError>);

impl Mistakes {
    /// Adds a mistake unless the value of a key is allowed.
    fn require(&mut self, holds: bool, name: &'static str, value: impl Display, allowed: &str) {
        if !holds {
            self.0.push(TrainError::of_key(name, value, allowed));
        }
    }

    /// Adds a mistake if a number is out of bounds.
    fn within<T>(&mut self, name: &'static str, value: T, bounds: RangeInclusive<T>)
    where
        T: PartialOrd + Display,
    {
        let (low, high) = (bounds.start(), bounds.end());
        let allowed = format!("allowed is {low} to {high}");
        self.require(bounds.contains(&value), name, value, &allowed);
    }

    /// Adds a mistake if a number is not above 0, or too large.
    fn positive(&mut self, name: &'static str, value: f32, most: f32) {
        let allowed = format!("allowed is above 0, at most {most}");
        self.require(value > 0.0 && value <= most, name, value, &allowed);
    }

    /// Adds a mistake if a share is not from 0 to below 1.
    fn share(&mut self, name: &'static str, value: f32) {
        let holds = (0.0..1.0).contains(&value);
        self.require(holds, name, value, "allowed is 0 to below 1");
    }

    fn take<T>(&mut self, result: Result<T, TrainError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }
}

impl TrainSpec {
    /// Returns all mistakes of the table, one error each. `has_input` tells whether there are graph
    /// features to train on.
    pub fn mistakes(&self, has_input: bool) -> Vec<TrainError> {
        let mut found = Mistakes::default();
        if !has_input {
            found.0.push(TrainError::Missing {
                key: "input",
                needed: "a directory of graph features, where the job has no table [flatten]",
            });
        }
        self.check_counts(&mut found);
        self.check_rates(&mut found);
        self.check_layer_keys(&mut found);
        self.check_typed_keys(&mut found);
        self.check_class_weights(&mut found);
        found.0.extend(self.link_mistakes());
        let consistency = found.take(self.consistency());
        self.check_workers(consistency, &mut found);
        self.check_momentum(&mut found);
        if let Some(schedule) = self.schedule {
            // `check_counts` reports epochs that are out of bounds.
            found.take(schedule.checked(self.epochs.max(1)));
        }
        self.check_device(&mut found);
        self.check_streamed(&mut found);
        found.0
    }

    /// Checks whole numbers.
    fn check_counts(&self, found: &mut Mistakes) {
        found.within("layers", self.layers.unwrap_or(1), 1..=LAYERS_MAX);
        found.within("heads", self.heads.unwrap_or(1), 1..=HEADS_MAX);
        found.within("out_heads", self.out_heads.unwrap_or(1), 1..=HEADS_MAX);
        found.within("batch_size", self.batch_size, 1..=BATCH_MAX);
        found.within("servers", self.servers, 1..=WORKERS_MAX);
        for (name, count) in [
            ("epochs", self.epochs),
            ("evaluate_every", self.evaluate_every),
            ("patience", self.patience.unwrap_or(1)),
            ("checkpoint_every", self.checkpoint_every),
        ] {
            found.within(name, count, 1..=EPOCHS_MAX);
        }
        let steps = self.checkpoint_every_steps.unwrap_or(1);
        found.within("checkpoint_every_steps", steps, 1..=STEPS_MAX);
        let cache = self.cache_bytes.map_or(0, |bytes| bytes.as_u64());
        found.within("cache_bytes", cache, 0..=BYTES_MAX);
        let mut widths = self.hidden.iter();
        if let Some(width) = widths.find(|&&width| !(1..=WIDTH_MAX).contains(&width)) {
            found.within("hidden", *width, 1..=WIDTH_MAX);
        }
        let mut layers = self.weight_decay_layers.iter().flatten();
        let most = LAYERS_MAX + 1; // the head
        if let Some(layer) = layers.find(|&&layer| !(1..=most).contains(&layer)) {
            found.within("weight_decay_layers", *layer, 1..=most);
        }
    }

    /// Checks numbers with fractions.
    fn check_rates(&self, found: &mut Mistakes) {
        found.share("dropout", self.dropout.unwrap_or(0.0));
        found.share("input_dropout", self.input_dropout);
        found.share("attention_dropout", self.attention_dropout);
        found.positive("learning_rate", self.learning_rate, RATE_MAX);
        if let Some(norm) = self.clip_norm {
            found.positive("clip_norm", norm, NORM_MAX);
        }
        found.within("weight_decay", self.weight_decay, 0.0..=RATE_MAX);
        let of_rows = self.embedding_weight_decay;
        found.within("embedding_weight_decay", of_rows, 0.0..=RATE_MAX);
    }

    fn check_layer_keys(&self, found: &mut Mistakes) {
        let takes = matches!(self.model, TypedKind::Conv(kind) if kind.takes_maximum());
        let takes_max = takes || self.aggregator != Some(Aggregator::Max);
        let names = LayerKind::names_of(LayerKind::takes_maximum);
        let allowed = format!("only {names} can take the maximum");
        found.require(takes_max, "aggregator", "\"max\"", &allowed);
        let heads = self.heads.unwrap_or(1);
        if self.model.is_attention() {
            let divides = format!("has to divide the widths in `hidden`, {:?}", self.hidden);
            let are_even = heads == 0 || self.hidden.iter().all(|width| width % heads == 0);
            return found.require(are_even, "heads", heads, &divides);
        }
        let attentive = TypedKind::names_of(TypedKind::is_attention);
        let only = format!("only {attentive} have attention");
        found.require(heads <= 1, "heads", heads, &only);
        let out_heads = self.out_heads.unwrap_or(1);
        found.require(out_heads <= 1, "out_heads", out_heads, &only);
        let dropout = self.attention_dropout;
        found.require(dropout == 0.0, "attention_dropout", dropout, &only);
    }

    /// Checks the keys of models of typed graphs.
    fn check_typed_keys(&self, found: &mut Mistakes) {
        for (name, width) in [
            ("projection", self.projection),
            ("bases", self.bases),
            ("relation_dim", self.relation_dim),
        ] {
            found.within(name, width.unwrap_or(1), 1..=WIDTH_MAX);
        }
        found.share("attention_residual", self.attention_residual.unwrap_or(0.0));
        let is_conv = self.model.joins_relations();
        if let Some(joined) = self.relation_aggregator {
            let convs = TypedKind::names_of(TypedKind::joins_relations);
            let only = format!("only {convs} have an output for each relation");
            let is_free = is_conv || joined == RelationAggregator::Sum;
            found.require(is_free, "relation_aggregator", quoted(joined), &only);
        }
        if let Some(bases) = self.bases {
            let is_rgcn = self.model == TypedKind::Rgcn;
            found.require(is_rgcn, "bases", bases, "only rgcn has bases");
        }
        let is_hgn = self.model == TypedKind::SimpleHgn;
        if let Some(width) = self.relation_dim {
            let only = "only simple_hgn has embeddings of relations";
            found.require(is_hgn, "relation_dim", width, only);
        }
        if let Some(share) = self.attention_residual {
            let only = "only simple_hgn adds the attention of the layer before";
            found.require(is_hgn, "attention_residual", share, only);
        }
        self.check_light_keys(found);
        let has_own = self.model == TypedKind::Hgt && self.residual;
        let allowed = "hgt has a residual of its own, so allowed is false";
        found.require(!has_own, "residual", true, allowed);
    }

    /// Checks that a `lightgcn` has no option that changes rows between its layers, and that another
    /// model has none of its options.
    fn check_light_keys(&self, found: &mut Mistakes) {
        if self.model != TypedKind::Conv(LayerKind::LightGcn) {
            let shares = self.whole_parts == Some(true);
            let only = "only the batches of lightgcn can share a part";
            return found.require(!shares, "whole_parts", true, only);
        }
        let only = "lightgcn propagates rows as they are: leave it out";
        let dropout = self.dropout.unwrap_or(0.0);
        found.require(dropout == 0.0, "dropout", dropout, only);
        let of_input = self.input_dropout;
        found.require(of_input == 0.0, "input_dropout", of_input, only);
        if let Some(activation) = self.activation {
            found.require(false, "activation", quoted(activation), only);
        }
        let norm = quoted(self.norm);
        found.require(self.norm == Norm::None, "norm", norm, only);
        found.require(!self.residual, "residual", true, only);
    }

    fn check_device(&self, found: &mut Mistakes) {
        let allowed = "this program was built without GPUs: build it with `cargo build --release \
                       --features gpu`, or take one of \"auto\", \"cpu\"";
        let fits = gnn::Device::HAS_GPU || self.device != Device::Gpu;
        found.require(fits, "device", "\"gpu\"", allowed);
    }

    fn check_class_weights(&self, found: &mut Mistakes) {
        let Some(ClassWeights::Listed(weights)) = &self.class_weights else {
            return;
        };
        let bounds = 0.0..=NORM_MAX;
        if let Some(weight) = weights.iter().find(|weight| !bounds.contains(*weight)) {
            return found.within("class_weights", *weight, bounds);
        }
        let counts = weights.iter().any(|&weight| weight > 0.0);
        let allowed = "at least one weight must be above 0";
        found.require(counts, "class_weights", format!("{weights:?}"), allowed);
    }

    /// Returns how the updates of workers are ordered.
    pub(super) fn consistency(&self) -> Result<Consistency, TrainError> {
        match (self.mode, self.staleness) {
            (UpdateMode::Sync, None) => Ok(Consistency::Sync),
            (UpdateMode::Async, None) => Ok(Consistency::Async),
            (UpdateMode::Bounded, Some(staleness)) if staleness > EPOCHS_MAX => {
                let allowed = format!("allowed is 0 to {EPOCHS_MAX}");
                Err(TrainError::of_key("staleness", staleness, allowed))
            }
            (UpdateMode::Bounded, Some(staleness)) => Ok(Consistency::Bounded(staleness)),
            (UpdateMode::Bounded, None) => Err(TrainError::Missing {
                key: "staleness",
                needed: "how many steps a worker may be ahead in mode \"bounded\"",
            }),
            (_, Some(steps)) => Err(TrainError::of_key(
                "staleness",
                steps,
                "only mode \"bounded\" has staleness",
            )),
        }
    }

    fn check_workers(&self, consistency: Option<Consistency>, found: &mut Mistakes) {
        let workers = self.workers.unwrap_or(1);
        found.within("workers", workers, 1..=WORKERS_MAX);
        // Each worker would take the statistics of its own share, so N workers would not equal one.
        let is_exact = self.norm != Norm::Batch || consistency != Some(Consistency::Sync);
        let allowed = "with `train.norm` = \"batch\" mode \"sync\" allows 1";
        found.require(workers <= 1 || is_exact, "workers", workers, allowed);
    }

    fn check_streamed(&self, found: &mut Mistakes) {
        if !self.streamed {
            return;
        }
        if let Some(input) = &self.input {
            let allowed = "leave it out: with `train.streamed` nothing is read from files";
            found.require(false, "input", input.display(), allowed);
        }
    }

    fn check_momentum(&self, found: &mut Mistakes) {
        let Some(momentum) = self.momentum else {
            return;
        };
        let only = "only optimizer \"sgd\" has momentum";
        let is_sgd = self.optimizer == OptimizerKind::Sgd;
        found.require(is_sgd, "momentum", momentum, only);
        found.share("momentum", momentum);
    }
}

/// Returns the name of a named value, in quotes as written in a job file.
pub(crate) fn quoted(value: impl Serialize) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}
