//! A version of embeddings: the rows that changes reach are computed and written, all others stay
//! in the outputs of earlier versions.

use crate::InferError;
use crate::changed_rows::{AnyHead, Layers, compute, open_kept, refuse_plan};
use crate::embedding::{reads_logits, vectors};
use crate::identity::fingerprint;
use crate::infer::finished;
use crate::kept_rows::KeptRows;
use crate::kept_versions::{KeptVersions, NewVersion, OpenVersion};
use crate::model::Trained;
use crate::parent::{Parent, named_parent};
use crate::part::{Computed, write_part};
use crate::plan::InferPlan;
use crate::predict::labels;
use crate::threads::Threads;
use crate::typed::WrittenColumns;
use cluster::open_output;
use graphdelta::{
    After, Changes, DeltaError, Night, Numbers, Overlay, Reach, ReachPlan, Snapshot, Work, reach,
};
use schemas::{
    ChangesSpec, ColumnMeta, Dangling, DeletedNodes, EmbeddingColumns, EmbeddingsDataset, Event,
    FeatureMeta, GraphPlan, KeptOutput, Labels, Manifest, NodeIdx, Opened, Output, ParentOutput,
    Progress, ReplacedRows, Sampling, VersionMeta, error_chain, write_version_part,
};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use store::Store;

/// If changes reach more than this share of the rows and in-edges of all layers, in percent, a version
/// keeps no row of its parent: it costs hardly more, and the next ones need no earlier output.
const REACHED_MAX: u64 = 90;

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
    reach_plan: ReachPlan,
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
        () => return refuse_plan(plan, features(graph)),
    };
    Err(InferError::FullRun(problem))
}

/// Returns the features of each type.
fn features(graph: &GraphPlan) -> impl Iterator<Item = FeatureMeta> {
    graph.types.iter().map(|of| of.nodes.feature_meta())
}

/// Opens a model whose rows can be kept.
fn open_model(plan: &InferPlan, graph: &GraphPlan) -> Result<Trained, InferError> {
    check_kept_plan(plan, graph)?;
    let (trained, _) = open_kept(plan, features(graph))?;
    Ok(trained)
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
        let sum = |layers: &[Work]| -> u64 {
            layers.iter().map(|layer| layer.rows + layer.in_edges).sum()
        };
        let percent = 100 * sum(&reached) / sum(&all).max(1);
        let is_much = percent > REACHED_MAX;
        let cheaper = is_much.then(|| format!("the changes reach {percent} % of the work"));
        Self {
            full: full.or(cheaper),
            reached,
            all,
        }
    }

    /// Returns a line for each layer.
    pub fn lines(&self) -> Vec<String> {
        let layers = self.reached.iter().zip(&self.all);
        let lines = (1..).zip(layers).map(|(layer, (reached, all))| {
            format!(
                "layer {layer}: {} of {} rows, {} of {} in-edges",
                reached.rows, all.rows, reached.in_edges, all.in_edges
            )
        });
        lines.collect()
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
        let keep = reach_plan.keep();
        let overlay = match &version.record.overlay {
            None => Overlay::default(),
            Some(kept) if *kept == keep => versions.overlay(&name, (store, &keep))?,
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
            reach_plan,
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
            keep: &self.reach_plan.keep(),
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

/// Finds the rows of earlier outputs that are no rows of the version, by file. `nodes`: those of the
/// rows of each output; none if it has those of the store. `written`: the nodes that the version
/// writes.
fn replaced(
    kept: &[KeptOutput],
    nodes: &[Option<Vec<NodeIdx>>],
    written: &[NodeIdx],
    after: &After,
) -> Result<ReplacedRows, String> {
    let end = after.end();
    // The position of the latest output that has a row of the node.
    let mut latest = vec![0u32; end];
    let positions = || 0u32..;
    for (at, of_output) in positions().zip(nodes) {
        for node in of_output.iter().flatten() {
            latest[node.index()] = at;
        }
    }
    for node in written.iter().copied().chain(after.overlay().removed()) {
        latest[node.index()] = u32::MAX;
    }
    let mut replaced = ReplacedRows::new();
    for ((at, of_output), output) in positions().zip(nodes).zip(kept) {
        let mut first = 0;
        for part in &output.parts {
            let rows = usize::try_from(part.rows).map_err(|e| e.to_string())?;
            let node = |row: usize| match of_output {
                Some(in_order) => in_order.get(first + row).copied(),
                None => Some(NodeIdx::from_index(first + row)).filter(|node| node.index() < end),
            };
            let mut of_part = Vec::new();
            for row in 0..rows {
                let Some(node) = node(row) else {
                    return Err(format!("has other rows than were kept of {}", output.path));
                };
                if latest[node.index()] != at {
                    of_part.push(row as u64);
                }
            }
            first += rows;
            if let Some(file) = part.files.first().filter(|_| !of_part.is_empty()) {
                replaced.insert(format!("{}/{}", output.path, file.path), of_part);
            }
        }
    }
    Ok(replaced)
}

/// The nodes of a type that a version writes.
struct WrittenNodes<'a> {
    of_type: &'a WrittenColumns,
    /// In the order of ids.
    nodes: Vec<NodeIdx>,
    /// Number of its first part among the parts of all types.
    first_part: usize,
}

impl WrittenNodes<'_> {
    /// Returns the number of parts. A version without rows of the type has one too, so that readers
    /// find the columns.
    fn num_parts(&self, plan: &InferPlan) -> usize {
        self.nodes.len().div_ceil(plan.rows_per_part).max(1)
    }
}

/// Writes the parts of a version.
struct VersionWriter<'a> {
    output: &'a Output,
    layers: &'a Layers,
    after: &'a After,
    rows: &'a KeptRows,
    /// All rows are written, and none of earlier outputs is kept.
    is_full: bool,
}

impl<'a> VersionWriter<'a> {
    /// Lists the nodes to write by type; `computed` has the nodes that each layer has computed.
    fn written(&self, computed: &[Vec<NodeIdx>]) -> Vec<WrittenNodes<'a>> {
        let (layers, last) = (self.layers, self.layers.num_layers());
        let mut first_part = 0;
        let written = layers.written.iter().map(|of_type| {
            // Types that the last layer does not compute are written as the embedding layer has them.
            let of_layer = match layers.needed.has(last, of_type.node_type) {
                true => &computed[last - 1],
                false => self.rows.changed(layers.embedding_layer),
            };
            let of_layer = of_layer.iter().copied();
            let is_own = |node: &NodeIdx| self.after.type_of(*node) == of_type.node_type;
            let mut nodes: Vec<NodeIdx> = of_layer.filter(is_own).collect();
            self.after.sort(&mut nodes);
            let written = WrittenNodes {
                of_type,
                nodes,
                first_part,
            };
            first_part += written.num_parts(&layers.plan);
            written
        });
        written.collect()
    }

    /// Lists the removed nodes of the types that are written.
    fn deleted(&self) -> Vec<DeletedNodes<'a>> {
        let mut deleted = self.after.removed_now();
        self.after.sort(&mut deleted);
        let of_types = self.layers.written.iter().map(|of| {
            let nodes = deleted.iter().copied();
            let nodes = nodes.filter(|&node| self.after.type_of(node) == of.node_type);
            let nodes: Vec<NodeIdx> = nodes.collect();
            DeletedNodes {
                type_name: of.name.as_deref(),
                ids: self.after.ids(of.node_type, &nodes),
                columns: &of.columns,
            }
        });
        of_types.collect()
    }

    /// Writes and commits the rows of some nodes.
    fn write_parts(
        &self,
        written: &[WrittenNodes<'_>],
        threads: &Threads,
    ) -> Result<(), InferError> {
        let plan = &self.layers.plan;
        let parts = written.iter().flat_map(|of| {
            let in_type = 0..of.num_parts(plan);
            in_type.map(move |part| (of, part))
        });
        let parts: Vec<(&WrittenNodes<'_>, usize)> = parts.collect();
        let head = || self.layers.head();
        threads.run(parts.len(), head, |head, at| {
            let (of, part) = parts[at];
            let index = of.first_part + part;
            if self.output.committed(index).is_some() {
                return Ok(());
            }
            let start = part * plan.rows_per_part;
            let end = (start + plan.rows_per_part).min(of.nodes.len());
            let nodes = &of.nodes[start..end];
            let rows = self.compute(of.of_type, nodes, head)?;
            let columns = EmbeddingColumns {
                are_changes: !self.is_full,
                ..of.of_type.columns.clone()
            };
            let writer = of.of_type.writer(self.output, part, &columns)?;
            let ids = |range: Range<usize>| self.after.ids(of.of_type.node_type, &nodes[range]);
            let entry = write_part(writer, &columns, (nodes, &ids), &rows)?;
            Ok(self.output.commit_part(index, entry)?)
        })
    }

    /// Returns the columns of some nodes' rows.
    fn compute(
        &self,
        of_type: &WrittenColumns,
        nodes: &[NodeIdx],
        head: &AnyHead<'_>,
    ) -> Result<Computed, InferError> {
        let (layers, shape) = (self.layers, &self.layers.record().shape);
        let dense = |layer: usize| self.rows.gather(layer, nodes, layers.output_dim(layer));
        let logits = reads_logits(&of_type.columns)
            .then(|| head.run(dense(layers.num_layers())))
            .transpose()?;
        if let Some(logits) = &logits {
            layers.check_finite((shape.num_layers, logits), (self.after, nodes))?;
        }
        let predicts = of_type.columns.prediction.is_some();
        let predicted = match logits.as_ref().filter(|_| predicts) {
            Some(logits) => labels(logits, shape.task),
            None => Labels::None,
        };
        let embedding = dense(layers.embedding_layer);
        let of_task = (shape.task, layers.plan.normalize);
        Ok(Computed {
            vectors: vectors(&of_type.columns, embedding, logits.as_ref(), of_task),
            predicted,
        })
    }
}
