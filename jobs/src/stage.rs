//! Runs the stages of a job in order, on one store.

use std::cell::OnceCell;
use std::time::Instant;

use anyhow::Context as _;
use cluster::{Cluster, gather_processes};
use graphdelta::{Base, SharedReach, VersionInput, fetch_kept};
use graphflat::{FlattenError, SamplePlan, Waves};
use graphinfer::{InferPlan, Method, infer_version};
use graphtrainer::{Source, TrainPlan};
use schemas::dataset::is_begun;
use schemas::progress::Progress;
use schemas::{Manifest, known, read_manifest};
use store::Store;

use crate::check::taken::{is_done, refuse_taken};
use crate::cli::{RunArgs, Stage};
use crate::console::Console;
use crate::ending;
use crate::error::JobError;
use crate::job::{CHECKSUMS, Job, Overrides};
use crate::leftovers::remove_unused;
use crate::memory::{plan_free_memory, return_free_memory};
use crate::preflight::{pair_splits, preflight};
use crate::processes::Processes;
use crate::report::{Done, report};
use crate::source::Edits;
use crate::stores::{Stores, needed_store, version_of};

/// Runs a job.
///
/// # Errors
///
/// The first error of the job file, of a stage or of its input.
pub(crate) fn run(args: &RunArgs, console: &Console) -> anyhow::Result<()> {
    ending::be_resumable();
    end_with_cut_maps()?;
    let edits = args.job.edits();
    let job = load(args, &edits)?;
    check_version_flags(args, &job)?;
    known::remember(&job.work_dir.join(CHECKSUMS), job.remembered());
    let only_writes_version =
        job.parents().next().is_some() && !job.selected.contains(&Stage::Train);
    plan_free_memory(job.memory_budget, only_writes_version);
    console.name_job(&job.name);
    let context = || format!("job {}", args.job.path.display());
    let processes = Processes::start(args, &edits, &job, console).with_context(context)?;
    let result = run_stages(&job, &processes, console).with_context(context);
    processes.end(result)
}

/// Loads the job of a run.
fn load(args: &RunArgs, edits: &Edits) -> anyhow::Result<Job> {
    let of = &args.processes;
    let mut overrides = Overrides {
        workers: args.workers,
        stages: args.stage.clone(),
        fresh: args.fresh_stages(),
        process: of.are_several().then(|| of.number()),
        processes: of.processes.map(usize::from),
        full: args.full,
    };
    let job = Job::load(&args.job.path, edits, &overrides)?;
    if let Some(stage) = args.begun_stage
        && let Some(output) = job.output(stage)
        && !is_begun(output).map_err(JobError::from)?
    {
        overrides.fresh.push(stage);
        return Ok(Job::load(&args.job.path, edits, &overrides)?);
    }
    Ok(job)
}

/// Checks flags that are for jobs with versions only, or for others only.
fn check_version_flags(args: &RunArgs, job: &Job) -> Result<(), JobError> {
    let wrong = |name: &str, problem: &str| {
        Err(JobError::Key {
            key: name.to_owned(),
            problem: problem.to_owned(),
        })
    };
    if args.full && job.version().is_none() && job.flatten_version().is_none() {
        let problem = "is for versions, which have `incremental.parent` or `incremental.features`";
        return wrong("--full", problem);
    }
    Ok(())
}

/// Has a mapped file that is cut end the program like any other error.
#[cfg(unix)]
pub(crate) fn end_with_cut_maps() -> Result<(), JobError> {
    let failed = |source| JobError::Process { source };
    let cut = store::CutMaps::watch().map_err(failed)?;
    let end = move || {
        if let Some(problem) = cut.wait() {
            ending::fail(&problem);
        }
    };
    schemas::threads::spawn("maps", end)?;
    Ok(())
}

/// The system ends the program where a mapped file is cut.
#[cfg(not(unix))]
pub(crate) fn end_with_cut_maps() -> Result<(), JobError> {
    Ok(())
}

fn run_stages(job: &Job, processes: &Processes, console: &Console) -> anyhow::Result<()> {
    // Layers and their gradients run on this pool; a process makes this call once.
    rayon::ThreadPoolBuilder::new()
        .num_threads(job.workers)
        .build_global()
        .map_err(|error| JobError::from(schemas::threads::refused(error)))?;
    let started = Instant::now();
    for parent in job.parents() {
        let fetched = fetch_kept(&processes.cluster, &job.work_dir, parent);
        fetched.map_err(|error| JobError::from(FlattenError::from(error)))?;
    }
    preflight(job)?;
    // If all stages are finished, tables need not be compared here: the first stage reads them, and
    // no work can be lost. Before streamed training, a store of other tables would be replaced.
    let is_left = job.selected.iter().any(|stage| !is_done(job, *stage));
    refuse_taken(job, is_left || job.stream.is_some())?;
    // The leader changes the outputs only after all processes have checked them.
    gather_processes(&processes.cluster, ()).map_err(JobError::from)?;
    let progress = processes.watched(console.progress()?);
    let mut stores = Stores::new(job, &processes.cluster);
    let reach = OnceCell::new();
    let mut done = Vec::new();
    for &stage in &job.selected {
        let record = run_stage(job, stage, (&mut stores, &reach), &progress)
            .with_context(|| format!("stage {}", stage.name()))?;
        return_free_memory();
        processes.note_done(stage);
        done.push(record);
    }
    let num_processes = processes.cluster.num_processes();
    if processes.cluster.process() == 0 {
        let shared = job.work_dir.parent().filter(|_| num_processes > 1);
        remove_unused(shared.unwrap_or(&job.work_dir), num_processes);
    }
    if let Err(error) = known::save() {
        // The next run reads the files again.
        tracing::warn!("{}", schemas::error_chain(&error));
    }
    report(job, &done, (started.elapsed(), num_processes), console);
    Ok(())
}

fn run_stage(
    job: &Job,
    stage: Stage,
    (stores, shared): (&mut Stores<'_>, &OnceCell<SharedReach>),
    progress: &Progress,
) -> Result<Done, JobError> {
    let started = Instant::now();
    let missing = "a selected stage has a plan";
    let output = job.output(stage).expect(missing).to_owned();
    let is_new = job.is_fresh(stage) || is_begun(&output)?;
    let before = match is_new {
        true => None,
        false => read_manifest(&output).ok(),
    };
    let manifest = match stage {
        Stage::Flatten => {
            let plan = job.flatten.as_ref().expect(missing);
            let store = stores.open(stage, progress)?;
            stored_splits(job, &store)?;
            match job.flatten_version() {
                Some(version) => {
                    if let Some(infer) = later_version(job, stores.cluster)? {
                        let later = graphinfer::reach_plan(infer, &store)?;
                        shared.set(SharedReach::new(later)).ok();
                    }
                    let shared = shared.get();
                    let of_version = (&*job.work_dir, VersionInput { shared, ..version });
                    graphflat::flatten_version(plan, &store, of_version, progress)?
                }
                None => graphflat::flatten(plan, &store, progress)?,
            }
        }
        Stage::Train => {
            let plan = job.train.as_ref().expect(missing);
            match &job.stream {
                None => graphtrainer::train_among(plan, stores.cluster, progress)?,
                Some(sample) => {
                    let store = stores.open(stage, progress)?;
                    stored_splits(job, &store)?;
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
                    stored_splits(job, &store)?;
                    match job.version() {
                        Some(version) => {
                            let shared = shared.get();
                            let version = VersionInput { shared, ..version };
                            infer_version(plan, &store, version, progress)?
                        }
                        None => graphinfer::infer(plan, &store, progress)?,
                    }
                }
            }
        }
        Stage::Score => {
            let plan = job.score.as_ref().expect(missing);
            let store = plan.reads_pairs().then(|| stores.open(stage, progress));
            let store = store.transpose()?;
            graphscore::score(plan, stores.cluster, store.as_deref(), progress)?
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

/// Returns the plan of a version of embeddings that the job writes after one of graph features, of
/// the same changes and store; none if there is none, or its model is trained first.
fn later_version<'a>(job: &'a Job, cluster: &Cluster) -> Result<Option<&'a InferPlan>, JobError> {
    let Some(plan) = job.infer.as_ref().filter(|_| job.version().is_some()) else {
        return Ok(None);
    };
    let is_next = job.runs(Stage::Infer) && job.brings_model() && !is_done(job, Stage::Infer);
    if !is_next {
        return Ok(None);
    }
    let dir = |stage| Ok::<_, JobError>(needed_store(job, stage)?.map(|of_store| of_store.dir));
    let base = |stage| {
        let of = version_of(job, stage)?;
        Base::of(&job.work_dir, of.parent).map(|base| base.name)
    };
    // Of several processes, one may have lost what it keeps.
    let is_same = cluster.num_processes() > 1 || base(Stage::Flatten) == base(Stage::Infer);
    let is_shared = is_same && dir(Stage::Flatten)? == dir(Stage::Infer)?;
    Ok(is_shared.then_some(plan))
}

/// Checks, before a stage writes, that the store's pairs have the splits that the selected stages
/// need. The changes of a version give pairs other splits.
fn stored_splits(job: &Job, store: &Store) -> Result<(), JobError> {
    match (&store.meta().pairs, job.flatten_version()) {
        (Some(counts), None) => pair_splits(job, counts),
        _ => Ok(()),
    }
}

/// Trains on neighbourhoods that are drawn from the store anew in each epoch.
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
    let source = Source::streamed(input, metas, counts, plan.part_cache_bytes(), waves)
        .with_columns(store.manifest_input()["columns"].take());
    Ok(graphtrainer::train_on(
        plan,
        &source,
        &fingerprint,
        progress,
    )?)
}
