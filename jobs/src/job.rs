//! The job file: as written ([`JobSpec`]) and as it will run ([`Job`]).

mod incremental;
mod model;
mod paths;
mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use graphdelta::VersionInput;
use graphflat::{FlattenPlan, FlattenSpec, SamplePlan};
use graphinfer::{InferContext, InferPlan, InferSpec};
use graphscore::{ScoreContext, ScorePlan, ScoreSpec};
use graphtrainer::{TrainContext, TrainPlan, TrainSpec};
use schemas::known::Remembered;
use schemas::storage::StorageOptions;
use schemas::{GraphPlan, InputSpec, NodesPlan, Sampling, Transform, TypePlan};
use serde::Deserialize;

use crate::cli::Stage;
use crate::error::{JobError, Mistake};
use crate::leftovers::own_dir;
use crate::memory::default_budget;
use crate::mistakes::{Found, in_order};
use crate::source::{Edits, JobSource};
use incremental::{IncrementalSpec, Versions};

/// Name of the store in `work_dir`.
pub(crate) const STORE: &str = "store";

/// Name of the file in `work_dir` with the checksums of files that were read.
pub(crate) const CHECKSUMS: &str = "checksums.json";

/// Base of relative paths: empty, for the working directory, so that messages show paths as they
/// were written.
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
    /// Memory budget, such as `"2GiB"`. Default: half of the machine's memory.
    #[serde(default = "default_budget")]
    pub(crate) memory_budget: ByteSize,
    /// Options of the stores S3 and HDFS.
    #[serde(default)]
    pub(crate) storage: StorageOptions,
    /// The tables to read.
    pub(crate) input: InputSpec,
    /// How versions are kept and continued.
    #[serde(default)]
    pub(crate) incremental: Option<IncrementalSpec>,
    /// The flatten stage.
    #[serde(default)]
    pub(crate) flatten: Option<FlattenSpec>,
    /// The train stage.
    #[serde(default)]
    pub(crate) train: Option<TrainSpec>,
    /// The infer stage.
    #[serde(default)]
    pub(crate) infer: Option<InferSpec>,
    /// The score stage.
    #[serde(default)]
    pub(crate) score: Option<ScoreSpec>,
}

/// Settings of the command line that replace or extend those of a job file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    /// Replaces the job's `workers`.
    pub(crate) workers: Option<usize>,
    /// The stages to run; empty for all stages of the job.
    pub(crate) stages: Vec<Stage>,
    /// Stages that start over, if they are selected.
    pub(crate) fresh: Vec<Stage>,
    /// Number of this process, if the job runs in several.
    pub(crate) process: Option<usize>,
    /// Number of processes that share the memory budget, if there are several on this machine.
    pub(crate) processes: Option<usize>,
    /// Whether a version computes all rows.
    pub(crate) full: bool,
}

/// A checked job, as it will run.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name of the job.
    pub(crate) name: String,
    /// Fingerprint of everything that must be the same in all processes of a run.
    pub(crate) fingerprint: String,
    /// Random seed.
    pub(crate) seed: u64,
    /// Directory of the store.
    pub(crate) work_dir: PathBuf,
    /// Worker threads.
    pub(crate) workers: usize,
    /// Memory budget.
    pub(crate) memory_budget: ByteSize,
    /// All tables.
    pub(crate) graph: Arc<GraphPlan>,
    /// Position of the target type.
    pub(crate) target_type: usize,
    /// The node table of the target type.
    pub(crate) nodes: Arc<NodesPlan>,
    /// The flatten stage, where the job has one.
    pub(crate) flatten: Option<FlattenPlan>,
    /// The neighbourhoods that training streams, if it does.
    pub(crate) stream: Option<SamplePlan>,
    /// The train stage, where the job has one.
    pub(crate) train: Option<TrainPlan>,
    /// The train stage as written, if it reads the neighbourhoods that this job flattens or
    /// streams.
    pub(crate) own_training: Option<TrainSpec>,
    /// The infer stage, where the job has one.
    pub(crate) infer: Option<InferPlan>,
    /// The score stage, where the job has one.
    pub(crate) score: Option<ScorePlan>,
    /// The stages to run, in order.
    pub(crate) selected: Vec<Stage>,
    /// The selected stages that start over.
    pub(crate) fresh: Vec<Stage>,
    /// How versions are kept and continued.
    pub(crate) versions: Versions,
}

impl Job {
    /// Returns what the version of embeddings is made of that the job writes; none if it writes
    /// none.
    pub(crate) fn version(&self) -> Option<VersionInput<'_>> {
        Some(self.version_of(self.versions.parent.as_deref()?))
    }

    /// Returns what the version of graph features is made of that the job writes; none if it writes
    /// none.
    pub(crate) fn flatten_version(&self) -> Option<VersionInput<'_>> {
        Some(self.version_of(self.versions.features.as_deref()?))
    }

    /// Tells whose checksums a run uses again.
    pub(crate) fn remembered(&self) -> Remembered {
        match self.versions.are_kept {
            true => Remembered::AllFiles,
            false => Remembered::Tables,
        }
    }

    /// Returns the outputs that the versions of the job continue.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &Path> {
        let parents = [&self.versions.parent, &self.versions.features];
        parents.into_iter().flatten().map(PathBuf::as_path)
    }

    fn version_of<'a>(&'a self, parent: &'a Path) -> VersionInput<'a> {
        let versions = &self.versions;
        VersionInput {
            graph: &self.graph,
            nights: &versions.changes,
            snapshot: versions.snapshot.as_ref(),
            base: Path::new(BASE),
            parent,
            full: versions.full,
            rebuild_share: versions.rebuild_share,
            shared: None,
        }
    }

    /// Reads and checks a job file.
    ///
    /// # Errors
    ///
    /// Names all mistakes in the file, each with line, key and allowed values, and all mistakes
    /// about columns of input tables that can be opened.
    pub(crate) fn load(path: &Path, edits: &Edits, overrides: &Overrides) -> Result<Job, JobError> {
        Job::of_source(&JobSource::read(path, edits)?, overrides)
    }

    fn of_source(source: &JobSource, overrides: &Overrides) -> Result<Job, JobError> {
        let (spec, mut reading) = source.parse::<JobSpec>();
        let share = overrides.processes.unwrap_or(1).max(1) as u64;
        let checked = spec.map(|mut spec| {
            spec.memory_budget.0 /= share;
            spec.into_job(overrides)
        });
        let mut job = match checked {
            Some(Ok(job)) if reading.mistakes.is_empty() => job,
            checked => {
                let errors = checked.and_then(Result::err).unwrap_or_default();
                let blamed = errors.iter().filter_map(|e| source.blame(e, &reading));
                let blamed: Vec<Mistake> = blamed.collect();
                reading.mistakes.extend(blamed);
                return Err(in_order(reading.mistakes));
            }
        };
        let (keys, _) = source.parse::<toml::Table>();
        job.versions.full = overrides.full;
        job.fingerprint = fingerprint(keys.expect("it was read before"), &job);
        if let Some(process) = overrides.process {
            // Each process has its part of the store and of the rounds, and keeps versions;
            // processes may share the disk.
            let own = own_dir(process);
            job.work_dir.push(&own);
            job.infer = job.infer.map(|plan| plan.with_own_dir(&own));
            let kept_in = job.versions.are_kept.then_some(&*job.work_dir);
            job.flatten = job.flatten.map(|plan| plan.with_versions_in(kept_in));
        }
        Ok(job)
    }

    /// Returns the neighbourhoods that `[flatten]` describes, if the job has it.
    pub(crate) fn sample(&self) -> Option<&SamplePlan> {
        let written = self.flatten.as_ref().map(FlattenPlan::sample);
        written.or(self.stream.as_ref())
    }

    /// Tells whether a stage starts over.
    pub(crate) fn is_fresh(&self, stage: Stage) -> bool {
        self.fresh.contains(&stage)
    }

    /// Tells whether a stage is selected.
    pub(crate) fn runs(&self, stage: Stage) -> bool {
        self.selected.contains(&stage)
    }
}

/// Returns the fingerprint of the keys that must be the same in all processes of a run: all but
/// those of directories, stores, memory and workers of each process.
fn fingerprint(mut keys: toml::Table, job: &Job) -> String {
    for own in ["memory_budget", "storage", "work_dir", "workers"] {
        keys.remove(own);
    }
    let names =
        |stages: &[Stage]| -> Vec<&str> { stages.iter().map(|stage| stage.name()).collect() };
    let same = serde_json::json!({
        "program": env!("CARGO_PKG_VERSION"),
        "keys": keys,
        "stages": names(&job.selected),
        "fresh": names(&job.fresh),
        "full": job.versions.full,
    });
    schemas::xxh::fingerprint(same.to_string().as_bytes())
}

impl JobSpec {
    fn into_job(mut self, overrides: &Overrides) -> Result<Job, Vec<JobError>> {
        let mut found = Found::default();
        let selected = found.take(self.selected(&overrides.stages));
        let workers = found.take(self.workers(overrides.workers));
        self.check_alone(&mut found);
        let base = Path::new(BASE);
        self.resolve_paths(base, &mut found);
        self.input.set_split_seed(self.seed);
        let work_dir = self
            .work_dir
            .clone()
            .unwrap_or_else(|| Path::new("work").join(&self.name));
        let told = self.check_outputs(&work_dir, &mut found);
        self.check_inputs(&work_dir, told, &mut found);
        self.check_tables(&mut found);
        self.check_stages(&mut found);
        self.check_incremental(&mut found);
        let sampling = self.flatten.as_ref().map(|flatten| flatten.sampling);
        let of_model = self.of_model(selected.as_deref().unwrap_or_default());
        let graph = self.input.clone().plan_like(base, &of_model.known);
        let graph = graph.map_err(|errors| found.extend(errors)).ok();
        let graph = graph.map(|graph| match sampling {
            Some(Sampling::Weighted) => graph.with_non_negative_weights(),
            _ => graph,
        });
        let target_type = graph.as_ref().map(|graph| {
            let named = self
                .flatten
                .as_ref()
                .and_then(|of| of.target_type.as_deref());
            let of_model = of_model.target_type.as_deref();
            let of_model = of_model.filter(|name| graph.type_idx(name).is_some());
            graph.target_type(named.or(of_model))
        });
        let target_type = target_type.and_then(|target| found.take(target));
        let (Some(selected), Some(workers), Some(graph), Some(target_type)) =
            (selected, workers, graph, target_type)
        else {
            return Err(found.into_errors());
        };
        let fresh = overrides.fresh.iter().copied();
        let checked = Checked {
            fresh: fresh.filter(|stage| selected.contains(stage)).collect(),
            selected,
            workers,
            work_dir,
            graph: Arc::new(graph),
            target_type,
        };
        let job = self.plan_stages(checked, &mut found);
        let errors = found.into_errors();
        if errors.is_empty() {
            Ok(job)
        } else {
            Err(errors)
        }
    }

    /// Plans the stages; mistakes in their tables were found before.
    fn plan_stages(self, checked: Checked, found: &mut Found) -> Job {
        let Checked {
            selected,
            fresh,
            workers,
            work_dir,
            graph,
            target_type,
        } = checked;
        let nodes = Arc::clone(&graph.types[target_type].nodes);
        let own_training = self.own_training().map(|(train, _)| train.clone());
        let is_streamed = self.train.as_ref().is_some_and(|train| train.streamed);
        let bytes = usize::try_from(self.memory_budget.as_u64()).unwrap_or(usize::MAX);
        let of_flatten = self.flatten.as_ref().filter(|_| !is_streamed);
        let written = of_flatten.and_then(|spec| spec.output.clone());
        let model = self.train.as_ref().map(|spec| spec.output.clone());
        let of_graph = (&*graph, target_type);
        let (flatten, stream) = match self.flatten {
            Some(spec) if is_streamed => (None, plan_stream(spec, of_graph, found)),
            Some(spec) => {
                let kept_in = self.incremental.as_ref().map(|_| &*work_dir);
                let of_run = (bytes, fresh.contains(&Stage::Flatten), kept_in);
                (plan_flatten(spec, of_graph, of_run, found), None)
            }
            None => (None, None),
        };
        let of_store = is_streamed.then(|| work_dir.join(STORE));
        let for_train = TrainContext {
            input: written.clone().or(of_store),
            job_seed: self.seed,
            transform: nodes.transform().filter(|_| !graph.is_typed()),
            one_hot: one_hot(&graph),
            base: PathBuf::from(BASE),
            fresh: fresh.contains(&Stage::Train),
        };
        // Its mistakes, and those of the keys that it takes from [flatten], were found before.
        let train = self.train.filter(|_| found.is_empty());
        let train = train.and_then(|spec| found.take(spec.into_plan(for_train)));
        let train = train.map(|plan| of_tables(plan, &graph, stream.as_ref(), (self.seed, bytes)));
        let for_infer = InferContext {
            model,
            input: written,
            base: PathBuf::from(BASE),
            nodes: Some(Arc::clone(&nodes)),
            work_dir: work_dir.clone(),
            fresh: fresh.contains(&Stage::Infer),
        };
        let of_run = (bytes, fresh.contains(&Stage::Score));
        let for_score = score_context(self.infer.as_ref(), &for_infer, &graph, of_run);
        let versions = Versions::new(self.incremental, (self.input.changes, self.input.snapshot));
        let infer = plan_infer(self.infer, for_infer, (of_graph, &versions), found);
        let score = plan_score(self.score, for_score, found);
        Job {
            name: self.name,
            fingerprint: String::new(),
            seed: self.seed,
            work_dir,
            workers,
            memory_budget: self.memory_budget,
            graph,
            target_type,
            nodes,
            flatten,
            stream,
            train,
            own_training,
            infer,
            score,
            selected,
            fresh,
            versions,
        }
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
            Stage::Score => self.score.is_some(),
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
            let problem = "no stage to run; at least one of the tables flatten, train, infer, \
                           score is needed";
            return Err(key("name", problem));
        }
        Ok(selected)
    }
}

/// Plans the neighbourhoods that training streams.
fn plan_stream(
    spec: FlattenSpec,
    of_graph: (&GraphPlan, usize),
    found: &mut Found,
) -> Option<SamplePlan> {
    let plan = spec.into_sample_plan_of(of_graph, Path::new(BASE));
    plan.map_err(|errors| found.extend(errors)).ok()
}

/// Plans the flatten stage; `kept_in` is the working directory that keeps what versions need.
fn plan_flatten(
    spec: FlattenSpec,
    of_graph: (&GraphPlan, usize),
    (memory_budget, fresh, kept_in): (usize, bool, Option<&Path>),
    found: &mut Found,
) -> Option<FlattenPlan> {
    let plan = spec.into_plan_of(of_graph, Path::new(BASE), fresh);
    let plan = plan.map_err(|errors| found.extend(errors)).ok()?;
    let plan = plan.with_memory_budget(memory_budget);
    Some(plan.with_versions_in(kept_in))
}

/// Plans the infer stage, and checks the types that it writes.
fn plan_infer(
    spec: Option<InferSpec>,
    context: InferContext,
    ((graph, target_type), versions): ((&GraphPlan, usize), &Versions),
    found: &mut Found,
) -> Option<InferPlan> {
    let plan = found.take(spec?.into_plan(context))?;
    let plan = match versions.are_kept {
        true => found.take(plan.keeping_rows())?,
        false => plan,
    };
    let names: Vec<&str> = graph.types.iter().map(|of| &of.name[..]).collect();
    found.take(match graph.is_typed() {
        true => plan.written_types(&names, target_type).map(drop),
        false => plan.refuse_types(),
    });
    Some(plan)
}

/// Adds to a plan what it takes from the tables and from the top of the job, and the neighbourhoods
/// that it streams.
fn of_tables(
    plan: TrainPlan,
    graph: &GraphPlan,
    stream: Option<&SamplePlan>,
    (seed, memory_budget): (u64, usize),
) -> TrainPlan {
    let plan = match stream {
        Some(sample) => plan.with_sample(sample.settings(seed)),
        None => plan,
    };
    let plan = match graph.in_graph {
        Some(_) => plan.of_graphs(),
        None => plan,
    };
    plan.with_transforms(transforms(graph))
        .with_embeddings(embeddings(graph))
        .with_memory_budget(memory_budget)
}

/// Returns what scoring takes from the rest of the job.
fn score_context(
    infer: Option<&InferSpec>,
    for_infer: &InferContext,
    graph: &Arc<GraphPlan>,
    (memory_budget, fresh): (usize, bool),
) -> ScoreContext {
    let model = infer.and_then(|spec| spec.model.clone());
    ScoreContext {
        input: infer.map(|spec| spec.output.clone()),
        model: model.or(for_infer.model.clone()),
        base: PathBuf::from(BASE),
        graph: Arc::clone(graph),
        memory_budget,
        fresh,
    }
}

/// Plans the score stage; mistakes in its table were found before.
fn plan_score(
    spec: Option<ScoreSpec>,
    context: ScoreContext,
    found: &mut Found,
) -> Option<ScorePlan> {
    let plan = spec.filter(|_| found.is_empty())?.into_plan(context);
    plan.map_err(|errors| found.extend(errors)).ok()
}

/// Returns the transforms of a typed graph's node features by type, without types that have none.
fn transforms(graph: &GraphPlan) -> BTreeMap<String, Transform> {
    let types = graph.types.iter().filter(|_| graph.is_typed());
    let transform = |of: &TypePlan| Some((of.name.clone(), of.nodes.transform()?));
    types.filter_map(transform).collect()
}

/// Returns the widths of learnable rows by type, without types that have none.
fn embeddings(graph: &GraphPlan) -> BTreeMap<String, usize> {
    let types = graph.types.iter();
    let width = |of: &TypePlan| Some((of.name.clone(), of.nodes.embedding()?));
    types.filter_map(width).collect()
}

/// Returns the bounds of one-hot columns by type, without types that have none.
fn one_hot(graph: &GraphPlan) -> BTreeMap<String, BTreeMap<String, u32>> {
    let bounds = graph.types.iter();
    let bounds = bounds.map(|of| (of.name.clone(), of.nodes.one_hot()));
    bounds.filter(|(_, bounds)| !bounds.is_empty()).collect()
}

/// The checked parts of a job before its stages are planned.
struct Checked {
    selected: Vec<Stage>,
    fresh: Vec<Stage>,
    workers: usize,
    work_dir: PathBuf,
    graph: Arc<GraphPlan>,
    target_type: usize,
}

fn key(name: &str, problem: impl Into<String>) -> JobError {
    JobError::Key {
        key: name.to_owned(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests;
