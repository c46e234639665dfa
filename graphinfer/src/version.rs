//! A version of embeddings: the rows that changes reach are computed and written, all others stay
//! in the outputs of earlier versions. Where the changes reach much, all rows are computed.

mod writer;

use crate::InferError;
use crate::changed_rows::{Layers, compute, open_kept, refuse_plan};
use crate::identity::{fingerprint, kept_plan, rounds_fingerprint};
use crate::infer::{finished, infer_all, remove_left};
use crate::kept_versions::{
    FullVersion, KeptRecord, NewVersion, OpenVersion, RowFiles, keep, open,
};
use crate::model::Trained;
use crate::plan::InferPlan;
use crate::threads::Threads;
use cluster::open_output;
use graphdelta::{
    Changes, KeptRowsOf, KeptVersions, NewTables, OfStore, Parent, Reached, RebuildPlan, Snapshot,
    VersionInput, Work, check_graph, find_kept, finish_version, join_parts, named_parent,
};
use schemas::{
    EmbeddingsDataset, Event, GraphPlan, KeptOutput, Manifest, NodeIdx, Opened, Output,
    ParentOutput, Progress, Sampling, VersionMeta, error_chain, write_version_part,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use store::Store;
use writer::VersionWriter;

/// If changes reach more than this share of the rows and in-edges of all layers, in percent, all
/// rows are computed: a row takes longer among those that changes reach
/// (`docs/benchmarks/versions.md`).
const REACHED_MAX: u64 = 50;

/// How a version is computed.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Why all rows are computed; none if only those that changes reach.
    pub full: Option<String>,
    /// Work of each layer, from 1, for what the changes reach.
    pub reached: Vec<Work>,
    /// Work of each layer for all rows.
    pub all: Vec<Work>,
    /// Bytes of the rows that are written, predicted from those of the parent.
    pub bytes: u64,
    /// Why a new store with all changes is written; none if the store stays.
    pub rebuilds: Option<String>,
}

/// A version before its rows are computed.
struct Prepared {
    layers: Layers,
    parent: Parent,
    version: OpenVersion,
    reached: Arc<Reached>,
    /// In-edges of a node that the overlay has at most.
    keep: Vec<usize>,
    decision: Decision,
}

/// Checks parent, model and tables of a version before any work; reads no rows.
///
/// # Errors
///
/// If the parent is no finished output of inference, its rows are not kept, a table of changes or of
/// a snapshot is missing or has other columns, or the rows of the model cannot be kept.
pub fn check_version(plan: &InferPlan, input: VersionInput<'_>) -> Result<(), InferError> {
    let trained = open_model(plan, input.graph)?;
    let sampled = trained.record().sampled.as_ref();
    let sampling = sampled.map_or(Sampling::Uniform, |of| of.sampling);
    check_version_input(plan, input, sampling)
}

/// Checks parent and tables of a version whose model is not trained yet; `sampling` is that of the
/// store.
///
/// # Errors
///
/// As [`check_version`], but for the model.
pub fn check_version_input(
    plan: &InferPlan,
    input: VersionInput<'_>,
    sampling: Sampling,
) -> Result<(), InferError> {
    let kept = kept_record(&open_parent(input.parent)?, plan)?;
    let columns = kept.columns();
    let of_store = OfStore {
        sampling,
        columns: &columns,
        labels: None,
    };
    if let Some(tables) = input.snapshot {
        Snapshot::open(tables, input.base, input.graph, of_store)?;
    }
    let mut nights = input.nights.iter();
    nights.try_for_each(|night| Changes::check(night, input.base, input.graph, of_store))?;
    Ok(())
}

/// Opens the parent of a version.
fn open_parent(dir: &Path) -> Result<Parent, InferError> {
    let dataset = EmbeddingsDataset::open(dir)?;
    Ok(Parent {
        dir: dir.to_owned(),
        manifest: dataset.manifest().clone(),
    })
}

/// Returns what is kept of a parent.
fn kept_record(parent: &Parent, plan: &InferPlan) -> Result<KeptRecord, InferError> {
    let found = find_kept::<RowFiles>(&plan.work_dir, &parent.manifest.fingerprint);
    found.ok_or_else(|| parent.is_not_kept(&plan.work_dir).into())
}

/// Checks that the rows of a model can be kept for later versions.
///
/// # Errors
///
/// Says which property of the graph, the model or the plan prevents it.
pub fn check_kept_model(plan: &InferPlan, graph: &GraphPlan) -> Result<(), InferError> {
    open_model(plan, graph).map(drop)
}

/// Checks, before a model is trained, that the rows of its nodes can be kept.
///
/// # Errors
///
/// Says which property of the graph or the plan prevents it.
pub fn check_kept_plan(plan: &InferPlan, graph: &GraphPlan) -> Result<(), InferError> {
    check_graph(graph)?;
    refuse_plan(plan)
}

/// Opens a model whose rows can be kept.
fn open_model(plan: &InferPlan, graph: &GraphPlan) -> Result<Trained, InferError> {
    check_kept_plan(plan, graph)?;
    Ok(open_kept(plan)?.0)
}

/// Predicts what a version computes.
///
/// # Errors
///
/// As [`infer_version`]; nothing is written, except out-edges that are missing.
pub fn predict_version(
    plan: &InferPlan,
    store: &Store,
    input: VersionInput<'_>,
) -> Result<Decision, InferError> {
    let layers = Layers::open(plan, store)?;
    let parent = open_parent(input.parent)?;
    // A run may hold the lock; it changes no file that is read here.
    let versions = KeptVersions::unlocked(&plan.work_dir);
    let changes = input.read(store, false)?;
    let prepared = Prepared::new(layers, parent, &versions, (store, input, changes))?;
    Ok(prepared.decision)
}

/// Applies changes to the graph of the parent, computes the rows that they reach, or all, commits
/// them as a version and returns its manifest.
///
/// The rows are those of a full run on the changed tables, bit for bit. Of several processes, each
/// has the [whole store](store::open_whole), computes and writes a share of the rows, and keeps all
/// of them; process 0 finishes the output.
///
/// # Errors
///
/// If a change cannot be applied, before anything is written: names file and row; if the parent's
/// rows are not kept or are those of another graph; if the output or the working directory cannot
/// be written; if another process fails.
pub fn infer_version(
    plan: &InferPlan,
    store: &Store,
    input: VersionInput<'_>,
    progress: &Progress,
) -> Result<Manifest, InferError> {
    store.cluster().set_phase("infer, its start");
    let layers = Layers::open(plan, store)?;
    let parent = open_parent(input.parent);
    // A finished version is skipped, even if its parent is gone.
    let of_parent = match &parent {
        Ok(parent) => Some(parent.manifest.fingerprint.clone()),
        Err(_) => named_parent(&plan.output, input.parent),
    };
    let Some(of_parent) = of_parent else {
        return Err(parent.expect_err("an open parent has a fingerprint"));
    };
    let changes = input.read(store, false)?;
    let mut identity = layers.plan_json.clone();
    identity["changes"] = changes.fingerprints().clone();
    identity["parent"] = json!(of_parent);
    // It decides which parts an unfinished output has.
    identity["reached_max"] = json!(REACHED_MAX);
    if input.full {
        // Its rows are the same, but it keeps none of its parent.
        identity["full"] = json!(true);
    }
    let own = fingerprint(&identity, store);
    if let Some(manifest) = finished(plan, &own, store)? {
        if let Err(error) = EmbeddingsDataset::open(&plan.output) {
            tracing::warn!("the version is finished, but {}", error_chain(&error));
        }
        remove_left(plan, &rounds_fingerprint(&own, store))?;
        return Ok(manifest);
    }
    let parent = parent?;
    let versions = KeptVersions::lock(&plan.work_dir)?;
    let prepared = Prepared::new(layers, parent, &versions, (store, input, changes))?;
    let earlier = &prepared.version.record.earlier;
    let kept = prepared
        .parent
        .kept_outputs(earlier, (&plan.output, "infer.output"))?;
    if store.cluster().leads() {
        prepared.decision.report(progress);
    }
    let mut input_json = store.manifest_input();
    for name in ["changes", "parent"] {
        input_json[name] = identity[name].clone();
    }
    let planned = (identity, input_json);
    let started = Manifest::new("infer", own.clone(), planned, store.meta().seed);
    let manifest = match prepared.decision.full {
        Some(_) => prepared.run_all(plan, (&versions, input.graph), started, progress)?,
        None => {
            let to = (kept, &versions, input.rebuild_plan());
            prepared.run_reached(plan, to, started)?
        }
    };
    if let Err(error) = versions.remove_old(&own) {
        // The next version tries again.
        tracing::warn!("{}", error_chain(&error));
    }
    Ok(manifest)
}

impl Decision {
    /// Decides how a version is computed.
    fn new(full: Option<String>, (reached, all): (Vec<Work>, Vec<Work>)) -> Self {
        let mut decision = Self {
            full,
            reached,
            all,
            bytes: 0,
            rebuilds: None,
        };
        let percent = decision.percent();
        if percent > REACHED_MAX && decision.full.is_none() {
            decision.full = Some(format!("the changes reach {percent} % of the work"));
        }
        decision
    }

    /// Returns the share of the work that the changes reach, in percent.
    fn percent(&self) -> u64 {
        let sum = |layers: &[Work]| -> u64 {
            layers.iter().map(|layer| layer.rows + layer.in_edges).sum()
        };
        100 * sum(&self.reached) / sum(&self.all).max(1)
    }

    /// Predicts the bytes of the rows that are written, if they are as long as those of the parent.
    fn predict_bytes(&self, parent: &Manifest) -> u64 {
        let kept = parent.version.iter().flat_map(|version| &version.kept);
        let parts = parent.row_parts().chain(kept.flat_map(|of| &of.parts));
        let (mut rows, mut bytes) = (0u128, 0);
        for part in parts {
            rows += u128::from(part.rows);
            bytes += part
                .files
                .iter()
                .map(|of| u128::from(of.bytes))
                .sum::<u128>();
        }
        let layers = if self.full.is_some() {
            &self.all
        } else {
            &self.reached
        };
        let written = layers.last().map_or(0, |layer| u128::from(layer.rows));
        u64::try_from(bytes * written / rows.max(1)).unwrap_or(u64::MAX)
    }

    /// Returns a line for each layer, one if a run without a parent is likely as fast, and one if the
    /// store is written anew.
    pub fn lines(&self) -> Vec<String> {
        let layers = self.reached.iter().zip(&self.all);
        let lines = (1..).zip(layers).map(|(layer, (reached, all))| {
            format!(
                "layer {layer}: {} of {} rows, {} of {} in-edges",
                reached.rows, all.rows, reached.in_edges, all.in_edges
            )
        });
        let as_fast = (self.percent() > REACHED_MAX).then(|| {
            let line = "a run without a parent, on the whole tables of today, is likely as fast";
            line.to_owned()
        });
        lines.chain(as_fast).chain(self.rebuilds.clone()).collect()
    }

    /// Returns how the version is computed, in a few words.
    pub fn summary(&self) -> String {
        match &self.full {
            None => "incremental: the changed rows are computed".to_owned(),
            Some(why) => format!("full: all rows are computed, because {why}"),
        }
    }

    /// Returns the decision as an entry of a report.
    pub fn to_json(&self) -> Value {
        let work = |layers: &[Work]| -> Value {
            let layers = layers.iter();
            let layers = layers.map(|of| json!({ "rows": of.rows, "in_edges": of.in_edges }));
            layers.collect()
        };
        json!({
            "mode": if self.full.is_some() { "full" } else { "incremental" },
            "why_full": self.full,
            "reached": work(&self.reached),
            "all": work(&self.all),
        })
    }

    fn report(&self, progress: &Progress) {
        progress(&Event {
            stage: "infer",
            phase: "plan".to_owned(),
            done: 0,
            total: 0,
            message: Some(format!("{}; {}", self.summary(), self.lines().join("; "))),
            fields: self.to_json(),
        });
    }
}

impl Prepared {
    /// Applies the changes and finds what they reach.
    fn new(
        layers: Layers,
        parent: Parent,
        versions: &KeptVersions,
        (store, input, changes): (&Store, VersionInput<'_>, NewTables<'_>),
    ) -> Result<Self, InferError> {
        let name = parent.manifest.fingerprint.clone();
        let version = open(versions, &name)?;
        let version = version.ok_or_else(|| parent.is_not_kept(&layers.plan.work_dir))?;
        let reach_plan = layers.reach_plan(&store.meta().graph);
        let keeps = (&reach_plan.keep()[..], layers.keep());
        let graph = versions.parent_graph((&parent, &version.record), store, keeps)?;
        let keep = graph.keep.clone();
        let reached = changes.reach(store, graph, &reach_plan)?;
        let other_key = "the model or a key of [infer] is another than the parent's";
        let why = match input.full {
            true => Some("--full is given"),
            false => (version.record).why_full(&kept_plan(&layers.plan_json), other_key),
        };
        let is_computed = |layer, type_idx| layers.needed.has(layer, type_idx);
        let (reach, numbers) = (&reached.reach, &reached.numbers);
        let work = (
            reach.work(numbers, &reach_plan, is_computed),
            reach.full_work(numbers, &reach_plan, is_computed),
        );
        let mut decision = Decision::new(why.map(str::to_owned), work);
        decision.bytes = decision.predict_bytes(&parent.manifest);
        decision.rebuilds = match decision.full {
            Some(_) => Some("all rows are computed from a new store with all changes".to_owned()),
            None => input.rebuild_plan().reason(&reached.after),
        };
        Ok(Self {
            decision,
            layers,
            parent,
            version,
            reached,
            keep,
        })
    }

    /// Computes the rows that the changes reach; `kept` are the outputs that have the others. Returns
    /// the manifest of the finished output.
    fn run_reached(
        self,
        plan: &InferPlan,
        (kept, versions, rebuild): (Vec<KeptOutput>, &KeptVersions, RebuildPlan<'_>),
        mut manifest: Manifest,
    ) -> Result<Manifest, InferError> {
        let cluster = self.reached.after.store().cluster().clone();
        let opened = (&*plan.output, "infer", &*manifest.fingerprint);
        let output = match open_output::<InferError>(&cluster, opened, plan.fresh)? {
            Opened::Done(found) => return Ok(*found),
            Opened::Open(output) => output,
        };
        let reached = Arc::clone(&self.reached);
        self.write(kept, (&output, versions, rebuild), &mut manifest)?;
        finish_version(&cluster, output, &manifest)?;
        reached.free_beside();
        Ok(manifest)
    }

    /// Writes a store that holds the changes, and computes all rows on it as a full run does; returns
    /// the manifest of the finished output.
    fn run_all(
        self,
        plan: &InferPlan,
        (versions, graph): (&KeptVersions, &GraphPlan),
        started: Manifest,
        progress: &Progress,
    ) -> Result<Manifest, InferError> {
        let (layers, after) = (&self.layers, &self.reached.after);
        let new = versions.write_store((after, &self.keep), graph)?;
        let store = new.of_process()?;
        let is_written = |of: usize| layers.written.iter().any(|written| written.node_type == of);
        let types = (0..store.placement().num_types()).filter(|&of| is_written(of));
        let upserts = types.map(|of| store.placement().of_type(of).num_nodes() as u64);
        let removed = after.removed_now().into_iter();
        let deletes = removed.filter(|&node| is_written(after.type_of(node)));
        let meta = VersionMeta {
            parent: ParentOutput::of(&plan.output, &self.parent.dir, &self.parent.manifest),
            kept: Vec::new(),
            upserts: upserts.sum(),
            deletes: deletes.count() as u64,
        };
        let version = FullVersion {
            versions,
            new: &new,
            manifest: Manifest {
                report: self.decision.to_json(),
                version: Some(meta),
                ..started
            },
            parent: self.parent.manifest.fingerprint,
            keep: self.keep,
            tables: self.reached.tables.clone(),
        };
        // The rounds need the memory.
        after.store().release();
        drop((self.layers, self.version, self.reached));
        let plan = InferPlan {
            keeps_rows: true,
            ..plan.clone()
        };
        infer_all(&plan, &store, Some(&version), progress)
    }

    /// Computes the rows and writes parts, what they replace, and what the next version needs;
    /// completes the manifest.
    fn write(
        self,
        kept: Vec<KeptOutput>,
        (output, versions, rebuild): (&Output, &KeptVersions, RebuildPlan<'_>),
        manifest: &mut Manifest,
    ) -> Result<(), InferError> {
        let plan = &self.layers.plan;
        let after = &self.reached.after;
        let threads = Threads::new(after.store().cluster().num_threads())?;
        let OpenVersion {
            rows: before,
            nodes,
            ..
        } = self.version;
        let parent = (&self.reached.reach, before);
        let (rows, computed) = compute(&self.layers, (after, &threads), Some(parent))?;
        let num_layers = self.layers.num_layers();
        let writer = VersionWriter {
            output,
            layers: &self.layers,
            after,
            rows: &rows,
        };
        let written = writer.written(&computed);
        writer.write_parts(&written, &threads)?;
        let nodes_written: Vec<NodeIdx> = written.iter().flat_map(|of| of.nodes.clone()).collect();
        let deleted = writer.deleted();
        let num_parts = written
            .last()
            .map_or(0, |of| of.first_part + of.num_parts(plan));
        let cluster = after.store().cluster();
        if cluster.leads() && output.committed(num_parts).is_none() {
            let of_kept = KeptRowsOf {
                outputs: &kept,
                nodes: &nodes,
                file: 0,
            };
            let removed = after.overlay().removed();
            let gone: Vec<NodeIdx> = nodes_written.iter().copied().chain(removed).collect();
            let replaced = of_kept.replaced(after.end(), &gone);
            let replaced = replaced.map_err(|problem| self.parent.problem(problem))?;
            let part = write_version_part(output, &replaced.rows, &deleted)?;
            output.commit_part(num_parts, part)?;
        }
        join_parts(cluster, output)?;
        let new = NewVersion {
            parent: &self.parent.manifest.fingerprint,
            plan: &kept_plan(&self.layers.plan_json),
            earlier: kept.iter().map(|of| of.fingerprint.clone()).collect(),
            reached: &self.reached,
            keep: &self.keep,
            rebuild,
            nodes_of_earlier: &nodes,
            rows: &rows,
            num_layers: num_layers - 1,
            nodes: &nodes_written,
        };
        keep(versions, &manifest.fingerprint, new)?;
        manifest.parts = output.parts();
        let mut of_types = self.layers.written.iter();
        let label = of_types.find_map(|of| of.columns.prediction.clone());
        manifest.graph = Some(after.store().meta().graph.clone().with_label(label));
        manifest.report = self.decision.to_json();
        let record = self.layers.record();
        manifest.report["embedding"] = record.embedding_report(self.layers.embedding_layer);
        manifest.version = Some(VersionMeta {
            parent: ParentOutput::of(&plan.output, &self.parent.dir, &self.parent.manifest),
            kept,
            upserts: nodes_written.len() as u64,
            deletes: deleted.iter().map(|of| of.ids.len() as u64).sum(),
        });
        Ok(())
    }
}
