//! The job file: as written ([`JobSpec`]) and as it will run ([`Job`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use gnn::LayerKind;
use graphflat::{FlattenPlan, FlattenSpec, SamplePlan, Targets};
use graphinfer::{InferContext, InferPlan, InferSpec, InferTargets};
use graphtrainer::{TrainContext, TrainPlan, TrainSpec};
use schemas::path::{overlap, overlaps_input};
use schemas::storage::StorageOptions;
use schemas::{EdgesPlan, EdgesSpec, NodesPlan, NodesSpec, Sampling, Transform};
use serde::Deserialize;

use crate::cli::Stage;
use crate::error::JobError;
use crate::leftovers::own_dir;
use crate::memory::{BUDGET_MIN, default_budget, workers_max};
use crate::source::{Edits, JobSource};

/// Worker threads at most: each is a thread and a partition of the store.
const WORKERS_MAX: usize = 1024;

/// Samples of a neighbourhood at most: each is a whole output of its own.
const SAMPLES_MAX: u32 = 1024;

/// Name of the store in `work_dir`.
pub(crate) const STORE: &str = "store";

/// Where relative paths start: the process's working directory, so that paths in messages are
/// those that were written.
const BASE: &str = "";

/// A job file as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobSpec {
    /// Name of the job; part of its default `work_dir`.
    pub(crate) name: String,
    /// Random seed of samples, weights, orders and dropout.
    pub(crate) seed: u64,
    /// Directory of the store. Default: `work/NAME`.
    #[serde(default)]
    pub(crate) work_dir: Option<PathBuf>,
    /// Worker threads. Default: as many as there are cores, fewer for a small `memory_budget`;
    /// changes no result.
    #[serde(default)]
    pub(crate) workers: Option<usize>,
    /// Memory the program may plan with, such as `"2GiB"`. Default: half of the machine's.
    #[serde(default = "default_budget")]
    pub(crate) memory_budget: ByteSize,
    /// How stores are reached: S3 and HDFS.
    #[serde(default)]
    pub(crate) storage: StorageOptions,
    /// The tables to read.
    pub(crate) input: InputSpec,
    /// The flatten stage.
    #[serde(default)]
    pub(crate) flatten: Option<FlattenSpec>,
    /// The train stage.
    #[serde(default)]
    pub(crate) train: Option<TrainSpec>,
    /// The infer stage.
    #[serde(default)]
    pub(crate) infer: Option<InferSpec>,
}

/// The table `[input]` as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputSpec {
    /// The node table.
    pub(crate) nodes: NodesSpec,
    /// The edge table.
    pub(crate) edges: EdgesSpec,
}

/// What the command line adds to a job file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    /// In place of the job's `workers`.
    pub(crate) workers: Option<usize>,
    /// The stages to run; empty: all that the job has.
    pub(crate) stages: Vec<Stage>,
    /// Whether the chosen stages start over.
    pub(crate) fresh: bool,
    /// Which of several processes runs the job.
    pub(crate) process: Option<usize>,
    /// How many processes share the memory that the job may plan with, if not this one alone.
    pub(crate) processes: Option<usize>,
}

/// A job, checked: what will run.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name of the job.
    pub(crate) name: String,
    /// Of all that has to be the same in all processes of a run.
    pub(crate) fingerprint: String,
    /// Random seed.
    pub(crate) seed: u64,
    /// Directory of the store.
    pub(crate) work_dir: PathBuf,
    /// Worker threads.
    pub(crate) workers: usize,
    /// Memory the program may plan with.
    pub(crate) memory_budget: ByteSize,
    /// The node table.
    pub(crate) nodes: Arc<NodesPlan>,
    /// The edge table.
    pub(crate) edges: Arc<EdgesPlan>,
    /// The flatten stage, where the job has one.
    pub(crate) flatten: Option<FlattenPlan>,
    /// The neighbourhoods that training streams, where it does.
    pub(crate) stream: Option<SamplePlan>,
    /// The train stage, where the job has one.
    pub(crate) train: Option<TrainPlan>,
    /// The train stage as written, where it reads what this job flattens or streams.
    pub(crate) own_training: Option<TrainSpec>,
    /// The infer stage, where the job has one.
    pub(crate) infer: Option<InferPlan>,
    /// The stages to run, in order.
    pub(crate) selected: Vec<Stage>,
    /// Whether they start over.
    pub(crate) fresh: bool,
}

impl Job {
    /// Reads and checks a job file.
    ///
    /// # Errors
    ///
    /// Names file, line and key of the first thing that cannot be, and what is allowed; or the
    /// file and column of an input table that is not as the job says.
    pub(crate) fn load(path: &Path, edits: &Edits, overrides: &Overrides) -> anyhow::Result<Job> {
        let source = JobSource::read(path, edits)?;
        let mut spec: JobSpec = source.parse()?;
        spec.memory_budget.0 /= overrides.processes.unwrap_or(1).max(1) as u64;
        let mut job = spec.into_job(overrides).map_err(|error| {
            let place = source.locate(&error.to_string());
            anyhow::Error::from(error).context(place)
        })?;
        job.fingerprint = fingerprint(source.parse()?, &job);
        if let Some(process) = overrides.process {
            // Each has a part of the store and of rounds, which may lie on a disk that they share.
            let own = own_dir(process);
            job.work_dir.push(&own);
            job.infer = job.infer.map(|plan| plan.with_own_dir(&own));
        }
        Ok(job)
    }

    /// The neighbourhoods that `[flatten]` describes, where the job has it.
    pub(crate) fn sample(&self) -> Option<&SamplePlan> {
        let written = self.flatten.as_ref().map(FlattenPlan::sample);
        written.or(self.stream.as_ref())
    }

    /// Whether a stage is to run.
    pub(crate) fn runs(&self, stage: Stage) -> bool {
        self.selected.contains(&stage)
    }
}

/// What of a job has to be the same in all processes of a run: all but where, and with how much, each
/// of them works.
fn fingerprint(mut keys: toml::Table, job: &Job) -> String {
    for own in ["memory_budget", "storage", "work_dir", "workers"] {
        keys.remove(own);
    }
    let stages: Vec<&str> = job.selected.iter().map(|stage| stage.name()).collect();
    let same = serde_json::json!({
        "program": env!("CARGO_PKG_VERSION"),
        "keys": keys,
        "stages": stages,
        "fresh": job.fresh,
    });
    schemas::xxh::fingerprint(same.to_string().as_bytes())
}

impl JobSpec {
    fn into_job(mut self, overrides: &Overrides) -> Result<Job, JobError> {
        let selected = self.selected(&overrides.stages)?;
        self.check_alone()?;
        let workers = self.workers(overrides.workers)?;
        let base = Path::new(BASE);
        self.resolve_paths(base)?;
        self.input.nodes.set_split_seed(self.seed);
        let work_dir = self
            .work_dir
            .clone()
            .unwrap_or_else(|| Path::new("work").join(&self.name));
        self.check_outputs(&work_dir)?;
        self.check_inputs(&work_dir)?;
        self.check_stages()?;
        let fresh = |stage| overrides.fresh && selected.contains(&stage);

        let own_training = self.own_training().map(|(train, _)| train.clone());

        let sampling = self.flatten.as_ref().map(|flatten| flatten.sampling);
        let (nodes, edges) = self.input.into_plans(base, sampling)?;
        let nodes = Arc::new(nodes);
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        let (flatten, stream) = match self.flatten {
            Some(spec) if is_streamed => (None, Some(spec.into_sample_plan(base)?)),
            Some(spec) => {
                let plan = spec.into_plan(base, fresh(Stage::Flatten))?;
                let bytes = usize::try_from(self.memory_budget.as_u64()).unwrap_or(usize::MAX);
                (Some(plan.with_memory_budget(bytes)), None)
            }
            None => (None, None),
        };
        let written = flatten.as_ref().map(|plan| plan.output().to_owned());
        let for_train = TrainContext {
            input: written.or(stream.is_some().then(|| work_dir.join(STORE))),
            job_seed: self.seed,
            transform: nodes.transform(),
            base: base.to_owned(),
            fresh: fresh(Stage::Train),
        };
        let train = self.train.map(|spec| spec.into_plan(for_train));
        let train = train.transpose()?.map(|plan| match &stream {
            Some(sample) => plan.with_sample(sample.settings(self.seed)),
            None => plan,
        });
        let for_infer = InferContext {
            model: train.as_ref().map(|plan| plan.output().to_owned()),
            input: flatten.as_ref().map(|plan| plan.output().to_owned()),
            base: base.to_owned(),
            nodes: Some(Arc::clone(&nodes)),
            work_dir: work_dir.clone(),
            fresh: fresh(Stage::Infer),
        };
        let infer = match self.infer {
            Some(spec) => Some(spec.into_plan(for_infer)?),
            None => None,
        };
        Ok(Job {
            name: self.name,
            fingerprint: String::new(),
            seed: self.seed,
            work_dir,
            workers,
            memory_budget: self.memory_budget,
            nodes,
            edges: Arc::new(edges),
            flatten,
            stream,
            train,
            own_training,
            infer,
            selected,
            fresh: overrides.fresh,
        })
    }

    /// The stages to run, in order.
    fn selected(&self, asked: &[Stage]) -> Result<Vec<Stage>, JobError> {
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        if is_streamed && asked.contains(&Stage::Flatten) {
            let problem = "with `train.streamed` no graph features are written";
            return Err(key("--stage flatten", problem));
        }
        let has = |stage: Stage| match stage {
            Stage::Flatten => self.flatten.is_some() && !is_streamed,
            Stage::Train => self.train.is_some(),
            Stage::Infer => self.infer.is_some(),
        };
        if let Some(stage) = asked.iter().find(|stage| !has(**stage)) {
            let present: Vec<&str> = Stage::ALL
                .into_iter()
                .filter(|s| has(*s))
                .map(Stage::name)
                .collect();
            let problem = format!("the job has no such table; it has {}", present.join(", "));
            return Err(key(&format!("--stage {}", stage.name()), problem));
        }
        let wanted = |stage: &Stage| has(*stage) && (asked.is_empty() || asked.contains(stage));
        let selected: Vec<Stage> = Stage::ALL.into_iter().filter(wanted).collect();
        if selected.is_empty() {
            let problem =
                "no stage to run; at least one of the tables flatten, train, infer is needed";
            return Err(key("name", problem));
        }
        Ok(selected)
    }

    /// Checks of single keys.
    fn check_alone(&self) -> Result<(), JobError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let plain = self.name.chars().all(allowed) && !self.name.starts_with('.');
        if self.name.is_empty() || !plain {
            let problem = "must be letters, digits, `_`, `-` or `.`, and not start with `.`";
            return Err(key("name", problem));
        }
        if self.memory_budget < BUDGET_MIN {
            let problem = format!("is {}; at least {BUDGET_MIN} is needed", self.memory_budget);
            return Err(key("memory_budget", problem));
        }
        Ok(())
    }

    fn workers(&self, asked: Option<usize>) -> Result<usize, JobError> {
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

    /// Resolves every path that is not of an input table, and says how stores are reached.
    fn resolve_paths(&mut self, base: &Path) -> Result<(), JobError> {
        if !(1..=3600).contains(&self.storage.timeout) {
            let problem = format!("is {}; allowed are 1 to 3600 seconds", self.storage.timeout);
            return Err(key("storage.timeout", problem));
        }
        schemas::storage::configure(self.storage.clone());
        let mut paths: Vec<(&str, &mut PathBuf)> = Vec::new();
        if let Some(work_dir) = &mut self.work_dir {
            // Of what lies there, most is mapped.
            *work_dir = schemas::path::local("work_dir", base, work_dir)?;
        }
        if let Some(flatten) = &mut self.flatten {
            paths.extend(flatten.output.as_mut().map(|path| ("flatten.output", path)));
            if let Targets::Listed(path) = &mut flatten.targets {
                paths.push(("flatten.targets", path));
            }
        }
        if let Some(train) = &mut self.train {
            paths.push(("train.output", &mut train.output));
            paths.extend(train.input.as_mut().map(|path| ("train.input", path)));
        }
        if let Some(infer) = &mut self.infer {
            paths.push(("infer.output", &mut infer.output));
            paths.extend(infer.model.as_mut().map(|path| ("infer.model", path)));
            paths.extend(infer.input.as_mut().map(|path| ("infer.input", path)));
            if let InferTargets::Listed(path) = &mut infer.targets {
                paths.push(("infer.targets", path));
            }
        }
        for (name, path) in paths {
            *path = schemas::path::resolve(name, base, path)?;
        }
        Ok(())
    }

    /// The directories that are written.
    fn outputs<'a>(&'a self, work_dir: &'a Path) -> Vec<(&'static str, &'a Path)> {
        let mut outputs = Vec::new();
        outputs.extend(
            self.flatten
                .iter()
                .filter_map(|stage| Some(("flatten.output", &**stage.output.as_ref()?))),
        );
        outputs.extend(
            self.train
                .iter()
                .map(|stage| ("train.output", &*stage.output)),
        );
        outputs.extend(
            self.infer
                .iter()
                .map(|stage| ("infer.output", &*stage.output)),
        );
        outputs.push(("work_dir", work_dir));
        outputs
    }

    /// No two stages may write one place, nor one inside another.
    fn check_outputs(&self, work_dir: &Path) -> Result<(), JobError> {
        let outputs = self.outputs(work_dir);
        for (position, &(name, path)) in outputs.iter().enumerate() {
            for &(earlier, taken) in &outputs[..position] {
                if overlap(path, taken) {
                    let problem = format!(
                        "{} is in the way of `{earlier}`, {}; each needs a directory of its own",
                        path.display(),
                        taken.display()
                    );
                    return Err(key(name, problem));
                }
            }
        }
        Ok(())
    }

    /// Nothing that is read may lie where something is written: `--fresh` would remove it.
    fn check_inputs(&self, work_dir: &Path) -> Result<(), JobError> {
        let base = Path::new(BASE);
        let mut inputs = Vec::new();
        for (name, path) in [
            ("input.nodes.path", &self.input.nodes.path),
            ("input.edges.path", &self.input.edges.path),
        ] {
            let paths = path.alternatives().map_err(|problem| key(name, problem))?;
            for written in paths.iter().chain(path.written()) {
                let resolved = schemas::path::resolve(name, base, Path::new(written))?;
                inputs.push((name, resolved));
            }
        }
        if let Some(Targets::Listed(path)) = self.flatten.as_ref().map(|stage| &stage.targets) {
            inputs.push(("flatten.targets", path.clone()));
        }
        let train_input = self.train.as_ref().and_then(|stage| stage.input.clone());
        inputs.extend(train_input.map(|path| ("train.input", path)));
        let model = self.infer.as_ref().and_then(|stage| stage.model.clone());
        inputs.extend(model.map(|path| ("infer.model", path)));
        let infer_input = self.infer.as_ref().and_then(|stage| stage.input.clone());
        inputs.extend(infer_input.map(|path| ("infer.input", path)));
        if let Some(InferTargets::Listed(path)) = self.infer.as_ref().map(|stage| &stage.targets) {
            inputs.push(("infer.targets", path.clone()));
        }
        for (name, output) in self.outputs(work_dir) {
            for (read, input) in &inputs {
                // What one stage writes for the next.
                let handed_on = matches!(
                    (name, *read),
                    ("flatten.output", "train.input" | "infer.input")
                        | ("train.output", "infer.model")
                );
                if !handed_on && overlaps_input(output, input) {
                    let problem = format!(
                        "{} is in the way of `{read}`, {}; an output lies neither in what is read \
                         nor around it",
                        output.display(),
                        input.display()
                    );
                    return Err(key(name, problem));
                }
            }
        }
        Ok(())
    }

    /// The train stage and the flatten stage whose output it reads, or whose neighbourhoods it
    /// streams.
    fn own_training(&self) -> Option<(&TrainSpec, &FlattenSpec)> {
        let (train, flatten) = (self.train.as_ref()?, self.flatten.as_ref()?);
        let reads_own = train.input.is_none() || train.input == flatten.output;
        reads_own.then_some((train, flatten))
    }

    /// What streamed training needs of `[flatten]`, and leaves no use for; the plan of the latter
    /// names the keys.
    fn check_stream(&self) -> Result<(), JobError> {
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        match &self.flatten {
            None if is_streamed => {
                let problem = "needs a table [flatten] that says which neighbourhoods to draw";
                Err(key("train.streamed", problem))
            }
            Some(flatten) if !is_streamed && flatten.output.is_none() => {
                let problem = "is missing; only streamed training (`train.streamed`) needs none";
                Err(key("flatten.output", problem))
            }
            _ => Ok(()),
        }
    }

    /// What one stage needs of another, or of the input tables.
    fn check_stages(&self) -> Result<(), JobError> {
        let (nodes, edges) = (&self.input.nodes, &self.input.edges);
        self.check_stream()?;
        if let Some(flatten) = &self.flatten {
            if let Some(samples) = flatten.samples_per_target.filter(|s| *s > SAMPLES_MAX) {
                let problem = format!("is {samples}; allowed is 1 to {SAMPLES_MAX}");
                return Err(key("flatten.samples_per_target", problem));
            }
            let by_split = matches!(flatten.targets, Targets::Labelled | Targets::Train);
            if by_split && nodes.split.is_none() {
                let problem = "\"labelled\" and \"train\" need `input.nodes.split`; \
                               \"all\" and a list of targets do not";
                return Err(key("flatten.targets", problem));
            }
            let weighted = matches!(flatten.sampling, Sampling::Weighted | Sampling::Top);
            if weighted && edges.weight.is_none() {
                let problem = "\"weighted\" and \"top\" need `input.edges.weight`; \
                               \"uniform\" does not";
                return Err(key("flatten.sampling", problem));
            }
        }
        if let (Some(train), None) = (&self.train, &self.flatten)
            && train.input.is_none()
        {
            let problem = "is missing, and the job has no table [flatten] whose output it could be";
            return Err(key("train.input", problem));
        }
        if let Some((train, flatten)) = self.own_training() {
            // Hops that differ from the fan-outs are an error of [flatten], found by its plan.
            if flatten.hops == flatten.fanouts.len() {
                check_layers(train, flatten.hops)?;
            }
            check_trainable(train, nodes, edges)?;
        }
        let Some(infer) = &self.infer else {
            return Ok(());
        };
        if infer.model.is_none() && self.train.is_none() {
            let problem = "is missing, and the job has no table [train] whose output it could be";
            return Err(key("infer.model", problem));
        }
        let own_model = infer.model.is_none();
        let own_hops = self
            .flatten
            .as_ref()
            .map(|flatten| flatten.hops)
            .filter(|_| own_model);
        match (infer.layer, own_hops) {
            (Some(layer), Some(hops)) if !(1..=hops).contains(&layer) => Err(key(
                "infer.layer",
                format!("is {layer}; the model has layers 1 to {hops}"),
            )),
            _ => Ok(()),
        }
    }
}

impl InputSpec {
    fn into_plans(
        self,
        base: &Path,
        sampling: Option<Sampling>,
    ) -> Result<(NodesPlan, EdgesPlan), JobError> {
        let nodes = self.nodes.into_plan(base)?;
        let edges = self.edges.into_plan(base)?.with_id_type(nodes.id_type())?;
        let non_negative = sampling == Some(Sampling::Weighted);
        let edges = if non_negative {
            edges.with_non_negative_weights()
        } else {
            edges
        };
        Ok((nodes, edges))
    }
}

/// A model that trains on this job's neighbourhoods has a layer a hop.
fn check_layers(train: &TrainSpec, hops: usize) -> Result<(), JobError> {
    if let Some(layers) = train.layers.filter(|&layers| layers != hops) {
        return Err(key(
            "train.layers",
            format!("is {layers}; must equal `flatten.hops`, {hops}"),
        ));
    }
    let widths = train.hidden.len();
    if widths + 1 != hops && widths != hops {
        let problem = format!(
            "has {widths} widths; {hops} hops need {} (the last layer predicts) or {hops} (a \
             linear head follows)",
            hops.saturating_sub(1)
        );
        return Err(key("train.hidden", problem));
    }
    let last = hops + usize::from(widths == hops);
    let decaying = train.weight_decay_layers.iter().flatten();
    if let Some(layer) = decaying.copied().find(|layer| !(1..=last).contains(layer)) {
        let problem = format!("holds {layer}; the model has layers 1 to {last}");
        return Err(key("train.weight_decay_layers", problem));
    }
    Ok(())
}

/// What training needs of the input tables, as far as the job file says it.
fn check_trainable(
    train: &TrainSpec,
    nodes: &NodesSpec,
    edges: &EdgesSpec,
) -> Result<(), JobError> {
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
            "\"standardize\" would fill sparse features; allowed is \"row_normalize\"",
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
    match rules.into_iter().find(|(is_broken, ..)| *is_broken) {
        Some((_, name, problem)) => Err(key(name, problem)),
        None => Ok(()),
    }
}

fn key(name: &str, problem: impl Into<String>) -> JobError {
    JobError::Key {
        key: name.to_owned(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests;
