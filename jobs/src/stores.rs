//! The stores of a job, and what its stages ask of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::Cluster;
use graphflat::FlattenPlan;
use graphinfer::{InferPlan, InferSampling, Method};
use schemas::progress::Progress;
use schemas::{Sampling, keep_at_hop, read_manifest};
use store::{HUB_THRESHOLD, Store, StorePlan};

use crate::cli::Stage;
use crate::error::JobError;
use crate::job::{Job, STORE};

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
    pub(crate) cluster: &'a Cluster,
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
    pub(crate) fn open(
        &mut self,
        stage: Stage,
        progress: &Progress,
    ) -> Result<Arc<Store>, JobError> {
        let plan = store_plan(self.job, stage)?;
        if let Some((_, store)) = self.open.iter().find(|(dir, _)| *dir == plan.dir) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(store::open_or_build_on(self.cluster, &plan, progress)?);
        self.open.push((plan.dir, Arc::clone(&store)));
        Ok(store)
    }
}

/// What the store of a stage is made of.
fn store_plan(job: &Job, stage: Stage) -> Result<StorePlan, JobError> {
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

/// What the store of a stage is made of, where the stage works on one.
pub(crate) fn needed_store(job: &Job, stage: Stage) -> Result<Option<StorePlan>, JobError> {
    let by_layers = |plan: &InferPlan| plan.method() == Method::Layers;
    let is_needed = match stage {
        Stage::Flatten => true,
        Stage::Train => job.stream.is_some(),
        Stage::Infer => job.infer.as_ref().is_some_and(by_layers),
    };
    is_needed.then(|| store_plan(job, stage)).transpose()
}
