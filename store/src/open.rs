//! Opens the store of a plan, or builds it.

use crate::meta::{VERSION, verify};
use crate::{Store, StoreError, StoreMeta, StorePlan, build};
use cluster::{Cluster, gather_processes};
use schemas::dataset::DirLock;
use schemas::threads::spawn_scoped;
use schemas::xxh::fingerprint;
use schemas::{EdgesPlan, NodesPlan, Sampling, error_chain};
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
/// keeps at least as many in-edges a node, and all of them if the plan does. Another run may use
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
    let plan = &with_checked_weights(plan);
    let input = input_fingerprint(&plan.nodes, &plan.edges)?;
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
    let opened = verify(&plan.dir, &meta).and_then(|()| Store::open(cluster, plan, meta));
    opened
        .inspect_err(|e| tracing::warn!("building the store again: {}", error_chain(e)))
        .ok()
}

/// Returns the plan; negative weights are errors in it if in-edges are drawn by weight.
fn with_checked_weights(plan: &StorePlan) -> StorePlan {
    let mut checked = plan.clone();
    if plan.sampling == Sampling::Weighted {
        checked.edges = Arc::new(plan.edges.as_ref().clone().with_non_negative_weights());
    }
    checked
}

/// Returns a fingerprint of the input tables: the columns that are read, names and contents of the
/// files.
///
/// # Errors
///
/// If a file cannot be read.
pub fn input_fingerprint(
    nodes: &NodesPlan,
    edges: &EdgesPlan,
) -> Result<serde_json::Value, StoreError> {
    // The paths of the tables do not count; nor does the transform, which only the trainer applies.
    let node_columns = schemas::NodesSpec {
        path: schemas::TablePath::default(),
        transform: None,
        ..nodes.spec().clone()
    };
    let edge_columns = schemas::EdgesSpec {
        path: schemas::TablePath::default(),
        ..edges.spec().clone()
    };
    // Both tables are read whole, at the same time.
    let (node_files, edge_files) = std::thread::scope(|scope| {
        let node_files = spawn_scoped(scope, "fingerprint", || nodes.fingerprint())?;
        let edge_files = edges.fingerprint();
        let node_files = node_files.join().expect("a panic has ended the process");
        Ok::<_, StoreError>((node_files?, edge_files?))
    })?;
    Ok(serde_json::json!({
        "nodes": { "files": node_files, "columns": node_columns },
        "edges": { "files": edge_files, "columns": edge_columns },
    }))
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
    let keeps_enough = meta.keep.is_none_or(|keep| keep >= plan.keep as u64);
    let draws_enough = meta.redraw || !plan.redraw;
    (meta.fingerprint == wanted && keeps_enough && draws_enough).then_some(meta)
}
