//! The store: nodes and ranked in-edges, one memory-mapped partition a worker.

use crate::error::StoreCause;
use crate::file::{self, DegreeColumns, EdgeLists, NODES_PER_BATCH, NodeColumns};
use crate::{EdgeCounts, InEdges, Placement, StoreError, StorePlan, build};
use cluster::{Cluster, gather_processes};
use schemas::dataset::DirLock;
use schemas::xxh::{file_checksum, fingerprint};
use schemas::{Features, FileEntry, GraphMeta, Ids, Labels, LocalIdx, NodeIdx, Sampling, Split};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Version of the store's layout; another one is built anew.
pub(crate) const VERSION: u32 = 4;

/// Name of the store's description, written last.
pub(crate) const META_FILE: &str = "store.json";

/// A graph as the map left it: what flatten, streamed training and inference read.
#[derive(Clone, Debug)]
pub struct Store {
    meta: Arc<StoreMeta>,
    placement: Placement,
    /// Who works on it, each process on the partitions of its own workers.
    cluster: Cluster,
    /// Those of this process.
    partitions: Arc<Vec<Partition>>,
}

/// What a store holds; `store.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreMeta {
    /// Layout version.
    pub version: u32,
    /// Fingerprint of the input and of all settings that change the store's content but `keep`.
    pub fingerprint: String,
    /// Fingerprint of the input tables.
    pub input: serde_json::Value,
    /// In-edges kept per node; `None`: all.
    pub keep: Option<u64>,
    /// Order in which in-edges are ranked.
    pub sampling: Sampling,
    /// Random seed of the first sample.
    pub seed: u64,
    /// Independent samples.
    pub samples: u32,
    /// Whether all in-edges are kept beside the samples, for others to be drawn.
    #[serde(default)]
    pub redraw: bool,
    /// Partitions.
    pub workers: usize,
    /// Name of the id column, by which lists of targets go too.
    pub id_column: String,
    /// Nodes.
    pub num_nodes: u64,
    /// What the tables hold.
    pub graph: GraphMeta,
    /// What became of the edge table.
    pub edges: EdgeCounts,
    /// Files with their checksums.
    pub files: Vec<FileEntry>,
}

/// A node with more in-edges than the threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hub {
    /// Its id.
    pub id: String,
    /// Its in-degree.
    pub in_degree: u64,
}

/// One worker's nodes with their in-edges.
pub struct Partition {
    num_nodes: usize,
    ids: Ids,
    nodes: Vec<NodeColumns>,
    degrees: Vec<DegreeColumns>,
    /// By sample, then by record batch; behind the samples all in-edges, if they are kept.
    in_edges: Vec<Vec<EdgeLists>>,
    edge_dim: usize,
    has_self_loops: bool,
}

/// Which units of a table a worker reads.
#[derive(Clone, Copy)]
pub(crate) struct WorkUnits {
    pub(crate) worker: usize,
    pub(crate) workers: usize,
}

impl WorkUnits {
    pub(crate) fn of<'a, T>(self, units: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        units.iter().skip(self.worker).step_by(self.workers)
    }
}

/// Opens the store if it is there and fits the plan; builds it otherwise. This process works on it
/// alone.
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

/// Opens the store if it is there and fits the plan, in every process; builds it otherwise.
///
/// A store fits if it was made from the same input with the same seed, sampling and workers, and
/// keeps at least as many in-edges a node, and all of them if the plan does. Another run may use the directory meanwhile only when
/// this one has opened all files.
///
/// # Errors
///
/// Input that cannot be read or used, a store that cannot be written, or that another run writes; the
/// failure of another process.
///
/// # Panics
///
/// If the cluster has other workers in this process than the plan.
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
    let input = input_fingerprint(plan)?;
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
        let process = if cluster.process() == 0 {
            process
        } else {
            cluster.process()
        };
        return Err(StoreError::Tables { process });
    }
    // Where one process builds, all do.
    if let Some(store) = found.filter(|_| seen.iter().all(|(is_there, _)| *is_there)) {
        return Ok(store);
    }
    let meta = build::build(cluster, plan, &wanted, input, progress)?;
    Store::open(cluster, &plan.dir, meta)
}

/// Opens the partitions that this process has, if they fit the plan.
fn find(cluster: &Cluster, plan: &StorePlan, wanted: &str) -> Option<Store> {
    let meta = fitting(plan, wanted)?;
    let opened = verify(&plan.dir, &meta).and_then(|()| Store::open(cluster, &plan.dir, meta));
    opened
        .inspect_err(|e| tracing::warn!("building the store again: {}", report(e)))
        .ok()
}

/// Makes a negative weight an error where in-edges are drawn by weight.
fn with_checked_weights(plan: &StorePlan) -> StorePlan {
    let mut checked = plan.clone();
    if plan.sampling == Sampling::Weighted {
        checked.edges = Arc::new(plan.edges.as_ref().clone().with_non_negative_weights());
    }
    checked
}

/// The error with its causes, on one line.
fn report(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn input_fingerprint(plan: &StorePlan) -> Result<serde_json::Value, StoreError> {
    // Where the tables lie does not count, and the transform of the features is the trainer's.
    let nodes = schemas::NodesSpec {
        path: String::new(),
        transform: None,
        ..plan.nodes.spec().clone()
    };
    let edges = schemas::EdgesSpec {
        path: String::new(),
        ..plan.edges.spec().clone()
    };
    // Each reads its whole table.
    let (node_files, edge_files) = std::thread::scope(|scope| {
        let node_files = scope.spawn(|| plan.nodes.fingerprint());
        let edge_files = plan.edges.fingerprint();
        (
            node_files.join().expect("a panic has ended the process"),
            edge_files,
        )
    });
    Ok(serde_json::json!({
        "nodes": { "files": node_files?, "columns": nodes },
        "edges": { "files": edge_files?, "columns": edges },
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
            tracing::warn!("building the store again: {}", report(&error));
            return None;
        }
    };
    let keeps_enough = meta.keep.is_none_or(|keep| keep >= plan.keep as u64);
    let draws_enough = meta.redraw || !plan.redraw;
    (meta.fingerprint == wanted && keeps_enough && draws_enough).then_some(meta)
}

pub(crate) fn nodes_path(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("nodes-{worker:03}.arrow"))
}

pub(crate) fn degrees_path(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("degrees-{worker:03}.arrow"))
}

/// Lists are those of the samples and then, where it is kept, that of all in-edges.
pub(crate) fn in_edges_path(dir: &Path, worker: usize, list: usize) -> PathBuf {
    dir.join(format!("in-edges-{worker:03}-{list:03}.arrow"))
}

pub(crate) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn file_entry(path: &Path) -> Result<FileEntry, StoreError> {
    let failed = |source| StoreError::File {
        verb: "read",
        path: path.to_owned(),
        source,
    };
    let bytes = path.metadata().map_err(|e| failed(e.into()))?.len();
    Ok(FileEntry {
        path: file_name(path),
        bytes,
        checksum: file_checksum(path)?,
    })
}

/// Checks that the files of a store are those that were written.
fn verify(dir: &Path, meta: &StoreMeta) -> Result<(), StoreError> {
    for expected in &meta.files {
        let path = dir.join(&expected.path);
        let found = file_entry(&path)?;
        if found != *expected {
            let what = format!(
                "it has {} bytes and checksum {}, written were {} and {}",
                found.bytes, found.checksum, expected.bytes, expected.checksum
            );
            return Err(StoreError::File {
                verb: "read",
                path,
                source: StoreCause::Damaged(what),
            });
        }
    }
    Ok(())
}

impl Store {
    fn open(cluster: &Cluster, dir: &Path, meta: StoreMeta) -> Result<Self, StoreError> {
        let placement = Placement::new(meta.num_nodes, meta.workers);
        let partitions = own_workers(cluster)
            .map(|worker| Partition::open(dir, worker, placement.num_local(worker), &meta));
        let partitions = Arc::new(partitions.collect::<Result<_, _>>()?);
        Ok(Self {
            meta: Arc::new(meta),
            placement,
            cluster: cluster.clone(),
            partitions,
        })
    }

    /// Returns who works on the store.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the partitions of this process.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns what the store holds.
    pub fn meta(&self) -> &StoreMeta {
        &self.meta
    }

    /// Returns where each node stands.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the nodes of this process with more than `threshold` in-edges.
    pub fn own_hubs(&self, threshold: u64) -> Vec<Hub> {
        let mut hubs = Vec::new();
        for partition in self.partitions.iter() {
            for local in partition.locals() {
                let in_degree = u64::from(partition.in_degree(local));
                if in_degree > threshold {
                    let id = partition.ids().display(local.index());
                    hubs.push(Hub { id, in_degree });
                }
            }
        }
        hubs
    }

    /// Returns a worker's nodes.
    ///
    /// # Panics
    ///
    /// If the worker is one of another process.
    pub fn partition(&self, worker: usize) -> &Partition {
        &self.partitions[worker - self.cluster.first_worker()]
    }
}

fn own_workers(cluster: &Cluster) -> std::ops::Range<usize> {
    let first = cluster.first_worker();
    first..first + cluster.num_threads()
}

impl Partition {
    fn open(
        dir: &Path,
        worker: usize,
        num_nodes: usize,
        meta: &StoreMeta,
    ) -> Result<Self, StoreError> {
        let path = nodes_path(dir, worker);
        let damaged = |file: &Path| StoreError::File {
            verb: "read",
            path: file.to_owned(),
            source: StoreCause::Damaged("a column is missing".into()),
        };
        let mut ids = Ids::new(meta.graph.id_type);
        let mut nodes = Vec::new();
        for batch in file::map_batches(&path)? {
            let column = batch.column_by_name("id").ok_or_else(|| damaged(&path))?;
            let more = Ids::from_array(column)?;
            ids.extend_from(&more, 0..more.len());
            nodes.push(NodeColumns::of(&batch).ok_or_else(|| damaged(&path))?);
        }
        let degree_path = degrees_path(dir, worker);
        let degrees = file::map_batches(&degree_path)?
            .iter()
            .map(DegreeColumns::of)
            .collect();
        let degrees = Option::<Vec<_>>::ok_or_else(degrees, || damaged(&degree_path))?;
        let mut in_edges = Vec::new();
        for list in 0..meta.samples as usize + usize::from(meta.redraw) {
            let list_path = in_edges_path(dir, worker, list);
            let lists = file::map_batches(&list_path)?
                .iter()
                .map(EdgeLists::of)
                .collect();
            in_edges.push(Option::<Vec<_>>::ok_or_else(lists, || damaged(&list_path))?);
        }
        let edge_dim = meta.graph.edge_feature_dim.unwrap_or(0);
        Ok(Self {
            num_nodes,
            ids,
            nodes,
            degrees,
            in_edges,
            edge_dim,
            has_self_loops: meta.graph.self_loops,
        })
    }

    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    /// Returns the positions of the nodes.
    pub fn locals(&self) -> impl ExactSizeIterator<Item = LocalIdx> + Clone + use<> {
        (0..self.num_nodes).map(LocalIdx::from_index)
    }

    /// Returns the ids of the nodes, by position.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Returns a node's in-degree in the input graph.
    pub fn in_degree(&self, local: LocalIdx) -> u32 {
        self.degrees[local.index() / NODES_PER_BATCH].in_degree[local.index() % NODES_PER_BATCH]
    }

    /// Returns the first of a node's sources in the order of ids; the greatest number if it has
    /// none.
    pub fn least_src(&self, local: LocalIdx) -> NodeIdx {
        self.degrees[local.index() / NODES_PER_BATCH].least_src()[local.index() % NODES_PER_BATCH]
    }

    /// Returns the sum of the weights of a node's in-edges, where the input has weights.
    pub fn in_weight(&self, local: LocalIdx) -> Option<f32> {
        let degrees = &self.degrees[local.index() / NODES_PER_BATCH];
        Some(degrees.in_weight.as_ref()?[local.index() % NODES_PER_BATCH])
    }

    /// Returns the number of a node's self-loops, where any node has some.
    pub fn self_loops(&self, local: LocalIdx) -> Option<u32> {
        let degrees = &self.degrees[local.index() / NODES_PER_BATCH];
        self.has_self_loops
            .then(|| degrees.self_loops[local.index() % NODES_PER_BATCH])
    }

    /// Returns the sum of the weights of a node's self-loops, where they have weights.
    pub fn self_weight(&self, local: LocalIdx) -> Option<f32> {
        let degrees = &self.degrees[local.index() / NODES_PER_BATCH];
        let weights = degrees.self_weight.as_ref().filter(|_| self.has_self_loops);
        Some(weights?[local.index() % NODES_PER_BATCH])
    }

    /// Returns a node's split.
    pub fn split(&self, local: LocalIdx) -> Split {
        self.nodes[local.index() / NODES_PER_BATCH].split(local.index() % NODES_PER_BATCH)
    }

    /// Returns the bytes of a node's id, features, degree, label and split.
    pub fn row_bytes(&self, local: LocalIdx) -> usize {
        let id = self.ids.key_bytes(local.index()).map_or(8, <[u8]>::len);
        let features = self.nodes[local.index() / NODES_PER_BATCH]
            .feature_bytes(local.index() % NODES_PER_BATCH);
        id + features + 9
    }

    /// Returns the bytes of all sparse features; 0 where features are not sparse.
    pub fn sparse_bytes(&self) -> usize {
        self.nodes.iter().map(NodeColumns::sparse_bytes).sum()
    }

    /// Returns a node's dense features, `[dim]`; nothing where features are not dense.
    pub fn dense(&self, local: LocalIdx) -> &[f32] {
        self.nodes[local.index() / NODES_PER_BATCH].dense(local.index() % NODES_PER_BATCH)
    }

    /// Appends a node's features.
    pub fn features_into(&self, local: LocalIdx, out: &mut Features) {
        self.nodes[local.index() / NODES_PER_BATCH]
            .features_into(local.index() % NODES_PER_BATCH, out);
    }

    /// Appends a node's label.
    pub fn label_into(&self, local: LocalIdx, out: &mut Labels) {
        self.nodes[local.index() / NODES_PER_BATCH]
            .label_into(local.index() % NODES_PER_BATCH, out);
    }

    /// Returns a node's first in-edges in rank order, at most `limit` of them.
    pub fn in_edges(&self, sample: usize, local: LocalIdx, limit: usize) -> InEdges<'_> {
        let lists = &self.in_edges[sample][local.index() / NODES_PER_BATCH];
        lists.in_edges(local.index() % NODES_PER_BATCH, limit, self.edge_dim)
    }

    /// Returns all of a node's in-edges by source and ordinal, in a store that keeps them so.
    pub fn unranked(&self, local: LocalIdx) -> InEdges<'_> {
        self.in_edges(self.in_edges.len() - 1, local, usize::MAX)
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("num_nodes", &self.num_nodes)
            .finish_non_exhaustive()
    }
}
