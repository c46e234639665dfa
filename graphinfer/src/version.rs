//! A version of embeddings: the rows that changes reach are computed and written, all others stay
//! in the outputs of earlier versions.

mod writer;

use crate::InferError;
use crate::changed_rows::{Layers, compute, open_kept, refuse_plan};
use crate::identity::fingerprint;
use crate::infer::finished;
use crate::kept_versions::{KeptVersions, NewVersion, OpenVersion};
use crate::model::Trained;
use crate::parent::{Parent, named_parent};
use crate::plan::InferPlan;
use crate::threads::Threads;
use cluster::open_output;
use graphdelta::{
    After, Changes, DeltaError, Night, Numbers, Overlay, Reach, Snapshot, Work, reach,
};
use schemas::{
    ChangesSpec, ColumnMeta, Dangling, EmbeddingsDataset, Event, GraphPlan, KeptOutput, Manifest,
    NodeIdx, Opened, Output, ParentOutput, Progress, Sampling, VersionMeta, error_chain,
    write_version_part,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use store::Store;
use writer::{VersionWriter, replaced};

/// If changes reach more than this share of the rows and in-edges of all layers, in percent, a version
/// keeps no row of its parent: it costs hardly more, and the next ones need no earlier output.
const REACHED_MAX: u64 = 90;

/// From this share of the work on, a run without a parent is likely faster, in percent: a row takes
/// longer in a version (`docs/benchmarks/versions.md`).
const FASTER_MIN: u64 = 50;

/// Tables, changes and parent of a version.
#[derive(Clone, Copy, Debug)]
pub struct VersionInput<'a> {
    /// The tables of the store.
    pub graph: &'a GraphPlan,
    /// What has changed since the parent, night by night.
    pub nights: &'a [ChangesSpec],
    /// The whole tables as they are now, in place of what has changed.
    pub snapshot: Option<&'a ChangesSpec>,
    /// Directory that relative paths of tables start from.
    pub base: &'a Path,
    /// Output of the parent.
    pub parent: &'a Path,
    /// Whether all rows are computed and written, whatever the changes reach.
    pub full: bool,
}

/// How a version is computed.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Why all rows are computed; none if only those that changes reach.
    pub full: Option<String>,
    /// Work of each layer, from 1, for what the changes reach.
    pub reached: Vec<Work>,
    /// Work of each layer for all rows.
    pub all: Vec<Work>,
}

/// The input of a version: tables of changes, or a snapshot.
enum NewTables {
    /// What has changed, night by night.
    Changes(Vec<Changes>),
    /// All nodes and edges.
    Snapshot(Snapshot),
}

/// A version before its rows are computed.
struct Prepared {
    layers: Layers,
    parent: Parent,
    /// Outputs of which the version keeps rows, unless it computes all.
    kept: Vec<KeptOutput>,
    version: OpenVersion,
    reached: Reach,
    /// In-edges of a node that the overlay has at most.
    keep: Vec<usize>,
    after: After,
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
    let kept = Parent::open(input.parent)?.kept(plan)?;
    let sampled = trained.record().sampled.as_ref();
    let sampling = sampled.map_or(Sampling::Uniform, |of| of.sampling);
    if let Some(tables) = input.snapshot {
        let columns = kept.columns();
        let of_store = (sampling, &columns[..]);
        Snapshot::open(tables, input.base, input.graph, of_store)?;
    }
    let mut nights = input.nights.iter();
    nights.try_for_each(|night| Changes::check(night, input.base, input.graph, sampling))?;
    Ok(())
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
    let mut relations = graph.relations.iter();
    let problem = match () {
        () if relations.any(|of| of.edges.dangling() == Dangling::Drop) => {
            "`dangling` is \"drop\", so a new node may have edges that were left out before"
        }
        () => return refuse_plan(plan),
    };
    Err(InferError::FullRun(problem))
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
    let parent = Parent::open(input.parent)?;
    // A run may hold the lock; it changes no file that is read here.
    let versions = KeptVersions::unlocked(&plan.work_dir);
    let changes = input.read(store)?;
    let prepared = Prepared::new(layers, parent, &versions, (store, input, changes))?;
    Ok(prepared.decision)
}

/// Applies changes to the graph of the parent, computes the rows that they reach, commits them as a
/// version and returns its manifest.
///
/// The rows are those of a full run on the changed tables, bit for bit.
///
/// # Errors
///
/// If a change cannot be applied, before anything is written: names file and row; if the parent's
/// rows are not kept or are those of another graph; if the output or the working directory cannot
/// be written.
pub fn infer_version(
    plan: &InferPlan,
    store: &Store,
    input: VersionInput<'_>,
    progress: &Progress,
) -> Result<Manifest, InferError> {
    store.cluster().set_phase("infer, its start");
    let layers = Layers::open(plan, store)?;
    let parent = Parent::open(input.parent);
    // A finished version is skipped, even if its parent is gone.
    let of_parent = match &parent {
        Ok(parent) => Some(parent.manifest.fingerprint.clone()),
        Err(_) => named_parent(&plan.output, input.parent),
    };
    let Some(of_parent) = of_parent else {
        return Err(parent.err().expect("an open parent has a fingerprint"));
    };
    let changes = input.read(store)?;
    let mut identity = layers.plan_json.clone();
    identity["changes"] = changes.fingerprints()?;
    identity["parent"] = json!(of_parent);
    if input.full {
        // Its rows are the same, but it keeps none of its parent.
        identity["full"] = json!(true);
    }
    let own = fingerprint(&identity, store);
    if let Some(manifest) = finished(plan, &own, store)? {
        if let Err(error) = EmbeddingsDataset::open(&plan.output) {
            tracing::warn!("the version is finished, but {}", error_chain(&error));
        }
        return Ok(manifest);
    }
    let parent = parent?;
    let versions = KeptVersions::lock(&plan.work_dir)?;
    let prepared = Prepared::new(layers, parent, &versions, (store, input, changes))?;
    prepared.check_kept()?;
    prepared.decision.report(progress);
    let opened = (&*plan.output, "infer", &*own);
    let output = match open_output::<InferError>(store.cluster(), opened, plan.fresh)? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let mut input_json = store.manifest_input();
    for name in ["changes", "parent"] {
        input_json[name] = identity[name].clone();
    }
    let mut manifest = Manifest::new(
        "infer",
        own.clone(),
        (identity, input_json),
        store.meta().seed,
    );
    prepared.write(&output, &versions, &mut manifest)?;
    output.finish(&manifest)?;
    if let Err(error) = versions.remove_old(&own) {
        // The next version tries again.
        tracing::warn!("{}", error_chain(&error));
    }
    Ok(manifest)
}

impl VersionInput<'_> {
    /// Reads the tables of changes of a store, or opens those of a snapshot.
    fn read(&self, store: &Store) -> Result<NewTables, InferError> {
        let types = store.meta().graph.types.iter();
        let columns: Vec<&[ColumnMeta]> = types.map(|of| &of.columns[..]).collect();
        let of_store = (store.meta().sampling, &columns[..]);
        if let Some(tables) = self.snapshot {
            let snapshot = Snapshot::open(tables, self.base, self.graph, of_store)?;
            return Ok(NewTables::Snapshot(snapshot));
        }
        let threads = store.cluster().num_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let read = |night| Changes::read(night, self.base, self.graph, of_store);
        let nights = || self.nights.iter().map(read).collect::<Result<_, _>>();
        let nights = pool.map_err(InferError::Threads)?.install(nights);
        Ok(NewTables::Changes(nights?))
    }
}

impl NewTables {
    fn fingerprints(&self) -> Result<Value, InferError> {
        let of_tables = match self {
            Self::Changes(nights) => nights.iter().map(Changes::fingerprints).collect(),
            Self::Snapshot(snapshot) => snapshot.fingerprints(),
        };
        Ok(of_tables?)
    }

    /// Applies what has changed to the nodes and edges of the parent.
    fn apply(self, numbers: &mut Numbers) -> Result<Vec<Night>, DeltaError> {
        let nights = match self {
            Self::Changes(nights) => nights,
            Self::Snapshot(snapshot) => vec![snapshot.changes(numbers)?],
        };
        nights
            .into_iter()
            .map(|night| numbers.apply(night))
            .collect()
    }
}

impl Decision {
    /// Decides how a version is computed.
    fn new(full: Option<String>, (reached, all): (Vec<Work>, Vec<Work>)) -> Self {
        let mut decision = Self { full, reached, all };
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

    /// Returns a line for each layer, and one if another way is likely faster.
    pub fn lines(&self) -> Vec<String> {
        let layers = self.reached.iter().zip(&self.all);
        let lines = (1..).zip(layers).map(|(layer, (reached, all))| {
            format!(
                "layer {layer}: {} of {} rows, {} of {} in-edges",
                reached.rows, all.rows, reached.in_edges, all.in_edges
            )
        });
        let percent = self.percent();
        let faster = (percent >= FASTER_MIN).then(|| {
            format!(
                "the changes reach {percent} % of the work: a run without a parent, on the whole \
                 tables of today, is likely faster"
            )
        });
        lines.chain(faster).collect()
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
        (store, input, changes): (&Store, VersionInput<'_>, NewTables),
    ) -> Result<Self, InferError> {
        let name = parent.manifest.fingerprint.clone();
        let version = versions.open(&name)?;
        let version = version.ok_or_else(|| parent.is_not_kept(&layers.plan.work_dir))?;
        if !versions.has_graph(&name, &version.record) {
            return Err(parent.is_too_old());
        }
        if version.record.graph != store.meta().edges_fingerprint() {
            return Err(parent.problem(
                "is of another graph: the tables of [input], `seed` or the sampling have changed \
                 since; they must be those of the first run, with changes in [input.changes] or the \
                 tables of today in [input.snapshot]"
                    .to_owned(),
            ));
        }
        let reach_plan = layers.reach_plan(&store.meta().graph);
        let read = reach_plan.keep();
        let has_all = |kept: &[usize]| kept.iter().zip(&read).all(|(kept, read)| kept >= read);
        let (keep, overlay) = match &version.record.overlay {
            None => (layers.keep(), Overlay::default()),
            Some(kept) if has_all(kept) => (kept.clone(), versions.overlay(&name, (store, kept))?),
            Some(_) => {
                return Err(parent.problem(
                    "was computed with other fan-outs than the model has; start with a run without \
                     a parent"
                        .to_owned(),
                ));
            }
        };
        let out = versions.out_edges(store, &keep)?;
        let mut numbers = Numbers::of(store, input.graph, overlay)?;
        let nights = changes.apply(&mut numbers)?;
        let numbers = Arc::new(numbers);
        let (reached, of_version) = reach(&numbers, nights, &out, &reach_plan)?;
        let why = match () {
            () if input.full => Some("--full is given"),
            () if version.record.plan != layers.plan_json => {
                Some("the model or a key of [infer] is another than the parent's")
            }
            () => None,
        };
        let is_computed = |layer, type_idx| layers.needed.has(layer, type_idx);
        let work = (
            reached.work(&numbers, &reach_plan, is_computed),
            reached.full_work(&numbers, &reach_plan, is_computed),
        );
        Ok(Self {
            decision: Decision::new(why.map(str::to_owned), work),
            after: After::new(&numbers, of_version),
            kept: VersionMeta::kept_by_child(&layers.plan.output, &parent.dir, &parent.manifest),
            layers,
            parent,
            version,
            reached,
            keep,
        })
    }

    /// Checks that the kept rows are those of the outputs of which the parent keeps rows, and that
    /// the version replaces none of these outputs.
    fn check_kept(&self) -> Result<(), InferError> {
        let output = &self.layers.plan.output;
        let earlier = self.version.record.earlier.iter();
        let expected = earlier.chain([&self.parent.manifest.fingerprint]);
        if !expected.eq(self.kept.iter().map(|of| &of.fingerprint)) {
            let problem = "was computed again since its rows were kept; start with a run without a \
                           parent";
            return Err(self.parent.problem(problem.to_owned()));
        }
        if self.kept.iter().any(|of| of.is_at(output)) {
            return Err(InferError::Key {
                key: "infer.output",
                value: output.display().to_string(),
                allowed: "the parent keeps rows of this output; name another one".to_owned(),
            });
        }
        Ok(())
    }

    /// Computes the rows and writes parts, what they replace, and what the next version needs;
    /// completes the manifest.
    fn write(
        self,
        output: &Output,
        versions: &KeptVersions,
        manifest: &mut Manifest,
    ) -> Result<(), InferError> {
        let plan = &self.layers.plan;
        let threads = Threads::new(self.after.store().cluster().num_threads())?;
        let OpenVersion {
            rows: before,
            nodes,
            ..
        } = self.version;
        let is_full = self.decision.full.is_some();
        let parent = (!is_full).then_some((&self.reached, before));
        let after = &self.after;
        let (rows, computed) = compute(&self.layers, (after, &threads), parent)?;
        let num_layers = self.layers.num_layers();
        let writer = VersionWriter {
            output,
            layers: &self.layers,
            after,
            rows: &rows,
            is_full,
        };
        let written = writer.written(&computed);
        writer.write_parts(&written, &threads)?;
        let nodes_written: Vec<NodeIdx> = written.iter().flat_map(|of| of.nodes.clone()).collect();
        let kept = match is_full {
            true => Vec::new(),
            false => self.kept,
        };
        let deleted = writer.deleted();
        let num_parts = written
            .last()
            .map_or(0, |of| of.first_part + of.num_parts(plan));
        if !is_full && output.committed(num_parts).is_none() {
            let replaced = replaced(&kept, &nodes, &nodes_written, after);
            let replaced = replaced.map_err(|problem| self.parent.problem(problem))?;
            let part = write_version_part(output, &replaced, &deleted)?;
            output.commit_part(num_parts, part)?;
        }
        let new = NewVersion {
            parent: &self.parent.manifest.fingerprint,
            plan: &self.layers.plan_json,
            earlier: kept.iter().map(|of| of.fingerprint.clone()).collect(),
            overlay: after.overlay(),
            keep: &self.keep,
            rows: &rows,
            num_layers: num_layers - 1,
            nodes: &nodes_written,
        };
        versions.keep(&manifest.fingerprint, after.store(), new)?;
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
