//! Opens the store of a plan, or builds it.

use crate::meta::{VERSION, verify};
use crate::{Store, StoreError, StoreMeta, StorePlan, build};
use cluster::{Cluster, gather_processes};
use schemas::dataset::DirLock;
use schemas::xxh::fingerprint;
use schemas::{EdgesPlan, GraphPlan, NodesPlan, Sampling, error_chain};
use std::sync::Arc;

/// Opens the store if it exists and fits the plan; builds it otherwise. No other process works on
/// it.
///
/// # Errors
///
/// As [`open_or_build_on`].
pub fn open_or_build(
    plan: &StorePlan,
    progress: &schemas::progress::Progress,
) -> Result<Store, StoreError> {
    open_or_build_on(&Cluster::of_threads(plan.workers), plan, progress)
}

/// Opens the store in every process if it exists and fits the plan; builds it otherwise.
///
/// A store fits if it was made from the same input with the same seed, sampling and workers, and
/// keeps at least as many in-edges a node and relation, and all of them if the plan does. Another run may use
/// the directory as soon as this one has opened all files.
///
/// # Errors
///
/// If the input cannot be read or used, the store cannot be written or another run writes it, or
/// another process fails.
///
/// # Panics
///
/// If the cluster has another number of workers in this process than the plan.
pub fn open_or_build_on(
    cluster: &Cluster,
    plan: &StorePlan,
    progress: &schemas::progress::Progress,
) -> Result<Store, StoreError> {
    assert_eq!(
        cluster.num_threads(),
        plan.workers,
        "the workers of this process"
    );
    let plan = &completed(plan);
    let input = input_fingerprint(&plan.graph)?;
    let wanted = store_fingerprint(cluster, plan, &input);
    std::fs::create_dir_all(&plan.dir).map_err(|source| StoreError::File {
        verb: "create",
        path: plan.dir.clone(),
        source: source.into(),
    })?;
    let _lock = DirLock::take(&plan.dir)?;
    let found = if plan.fresh {
        None
    } else {
        find(cluster, plan, &wanted)
    };
    let seen = (found.is_some(), input.clone());
    let seen = gather_processes(cluster, seen)?;
    if let Some(process) = seen.iter().position(|(_, tables)| *tables != input) {
        let process = if cluster.leads() {
            process
        } else {
            cluster.process()
        };
        return Err(StoreError::Tables { process });
    }
    // If one process has to build, all do.
    if let Some(store) = found.filter(|_| seen.iter().all(|(is_there, _)| *is_there)) {
        return Ok(store);
    }
    let meta = build::build(cluster, plan, &wanted, input, progress)?;
    Store::open(cluster, plan, meta)
}

/// Opens the partitions of this process; none if they do not fit the plan.
fn find(cluster: &Cluster, plan: &StorePlan, wanted: &str) -> Option<Store> {
    let meta = fitting(plan, wanted)?;
    let opened = verify(&plan.dir, &meta.files).and_then(|()| Store::open(cluster, plan, meta));
    opened
        .inspect_err(|e| tracing::warn!("building the store again: {}", error_chain(e)))
        .ok()
}

/// Returns the plan; negative weights are errors in it if in-edges are drawn by weight. Walks need
/// the list of all in-edges.
pub(crate) fn completed(plan: &StorePlan) -> StorePlan {
    let mut checked = plan.clone();
    checked.redraw |= plan
        .graph
        .pairs
        .as_ref()
        .is_some_and(|of| of.walks().is_some());
    if plan.sampling == Sampling::Weighted {
        let graph = plan.graph.as_ref().clone();
        checked.graph = Arc::new(graph.with_non_negative_weights());
    }
    checked
}

/// Returns a fingerprint of the input tables: the columns that are read, names and contents of the
/// files.
///
/// # Errors
///
/// If a file cannot be read.
pub fn input_fingerprint(graph: &GraphPlan) -> Result<serde_json::Value, StoreError> {
    let files = graph.fingerprints()?;
    let nodes = graph.types.iter().zip(&files.nodes);
    let nodes =
        nodes.map(|(of_type, content)| (&of_type.name, nodes_input(&of_type.nodes, content)));
    let edges = graph.relations.iter().zip(&files.edges);
    // A reverse relation follows from the table of its relation.
    let edges = edges.filter(|(relation, _)| !relation.reversed);
    let edges =
        edges.map(|(relation, content)| (&relation.name, edges_input(&relation.edges, content)));
    let [nodes, edges] = [nodes.collect(), edges.collect()].map(|tables| by_name(graph, tables));
    let mut input = serde_json::json!({ "nodes": nodes, "edges": edges });
    if let Some(pairs) = &graph.pairs {
        let columns = schemas::PairsSpec {
            path: None,
            ..pairs.spec().clone()
        };
        input["pairs"] = serde_json::json!({ "files": pairs.fingerprint()?, "columns": columns });
    }
    Ok(input)
}

/// Returns the only table of an untyped graph, or all tables by name.
fn by_name(graph: &GraphPlan, mut tables: Vec<(&String, serde_json::Value)>) -> serde_json::Value {
    if !graph.is_typed() {
        return tables.swap_remove(0).1;
    }
    let tables = tables
        .into_iter()
        .map(|(name, table)| (name.clone(), table));
    serde_json::Value::Object(tables.collect())
}

/// The path of the table does not count; nor do the transform, the width of learnable rows and the
/// bounds of one-hot columns, which only the trainer uses.
fn nodes_input(nodes: &NodesPlan, files: &str) -> serde_json::Value {
    let columns = schemas::NodesSpec {
        path: schemas::TablePath::default(),
        transform: None,
        embedding: None,
        columns: nodes.spec().declared_kinds(),
        ..nodes.spec().clone()
    };
    let mut input = serde_json::json!({ "files": files, "columns": columns });
    if let Some((id_type, kinds)) = nodes.read_as() {
        input["read_as"] = serde_json::json!({ "id_type": id_type, "kinds": kinds });
    }
    input
}

fn edges_input(edges: &EdgesPlan, files: &str) -> serde_json::Value {
    let columns = schemas::EdgesSpec {
        path: schemas::TablePath::default(),
        ..edges.spec().clone()
    };
    serde_json::json!({ "files": files, "columns": columns })
}

fn store_fingerprint(cluster: &Cluster, plan: &StorePlan, input: &serde_json::Value) -> String {
    let mut settings = serde_json::json!({
        "version": VERSION,
        "input": input,
        "seed": plan.seed,
        "sampling": plan.sampling,
        "samples": plan.samples,
        "workers": cluster.num_workers(),
    });
    if cluster.num_processes() > 1 {
        settings["first_worker"] = cluster.first_worker().into();
        settings["threads"] = cluster.num_threads().into();
    }
    if plan.graph.is_typed() {
        settings["target_type"] = plan.graph.types[plan.target_type].name.as_str().into();
    }
    fingerprint(settings.to_string().as_bytes())
}

fn fitting(plan: &StorePlan, wanted: &str) -> Option<StoreMeta> {
    let meta = match StoreMeta::read(&plan.dir) {
        Ok(meta) => meta?,
        Err(error) => {
            tracing::warn!("building the store again: {}", error_chain(&error));
            return None;
        }
    };
    (meta.fingerprint == wanted && is_enough(&meta, plan)).then_some(meta)
}

/// Tells whether a store keeps all that a plan needs.
pub(crate) fn is_enough(meta: &StoreMeta, plan: &StorePlan) -> bool {
    let keeps_enough = meta.keep.is_enough(&plan.keep);
    let draws_enough = meta.redraw || !plan.redraw;
    let keeps_pairs = meta.keeps_left_out || !plan.keeps_left_out();
    let keeps_times = meta.keeps_times || !plan.keeps_times();
    keeps_enough && draws_enough && keeps_pairs && keeps_times
}
