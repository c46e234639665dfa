//! Checks keys of a job file against their bounds and against other keys.

use bytesize::ByteSize;
use gnn::LayerKind;
use gnn::typed::TypedKind;
use graphflat::{FlattenSpec, Targets};
use graphinfer::{InferSpec, Method};
use graphtrainer::TrainSpec;
use schemas::{NodesSpec, Sampling, Transform};

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
        if let Some(score) = &self.score {
            let has_input = score.input.is_some() || self.infer.is_some();
            let has_model = score.model.is_some() || self.infer.is_some() || self.train.is_some();
            found.extend(score.mistakes(has_input, has_model, self.input.pairs.is_some()));
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
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        if self.flatten.is_none() && is_streamed {
            let problem = "needs a table [flatten] that says which neighbourhoods to draw";
            found.push(key("train.streamed", problem));
        }
        if let Some(flatten) = &self.flatten {
            self.check_sample(flatten, found);
        }
        if let Some((train, flatten)) = self.own_training() {
            // Hops that differ from the fan-outs are an error of [flatten].
            if flatten.hops == flatten.fanouts.len() {
                check_layers(train, flatten.hops, found);
            }
            self.check_trainable(train, found);
        }
        self.check_neighborhoods(found);
        self.check_graphs(found);
        let own_model = self.infer.as_ref().filter(|infer| infer.model.is_none());
        let own_layer = own_model.and_then(|infer| infer.layer);
        if let (Some(layer), Some((_, flatten))) = (own_layer, self.own_training())
            && (flatten.hops + 1..=LAYERS_MAX).contains(&layer)
        {
            let problem = format!("is {layer}; the model has layers 1 to {}", flatten.hops);
            found.push(key("infer.layer", problem));
        }
    }

    /// Returns the name and the table of the target type; none if the job does not say which it is,
    /// which is a mistake of its own.
    fn target_table(&self) -> Option<(&str, &NodesSpec)> {
        let flatten = self.flatten.as_ref().filter(|_| self.input.is_typed());
        let named = flatten.and_then(|flatten| flatten.target_type.as_deref());
        let mut tables = self.input.nodes.iter().filter(|(name, nodes)| {
            named.map_or(name.is_empty() || nodes.label.is_some(), |of| of == *name)
        });
        let (name, nodes) = tables.next()?;
        tables.next().is_none().then_some((name, nodes))
    }

    /// Returns which columns the table of the targets has; none if the ends of pairs are the targets,
    /// whatever the columns of nodes.
    fn target_columns(&self) -> Option<TargetColumns> {
        if self.input.pairs.is_some() {
            return None;
        }
        if let Some(graphs) = &self.input.graphs {
            return Some(TargetColumns {
                table: "input.graphs".to_owned(),
                has_label: graphs.label.is_some(),
                has_split: graphs.split.is_some(),
            });
        }
        let (name, nodes) = self.target_table()?;
        Some(TargetColumns {
            table: match name {
                "" => "input.nodes".to_owned(),
                _ => format!("input.nodes.{name}"),
            },
            has_label: nodes.label.is_some(),
            has_split: nodes.split.is_some(),
        })
    }

    /// Checks the keys of stages that only jobs with graphs have, or only those without.
    fn check_graphs(&self, found: &mut Found) {
        let has_graphs = self.input.graphs.is_some();
        let readout = self.train.as_ref().and_then(|train| train.readout);
        if readout.is_some() && !has_graphs {
            let problem = "needs [input.graphs], the graphs that are the targets";
            found.push(key("train.readout", problem));
        }
        let layer = self.infer.as_ref().and_then(|infer| infer.layer);
        if layer.is_some() && has_graphs {
            let problem = "is for models of nodes; the embedding of a graph is its readout; leave \
                           it out";
            found.push(key("infer.layer", problem));
        }
    }

    /// Checks that the tables have the columns that a sample reads.
    fn check_sample(&self, flatten: &FlattenSpec, found: &mut Found) {
        let by_split = matches!(flatten.targets, Targets::Labelled | Targets::Train);
        if let Some(target) = self.target_columns()
            && by_split
            && !target.has_split
        {
            let split = format!("{}.split", target.table);
            let problem = format!(
                "\"labelled\" and \"train\" need `{split}`; \"all\" and a list of targets do not"
            );
            found.push(key("flatten.targets", problem));
        }
        let weighted = matches!(flatten.sampling, Sampling::Weighted | Sampling::Top);
        let mut edges = self.input.edges.iter();
        let lacking = edges.find(|(_, edges)| weighted && edges.weight.is_none());
        if let Some((name, _)) = lacking {
            let weight = edges_key(name, "weight");
            let problem = format!("\"weighted\" and \"top\" need `{weight}`; \"uniform\" does not");
            found.push(key("flatten.sampling", problem));
        }
    }

    /// Checks that the job file has the columns that training needs.
    fn check_trainable(&self, train: &TrainSpec, found: &mut Found) {
        if let Some(target) = self.target_columns() {
            check_labels(&target, found);
        }
        for (name, nodes) in &self.input.nodes {
            check_features(name, nodes, found);
        }
        self.check_edges(train, found);
    }

    /// Checks that the edges have the columns that `[train]` asks for.
    fn check_edges(&self, train: &TrainSpec, found: &mut Found) {
        let is_typed = self.input.is_typed();
        let takes_edge_features = train.model.takes_edge_features();
        let takers = LayerKind::names_of(LayerKind::takes_edge_features);
        let only = format!("is true; only {takers} take edge features");
        let weighted = TypedKind::names_of(TypedKind::takes_edge_weights);
        let only_weighted = format!("is true; only {weighted} use edge weights");
        let of_edges = match is_typed {
            true => "input.edges.RELATION",
            false => "input.edges",
        };
        let missing = |what: &str, column: &str| {
            format!("is true, but the edges have no {what} (`{of_edges}.{column}`)")
        };
        let (no_weights, no_features) = (
            missing("weights", "weight"),
            missing("features", "features"),
        );
        let tables = self.input.edges.values();
        let has_weights = tables.clone().any(|edges| edges.weight.is_some());
        let has_features = tables.clone().any(|edges| !edges.features.is_empty());
        let rules = [
            (
                train.edge_weight == Some(true) && !has_weights,
                "train.edge_weight",
                &no_weights,
            ),
            (
                train.edge_weight == Some(true) && !train.model.takes_edge_weights(),
                "train.edge_weight",
                &only_weighted,
            ),
            (
                train.edge_features == Some(true) && !has_features,
                "train.edge_features",
                &no_features,
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

/// The columns of the table of the targets.
struct TargetColumns {
    /// Dotted name of the table.
    table: String,
    has_label: bool,
    has_split: bool,
}

/// Checks that targets have labels and splits.
fn check_labels(target: &TargetColumns, found: &mut Found) {
    if !target.has_label {
        let problem = "is missing; [train] needs the column of the labels";
        found.push(key(&format!("{}.label", target.table), problem));
    }
    if !target.has_split {
        let problem = "is missing; [train] needs the column of the splits, or shares such as \
                       { train = 0.8, val = 0.1, test = 0.1 }";
        found.push(key(&format!("{}.split", target.table), problem));
    }
}

/// Checks that a model can read the features of a type. Only named types may have none.
fn check_features(name: &str, nodes: &NodesSpec, found: &mut Found) {
    let has_features = !nodes.features.is_empty() || nodes.sparse.is_some();
    if name.is_empty() && !has_features && nodes.embedding.is_none() {
        let problem = "is missing; [train] needs `features`, `sparse` or `embedding`";
        found.push(key(&nodes_key(name, "features"), problem));
    }
    if nodes.sparse.is_some() && nodes.transform == Some(Transform::Standardize) {
        let problem =
            "\"standardize\" would make sparse features dense; allowed is \"row_normalize\"";
        found.push(key(&nodes_key(name, "transform"), problem));
    }
}

/// Returns the key of a column of a node table.
fn nodes_key(name: &str, column: &str) -> String {
    match name {
        "" => format!("input.nodes.{column}"),
        _ => format!("input.nodes.{name}.{column}"),
    }
}

/// Returns the key of a column of an edge table.
fn edges_key(name: &str, column: &str) -> String {
    match name {
        "" => format!("input.edges.{column}"),
        _ => format!("input.edges.{name}.{column}"),
    }
}
