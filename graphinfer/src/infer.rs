//! The infer stage: from the store and a model to committed embeddings.

use crate::block::{OwnRows, Scratch};
use crate::halo::Halo;
use crate::predict::predict;
use crate::round::{RoundContext, RoundStats};
use crate::slice::{Slice, TrainedModel};
use crate::write::{Computed, WriteContext, write_parts};
use crate::{InferError, InferPlan};
use graphflat::{Cluster, Peer, Store, run_workers};
use schemas::{Event, GraphMeta, Labels, Manifest, Opened, Output, Progress};
use std::sync::Arc;

/// Changes when the same plan gives other bytes than before.
const ENGINE_VERSION: u32 = 3;

/// What all workers share.
#[derive(Clone)]
struct InferTask {
    store: Store,
    trained: Arc<TrainedModel>,
    slices: Vec<Slice>,
    embedding_layer: usize,
    write: WriteContext,
    progress: Progress,
}

/// Computes the embedding of every node, and its prediction, and commits them.
///
/// A finished output of the same plan, model and graph is returned as it is. Of a half-finished one
/// the committed parts stay; the rounds run again.
///
/// # Errors
///
/// A model that is not there or does not fit the store, before anything is written; an output
/// directory that holds something else; a part that cannot be written.
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
        Opened::Open(output) => Arc::new(output),
    };
    let label = plan.prediction.then(|| trained.prediction());
    let write = WriteContext {
        store: store.clone(),
        output: Arc::clone(&output),
        rows_per_part: plan.rows_per_part,
        dim: trained.model.architecture().output_dim(embedding_layer),
        prediction: label.clone(),
    };
    let task = InferTask {
        store: store.clone(),
        trained: Arc::new(trained),
        slices: slices.clone(),
        embedding_layer,
        write,
        progress: Arc::clone(progress),
    };
    let cluster = Cluster {
        workers: store.placement().workers(),
    };
    let seed = store.meta().seed;
    let plan_json = plan_json(plan, &task.trained, &slices);
    let stats = run_workers(&cluster, InferError::is_peer_failure, move |peer| {
        task.run(peer)
    })?;
    let manifest = Manifest {
        schema: schemas::dataset::MANIFEST_SCHEMA,
        stage: "infer".to_owned(),
        program: concat!("graphflat ", env!("CARGO_PKG_VERSION")).to_owned(),
        fingerprint,
        plan: plan_json,
        seed,
        input: store.meta().input.clone(),
        graph: Some(GraphMeta {
            label,
            ..store.meta().graph.clone()
        }),
        flatten: None,
        parts: output.parts(),
        report: report(&stats),
    };
    let output = Arc::into_inner(output).expect("the workers have ended");
    output.finish(&manifest)?;
    Ok(manifest)
}

impl InferTask {
    /// What one worker does: K rounds, the prediction, the parts.
    fn run(&self, peer: &mut Peer<'_>) -> Result<Vec<RoundStats>, InferError> {
        let partition = self.store.partition(peer.index());
        let halo = Halo::exchange(peer, &self.store, &self.slices)?;
        let mut scratch = Scratch::new(&halo);
        let rounds = RoundContext {
            store: &self.store,
            trained: &self.trained,
            slices: &self.slices,
            halo: &halo,
        };
        let (mut stats, mut kept, mut last) = (Vec::new(), None, Vec::new());
        for &slice in &self.slices {
            let own = match slice.layer {
                1 => OwnRows::Store(partition),
                _ => OwnRows::Embedding(&last),
            };
            let (embedding, moved) = rounds.run(peer, slice, own, &mut scratch)?;
            let before = std::mem::replace(&mut last, embedding);
            if slice.layer == self.embedding_layer + 1 {
                kept = Some(before);
            }
            stats.push(moved);
            self.report_round(peer.index(), slice.layer, moved);
        }
        let prediction = match self.write.prediction {
            Some(_) => peer.agree(predict(&self.trained.model, &last))?,
            None => Labels::None,
        };
        let embedding = kept.as_deref().unwrap_or(&last);
        let computed = Computed {
            embedding,
            prediction: &prediction,
        };
        write_parts(peer, &self.write, &computed)?;
        self.report_round(peer.index(), self.slices.len() + 1, RoundStats::default());
        Ok(stats)
    }

    fn report_round(&self, worker: usize, round: usize, moved: RoundStats) {
        if worker == 0 {
            (self.progress)(&Event {
                stage: "infer",
                phase: "round".to_owned(),
                done: round as u64,
                total: self.slices.len() as u64 + 1,
                message: None,
                fields: serde_json::json!({ "rows": moved.rows, "bytes": moved.bytes }),
            });
        }
    }
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

/// What each worker sent and was sent in each round.
fn report(stats: &[Vec<RoundStats>]) -> serde_json::Value {
    let rounds = stats.first().map_or(0, Vec::len);
    let round = |round: usize| {
        let workers: Vec<_> = stats.iter().map(|worker| worker[round]).collect();
        serde_json::json!({ "name": format!("round {}", round + 1), "workers": workers })
    };
    serde_json::json!({ "rounds": (0..rounds).map(round).collect::<Vec<_>>() })
}
