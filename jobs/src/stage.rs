//! Runs the stages of a job in order, on one store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytesize::ByteSize;
use cluster::Cluster;
use graphflat::{FlattenPlan, SamplePlan, Waves};
use graphinfer::{InferPlan, InferSampling, Method};
use graphtrainer::scores::EvaluationFile;
use graphtrainer::{Source, TrainPlan};
use schemas::progress::Progress;
use schemas::storage::{Traffic, traffic};
use schemas::{Manifest, Sampling, keep_at_hop, read_manifest};
use serde_json::{Value, json};
use store::{HUB_THRESHOLD, Store, StorePlan};

use crate::cli::{RunArgs, Stage};
use crate::console::{Voice, line_out};
use crate::ending;
use crate::error::JobError;
use crate::inspect::label_name;
use crate::job::{Job, Overrides, STORE};
use crate::leftovers::remove_unused;
use crate::memory::keep_free_memory;
use crate::preflight::preflight;
use crate::processes::Processes;

/// Runs a job.
///
/// # Errors
///
/// The first error of the job file, of a stage or of its input.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let of = &args.processes;
    let overrides = Overrides {
        workers: args.workers,
        stages: args.stage.clone(),
        fresh: args.fresh,
        process: of.are_several().then(|| of.number()),
        processes: of.processes.map(usize::from),
    };
    ending::be_resumable();
    let edits = args.job.edits();
    let job = Job::load(&args.job.path, &edits, &overrides)?;
    keep_free_memory(job.memory_budget);
    let voice = Voice::pick(args.json, args.quiet);
    voice.listen();
    let context = || format!("job {}", args.job.path.display());
    let processes = Processes::start(args, &edits, &job).with_context(context)?;
    let result = run_stages(&job, &processes, voice).with_context(context);
    processes.end(result)
}

fn run_stages(job: &Job, processes: &Processes, voice: Voice) -> anyhow::Result<()> {
    // Layers and their gradients run on this pool; a second call in one process cannot happen.
    rayon::ThreadPoolBuilder::new()
        .num_threads(job.workers)
        .build_global()
        .map_err(|error| JobError::from(schemas::threads::refused(error)))?;
    let started = Instant::now();
    preflight(job)?;
    let progress = processes.watched(voice.progress());
    let mut stores = Stores::new(job, &processes.cluster);
    let mut done = Vec::new();
    for &stage in &job.selected {
        let record = run_stage(job, stage, &mut stores, &progress)
            .with_context(|| format!("stage {}", stage.name()))?;
        done.push(record);
    }
    let num_processes = processes.cluster.num_processes();
    if processes.cluster.process() == 0 {
        let shared = job.work_dir.parent().filter(|_| num_processes > 1);
        remove_unused(shared.unwrap_or(&job.work_dir), num_processes);
    }
    report(job, &done, (started.elapsed(), num_processes), voice);
    Ok(())
}

/// What a stage left.
struct Done {
    stage: Stage,
    output: PathBuf,
    manifest: Manifest,
    /// Whether it was there already.
    skipped: bool,
    seconds: f64,
}

fn run_stage(
    job: &Job,
    stage: Stage,
    stores: &mut Stores<'_>,
    progress: &Progress,
) -> Result<Done, JobError> {
    let started = Instant::now();
    let missing = "a selected stage has a plan";
    let output = job.output(stage).expect(missing).to_owned();
    let before = if job.fresh {
        None
    } else {
        read_manifest(&output).ok()
    };
    let manifest = match stage {
        Stage::Flatten => {
            let plan = job.flatten.as_ref().expect(missing);
            let store = stores.open(stage, progress)?;
            graphflat::flatten(plan, &store, progress)?
        }
        Stage::Train => {
            let plan = job.train.as_ref().expect(missing);
            match &job.stream {
                None => graphtrainer::train_among(plan, stores.cluster, progress)?,
                Some(sample) => {
                    let store = stores.open(stage, progress)?;
                    train_streamed(plan, sample, &store, progress)?
                }
            }
        }
        Stage::Infer => {
            let plan = job.infer.as_ref().expect(missing);
            match plan.method() {
                Method::Neighborhoods => graphinfer::infer_neighborhoods(plan, progress)?,
                Method::Layers => {
                    let store = stores.open(stage, progress)?;
                    graphinfer::infer(plan, &store, progress)?
                }
            }
        }
    };
    let skipped = before.is_some_and(|before| before == manifest);
    Ok(Done {
        stage,
        output,
        manifest,
        skipped,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Trains on neighbourhoods that are drawn from the store, each epoch anew.
fn train_streamed(
    plan: &TrainPlan,
    sample: &SamplePlan,
    store: &Store,
    progress: &Progress,
) -> Result<Manifest, JobError> {
    let waves = Waves::open(sample, store)?;
    let fingerprint = waves.fingerprint().to_owned();
    let metas = (store.meta().graph.clone(), waves.flatten_meta());
    let (input, counts) = (plan.input().to_owned(), waves.target_counts());
    let source = Source::streamed(input, metas, counts, plan.part_cache_bytes(), waves);
    Ok(graphtrainer::train_on(
        plan,
        &source,
        &fingerprint,
        progress,
    )?)
}

/// What a stage asks of a store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Need {
    /// In-edges kept per node.
    pub(crate) keep: usize,
    /// Order in which they are ranked; none: any will do.
    pub(crate) sampling: Option<Sampling>,
    /// Random seed of the samples.
    pub(crate) seed: u64,
    /// Independent samples.
    pub(crate) samples: u32,
    /// Whether all in-edges are kept too, to draw further samples from.
    pub(crate) redraw: bool,
}

impl Need {
    /// One store for both, where the samples are the same ones.
    fn join(&self, other: &Need) -> Option<Need> {
        let sampling = match (self.sampling, other.sampling) {
            (Some(mine), Some(theirs)) if mine != theirs || self.seed != other.seed => return None,
            (Some(mine), _) => Some((mine, self.seed)),
            (None, Some(theirs)) => Some((theirs, other.seed)),
            (None, None) => None,
        };
        Some(Need {
            keep: self.keep.max(other.keep),
            sampling: sampling.map(|(sampling, _)| sampling),
            seed: sampling.map_or(self.seed, |(_, seed)| seed),
            samples: self.samples.max(other.samples),
            redraw: self.redraw || other.redraw,
        })
    }
}

impl Job {
    /// The output directory of a stage that the job has.
    pub(crate) fn output(&self, stage: Stage) -> Option<&Path> {
        match stage {
            Stage::Flatten => self.flatten.as_ref().map(|plan| plan.output()),
            Stage::Train => self.train.as_ref().map(|plan| plan.output()),
            Stage::Infer => self.infer.as_ref().map(|plan| plan.output()),
        }
    }

    /// Whether inference runs a model that no stage of this job trains.
    pub(crate) fn brings_model(&self) -> bool {
        let own = self.train.as_ref().map(|plan| plan.output());
        self.infer
            .as_ref()
            .is_some_and(|plan| own != Some(plan.model()))
    }

    /// What flattening, or streaming in its place, asks of the store.
    pub(crate) fn flatten_need(&self) -> Option<Need> {
        self.sample().map(|sample| Need {
            keep: sample.keep(),
            sampling: Some(sample.sampling()),
            seed: self.seed,
            samples: self.flatten.as_ref().map_or(1, FlattenPlan::samples),
            redraw: self.stream.is_some(),
        })
    }

    /// What inference asks of the store.
    ///
    /// As trained, a model brings the sample it was trained on: that of this job's flatten stage,
    /// or what the directory of the model says. One whose training was streamed was trained on many,
    /// and brings that of the job's seed, on which it was evaluated.
    pub(crate) fn infer_need(&self) -> Result<Option<Need>, JobError> {
        let by_layers = |plan: &&InferPlan| plan.method() == Method::Layers;
        let Some(plan) = self.infer.as_ref().filter(by_layers) else {
            return Ok(None);
        };
        let reads_all = plan.sampling() == InferSampling::None || plan.compares_sampling();
        if plan.sampling() == InferSampling::None && !plan.compares_sampling() {
            let all = Need {
                keep: usize::MAX,
                sampling: None,
                seed: self.seed,
                samples: 1,
                redraw: false,
            };
            return Ok(Some(all));
        }
        let own = self
            .train
            .as_ref()
            .filter(|train| train.output() == plan.model());
        let is_read = |f: &&FlattenPlan| own.is_some_and(|t| f.output() == t.input());
        let written = self.flatten.as_ref().filter(is_read);
        let streamed = self.stream.as_ref().filter(|_| own.is_some());
        let own_sample = written.map(FlattenPlan::sample).or(streamed);
        let (keep, sampling, seed) = match (own_sample, own) {
            (Some(known), _) => (known.keep(), Some(known.sampling()), self.seed),
            (None, Some(train)) => match read_manifest(train.input())?.flatten {
                Some(meta) => (
                    keep_at_hop(&meta.fanouts, 0),
                    Some(meta.sampling),
                    meta.seed,
                ),
                None => (usize::MAX, None, self.seed), // training will say what is wrong with it
            },
            (None, None) => {
                let need = plan.store_need()?;
                let seed = need.sample.map_or(self.seed, |sample| sample.seed);
                (need.keep, need.sample.map(|sample| sample.sampling), seed)
            }
        };
        Ok(Some(Need {
            keep: if reads_all { usize::MAX } else { keep },
            sampling,
            seed,
            samples: 1,
            redraw: false,
        }))
    }
}

/// The stores of a job: one, unless inference brings a sample of its own.
pub(crate) struct Stores<'a> {
    job: &'a Job,
    cluster: &'a Cluster,
    /// Each store that is open, with the directory it lies in.
    open: Vec<(PathBuf, Arc<Store>)>,
}

impl<'a> Stores<'a> {
    /// Opens nothing yet.
    pub(crate) fn new(job: &'a Job, cluster: &'a Cluster) -> Stores<'a> {
        Stores {
            job,
            cluster,
            open: Vec::new(),
        }
    }

    /// The store a stage works on, built first where there is none.
    ///
    /// All stages of the job count, not only those that run now, so that one after the other they
    /// find the same store.
    fn open(&mut self, stage: Stage, progress: &Progress) -> Result<Arc<Store>, JobError> {
        let plan = self.plan(stage)?;
        if let Some((_, store)) = self.open.iter().find(|(dir, _)| *dir == plan.dir) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(store::open_or_build_on(self.cluster, &plan, progress)?);
        self.open.push((plan.dir, Arc::clone(&store)));
        Ok(store)
    }

    /// What the store of a stage is made of.
    pub(crate) fn plan(&self, stage: Stage) -> Result<StorePlan, JobError> {
        let job = self.job;
        let flatten = job.flatten_need();
        // A job that only flattens must not fail on what inference lacks.
        let infer = if job.runs(Stage::Infer) {
            job.infer_need()?
        } else {
            job.infer_need().ok().flatten()
        };
        let joined = match (&flatten, &infer) {
            (Some(flatten), Some(infer)) => flatten.join(infer),
            (need, None) | (None, need) => need.clone(),
        };
        let (need, name) = match (joined, stage) {
            (Some(need), _) => (need, STORE),
            (None, Stage::Infer) => (infer.expect("infer has a need"), "store-infer"),
            (None, _) => (flatten.expect("flatten has a need"), STORE),
        };
        let hub_threshold = job
            .sample()
            .map_or(HUB_THRESHOLD, |sample| sample.hub_threshold());
        let by_weight = matches!(need.sampling, Some(Sampling::Weighted | Sampling::Top));
        if by_weight && !job.edges.has_weight() {
            return Err(JobError::Key {
                key: "infer.sampling".to_owned(),
                problem: "the model was trained on in-edges chosen by weight, which needs \
                          `input.edges.weight`; `sampling = \"none\"` takes all in-edges"
                    .to_owned(),
            });
        }
        Ok(StorePlan {
            nodes: Arc::clone(&job.nodes),
            edges: Arc::clone(&job.edges),
            seed: need.seed,
            sampling: need.sampling.unwrap_or(Sampling::Uniform),
            keep: need.keep,
            samples: need.samples,
            redraw: need.redraw,
            hub_threshold,
            workers: job.workers,
            memory_budget: usize::try_from(job.memory_budget.as_u64()).unwrap_or(usize::MAX),
            dir: job.work_dir.join(name),
            fresh: job.fresh,
        })
    }
}

/// Labels whose F1 is said at the end of a training, the worst first.
const LABELS_SAID: usize = 5;

impl Done {
    fn rows(&self) -> u64 {
        self.manifest.parts.iter().map(|part| part.rows).sum()
    }

    fn bytes(&self) -> u64 {
        self.manifest
            .parts
            .iter()
            .flat_map(|part| &part.files)
            .map(|file| file.bytes)
            .sum()
    }

    /// The test metrics, where the stage has any.
    fn metrics(&self) -> Vec<(String, f64)> {
        let Some(metrics) = self
            .manifest
            .report
            .get("metrics")
            .and_then(Value::as_object)
        else {
            return Vec::new();
        };
        let number = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()?));
        metrics
            .iter()
            .filter_map(number)
            .filter(|(name, _)| name.starts_with("test"))
            .collect()
    }

    fn to_json(&self) -> Value {
        let metrics: serde_json::Map<String, Value> = self
            .metrics()
            .into_iter()
            .map(|(name, value)| (name, json!(value)))
            .collect();
        json!({
            "stage": self.stage.name(),
            "output": self.output,
            "rows": self.rows(),
            "bytes": self.bytes(),
            "seconds": self.seconds,
            "skipped": self.skipped,
            "metrics": metrics,
        })
    }

    fn to_line(&self) -> String {
        let stage = self.stage.name();
        let mut line = format!("{stage:8} {}", self.output.display());
        if self.rows() > 0 {
            line.push_str(&format!(", {} rows", self.rows()));
        }
        line.push_str(&format!(", {}", ByteSize(self.bytes()).display().si()));
        for (name, value) in self.metrics() {
            line.push_str(&format!(", {name} {value:.4}"));
        }
        match self.skipped {
            true => line.push_str(", finished before"),
            false => line.push_str(&format!(", {:.1} s", self.seconds)),
        }
        line
    }

    /// The labels that the model does worst on, where it tells classes or labels apart.
    fn worst_labels(&self) -> Option<String> {
        // A stage that is done is not failed by a file that was changed since.
        let evaluation = EvaluationFile::read(&self.output).ok().flatten()?;
        let test = evaluation.splits.get("test")?;
        let mut labels: Vec<_> = test
            .labels
            .iter()
            .filter(|label| label.support > 0)
            .collect();
        if labels.len() < 2 {
            return None;
        }
        labels.sort_by(|a, b| a.f1.total_cmp(&b.f1));
        let shown = labels
            .iter()
            .take(LABELS_SAID)
            .map(|label| format!("{} {:.4} of {}", label_name(label), label.f1, label.support));
        let shown: Vec<String> = shown.collect();
        Some(format!("         lowest test f1: {}", shown.join(", ")))
    }
}

fn report(job: &Job, done: &[Done], (time, num_processes): (Duration, usize), voice: Voice) {
    let seconds = time.as_secs_f64();
    let Traffic { requests, faults } = traffic();
    if voice == Voice::Json {
        let stages: Vec<Value> = done.iter().map(Done::to_json).collect();
        let summary = json!({
            "event": "summary",
            "job": job.name,
            "seconds": seconds,
            "stages": stages,
            "store_requests": requests,
            "store_faults": faults,
        });
        line_out(&summary.to_string());
        return;
    }
    for stage in done {
        voice.say(&stage.to_line());
        if let Some(line) = stage.worst_labels().filter(|_| stage.stage == Stage::Train) {
            voice.say(&line);
        }
    }
    if requests > 0 {
        voice.say(&format!("stores   {requests} requests, {faults} faults"));
    }
    let workers = match num_processes {
        1 => format!("{} workers", job.workers),
        _ => format!("{num_processes} processes of {} workers", job.workers),
    };
    voice.say(&format!(
        "done     {} in {seconds:.1} s with {workers}",
        job.name
    ));
}
