//! The stores of a job, and the needs of its stages.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::{Cluster, gather_processes};
use graphdelta::{Base, NoRows, VersionInput, find_kept};
use graphflat::{FlattenError, FlattenPlan};
use graphinfer::{InferPlan, InferSampling, Method};
use schemas::progress::Progress;
use schemas::{HopFanouts, Sampling, keep_at_hop, read_manifest};
use store::{HUB_THRESHOLD, Store, StoreMeta, StorePlan};

use crate::cli::Stage;
use crate::error::JobError;
use crate::job::{Job, STORE};
use crate::memory::{page_cache, return_free_memory};

/// Requirements of a stage on its store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Need {
    /// In-edges kept per node, by relation.
    pub(crate) keep: Vec<usize>,
    /// Order in which they are ranked; none if any order is good enough.
    pub(crate) sampling: Option<Sampling>,
    /// Random seed of the samples.
    pub(crate) seed: u64,
    /// Independent samples.
    pub(crate) samples: u32,
    /// Whether all in-edges are kept too, so that further samples can be drawn.
    pub(crate) redraw: bool,
}

impl Need {
    /// Returns the needs of one store for both stages; none if their samples differ.
    fn join(&self, other: &Need) -> Option<Need> {
        let sampling = match (self.sampling, other.sampling) {
            (Some(mine), Some(theirs)) if mine != theirs || self.seed != other.seed => return None,
            (Some(mine), _) => Some((mine, self.seed)),
            (None, Some(theirs)) => Some((theirs, other.seed)),
            (None, None) => None,
        };
        let keep = self.keep.iter().zip(&other.keep);
        Some(Need {
            keep: keep.map(|(mine, theirs)| *mine.max(theirs)).collect(),
            sampling: sampling.map(|(sampling, _)| sampling),
            seed: sampling.map_or(self.seed, |(_, seed)| seed),
            samples: self.samples.max(other.samples),
            redraw: self.redraw || other.redraw,
        })
    }

    /// Adds the needs of scoring, which takes any sample.
    fn with(self, score: Option<&Need>) -> Need {
        let both = score.map(|score| self.join(score).expect("scoring has no sample"));
        both.unwrap_or(self)
    }
}

impl Job {
    /// Returns the output directory of a stage; none if the job lacks the stage.
    pub(crate) fn output(&self, stage: Stage) -> Option<&Path> {
        match stage {
            Stage::Flatten => self.flatten.as_ref().map(|plan| plan.output()),
            Stage::Train => self.train.as_ref().map(|plan| plan.output()),
            Stage::Infer => self.infer.as_ref().map(|plan| plan.output()),
            Stage::Score => self.score.as_ref().map(|plan| plan.output()),
        }
    }

    /// Tells whether inference runs a model that no stage of this job trains.
    pub(crate) fn brings_model(&self) -> bool {
        let own = self.train.as_ref().map(|plan| plan.output());
        self.infer
            .as_ref()
            .is_some_and(|plan| own != Some(plan.model()))
    }

    /// Returns the needs of flattening, or of streaming in its place.
    pub(crate) fn flatten_need(&self) -> Option<Need> {
        self.sample().map(|sample| Need {
            keep: sample.keep_by_relation(),
            sampling: Some(sample.sampling()),
            seed: self.seed,
            samples: self.flatten.as_ref().map_or(1, FlattenPlan::samples),
            redraw: self.stream.is_some(),
        })
    }

    /// Returns the needs of inference.
    ///
    /// With `sampling` as trained, inference uses the sample on which the model was trained: the
    /// sample of this job's flatten stage, or the one that the directory of the model names.
    /// Streamed training draws many samples; inference then uses the sample of the job's seed, on
    /// which the model was evaluated.
    pub(crate) fn infer_need(&self) -> Result<Option<Need>, JobError> {
        let by_layers = |plan: &&InferPlan| plan.method() == Method::Layers;
        let Some(plan) = self.infer.as_ref().filter(by_layers) else {
            return Ok(None);
        };
        let reads_all = plan.sampling() == InferSampling::None || plan.compares_sampling();
        if plan.sampling() == InferSampling::None && !plan.compares_sampling() {
            let all = Need {
                keep: self.keep_of_each(usize::MAX),
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
            (Some(known), _) => (known.keep_by_relation(), Some(known.sampling()), self.seed),
            (None, Some(train)) => match read_manifest(train.input())?.flatten {
                Some(meta) => (self.keep_of(&meta.fanouts), Some(meta.sampling), meta.seed),
                // Training reports its error.
                None => (self.keep_of_each(usize::MAX), None, self.seed),
            },
            (None, None) => {
                let need = plan.store_need()?;
                let seed = need.sample.map_or(self.seed, |sample| sample.seed);
                // A model with other relations is refused before any work.
                let keep = match need.keep.len() == self.graph.relations.len() {
                    true => need.keep,
                    false => self.keep_of_each(usize::MAX),
                };
                (keep, need.sample.map(|sample| sample.sampling), seed)
            }
        };
        Ok(Some(Need {
            keep: if reads_all {
                self.keep_of_each(usize::MAX)
            } else {
                keep
            },
            sampling,
            seed,
            samples: 1,
            redraw: false,
        }))
    }
}

impl Job {
    /// Returns the needs of scoring: the pairs, which every store of the job has, and all edges of a
    /// relation whose edges are known pairs.
    fn score_need(&self) -> Option<Need> {
        let plan = self.score.as_ref().filter(|plan| plan.reads_pairs())?;
        let mut keep = self.keep_of_each(1);
        if let Some(relation) = plan.known_relation() {
            keep[relation] = usize::MAX;
        }
        Some(Need {
            keep,
            sampling: None,
            seed: self.seed,
            samples: 1,
            redraw: false,
        })
    }

    /// Returns the same number of kept in-edges for each relation.
    fn keep_of_each(&self, keep: usize) -> Vec<usize> {
        vec![keep; self.graph.relations.len()]
    }

    /// Returns the kept in-edges of a sample's fan-outs, by relation. Fan-outs of other relations,
    /// which the stage itself refuses, need all in-edges.
    fn keep_of(&self, fanouts: &[HopFanouts]) -> Vec<usize> {
        let num_relations = self.graph.relations.len();
        let fits = |hop: &HopFanouts| hop.as_ref().len() == num_relations;
        if !fanouts.iter().all(fits) {
            return self.keep_of_each(usize::MAX);
        }
        let keep = |relation| keep_at_hop(fanouts, relation, 0);
        (0..num_relations).map(keep).collect()
    }
}

/// The stores of a job: one, unless inference needs another sample.
pub(crate) struct Stores<'a> {
    job: &'a Job,
    pub(crate) cluster: &'a Cluster,
    /// Each open store, with its directory.
    open: Vec<(PathBuf, Arc<Store>)>,
}

impl<'a> Stores<'a> {
    /// Creates the list of stores; opens none yet.
    pub(crate) fn new(job: &'a Job, cluster: &'a Cluster) -> Stores<'a> {
        Stores {
            job,
            cluster,
            open: Vec::new(),
        }
    }

    /// Returns the store of a stage, and builds it if it does not exist. For a stage that writes a
    /// version, it has the partitions of all processes.
    ///
    /// The needs of all stages of the job count, not only of those that run now, so that stages
    /// which run one after the other use the same store.
    pub(crate) fn open(
        &mut self,
        stage: Stage,
        progress: &Progress,
    ) -> Result<Arc<Store>, JobError> {
        let mut plan = store_plan(self.job, stage)?;
        let version = version_of(self.job, stage);
        let is_of_version = version.is_some();
        // All processes open what the leader does.
        let own = version.and_then(|of| Base::of(&self.job.work_dir, of.parent));
        let name = gather_processes(self.cluster, own.map(|of| of.name))?.swap_remove(0);
        let base = name.zip(version).map(|(name, of)| Base {
            name,
            parent: of.parent,
        });
        if let Some(base) = &base {
            plan.dir = self.job.work_dir.join(&base.name);
        }
        let mut open = self.open.iter();
        let open =
            open.find(|(dir, store)| *dir == plan.dir && (store.is_whole() || !is_of_version));
        if let Some((_, store)) = open {
            return Ok(Arc::clone(store));
        }
        // A process that keeps nothing of the parent takes what the leader knows.
        let drawn = gather_processes(self.cluster, (plan.sampling, plan.seed))?;
        (plan.sampling, plan.seed) = drawn[0];
        let store = match base {
            Some(base) => {
                let opened = base.open(Some(self.cluster), &self.job.work_dir, &plan);
                opened.map_err(FlattenError::from)?
            }
            None => store::open_or_build_on(self.cluster, &plan, progress)?,
        };
        return_free_memory();
        let store = match is_of_version {
            true => store::open_whole(&store, &plan.dir)?,
            false => store,
        };
        let store = Arc::new(store);
        self.open.push((plan.dir, Arc::clone(&store)));
        Ok(store)
    }
}

/// Returns the version that a stage writes, if it does.
pub(crate) fn version_of(job: &Job, stage: Stage) -> Option<VersionInput<'_>> {
    match stage {
        Stage::Flatten => job.flatten_version(),
        Stage::Infer => job.version(),
        Stage::Train | Stage::Score => None,
    }
}

/// Returns the plan of a stage's store.
fn store_plan(job: &Job, stage: Stage) -> Result<StorePlan, JobError> {
    let flatten = job.flatten_need();
    // A job that only flattens must not fail because inference lacks something.
    let infer = if job.runs(Stage::Infer) {
        job.infer_need()?
    } else {
        job.infer_need().ok().flatten()
    };
    let joined = match (&flatten, &infer) {
        (Some(flatten), Some(infer)) => flatten.join(infer),
        (need, None) | (None, need) => need.clone(),
    };
    let score = job.score_need();
    let (need, name) = match (joined, &flatten, stage) {
        (None, Some(_), Stage::Infer) => (infer.expect("both stages have needs"), "store-infer"),
        (Some(need), ..) => (need.with(score.as_ref()), STORE),
        (None, Some(flatten), _) => (flatten.clone().with(score.as_ref()), STORE),
        (None, None, _) => (score.expect("the stage has needs"), STORE),
    };
    let hub_threshold = job
        .sample()
        .map_or(HUB_THRESHOLD, |sample| sample.hub_threshold());
    let dir = job.work_dir.join(name);
    let (sampling, seed) = match need.sampling {
        Some(sampling) => (sampling, need.seed),
        None => drawn_before(job, &dir)?.unwrap_or((Sampling::Uniform, need.seed)),
    };
    let by_weight = matches!(need.sampling, Some(Sampling::Weighted | Sampling::Top));
    let relations = job.graph.relations.iter();
    // All nodes of a graph are read.
    let mut tables = relations.map(|relation| &relation.edges);
    if by_weight && tables.any(|edges| !edges.has_weight() && !edges.is_of_graphs()) {
        return Err(JobError::Key {
            key: "infer.sampling".to_owned(),
            problem: "the model was trained on in-edges chosen by weight, which needs \
                      `input.edges.weight`; `sampling = \"none\"` takes all in-edges"
                .to_owned(),
        });
    }
    Ok(StorePlan {
        graph: Arc::clone(&job.graph),
        target_type: job.target_type,
        seed,
        sampling,
        keep: need.keep,
        samples: need.samples,
        redraw: need.redraw || job.versions.are_kept,
        left_out: job.versions.are_kept,
        hub_threshold,
        workers: job.workers,
        memory_budget: usize::try_from(job.memory_budget.as_u64()).unwrap_or(usize::MAX),
        page_cache: page_cache()?,
        dir,
        fresh: job.is_fresh(stage),
    })
}

/// Returns sampling and seed of the store that a version continues: those of the first run count,
/// even if no stage of this job draws a sample. None if the job has no version, or nothing is kept
/// of its parent in this process.
fn drawn_before(job: &Job, dir: &Path) -> Result<Option<(Sampling, u64)>, JobError> {
    let kept = job.parents().find_map(|parent| {
        let manifest = read_manifest(parent).ok()?;
        find_kept::<NoRows>(&job.work_dir, &manifest.fingerprint)
    });
    let Some(kept) = kept else { return Ok(None) };
    let found = StoreMeta::read(dir).ok().flatten();
    let found = found.map(|found| (found.sampling, found.seed));
    // The store may be gone.
    let all = [Sampling::Uniform, Sampling::Weighted, Sampling::Top];
    let candidates = found.into_iter().chain(all.map(|of| (of, job.seed)));
    Ok(store::find_sampling(&job.graph, &kept.graph, candidates)?)
}

/// Returns the plan of a stage's store; none if the stage needs no store.
pub(crate) fn needed_store(job: &Job, stage: Stage) -> Result<Option<StorePlan>, JobError> {
    let by_layers = |plan: &InferPlan| plan.method() == Method::Layers;
    let is_needed = match stage {
        Stage::Flatten => true,
        Stage::Train => job.stream.is_some(),
        Stage::Infer => job.infer.as_ref().is_some_and(by_layers),
        Stage::Score => job.score.as_ref().is_some_and(|plan| plan.reads_pairs()),
    };
    is_needed.then(|| store_plan(job, stage)).transpose()
}
