//! The map: reads the input once and writes one partition a worker.

use crate::buckets::Bucket;
use crate::edges::{OwnedEdges, place_edges};
use crate::error::StoreCause;
use crate::file::{self, BatchFile, NODES_PER_BATCH};
use crate::hub::Totals;
use crate::nodes::{OwnedNodes, place_nodes};
use crate::number::{MISSING, number_nodes};
use crate::sample::{Ranked, Ranker};
use crate::store::{
    META_FILE, StoreMeta, VERSION, WorkUnits, degrees_path, in_edges_path, nodes_path,
};
use crate::{Placement, StoreError, StorePlan};
use arrow::array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use cluster::{Cluster, Peer, run_workers};
use schemas::progress::{Event, Progress};
use schemas::{FileEntry, GraphMeta, LocalIdx};
use std::path::Path;
use std::sync::Arc;

/// Sums over all in-edges of some nodes, `[num_nodes]` each.
#[derive(Default)]
struct Degrees {
    in_degree: Vec<u32>,
    in_weight: Vec<f32>,
    self_loops: Vec<u32>,
    self_weight: Vec<f32>,
    least_src: Vec<u32>,
}

/// The files of one worker's in-edges, being written.
struct InEdgeFiles<'a> {
    plan: &'a StorePlan,
    worker: usize,
    degrees: Option<BatchFile>,
    /// By list of the plan.
    lists: Vec<Option<BatchFile>>,
    has_self_loops: bool,
}

/// What one worker knows when its partition is written.
struct Built {
    files: Vec<FileEntry>,
    meta: StoreMeta,
}

/// Builds the store and returns its description, which is written last.
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
        // What is left is of no use; that it cannot be removed is not what went wrong.
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

/// Removes an earlier store, its description first, so that no half of it is taken for whole.
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
    let work = WorkUnits {
        worker: peer.index(),
        workers: peer.peers(),
    };
    announce(peer, progress, "numbering nodes", 0);
    let (numbering, dictionary) = number_nodes(peer, &plan.nodes, work)?;
    let label = plan
        .nodes
        .label_meta(numbering.class_names, numbering.max_class);
    let mut graph = GraphMeta {
        id_type: plan.nodes.id_type(),
        features: plan.nodes.feature_meta(),
        label: peer.agree(label.map_err(StoreError::from))?,
        split: plan.nodes.split_meta(),
        edge_weight: plan.edges.has_weight(),
        edge_feature_dim: plan.edges.feature_dim(),
        self_loops: false,
    };
    let placement = Placement::new(numbering.num_nodes, peer.peers());
    announce(peer, progress, "reading nodes", 1);
    let nodes = place_nodes(peer, plan, work, &numbering.units, &graph, &placement)?;
    let nodes_written = write_nodes(peer.index(), plan, nodes, &graph);
    let node_file = peer.agree(nodes_written)?;
    announce(peer, progress, "reading edges", 2);
    let (edges, counts) = place_edges(peer, plan, work, dictionary, &placement)?;
    let edges_written = write_in_edges(peer.index(), plan, edges, &placement);
    let (has_self_loops, mut files) = peer.agree(edges_written)?;
    files.push(node_file);
    let self_loops = peer.gather_all::<_, StoreError>(Ok(has_self_loops))?;
    graph.self_loops = self_loops.contains(&true);
    announce(peer, progress, "store written", 3);
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
    if peer.is_first_here() {
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

/// Ranks and writes the in-edges of this worker's nodes; tells whether any is a self-loop.
fn write_in_edges(
    worker: usize,
    plan: &StorePlan,
    edges: OwnedEdges,
    placement: &Placement,
) -> Result<(bool, Vec<FileEntry>), StoreError> {
    let dim = plan.edges.feature_dim().unwrap_or(0);
    let mut files = InEdgeFiles::new(worker, plan);
    let mut hubs = edges.hubs.into_iter().peekable();
    let (mut bucket, mut ranker, mut ranked) = (Bucket::default(), Ranker::default(), Vec::new());
    let layout = edges.buckets.layout();
    let list_plans = plan.lists();
    let (mut degrees, mut lists) = (Degrees::default(), Lists::of_plan(plan));
    let num_local = placement.num_local(worker);
    for local in placement.locals(worker) {
        let b = layout.own(local);
        let place = local.index() - layout.nodes(b).start;
        if place == 0 {
            edges.buckets.gather_own(b, &mut bucket);
        }
        if let Some((_, hub)) = hubs.next_if(|hub| hub.0 == local) {
            degrees.push(&hub.totals.rounded())?;
            for (list, whole) in lists.iter_mut().zip(&hub.lists) {
                let (in_edges, features) = whole.to_ranked();
                list.push(&in_edges, &features, dim);
            }
        } else {
            let (in_edges, features) = bucket.node(place, dim);
            degrees.push(&Totals::of(placement.node(worker, local), in_edges))?;
            ranker.load(in_edges);
            for (list, of) in lists.iter_mut().zip(&list_plans) {
                ranker.rank(in_edges, of.order, of.keep, &mut ranked);
                list.push(&ranked, features, dim);
            }
        }
        if (local.index() + 1).is_multiple_of(NODES_PER_BATCH) {
            let full = std::mem::replace(&mut lists, Lists::of_plan(plan));
            files.append(std::mem::take(&mut degrees), full)?;
        }
    }
    // An empty partition still gets its files, with one empty batch.
    if num_local == 0 || !num_local.is_multiple_of(NODES_PER_BATCH) {
        files.append(degrees, lists)?;
    }
    files.finish()
}

impl<'a> InEdgeFiles<'a> {
    fn new(worker: usize, plan: &'a StorePlan) -> Self {
        let mut lists = Vec::new();
        lists.resize_with(plan.lists().len(), || None);
        Self {
            plan,
            worker,
            degrees: None,
            lists,
            has_self_loops: false,
        }
    }

    fn append(&mut self, degrees: Degrees, lists: Vec<Lists>) -> Result<(), StoreError> {
        let (dir, edges) = (&self.plan.dir, &self.plan.edges);
        self.has_self_loops |= degrees.self_loops.iter().any(|&count| count > 0);
        let degree_batch = degrees.into_batch(edges.has_weight());
        append(
            &mut self.degrees,
            &degrees_path(dir, self.worker),
            &degree_batch,
        )?;
        for (l, list) in lists.into_iter().enumerate() {
            let batch = list.into_batch(edges.feature_dim().unwrap_or(0));
            append(
                &mut self.lists[l],
                &in_edges_path(dir, self.worker, l),
                &batch,
            )?;
        }
        Ok(())
    }

    fn finish(self) -> Result<(bool, Vec<FileEntry>), StoreError> {
        let files = self.lists.into_iter().chain([self.degrees]);
        let entries = files.map(|file| file.expect("a batch was written").finish());
        Ok((self.has_self_loops, entries.collect::<Result<_, _>>()?))
    }
}

fn append(
    file: &mut Option<BatchFile>,
    path: &Path,
    batch: &RecordBatch,
) -> Result<(), StoreError> {
    let mut open = match file.take() {
        Some(open) => open,
        None => BatchFile::create(path, batch)?,
    };
    open.write(batch)?;
    *file = Some(open);
    Ok(())
}

/// In-edge lists of some nodes, before they become a record batch.
struct Lists {
    offset: Vec<u64>,
    src: Vec<u32>,
    /// Where the input has weights.
    weight: Option<Vec<f32>>,
    feature: Vec<f32>,
}

impl Lists {
    /// Empty ones, one a list of the plan.
    fn of_plan(plan: &StorePlan) -> Vec<Self> {
        let empty = |_| Self {
            offset: vec![0],
            src: Vec::new(),
            weight: plan.edges.has_weight().then(Vec::new),
            feature: Vec::new(),
        };
        plan.lists().into_iter().map(empty).collect()
    }

    fn push(&mut self, ranked: &[Ranked], feature: &[f32], dim: usize) {
        for edge in ranked {
            let at = edge.at as usize;
            self.src.push(edge.src.raw());
            self.feature
                .extend_from_slice(&feature[at * dim..(at + 1) * dim]);
        }
        if let Some(weight) = &mut self.weight {
            weight.extend(ranked.iter().map(|edge| edge.weight));
        }
        self.offset.push(self.src.len() as u64);
    }

    fn into_batch(self, dim: usize) -> RecordBatch {
        let mut columns = vec![(
            "src",
            file::list(&self.offset, Arc::new(UInt32Array::from(self.src))),
        )];
        if let Some(weight) = self.weight {
            let weight: ArrayRef = Arc::new(Float32Array::from(weight));
            columns.push(("weight", file::list(&self.offset, weight)));
        }
        if dim > 0 {
            let offset: Vec<u64> = self.offset.iter().map(|o| o * dim as u64).collect();
            let feature: ArrayRef = Arc::new(Float32Array::from(self.feature));
            columns.push(("feature", file::list(&offset, feature)));
        }
        file::batch(columns)
    }
}

impl Degrees {
    fn push(&mut self, totals: &Totals<f32>) -> Result<(), StoreError> {
        let narrow = |count: u64| {
            u32::try_from(count).map_err(|_| StoreError::TooLarge {
                what: "in-edges of one node",
                count,
                limit: u64::from(u32::MAX),
            })
        };
        self.in_degree.push(narrow(totals.in_degree)?);
        self.in_weight.push(totals.in_weight);
        self.self_loops.push(narrow(totals.self_loops)?);
        self.self_weight.push(totals.self_weight);
        self.least_src
            .push(totals.least_src.unwrap_or(MISSING).raw());
        Ok(())
    }

    fn into_batch(self, weighted: bool) -> RecordBatch {
        let counts = |values: Vec<u32>| -> ArrayRef { Arc::new(UInt32Array::from(values)) };
        let floats = |values: Vec<f32>| -> ArrayRef { Arc::new(Float32Array::from(values)) };
        let mut columns = vec![
            ("in_degree", counts(self.in_degree)),
            ("least_src", counts(self.least_src)),
            ("self_loops", counts(self.self_loops)),
        ];
        if weighted {
            columns.push(("in_weight", floats(self.in_weight)));
            columns.push(("self_weight", floats(self.self_weight)));
        }
        file::batch(columns)
    }
}

/// Writes the columns of the node table.
fn write_nodes(
    worker: usize,
    plan: &StorePlan,
    nodes: OwnedNodes,
    graph: &GraphMeta,
) -> Result<FileEntry, StoreError> {
    let path = nodes_path(&plan.dir, worker);
    let mut file = None;
    nodes.for_each_batch(graph, |batch| append(&mut file, &path, batch))?;
    file.expect("a batch was written").finish()
}
