//! The map: reads the input once and writes one partition a worker.

use crate::arrow_file;
use crate::edges::place_edges;
use crate::error::StoreCause;
use crate::in_edge_files::write_in_edges;
use crate::meta::{META_FILE, VERSION, nodes_path};
use crate::nodes::{OwnedNodes, place_nodes};
use crate::number::number_nodes;
use crate::units::OwnUnits;
use crate::{Placement, StoreError, StoreMeta, StorePlan};
use cluster::{Cluster, Peer, run_workers};
use schemas::progress::{Event, Progress};
use schemas::{FileEntry, GraphMeta, TypeMeta, UntypedMeta};
use std::path::Path;
use std::sync::Arc;

/// Files and description of one worker's partition.
struct Built {
    files: Vec<FileEntry>,
    meta: StoreMeta,
}

/// Builds the store and returns its description; the file of the description is written last.
pub(crate) fn build(
    cluster: &Cluster,
    plan: &StorePlan,
    fingerprint: &str,
    input: serde_json::Value,
    progress: &Progress,
) -> Result<StoreMeta, StoreError> {
    let failed = |source: StoreCause| StoreError::File {
        verb: "write",
        path: plan.dir.clone(),
        source,
    };
    remove_store(&plan.dir).map_err(|e| failed(e.into()))?;
    let (worker_plan, worker_progress) = (plan.clone(), Arc::clone(progress));
    let (fingerprint, input) = (fingerprint.to_owned(), input);
    let built = run_workers(cluster, move |peer| {
        build_partition(peer, &worker_plan, &worker_progress, &fingerprint, &input)
    });
    let built = built.inspect_err(|_| {
        // The incomplete store is of no use. The first error is reported, not one of its removal.
        remove_store(&plan.dir).ok();
    })?;
    let files = built.iter().flat_map(|b| b.files.clone()).collect();
    let first = built
        .into_iter()
        .next()
        .expect("there is at least one worker");
    let meta = StoreMeta {
        files,
        ..first.meta
    };
    meta.write(&plan.dir).map_err(failed)?;
    Ok(meta)
}

/// Removes an earlier store, its description first: without it, the other files are no store.
fn remove_store(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(dir.join(META_FILE)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_own = ["nodes-", "degrees-", "in-edges-"]
            .iter()
            .any(|own| name.starts_with(own));
        if is_own && (name.ends_with(".arrow") || name.ends_with(".tmp")) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn build_partition(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    progress: &Progress,
    fingerprint: &str,
    input: &serde_json::Value,
) -> Result<Built, StoreError> {
    let work = OwnUnits {
        worker: peer.index(),
        workers: peer.peers(),
    };
    announce(peer, progress, "numbering nodes", 0);
    let (numbering, dictionary) = number_nodes(peer, &plan.nodes, work)?;
    let label = plan
        .nodes
        .label_meta(numbering.class_names, numbering.max_class);
    let mut graph = GraphMeta::from(UntypedMeta {
        id_type: plan.nodes.id_type(),
        features: plan.nodes.feature_meta(),
        label: peer.agree(label.map_err(StoreError::from))?,
        split: plan.nodes.split_meta(),
        edge_weight: plan.edges.has_weight(),
        edge_feature_dim: plan.edges.feature_dim(),
        self_loops: false,
    });
    let placement = Placement::new(numbering.num_nodes, peer.peers());
    announce(peer, progress, "reading nodes", 1);
    let nodes = place_nodes(
        peer,
        plan,
        work,
        &numbering.units,
        &graph.types[0],
        &placement,
    )?;
    let nodes_written = write_nodes(peer.index(), plan, nodes, &graph.types[0]);
    let node_file = peer.agree(nodes_written)?;
    announce(peer, progress, "reading edges", 2);
    let (edges, counts) = place_edges(peer, plan, work, dictionary, &placement)?;
    let edges_written = write_in_edges(peer.index(), plan, edges, &placement);
    let (has_self_loops, mut files) = peer.agree(edges_written)?;
    files.push(node_file);
    let self_loops = peer.gather_all::<_, StoreError>(Ok(has_self_loops))?;
    graph.relations[0].self_loops = self_loops.contains(&true);
    announce(peer, progress, "written", 3);
    let meta = StoreMeta {
        version: VERSION,
        fingerprint: fingerprint.to_owned(),
        input: input.clone(),
        keep: (plan.keep != usize::MAX).then_some(plan.keep as u64),
        sampling: plan.sampling,
        seed: plan.seed,
        samples: plan.samples,
        redraw: plan.redraw,
        workers: peer.peers(),
        id_column: plan.nodes.spec().id.clone(),
        num_nodes: numbering.num_nodes,
        graph,
        edges: counts,
        files: Vec::new(),
    };
    Ok(Built { files, meta })
}

fn announce(peer: &Peer<'_>, progress: &Progress, phase: &str, done: u64) {
    if peer.leads_process() {
        progress(&Event {
            stage: "store",
            phase: phase.to_owned(),
            done,
            total: 3,
            message: None,
            fields: serde_json::Value::Null,
        });
    }
}

/// Writes the columns of the node table.
fn write_nodes(
    worker: usize,
    plan: &StorePlan,
    nodes: OwnedNodes,
    meta: &TypeMeta,
) -> Result<FileEntry, StoreError> {
    let path = nodes_path(&plan.dir, worker);
    let mut file = None;
    nodes.for_each_batch(meta, |batch| arrow_file::append(&mut file, &path, batch))?;
    file.expect("a batch was written").finish()
}
