//! The infer stage: computes embeddings from a store and a model, and commits them.

use crate::InferError;
use crate::changed_rows::Layers;
use crate::checkpoint::Checkpoint;
use crate::compare::{Difference, Other};
use crate::config::InferTargets;
use crate::device::{check_rows, open_device, row_numbers, widest};
use crate::embedding::embedding_columns;
use crate::graph::{BlockSize, Graph};
use crate::identity::{fingerprint, limit_json, plan_json, rounds_fingerprint};
use crate::inner::{report, report_resumed, run_inner};
use crate::kept_versions::{FullVersion, Keeping, RowFiles};
use crate::last_round::PartsWriter;
use crate::layer::{LayerInput, Rounds};
use crate::model::{Trained, TrainedModel};
use crate::plan::{InferPlan, TARGETS};
use crate::round::RoundStats;
use crate::slice::Slice;
use crate::spooled::{Gathering, Spooled};
use crate::threads::Threads;
use cluster::{gather_processes, open_output};
use gnn::{Device, Model, RowFormat};
use graphdelta::{KeptVersions, fetch_kept, find_kept};
use schemas::{
    FeatureMeta, IdListPlan, LabelMeta, Manifest, NodeIdx, Opened, Output, PartEntry, Progress,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;
use store::Store;

/// Directories of rounds in the working directory: for the job's sampling, and for the other one.
const ROUNDS: [&str; 2] = ["infer", "infer-compared"];

/// Share of the memory budget for copied rows, in eighths; parts and ids of nodes take the rest.
const GATHERED_OF_8: usize = 3;

/// Computes the embedding and the prediction of every node or of the listed targets, commits them
/// and returns the manifest.
///
/// Each process of the store's cluster computes the rows of its own nodes; process 0 finishes the
/// output. If an output of the same plan, model and graph is finished, its manifest is returned. An
/// unfinished output is continued after its last finished round, and its committed parts are kept.
///
/// # Errors
///
/// If the model is missing or does not fit the store, before anything is written; if the output
/// directory holds something else; if rows or a part cannot be written; if another process fails.
///
/// # Panics
///
/// If a thread that this function starts has panicked.
pub fn infer(plan: &InferPlan, store: &Store, progress: &Progress) -> Result<Manifest, InferError> {
    store.cluster().set_phase("infer, its start");
    infer_all(plan, store, None, progress)
}

/// Does the same as [`infer`]; the output is a version if one is given, whose changes the store
/// holds.
pub(crate) fn infer_all(
    plan: &InferPlan,
    store: &Store,
    version: Option<&FullVersion<'_>>,
    progress: &Progress,
) -> Result<Manifest, InferError> {
    let trained = Trained::open(plan)?;
    let plan = &trained.record().completed(plan);
    let of_store = (store, version);
    match trained {
        Trained::Untyped(trained) => infer_untyped(plan, *trained, of_store, progress),
        Trained::Typed(trained) => crate::typed::infer(plan, *trained, of_store, progress),
    }
}

/// [`infer_all`] of a graph without node types.
fn infer_untyped(
    plan: &InferPlan,
    trained: TrainedModel,
    (store, version): (&Store, Option<&FullVersion<'_>>),
    progress: &Progress,
) -> Result<Manifest, InferError> {
    let trained = &check_model(plan, trained, store)?;
    let record = &trained.record;
    let settings = Settings::new(plan, trained, store)?;
    let embedding_layer = settings.embedding_layer;
    let fingerprint = version.map_or(&settings.fingerprint, |of| &of.manifest.fingerprint);
    let (slices, layers) = (&settings.slices, settings.slices.len());
    let of_rounds = rounds_fingerprint(fingerprint, store);
    if let Some(manifest) = finished(plan, fingerprint, store)? {
        check_kept(plan, fingerprint, store)?;
        remove_left(plan, &of_rounds)?;
        return Ok(manifest);
    }
    let keeping = keep_versions(plan, store, version)?;
    let other_slices = Slice::all(record.limits(layers, 0, plan.other_sampling()));
    // Everything that can fail because of the input comes before the output is opened.
    let limits = limits(plan, slices, &other_slices);
    let (model, graph) = on_device(plan, trained, (store, &limits), progress)?;
    let copies = plan_copies(plan, trained, (&graph, model.device(), layers))?;
    let id_type = store.meta().graph.target().id_type;
    let columns = embedding_columns(plan, record, id_type, embedding_layer)?;
    let list = settings.list.as_ref();
    let targets = list.map(|list| targets(list, &graph)).transpose()?;
    let output = match open_output::<InferError>(
        store.cluster(),
        (&plan.output, "infer", fingerprint),
        plan.fresh,
    )? {
        // Another run has finished the output in the meantime.
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let threads = Threads::new(store.cluster().num_threads())?;
    let mut checkpoints = open_checkpoints(plan, &of_rounds)?;
    let gathering = copies.map(|of| of.start(&graph, trained, (&limits, &plan.work_dir)));
    let gathering = gathering.transpose()?;
    let rounds = Rounds {
        graph: &graph,
        trained,
        model: &model,
        slices,
        threads: &threads,
        format: plan.rows,
        embedding_layer,
        keeps_rows: plan.keeps_rows,
        gathering: gathering.as_ref(),
    };
    let last = PartsWriter {
        rounds: &rounds,
        output: &output,
        rows_per_part: plan.rows_per_part,
        columns,
        normalize: plan.normalize,
        targets,
        inner: None,
        other: None,
    };
    let label = last.columns.prediction.clone();
    let other = Rounds {
        slices: &other_slices,
        ..rounds
    };
    let share = run(last, &other, &mut checkpoints, progress)?;
    let mut report = join(gather_processes(store.cluster(), share)?, plan, &output);
    report["embedding"] = record.embedding_report(embedding_layer);
    let own = || graph.own().collect();
    let rows = |dir: &Path| checkpoints.0.keep_rows(layers - 1, (store, own), dir);
    let named = (&**fingerprint, &settings.plan_json);
    keeping.keep(named, store, (None, rows))?;
    let manifest = manifest((named, version), (&output, label), store, report);
    finish(output, &manifest, checkpoints, store)?;
    Ok(manifest)
}

/// Returns the manifest of an output whose parts are written; `label` describes its predictions.
pub(crate) fn manifest(
    ((fingerprint, plan), version): ((&str, &serde_json::Value), Option<&FullVersion<'_>>),
    (output, label): (&Output, Option<LabelMeta>),
    store: &Store,
    mut report: serde_json::Value,
) -> Manifest {
    let of_tables = || {
        let planned = (plan.clone(), store.manifest_input());
        Manifest::new("infer", fingerprint.to_owned(), planned, store.meta().seed)
    };
    let started = version.map_or_else(of_tables, |of| of.manifest.clone());
    for (key, value) in started.report.as_object().into_iter().flatten() {
        report[key] = value.clone();
    }
    Manifest {
        graph: Some(store.meta().graph.clone().with_label(label)),
        parts: output.parts(),
        report,
        ..started
    }
}

/// What a plan and a model decide before any work.
pub(crate) struct Settings {
    pub(crate) embedding_layer: usize,
    /// The layers that are computed.
    pub(crate) slices: Vec<Slice>,
    list: Option<IdListPlan>,
    pub(crate) plan_json: serde_json::Value,
    fingerprint: String,
}

impl Settings {
    pub(crate) fn new(
        plan: &InferPlan,
        trained: &TrainedModel,
        store: &Store,
    ) -> Result<Self, InferError> {
        let record = &trained.record;
        let embedding_layer = record.embedding_layer(plan)?;
        let layers = match plan.reads_logits() {
            true => trained.model.architecture().num_layers,
            false => embedding_layer,
        };
        let slices = Slice::all(record.limits(layers, 0, plan.sampling));
        let list = target_list(plan, store)?;
        let listed = list.as_ref().map(IdListPlan::fingerprint).transpose()?;
        let in_edges = slices.iter().map(|slice| limit_json(slice.limit)).collect();
        let settings = record.settings(plan)?;
        let plan_json = plan_json(settings, record, (in_edges, listed.as_deref()));
        Ok(Self {
            embedding_layer,
            slices,
            list,
            fingerprint: fingerprint(&plan_json, store),
            plan_json,
        })
    }
}

/// Checks that a finished output has what its versions need, if any are planned. Processes that
/// lack it fetch it from the leader.
pub(crate) fn check_kept(
    plan: &InferPlan,
    fingerprint: &str,
    store: &Store,
) -> Result<(), InferError> {
    if plan.keeps_rows {
        fetch_kept(store.cluster(), &plan.work_dir, &plan.output)?;
    }
    if !plan.keeps_rows || find_kept::<RowFiles>(&plan.work_dir, fingerprint).is_some() {
        return Ok(());
    }
    if KeptVersions::unlocked(&plan.work_dir).are_continued(fingerprint) {
        if store.cluster().leads() {
            tracing::warn!(
                "versions cannot start from {} any more: a later one has removed what was kept of \
                 it; compute it again with --stage infer --fresh if they are to",
                plan.output.display()
            );
        }
        return Ok(());
    }
    Err(InferError::NotKept {
        output: plan.output.clone(),
    })
}

/// Locks the versions that are kept, and writes the out-edges that the next one needs, if any is
/// planned. A version has both.
pub(crate) fn keep_versions<'a>(
    plan: &InferPlan,
    store: &Store,
    version: Option<&'a FullVersion<'a>>,
) -> Result<Keeping<'a>, InferError> {
    match version {
        Some(version) => Ok(Keeping::Version(version)),
        None if plan.keeps_rows => {
            let keep = Layers::open(plan, store)?.keep();
            let versions = KeptVersions::lock(&plan.work_dir)?;
            versions.out_edges(store, &keep)?;
            Ok(Keeping::Tables(versions))
        }
        None => Ok(Keeping::Nowhere),
    }
}

/// Returns a copy of a model on the device of the plan, and the graph in blocks for it.
fn on_device(
    plan: &InferPlan,
    trained: &TrainedModel,
    (store, limits): (&Store, &BTreeSet<usize>),
    progress: &Progress,
) -> Result<(Model, Graph), InferError> {
    let model = trained.model.on(open_device(plan, store, progress)?);
    let features = store.meta().graph.types[0].features;
    let blocks = BlockSize::on(model.device(), widest(trained, features));
    let graph = Graph::new(store, model.architecture(), limits, blocks)?;
    Ok((model, graph))
}

/// What rounds copy that the page cache, or a buffer of a GPU, cannot hold.
struct Copies {
    /// Memory of the copies.
    bytes: usize,
    /// Whether the page cache cannot hold the files.
    is_short: bool,
}

impl Copies {
    fn start(
        self,
        graph: &Graph,
        trained: &TrainedModel,
        (limits, dir): (&BTreeSet<usize>, &Path),
    ) -> Result<Gathering, InferError> {
        let arch = trained.model.architecture();
        let to = (dir, self.bytes);
        let spooled = self.is_short.then(|| Spooled::new(graph, arch, limits, to));
        Ok(Gathering {
            bytes: self.bytes,
            spooled: spooled.transpose()?,
        })
    }
}

/// Returns what the rounds copy at once. None if the page cache holds the files that they read, and
/// one buffer of a GPU holds the rows. Several processes, and sparse features, always read the
/// files as they are.
fn plan_copies(
    plan: &InferPlan,
    trained: &TrainedModel,
    (graph, device, layers): (&Graph, &Device, usize),
) -> Result<Option<Copies>, InferError> {
    let store = graph.store();
    let of_nodes = &store.meta().graph.types[0];
    let is_sparse = matches!(of_nodes.features, FeatureMeta::Sparse { .. });
    let widths = (1..=layers).map(|layer| row_numbers(trained, layer, of_nodes.features));
    let widest = widths.max().unwrap_or(0);
    // The rows that a round reads and those that it writes.
    let bytes = 2 * plan.rows.num_bytes() * widest * store.placement().num_nodes();
    let is_alone = store.cluster().num_processes() == 1;
    let copies = is_alone && !is_sparse;
    // The largest buffer of a GPU that does not hold all rows.
    let most = match check_rows(device, trained, (graph, layers)) {
        Err(InferError::GpuTooSmall { most, .. }) if copies => Some(most),
        fits => fits.map(|()| None)?,
    };
    let is_short = copies && !store.is_cached_with(bytes as u64);
    let at_most = most.map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    });
    Ok((is_short || most.is_some()).then(|| Copies {
        bytes: at_most.min(store.memory_budget() / 8 * GATHERED_OF_8),
        is_short,
    }))
}

/// Checks that a model fits a store and a plan, and prepares it for the store's columns. Process 0
/// logs warnings about the model.
pub(crate) fn check_model(
    plan: &InferPlan,
    trained: TrainedModel,
    store: &Store,
) -> Result<TrainedModel, InferError> {
    trained.check(store.meta())?;
    trained.check_columns(plan, store.columns())?;
    trained.check_plan(plan)?;
    if store.cluster().leads() {
        trained.warn(plan);
    }
    trained.bound_to(&store.meta().graph)
}

/// The rounds of the job's sampling, and of the other sampling if the two are compared.
pub(crate) type Checkpoints = (Checkpoint, Option<Checkpoint>);

pub(crate) fn open_checkpoints(
    plan: &InferPlan,
    fingerprint: &str,
) -> Result<Checkpoints, InferError> {
    let open = |name| Checkpoint::open(plan.work_dir.join(name), fingerprint, plan.fresh);
    let other = plan.compare_sampling.then(|| open(ROUNDS[1])).transpose()?;
    Ok((open(ROUNDS[0])?, other))
}

/// Finishes the output and removes the rounds.
pub(crate) fn finish(
    output: Output,
    manifest: &Manifest,
    (own, other): Checkpoints,
    store: &Store,
) -> Result<(), InferError> {
    if store.cluster().leads() {
        output.finish(manifest)?;
    }
    // Other processes may need this process's rounds until the output is finished.
    gather_processes(store.cluster(), ())?;
    own.remove()?;
    other.map_or(Ok(()), Checkpoint::remove)
}

/// Statistics, difference and parts of one process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) rounds: Vec<RoundStats>,
    pub(crate) difference: Difference,
    /// How far a sample is from one with rows in f32.
    pub(crate) rounding: Difference,
    /// Name of the device that computed the layers.
    pub(crate) device: String,
    pub(crate) parts: BTreeMap<usize, PartEntry>,
}

/// Joins the shares of all processes; returns the report.
pub(crate) fn join(shares: Vec<Share>, plan: &InferPlan, output: &Output) -> serde_json::Value {
    let (mut difference, mut rounding) = (Difference::default(), Difference::default());
    let mut of_processes = Vec::with_capacity(shares.len());
    let mut devices = BTreeSet::new();
    for share in shares {
        difference.add(&share.difference);
        rounding.add(&share.rounding);
        output.adopt_parts(share.parts);
        devices.insert(share.device);
        of_processes.push(share.rounds);
    }
    let mut report = match &of_processes[..] {
        [rounds] => serde_json::json!({ "rounds": rounds }),
        _ => serde_json::json!({ "processes": of_processes }),
    };
    let devices: Vec<String> = devices.into_iter().collect();
    report["device"] = devices.join(", ").into();
    if plan.compare_sampling {
        report["sampling_compared"] = difference.report();
    }
    if plan.rows != RowFormat::F32 {
        report["rows_compared"] = rounding.report();
    }
    report
}

/// Returns the manifest of a finished output, which process 0 looks for. All processes must have
/// the same fingerprint.
pub(crate) fn finished(
    plan: &InferPlan,
    fingerprint: &str,
    store: &Store,
) -> Result<Option<Manifest>, InferError> {
    let cluster = store.cluster();
    let found = match (plan.fresh, cluster.process()) {
        (false, 0) => Output::done(&plan.output, "infer", fingerprint)?,
        _ => None,
    };
    let mut told = gather_processes(cluster, (fingerprint.to_owned(), found))?;
    if let Some(process) = told.iter().position(|(theirs, _)| *theirs != told[0].0) {
        return Err(InferError::Unlike { process });
    }
    Ok(told.swap_remove(0).1)
}

/// Returns how many in-edges of a node each round reads, without duplicates.
fn limits(plan: &InferPlan, slices: &[Slice], other: &[Slice]) -> BTreeSet<usize> {
    let other = other.iter().filter(|_| plan.compare_sampling);
    slices
        .iter()
        .chain(other)
        .map(|slice| slice.limit)
        .collect()
}

/// Removes the rounds of runs that were killed after they had finished this output.
pub(crate) fn remove_left(plan: &InferPlan, fingerprint: &str) -> Result<(), InferError> {
    let mut dirs = ROUNDS.map(|name| plan.work_dir.join(name)).into_iter();
    dirs.try_for_each(|dir| Checkpoint::remove_left(dir, fingerprint))
}

/// Opens the list of targets, if the plan has one.
pub(crate) fn target_list(
    plan: &InferPlan,
    store: &Store,
) -> Result<Option<IdListPlan>, InferError> {
    let InferTargets::Listed(path) = &plan.targets else {
        return Ok(None);
    };
    let meta = store.meta();
    let list = IdListPlan::open(TARGETS, path, &meta.id_column, meta.graph.target().id_type)?;
    Ok(Some(list))
}

/// Returns the nodes of a list of targets, ascending.
fn targets(list: &IdListPlan, graph: &Graph) -> Result<Vec<NodeIdx>, InferError> {
    let ids = list.read()?;
    let nodes = graph.find(&ids)?;
    nodes.map_err(|row| list.unknown(&ids, row).into())
}

/// Runs the rounds that are not finished yet; the last round writes the parts.
fn run<'a>(
    mut last_round: PartsWriter<'a>,
    other: &'a Rounds<'a>,
    checkpoints: &mut Checkpoints,
    progress: &Progress,
) -> Result<Share, InferError> {
    let rounds = last_round.rounds;
    let last = rounds.slices.len();
    let mut stats = Vec::new();
    let num_parts = last_round.output.committed_parts().len();
    let resumed = |next| report_resumed(progress, last, (next, num_parts));
    let (before, inner) = run_inner(rounds, &mut checkpoints.0, resumed, |done| {
        report(progress, last, done.round);
        stats.push(done);
    })?;
    last_round.inner = inner;
    if let Some(checkpoint) = &mut checkpoints.1 {
        let (other_before, _) = run_inner(other, checkpoint, |_| {}, |_| {})?;
        last_round.other = Some(Other {
            rounds: other,
            input: other.open(last, &other_before)?,
        });
    }
    let started = Instant::now();
    let cluster = rounds.graph.cluster();
    cluster.set_phase(&format!("infer, round {last}/{}", last + 1));
    // If no part is left to write and no sample is compared, the rows of hubs are not needed either.
    let input = match last_round.open_parts()[..] {
        [] if rounds.format == RowFormat::F32 => LayerInput::of(last, &before),
        _ => rounds.open(last, &before)?,
    };
    let written = last_round.run(&input)?;
    let mut done = rounds.stats(last, 0, started.elapsed().as_secs_f64());
    done.writing = written.writing.as_secs_f64();
    done.crossing = written.crossing;
    let of_hubs = input.hubs.crossing;
    done.crossing.iter_mut().for_each(|rows| rows.add(of_hubs));
    stats.push(done);
    report(progress, last, last);
    report(progress, last, last + 1);
    Ok(Share {
        rounds: stats,
        difference: written.difference,
        rounding: match rounds.format {
            RowFormat::F32 => Difference::default(),
            RowFormat::Bf16 => {
                let predicts = last_round.columns.prediction.is_some();
                rounds.rounding(&input, (last_round.inner.as_ref(), predicts))?
            }
        },
        parts: last_round.output.committed_parts(),
        device: rounds.model.device().name().to_owned(),
    })
}
