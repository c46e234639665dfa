//! The infer stage: from the store and a model to committed embeddings.

use crate::checkpoint::{Checkpoint, RoundRows};
use crate::compare::Other;
use crate::config::{InferTargets, TARGETS};
use crate::graph::Graph;
use crate::round::{RoundStats, Rounds};
use crate::slice::{Slice, TrainedModel};
use crate::threads::Threads;
use crate::write::{Parts, embedding_columns};
use crate::{InferError, InferPlan};
use gnn::SharedRows;
use graphflat::Store;
use schemas::{Event, GraphMeta, IdListPlan, LabelMeta, Manifest, Opened, Output, Progress};
use std::time::Instant;

/// Changes when the same plan gives other bytes than before.
const ENGINE_VERSION: u32 = 4;

/// Where rounds lie in the working directory: those of the job's sampling, and of the other one.
const ROUNDS: [&str; 2] = ["infer", "infer-compared"];

/// Computes the embedding of every node, and its prediction, and commits them.
///
/// A finished output of the same plan, model and graph is returned as it is. A half-finished one is
/// continued: after its last finished round, and with its committed parts.
///
/// # Errors
///
/// A model that is not there or does not fit the store, before anything is written; an output
/// directory that holds something else; rows or a part that cannot be written.
pub fn infer(plan: &InferPlan, store: &Store, progress: &Progress) -> Result<Manifest, InferError> {
    let trained = TrainedModel::open(plan)?;
    trained.check(store.meta())?;
    trained.check_plan(plan)?;
    let embedding_layer = trained.embedding_layer(plan)?;
    let layers = match plan.reads_logits() {
        true => trained.model.architecture().num_layers,
        false => embedding_layer,
    };
    let slices = trained.slices(layers, plan.sampling);
    let list = target_list(plan, store)?;
    let listed = list.as_ref().map(IdListPlan::fingerprint).transpose()?;
    let plan_json = plan_json(plan, &trained, &slices, listed.as_deref());
    let fingerprint = fingerprint(&plan_json, store);
    let finished = match plan.fresh {
        true => None,
        false => Output::done(&plan.output, "infer", &fingerprint)?,
    };
    if let Some(manifest) = finished {
        remove_left(plan, &fingerprint)?;
        return Ok(manifest);
    }
    // What may fail of the input, before anything is written.
    let graph = Graph::new(store, trained.model.architecture())?;
    let columns = embedding_columns(plan, &trained, store.meta().graph.id_type, embedding_layer)?;
    let targets = list.map(|list| targets(&list, &graph)).transpose()?;
    let output = match Output::open(&plan.output, "infer", &fingerprint, plan.fresh)? {
        // Another run has finished it meanwhile.
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let threads = Threads::new(store.placement().workers())?;
    let rounds = Rounds {
        graph: &graph,
        trained: &trained,
        slices: &slices,
        threads: &threads,
        embedding_layer,
    };
    let parts = Parts {
        rounds: &rounds,
        output: &output,
        rows_per_part: plan.rows_per_part,
        columns,
        normalize: plan.normalize,
        targets,
        inner: None,
        other: None,
    };
    let label = parts.columns.prediction.clone();
    let checkpoint = |name| Checkpoint::open(plan.work_dir.join(name), &fingerprint, plan.fresh);
    let mut checkpoints = (checkpoint(ROUNDS[0])?, None);
    if plan.compare_sampling {
        checkpoints.1 = Some(checkpoint(ROUNDS[1])?);
    }
    let other_slices = trained.slices(layers, plan.other_sampling());
    let other = Rounds {
        slices: &other_slices,
        ..rounds
    };
    let report = run(parts, &other, &mut checkpoints, progress)?;
    let manifest = Manifest {
        fingerprint,
        plan: plan_json,
        parts: output.parts(),
        report,
        ..manifest_of(store, label)
    };
    output.finish(&manifest)?;
    checkpoints.0.remove()?;
    checkpoints.1.map_or(Ok(()), Checkpoint::remove)?;
    Ok(manifest)
}

/// What a manifest says of the store, whatever the plan.
fn manifest_of(store: &Store, label: Option<LabelMeta>) -> Manifest {
    Manifest {
        schema: schemas::dataset::MANIFEST_SCHEMA,
        stage: "infer".to_owned(),
        program: concat!("graphflat ", env!("CARGO_PKG_VERSION")).to_owned(),
        fingerprint: String::new(),
        plan: serde_json::Value::Null,
        seed: store.meta().seed,
        input: store.meta().input.clone(),
        graph: Some(GraphMeta {
            label,
            ..store.meta().graph.clone()
        }),
        flatten: None,
        parts: Vec::new(),
        report: serde_json::Value::Null,
    }
}

/// Removes rounds that runs have left which were killed when this output was finished.
fn remove_left(plan: &InferPlan, fingerprint: &str) -> Result<(), InferError> {
    let mut dirs = ROUNDS.map(|name| plan.work_dir.join(name)).into_iter();
    dirs.try_for_each(|dir| Checkpoint::remove_left(dir, fingerprint))
}

/// Opens the list of targets, where there is one.
fn target_list(plan: &InferPlan, store: &Store) -> Result<Option<IdListPlan>, InferError> {
    let InferTargets::Listed(path) = &plan.targets else {
        return Ok(None);
    };
    let meta = store.meta();
    let list = IdListPlan::open(TARGETS, path, &meta.id_column, meta.graph.id_type)?;
    Ok(Some(list))
}

/// Returns the nodes of a list, ascending.
fn targets(list: &IdListPlan, graph: &Graph) -> Result<Vec<u32>, InferError> {
    let ids = list.read()?;
    let nodes = graph.find(&ids);
    nodes.map_err(|row| list.unknown(&ids, row).into())
}

/// Runs the rounds that are not finished yet, the last one with the parts; returns the report.
fn run<'a>(
    mut parts: Parts<'a>,
    other: &'a Rounds<'a>,
    checkpoints: &mut (Checkpoint, Option<Checkpoint>),
    progress: &Progress,
) -> Result<serde_json::Value, InferError> {
    let rounds = parts.rounds;
    let last = rounds.slices.len();
    let mut stats = Vec::new();
    let (before, inner) = run_inner(rounds, &mut checkpoints.0, |done| {
        report(progress, rounds, done.round);
        stats.push(done);
    })?;
    parts.inner = inner;
    if let Some(checkpoint) = &mut checkpoints.1 {
        let (other_before, _) = run_inner(other, checkpoint, |_| {})?;
        parts.other = Some(Other {
            rounds: other,
            before: other_before,
        });
    }
    let started = Instant::now();
    let (writing, difference) = parts.run(last, &before)?;
    let done = rounds.stats(last, 0, started.elapsed().as_secs_f64());
    stats.push(done.with_writing(writing.as_secs_f64()));
    report(progress, rounds, last);
    report(progress, rounds, last + 1);
    let mut text = serde_json::json!({ "rounds": stats });
    if parts.other.is_some() {
        text["sampling_compared"] = difference.report();
    }
    Ok(text)
}

/// Runs the rounds before the last one that are not finished yet; returns what the last one reads,
/// and the rows of an inner embedding layer.
fn run_inner(
    rounds: &Rounds<'_>,
    checkpoint: &mut Checkpoint,
    mut done: impl FnMut(RoundStats),
) -> Result<(RoundRows, Option<SharedRows>), InferError> {
    let last = rounds.slices.len();
    let (mut next, mut before, mut inner) = resume(rounds, checkpoint);
    while next < last {
        let started = Instant::now();
        let (record, bytes) = match next {
            0 => rounds.read_features(checkpoint)?,
            layer => rounds.run(layer, &before, checkpoint)?,
        };
        before = checkpoint.map(&record)?;
        if next == rounds.embedding_layer {
            inner.clone_from(&before.rows);
        }
        checkpoint.finish(record, |round| rounds.is_read(round, next + 1))?;
        done(rounds.stats(next, bytes, started.elapsed().as_secs_f64()));
        next += 1;
    }
    Ok((before, inner))
}

/// Returns the first round that is still to be run, what the one before it has left, and the rows
/// of the embedding layer if they are computed.
fn resume(rounds: &Rounds<'_>, checkpoint: &Checkpoint) -> (usize, RoundRows, Option<SharedRows>) {
    let rows_of = |round| checkpoint.verified(round, rounds.graph.num_nodes());
    for round in (0..rounds.slices.len()).rev() {
        let Some(rows) = rows_of(round) else {
            continue;
        };
        let inner = match round.cmp(&rounds.embedding_layer) {
            std::cmp::Ordering::Less => return (round + 1, rows, None),
            std::cmp::Ordering::Equal => rows.rows.clone(),
            std::cmp::Ordering::Greater => {
                rows_of(rounds.embedding_layer).and_then(|kept| kept.rows)
            }
        };
        if inner.is_some() {
            return (round + 1, rows, inner);
        }
    }
    (0, RoundRows::default(), None)
}

fn report(progress: &Progress, rounds: &Rounds<'_>, round: usize) {
    progress(&Event {
        stage: "infer",
        phase: "round".to_owned(),
        done: round as u64,
        total: rounds.slices.len() as u64 + 1,
        message: None,
        fields: serde_json::json!({}),
    });
}

/// The settings that decide what is written, and nothing else.
fn plan_json(
    plan: &InferPlan,
    trained: &TrainedModel,
    slices: &[Slice],
    targets: Option<&str>,
) -> serde_json::Value {
    let limits = slices.iter().map(|slice| match slice.limit {
        usize::MAX => serde_json::json!("all"),
        limit => serde_json::json!(limit),
    });
    let mut settings = plan.settings();
    settings["model"] = serde_json::json!(trained.files);
    settings["in_edges"] = limits.collect();
    settings["targets"] = serde_json::json!(targets.unwrap_or("all"));
    settings
}

fn fingerprint(plan_json: &serde_json::Value, store: &Store) -> String {
    let meta = store.meta();
    let settings = serde_json::json!({
        "engine": ENGINE_VERSION,
        "input": meta.input,
        // The rank order of in-edges, in which a node's messages are summed.
        "seed": meta.seed,
        "sampling": meta.sampling,
        "plan": plan_json,
    });
    schemas::xxh::fingerprint(settings.to_string().as_bytes())
}
