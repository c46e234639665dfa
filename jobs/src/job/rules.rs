//! Checks keys of a job file against their bounds and against other keys.

use bytesize::ByteSize;
use gnn::LayerKind;
use graphflat::{FlattenSpec, Targets};
use graphinfer::{InferSpec, Method};
use graphtrainer::TrainSpec;
use schemas::{EdgesSpec, NodesSpec, Sampling, Transform};

use super::{JobSpec, key};
use crate::error::JobError;
use crate::memory::{BUDGET_MIN, workers_max};
use crate::mistakes::Found;

/// Greatest number of workers: each is a thread and a partition of the store.
const WORKERS_MAX: usize = 1024;

/// Greatest memory budget: one PiB.
const BUDGET_MAX: ByteSize = ByteSize::pib(1);

/// Greatest number of times that a request to a store is sent again.
const RETRIES_MAX: u64 = 1000;

/// Greatest value of `storage.faults_max`.
const FAULTS_MAX: u64 = 1_000_000_000;

/// Greatest number of layers of a model; more are an error of the key alone.
const LAYERS_MAX: usize = 255;

impl JobSpec {
    /// Checks single keys.
    pub(super) fn check_alone(&self, found: &mut Found) {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let plain = self.name.chars().all(allowed) && !self.name.starts_with('.');
        if self.name.is_empty() || !plain {
            let problem = "must be letters, digits, `_`, `-` or `.`, and not start with `.`";
            found.push(key("name", problem));
        }
        if !(BUDGET_MIN..=BUDGET_MAX).contains(&self.memory_budget) {
            let budget = self.memory_budget;
            let problem = format!("is {budget}; allowed is {BUDGET_MIN} to {BUDGET_MAX}");
            found.push(key("memory_budget", problem));
        }
        for (name, number, bounds) in [
            (
                "storage.retries",
                self.storage.retries as u64,
                0..=RETRIES_MAX,
            ),
            (
                "storage.faults_max",
                self.storage.faults_max,
                0..=FAULTS_MAX,
            ),
            ("storage.timeout", self.storage.timeout, 1..=3600),
        ] {
            if !bounds.contains(&number) {
                let (low, high) = (bounds.start(), bounds.end());
                let problem = format!("is {number}; allowed is {low} to {high}");
                found.push(key(name, problem));
            }
        }
    }

    /// Checks the table of each stage on its own.
    pub(super) fn check_tables(&self, found: &mut Found) {
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        if let Some(flatten) = &self.flatten {
            found.extend(flatten.mistakes(is_streamed));
        }
        if let Some(train) = &self.train {
            let has_input = train.input.is_some() || self.flatten.is_some() || is_streamed;
            found.extend(train.mistakes(has_input));
        }
        if let Some(infer) = &self.infer {
            let has_input = infer.input.is_some() || self.flatten.is_some();
            let has_model = infer.model.is_some() || self.train.is_some();
            found.extend(infer.mistakes(has_input, has_model));
        }
    }

    pub(super) fn workers(&self, asked: Option<usize>) -> Result<usize, JobError> {
        let name = if asked.is_some() {
            "--workers"
        } else {
            "workers"
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = workers_max(cores, self.memory_budget);
        let workers = asked.or(self.workers).unwrap_or(cores.min(most));
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(key(
                name,
                format!("is {workers}; allowed is 1 to {WORKERS_MAX}"),
            ));
        }
        if workers > most {
            let problem = format!(
                "is {workers}; {cores} cores and a memory budget of {} allow 1 to {most}: more workers \
                 take memory, and no less time",
                self.memory_budget
            );
            return Err(key(name, problem));
        }
        Ok(workers)
    }

    /// Returns the train stage and the flatten stage whose output it reads, or whose neighbourhoods
    /// it streams.
    pub(super) fn own_training(&self) -> Option<(&TrainSpec, &FlattenSpec)> {
        let (train, flatten) = (self.train.as_ref()?, self.flatten.as_ref()?);
        let reads_own = train.input.is_none() || train.input == flatten.output;
        reads_own.then_some((train, flatten))
    }

    /// Checks each stage against the other stages and the input tables.
    pub(super) fn check_stages(&self, found: &mut Found) {
        self.check_typed(found);
        // An untyped job has one table each. A typed one has other rules for its target type.
        let tables = self.input.nodes.get("").zip(self.input.edges.get(""));
        let Some((nodes, edges)) = tables else {
            return;
        };
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        if self.flatten.is_none() && is_streamed {
            let problem = "needs a table [flatten] that says which neighbourhoods to draw";
            found.push(key("train.streamed", problem));
        }
        if let Some(flatten) = &self.flatten {
            let by_split = matches!(flatten.targets, Targets::Labelled | Targets::Train);
            if by_split && nodes.split.is_none() {
                let problem = "\"labelled\" and \"train\" need `input.nodes.split`; \
                               \"all\" and a list of targets do not";
                found.push(key("flatten.targets", problem));
            }
            let weighted = matches!(flatten.sampling, Sampling::Weighted | Sampling::Top);
            if weighted && edges.weight.is_none() {
                let problem = "\"weighted\" and \"top\" need `input.edges.weight`; \
                               \"uniform\" does not";
                found.push(key("flatten.sampling", problem));
            }
        }
        if let Some((train, flatten)) = self.own_training() {
            // Hops that differ from the fan-outs are an error of [flatten].
            if flatten.hops == flatten.fanouts.len() {
                check_layers(train, flatten.hops, found);
            }
            check_trainable(train, nodes, edges, found);
        }
        self.check_neighborhoods(found);
        let own_model = self.infer.as_ref().filter(|infer| infer.model.is_none());
        let own_layer = own_model.and_then(|infer| infer.layer);
        if let (Some(layer), Some((_, flatten))) = (own_layer, self.own_training())
            && (flatten.hops + 1..=LAYERS_MAX).contains(&layer)
        {
            let problem = format!("is {layer}; the model has layers 1 to {}", flatten.hops);
            found.push(key("infer.layer", problem));
        }
    }

    /// Refuses the stages that do not take node types yet.
    fn check_typed(&self, found: &mut Found) {
        let stages = [
            ("flatten", self.flatten.is_some()),
            ("train", self.train.is_some()),
            ("infer", self.infer.is_some()),
        ];
        for (stage, _) in stages.into_iter().filter(|(_, is_there)| *is_there) {
            if self.input.is_typed() {
                let problem = "does not take node types (`[input.nodes.TYPE]`) yet";
                found.push(key(stage, problem));
            }
        }
    }

    /// Checks that inference on stored neighbourhoods has one sample a target.
    fn check_neighborhoods(&self, found: &mut Found) {
        let by_neighborhoods =
            |infer: &&InferSpec| infer.method == Method::Neighborhoods && infer.input.is_none();
        let samples = self.flatten.as_ref().and_then(|of| of.samples_per_target);
        if let (Some(samples @ 2..), Some(_)) =
            (samples, self.infer.as_ref().filter(by_neighborhoods))
        {
            let problem = format!("is {samples}; `infer.method` = \"neighborhoods\" reads 1");
            found.push(key("flatten.samples_per_target", problem));
        }
    }
}

/// Checks that a model which is trained on this job's neighbourhoods has one layer a hop.
fn check_layers(train: &TrainSpec, hops: usize, found: &mut Found) {
    if let Some(layers) = train.layers.filter(|&layers| layers != hops) {
        let problem = format!("is {layers}; must equal `flatten.hops`, {hops}");
        found.push(key("train.layers", problem));
    }
    let widths = train.hidden.len();
    if widths + 1 != hops && widths != hops {
        let problem = format!(
            "has {widths} widths; {hops} hops need {} (the last layer predicts) or {hops} (a \
             linear head follows)",
            hops.saturating_sub(1)
        );
        found.push(key("train.hidden", problem));
    }
    let last = hops + usize::from(widths == hops);
    let decaying = train.weight_decay_layers.iter().flatten();
    if let Some(layer) = decaying.copied().find(|layer| !(1..=last).contains(layer)) {
        let problem = format!("holds {layer}; the model has layers 1 to {last}");
        found.push(key("train.weight_decay_layers", problem));
    }
}

/// Checks that the job file has the columns that training needs.
fn check_trainable(train: &TrainSpec, nodes: &NodesSpec, edges: &EdgesSpec, found: &mut Found) {
    let takes_edge_features = train.model.takes_edge_features();
    let takers = LayerKind::names_of(LayerKind::takes_edge_features);
    let only = format!("is true; only {takers} take edge features");
    let rules = [
        (
            nodes.label.is_none(),
            "input.nodes.label",
            "is missing; [train] needs the column of the labels",
        ),
        (
            nodes.split.is_none(),
            "input.nodes.split",
            "is missing; [train] needs the column of the splits, or shares such as \
             { train = 0.8, val = 0.1, test = 0.1 }",
        ),
        (
            nodes.features.is_empty() && nodes.sparse.is_none(),
            "input.nodes.features",
            "is missing; [train] needs `features` or `sparse`",
        ),
        (
            nodes.sparse.is_some() && nodes.transform == Some(Transform::Standardize),
            "input.nodes.transform",
            "\"standardize\" would make sparse features dense; allowed is \"row_normalize\"",
        ),
        (
            train.edge_weight == Some(true) && edges.weight.is_none(),
            "train.edge_weight",
            "is true, but the edges have no weights (`input.edges.weight`)",
        ),
        (
            train.edge_features == Some(true) && edges.features.is_empty(),
            "train.edge_features",
            "is true, but the edges have no features (`input.edges.features`)",
        ),
        (
            train.edge_features == Some(true) && !takes_edge_features,
            "train.edge_features",
            &only,
        ),
    ];
    for (_, name, problem) in rules.into_iter().filter(|(is_broken, ..)| *is_broken) {
        found.push(key(name, problem));
    }
}
