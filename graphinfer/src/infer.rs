//! The infer stage: from the store and a model to committed embeddings.

use crate::checkpoint::{Checkpoint, RoundRows};
use crate::graph::Graph;
use crate::round::{RoundStats, Rounds};
use crate::slice::{Slice, TrainedModel};
use crate::threads::Threads;
use crate::write::Parts;
use crate::{InferError, InferPlan};
use graphflat::Store;
use schemas::{Event, GraphMeta, Manifest, Opened, Output, Progress};
use std::time::Instant;

/// Changes when the same plan gives other bytes than before.
const ENGINE_VERSION: u32 = 4;

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
    let embedding_layer = trained.embedding_layer(plan)?;
    let layers = trained.model.architecture().num_layers;
    // A prediction needs all layers, an embedding those up to it.
    let slices = trained.slices(if plan.prediction {
        layers
    } else {
        embedding_layer
    });
    let fingerprint = fingerprint(plan, &trained, store, &slices);
    let output = match Output::open(&plan.output, "infer", &fingerprint, plan.fresh)? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let label = plan.prediction.then(|| trained.prediction());
    let mut checkpoint = Checkpoint::open(&plan.work_dir, &fingerprint, plan.fresh)?;
    let rounds = Rounds {
        graph: &Graph::new(store, trained.model.architecture())?,
        trained: &trained,
        slices: &slices,
        threads: &Threads::new(store.placement().workers())?,
        embedding_layer,
    };
    let parts = Parts {
        rounds: &rounds,
        output: &output,
        rows_per_part: plan.rows_per_part,
        prediction: label.clone(),
        inner: None,
    };
    let stats = run(parts, &mut checkpoint, progress)?;
    let manifest = Manifest {
        schema: schemas::dataset::MANIFEST_SCHEMA,
        stage: "infer".to_owned(),
        program: concat!("graphflat ", env!("CARGO_PKG_VERSION")).to_owned(),
        fingerprint,
        plan: plan_json(plan, &trained, &slices),
        seed: store.meta().seed,
        input: store.meta().input.clone(),
        graph: Some(GraphMeta {
            label,
            ..store.meta().graph.clone()
        }),
        flatten: None,
        parts: output.parts(),
        report: serde_json::json!({ "rounds": stats }),
    };
    output.finish(&manifest)?;
    checkpoint.remove()?;
    Ok(manifest)
}

/// Runs the rounds that are not finished yet, the last one with the parts.
fn run(
    mut parts: Parts<'_>,
    checkpoint: &mut Checkpoint,
    progress: &Progress,
) -> Result<Vec<RoundStats>, InferError> {
    let rounds = parts.rounds;
    let last = rounds.slices.len();
    let mut stats = Vec::new();
    let (mut next, mut before, inner) = resume(rounds, checkpoint);
    parts.inner = inner;
    while next < last {
        let started = Instant::now();
        let (record, bytes) = match next {
            0 => rounds.read_features(checkpoint)?,
            layer => rounds.run(layer, &before, checkpoint)?,
        };
        before = checkpoint.map(&record)?;
        if next == rounds.embedding_layer {
            parts.inner.clone_from(&before.rows);
        }
        checkpoint.finish(record, |round| rounds.is_read(round, next + 1))?;
        stats.push(rounds.stats(next, bytes, started.elapsed().as_secs_f64()));
        report(progress, rounds, next);
        next += 1;
    }
    let started = Instant::now();
    parts.run(last, &before)?;
    stats.push(rounds.stats(last, 0, started.elapsed().as_secs_f64()));
    report(progress, rounds, last);
    report(progress, rounds, last + 1);
    Ok(stats)
}

/// Returns the first round that is still to be run, what the one before it has left, and the rows
/// of the embedding layer if they are computed.
fn resume(
    rounds: &Rounds<'_>,
    checkpoint: &Checkpoint,
) -> (usize, RoundRows, Option<gnn::SharedRows>) {
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
fn plan_json(plan: &InferPlan, trained: &TrainedModel, slices: &[Slice]) -> serde_json::Value {
    let limits = slices.iter().map(|slice| match slice.limit {
        usize::MAX => serde_json::json!("all"),
        limit => serde_json::json!(limit),
    });
    serde_json::json!({
        "model": trained.files,
        "sampling": plan.sampling,
        "in_edges": limits.collect::<Vec<_>>(),
        "layer": plan.layer,
        "prediction": plan.prediction,
        "rows_per_part": plan.rows_per_part,
    })
}

fn fingerprint(
    plan: &InferPlan,
    trained: &TrainedModel,
    store: &Store,
    slices: &[Slice],
) -> String {
    let meta = store.meta();
    let settings = serde_json::json!({
        "engine": ENGINE_VERSION,
        "input": meta.input,
        // The rank order of in-edges, in which a node's messages are summed.
        "seed": meta.seed,
        "sampling": meta.sampling,
        "plan": plan_json(plan, trained, slices),
    });
    schemas::xxh::fingerprint(settings.to_string().as_bytes())
}
