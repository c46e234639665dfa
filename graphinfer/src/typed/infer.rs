//! Computes embeddings of a graph with node types, and commits them.

use super::graph::TypedGraph;
use super::last_round::{TypedParts, WrittenType};
use super::layer::TypedRounds;
use super::need::{NeededTypes, Wanted};
use super::reads::{LayerReads, Read};
use super::written::WrittenColumns;
use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::compare::Difference;
use crate::config::InferSampling;
use crate::device::{Matrix, check_fits, open_device};
use crate::graph::BlockSize;
use crate::identity::{fingerprint, limit_json, plan_json, rounds_fingerprint};
use crate::infer::{
    Checkpoints, Share, check_kept, finish, finished, join, keep_versions, manifest,
    open_checkpoints, remove_left, target_list,
};
use crate::inner::{report, report_resumed, run_inner};
use crate::kept_versions::FullVersion;
use crate::layer::HubRows;
use crate::model::TypedTrained;
use crate::plan::InferPlan;
use crate::threads::Threads;
use cluster::{gather_processes, open_output};
use gnn::typed::TypedModel;
use gnn::{Device, RowFormat};
use schemas::{FeatureMeta, GraphMeta, IdListPlan, Manifest, NodeIdx, Opened, Output, Progress};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;
use store::Store;

/// [`infer_all`](crate::infer::infer_all) of a graph with node types.
pub(crate) fn infer(
    plan: &InferPlan,
    trained: TypedTrained,
    (store, version): (&Store, Option<&FullVersion<'_>>),
    progress: &Progress,
) -> Result<Manifest, InferError> {
    let trained = &check_typed_model(plan, trained, store)?;
    let record = &trained.record;
    let settings = TypedSettings::new(plan, trained, store)?;
    let (wanted, sampled) = (&settings.wanted, &settings.sampled);
    let of_tables = || fingerprint(&settings.plan_json, store);
    let fingerprint = version.map_or_else(of_tables, |of| of.manifest.fingerprint.clone());
    let of_rounds = rounds_fingerprint(&fingerprint, store);
    if let Some(manifest) = finished(plan, &fingerprint, store)? {
        check_kept(plan, &fingerprint, store)?;
        remove_left(plan, &of_rounds)?;
        return Ok(manifest);
    }
    let keeping = keep_versions(plan, store, version)?;
    let other = Sampled::new(trained, wanted, plan.other_sampling());
    // Everything that can fail because of the input comes before the output is opened.
    let (arch, schema) = (trained.model.architecture(), trained.model.schema());
    let both = [sampled, &other].into_iter();
    let reads = all_reads(trained, both.take(1 + usize::from(plan.compare_sampling)));
    let model = &trained.model.on(open_device(plan, store, progress)?);
    let blocks = BlockSize::on(model.device(), widest(trained, &store.meta().graph));
    let graph = TypedGraph::new(store, arch, (schema, reads), blocks)?;
    check_rows(model.device(), trained, (&graph, sampled))?;
    let list = settings.list.as_ref();
    let types = written_types(plan, trained, &graph, (wanted, list))?;
    let label = types
        .iter()
        .find_map(|of| of.written.columns.prediction.clone());
    let nodes = nodes_of_output(&graph, &types);
    let output = match open_output::<InferError>(
        store.cluster(),
        (&plan.output, "infer", &fingerprint),
        plan.fresh,
    )? {
        // Another run has finished the output in the meantime.
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let mut checkpoints = open_checkpoints(plan, &of_rounds)?;
    let of_output = (&output, types, wanted);
    let share = write(
        plan,
        ((trained, model), &graph, [sampled, &other]),
        of_output,
        &mut checkpoints,
        progress,
    )?;
    let mut report = join(gather_processes(store.cluster(), share)?, plan, &output);
    report["embedding"] = record.embedding_report(wanted.embedding_layer);
    let own = || graph.own().collect();
    let last = sampled.limits.len() - 1;
    let rows = |dir: &Path| checkpoints.0.keep_rows(last, (store, own), dir);
    let named = (&*fingerprint, &settings.plan_json);
    keeping.keep(named, store, (nodes.as_deref(), rows))?;
    let manifest = manifest((named, version), (&output, label), store, report);
    finish(output, &manifest, checkpoints, store)?;
    Ok(manifest)
}

/// A model on the processor and on its device, the graph, and what both samplings read.
type OfModel<'a> = (
    (&'a TypedTrained, &'a TypedModel),
    &'a TypedGraph<'a>,
    [&'a Sampled; 2],
);

/// Returns the width of the widest matrix of a block: what a layer reads, aggregates or computes, for
/// all relations into a type side by side, and raw features that are not sparse.
fn widest(trained: &TypedTrained, graph: &GraphMeta) -> usize {
    let (model, schema) = (&trained.model, trained.model.schema());
    let of_layer = |layer| {
        let slice = model.layer_slice(layer);
        let sources = slice.sources().iter();
        let aggregated = sources.map(|source| source.dim.max(source.scores_dim.unwrap_or(0)));
        let ends = [slice.input_dim(), slice.output_dim()];
        aggregated.chain(ends).max().unwrap_or(0)
    };
    let layers = 1..=model.architecture().num_layers;
    let of_layers = layers.map(of_layer).max().unwrap_or(0);
    let types = 0..schema.types.len();
    let relations = types.map(|of| schema.into_type(of).count()).max();
    let raw = model.architecture().types.iter().zip(&graph.types);
    let raw = raw.map(|(of, meta)| match meta.features {
        FeatureMeta::Sparse { .. } => 0,
        FeatureMeta::None | FeatureMeta::Dense { .. } => {
            of.in_dim.unwrap_or(0) + of.embedding_dim.unwrap_or(0)
        }
    });
    let of_raw = raw.max().unwrap_or(0);
    of_raw.max(of_layers * relations.unwrap_or(0).max(1))
}

/// Checks that the rows that each layer aggregates fit a buffer of the device.
fn check_rows(
    device: &Device,
    trained: &TypedTrained,
    (graph, sampled): (&TypedGraph<'_>, &Sampled),
) -> Result<(), InferError> {
    let mut matrices = Vec::new();
    for layer in 1..=sampled.limits.len() {
        let slice = trained.model.layer_slice(layer);
        for node_type in sampled.needed.types(layer) {
            let sources = slice.sources_of(node_type).into_iter();
            matrices.extend(sources.map(|at| {
                let source = &slice.sources()[at];
                Matrix {
                    layer,
                    rows: graph.rows_of_types(&source.types).len(),
                    cols: source.dim.max(source.scores_dim.unwrap_or(0)),
                }
            }));
        }
    }
    check_fits(device, &matrices)
}

/// Runs the rounds and writes the parts.
fn write(
    plan: &InferPlan,
    ((trained, model), graph, [sampled, other]): OfModel<'_>,
    (output, types, wanted): (&Output, Vec<WrittenType>, &OutputRows),
    checkpoints: &mut Checkpoints,
    progress: &Progress,
) -> Result<Share, InferError> {
    let threads = Threads::new(graph.store().cluster().num_threads())?;
    let rounds = TypedRounds {
        graph,
        trained,
        model,
        limits: &sampled.limits,
        needed: &sampled.needed,
        threads: &threads,
        format: plan.rows,
        embedding_layer: wanted.embedding_layer,
        keeps_rows: plan.keeps_rows,
    };
    let other = TypedRounds {
        limits: &other.limits,
        needed: &other.needed,
        ..rounds
    };
    let parts = TypedParts {
        rounds,
        output,
        rows_per_part: plan.rows_per_part,
        normalize: plan.normalize,
        types,
        before: RoundRows::default(),
        sources: OnceLock::new(),
        hubs: HubRows::default(),
        inner: None,
        logits_of: wanted.logits_of,
        other: None,
    };
    run(parts, other, checkpoints, progress)
}

/// The rows that an output has.
struct OutputRows {
    /// By type: whether embeddings are written.
    is_written: Vec<bool>,
    embedding_layer: usize,
    /// The type whose logits are computed, if any.
    logits_of: Option<usize>,
    /// Number of layers that are computed.
    num_layers: usize,
}

impl OutputRows {
    fn of(plan: &InferPlan, trained: &TypedTrained) -> Result<Self, InferError> {
        let arch = trained.model.architecture();
        let (names, target) = (&trained.model.schema().types, arch.target());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let written = plan.written_types(&names, target)?;
        let embedding_layer = trained.record.embedding_layer(plan)?;
        let has_logits = plan.reads_logits() && written.contains(&target);
        Ok(Self {
            is_written: (0..names.len()).map(|at| written.contains(&at)).collect(),
            embedding_layer,
            logits_of: has_logits.then_some(target),
            num_layers: match has_logits {
                true => arch.num_layers,
                false => embedding_layer,
            },
        })
    }

    fn needed(&self, trained: &TypedTrained, limits: &[Vec<usize>]) -> NeededTypes {
        let wanted = Wanted {
            is_written: &self.is_written,
            embedding_layer: self.embedding_layer,
            logits_of: self.logits_of,
        };
        NeededTypes::new(trained.model.schema(), limits, &wanted)
    }
}

/// Checks that a model fits a store and a plan, and prepares it for the store's columns. Process 0
/// logs warnings about the model.
pub(crate) fn check_typed_model(
    plan: &InferPlan,
    trained: TypedTrained,
    store: &Store,
) -> Result<TypedTrained, InferError> {
    trained.check(store.meta())?;
    trained.check_columns(plan, store.typed_columns())?;
    trained.check_plan(plan)?;
    let trained = trained.bound_to(&store.meta().graph)?;
    if store.cluster().leads() {
        trained.record.warn(plan);
    }
    Ok(trained)
}

/// What a plan and a model decide before any work.
pub(crate) struct TypedSettings {
    wanted: OutputRows,
    pub(crate) sampled: Sampled,
    list: Option<IdListPlan>,
    pub(crate) plan_json: serde_json::Value,
}

impl TypedSettings {
    pub(crate) fn new(
        plan: &InferPlan,
        trained: &TypedTrained,
        store: &Store,
    ) -> Result<Self, InferError> {
        let wanted = OutputRows::of(plan, trained)?;
        let sampled = Sampled::new(trained, &wanted, plan.sampling);
        let list = target_list(plan, store)?;
        let listed = list.as_ref().map(IdListPlan::fingerprint).transpose()?;
        let of_layers = (limits_json(&sampled.limits), listed.as_deref());
        Ok(Self {
            plan_json: plan_json(trained.settings(plan)?, &trained.record, of_layers),
            wanted,
            sampled,
            list,
        })
    }

    pub(crate) fn embedding_layer(&self) -> usize {
        self.wanted.embedding_layer
    }

    /// Returns the types that are written, with their columns.
    pub(crate) fn columns(
        &self,
        plan: &InferPlan,
        trained: &TypedTrained,
        graph: &GraphMeta,
    ) -> Result<Vec<WrittenColumns>, InferError> {
        WrittenColumns::of_types(plan, &trained.record, graph, &self.wanted.is_written)
    }
}

/// What the layers compute and read with one sampling.
pub(crate) struct Sampled {
    /// By layer and relation: how many in-edges of a node are read.
    pub(crate) limits: Vec<Vec<usize>>,
    pub(crate) needed: NeededTypes,
}

impl Sampled {
    fn new(trained: &TypedTrained, wanted: &OutputRows, sampling: InferSampling) -> Self {
        let limits = layer_limits(trained, wanted.num_layers, sampling);
        Self {
            needed: wanted.needed(trained, &limits),
            limits,
        }
    }
}

/// Lists the in-edges of all layers, as processes exchange their sources. A relation within a type
/// is also listed alone, because degrees are exchanged for each.
fn all_reads<'a>(
    trained: &TypedTrained,
    sampled: impl Iterator<Item = &'a Sampled>,
) -> BTreeSet<Vec<Read>> {
    let schema = trained.model.schema();
    let mut lists = BTreeSet::new();
    for of in sampled {
        for (layer, limits) in (1..).zip(&of.limits) {
            let slice = trained.model.layer_slice(layer);
            let reads = LayerReads::new(&slice, schema, (layer, &of.needed, limits));
            lists.extend(reads.lists());
        }
    }
    let is_inner = |&&(relation, _): &&Read| {
        let ends = &schema.relations[relation];
        ends.from == ends.to
    };
    let alone = lists.iter().flatten().filter(is_inner);
    let alone: Vec<Vec<Read>> = alone.map(|&read| vec![read]).collect();
    lists.extend(alone);
    lists
}

/// Returns how many in-edges of each relation each layer reads of a node.
fn layer_limits(trained: &TypedTrained, layers: usize, sampling: InferSampling) -> Vec<Vec<usize>> {
    let relations = 0..trained.record.shape.num_relations;
    let by_relation = relations.map(|at| trained.record.limits(layers, at, sampling));
    let by_relation: Vec<Vec<usize>> = by_relation.collect();
    let of_layer = |layer: usize| by_relation.iter().map(|of| of[layer]).collect();
    (0..layers).map(of_layer).collect()
}

fn limits_json(limits: &[Vec<usize>]) -> serde_json::Value {
    let of_layer = |by_relation: &Vec<usize>| -> serde_json::Value {
        by_relation.iter().map(|&limit| limit_json(limit)).collect()
    };
    limits.iter().map(of_layer).collect()
}

/// Lists the types that are written, with their columns and nodes.
fn written_types(
    plan: &InferPlan,
    trained: &TypedTrained,
    graph: &TypedGraph<'_>,
    (wanted, list): (&OutputRows, Option<&IdListPlan>),
) -> Result<Vec<WrittenType>, InferError> {
    let meta = &graph.store().meta().graph;
    let target = meta.target_type;
    let mut targets = list.map(|list| {
        let ids = list.read()?;
        let found = graph.find(target, &ids)?;
        found.map_err(|row| InferError::from(list.unknown(&ids, row)))
    });
    let (mut types, mut first_part) = (Vec::new(), 0);
    for written in WrittenColumns::of_types(plan, &trained.record, meta, &wanted.is_written)? {
        let node_type = written.node_type;
        let of_type = WrittenType {
            targets: targets.take_if(|_| node_type == target).transpose()?,
            written,
            first_part,
        };
        first_part += of_type.num_parts(graph.num_nodes(node_type), plan.rows_per_part);
        types.push(of_type);
    }
    Ok(types)
}

/// Returns the nodes of the rows of an output with all nodes of some types; none if it has all types.
fn nodes_of_output(graph: &TypedGraph<'_>, types: &[WrittenType]) -> Option<Vec<NodeIdx>> {
    let store = graph.store();
    if types.len() == store.meta().graph.types.len() {
        return None;
    }
    let nodes = types.iter().flat_map(|of| {
        let range = store.placement().type_range(of.written.node_type);
        (range.start.raw()..range.end.raw()).map(NodeIdx::from_raw)
    });
    Some(nodes.collect())
}

/// Runs the rounds that are not finished yet; the last round writes the parts.
fn run<'a>(
    mut parts: TypedParts<'a>,
    other: TypedRounds<'a>,
    checkpoints: &mut Checkpoints,
    progress: &Progress,
) -> Result<Share, InferError> {
    let rounds = parts.rounds;
    let last = rounds.limits.len();
    let mut stats = Vec::new();
    let num_parts = parts.output.committed_parts().len();
    let resumed = |next| report_resumed(progress, last, (next, num_parts));
    (parts.before, parts.inner) = run_inner(&rounds, &mut checkpoints.0, resumed, |done| {
        report(progress, last, done.round);
        stats.push(done);
    })?;
    if let Some(checkpoint) = &mut checkpoints.1 {
        let (before, _) = run_inner(&other, checkpoint, |_| {}, |_| {})?;
        let hubs = other.hub_rows(last, &before)?;
        parts.other = Some((other, before, hubs));
    }
    let started = Instant::now();
    let cluster = rounds.graph.store().cluster();
    cluster.set_phase(&format!("infer, round {last}/{}", last + 1));
    // If no part is left to write and no sample is compared, the rows of hubs are not needed either.
    if rounds.format == RowFormat::Bf16 || !parts.open_parts().is_empty() {
        parts.hubs = rounds.hub_rows(last, &parts.before)?;
    }
    let written = parts.run()?;
    let mut done = rounds.stats(last, 0, started.elapsed().as_secs_f64());
    done.writing = written.writing.as_secs_f64();
    done.crossing = written.crossing;
    let of_hubs = parts.hubs.crossing;
    done.crossing.iter_mut().for_each(|rows| rows.add(of_hubs));
    stats.push(done);
    report(progress, last, last);
    report(progress, last, last + 1);
    Ok(Share {
        rounds: stats,
        difference: written.difference,
        rounding: match rounds.format {
            RowFormat::F32 => Difference::default(),
            RowFormat::Bf16 => parts.rounding()?,
        },
        parts: parts.output.committed_parts(),
        device: rounds.model.device().name().to_owned(),
    })
}
