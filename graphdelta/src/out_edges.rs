//! Out-edges that a store keeps: by source, the destinations that read it. Written once, mapped.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt32Array, UInt64Array};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{UInt32Type, UInt64Type};
use cluster::{Peer, gather_processes, run_workers};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::xxh::file_checksum;
use schemas::{FileEntry, NodeIdx};
use serde::{Deserialize, Serialize};
use store::arrow_file::{self, NODES_PER_BATCH, append, bounds, map_batches};
use store::{Store, StoreCause, StoreError};

use crate::DeltaError;

const META: &str = "out-edges.json";

/// Description of the files, written last.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Meta {
    /// Fingerprint of the store.
    store: String,
    /// In-edges of a node and relation that are here: those of a rank below.
    keep: Vec<usize>,
    files: Vec<FileEntry>,
}

/// An out-edge: destination, relation and rank among the destination's in-edges in 64 bits.
///
/// Ranks from 2^16 - 1 on are one. A larger limit includes all of them, so it reaches too much at
/// worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OutEdge(pub(crate) u64);

impl OutEdge {
    pub(crate) fn new(dst: NodeIdx, relation: usize, rank: usize) -> Self {
        let relation = u64::from(u16::try_from(relation).expect("checked when they are built"));
        let rank = u64::from(u16::try_from(rank).unwrap_or(u16::MAX));
        Self(u64::from(dst.raw()) << 32 | relation << 16 | rank)
    }

    /// Returns the destination if the edge is among the first `limits[relation]` in-edges.
    pub(crate) fn within(self, limits: &[usize]) -> Option<NodeIdx> {
        let low = |bits: u64| usize::try_from(bits & 0xffff).expect("16 bits");
        let (relation, rank) = (low(self.0 >> 16), low(self.0));
        let dst = u32::try_from(self.0 >> 32).expect("32 bits");
        (rank < limits[relation]).then_some(NodeIdx::from_raw(dst))
    }
}

/// The out-edges of the nodes of one worker, by position.
#[derive(Debug)]
pub(crate) struct OwnOutEdges {
    pub(crate) num_nodes: usize,
    num_edges: usize,
    batches: Vec<(OffsetBuffer<i64>, ScalarBuffer<u64>)>,
    out_degree: Vec<ScalarBuffer<u32>>,
}

/// The out-edges of the nodes of the workers of this process.
#[derive(Clone, Debug)]
pub struct OutEdges {
    pub(crate) keep: Vec<usize>,
    first_worker: usize,
    of_workers: Vec<Arc<OwnOutEdges>>,
}

impl OwnOutEdges {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let mut own = Self {
            num_nodes: 0,
            num_edges: 0,
            batches: Vec::new(),
            out_degree: Vec::new(),
        };
        for batch in map_batches(path)? {
            let columns = || {
                let lists = batch.column_by_name("edges")?.as_list_opt::<i64>()?;
                let values = arrow_file::column::<UInt64Type>(lists.values())?;
                let degrees = batch.column_by_name("out_degree")?;
                let degrees = arrow_file::column::<UInt32Type>(degrees)?;
                Some((lists.offsets().clone(), values, degrees))
            };
            let (offsets, values, degrees) = columns().ok_or_else(|| StoreError::File {
                verb: "read",
                path: path.to_owned(),
                source: StoreCause::Damaged("a column is missing".into()),
            })?;
            own.num_nodes += batch.num_rows();
            own.num_edges += values.len();
            own.batches.push((offsets, values));
            own.out_degree.push(degrees);
        }
        Ok(own)
    }

    pub(crate) fn num_edges(&self) -> usize {
        self.num_edges
    }

    /// Returns the out-edges of a node.
    pub(crate) fn of(&self, slot: usize) -> &[u64] {
        if slot >= self.num_nodes {
            return &[];
        }
        let (offsets, values) = &self.batches[slot / NODES_PER_BATCH];
        &values[bounds(offsets, slot % NODES_PER_BATCH)]
    }

    /// Returns the number of all out-edges of a node, kept or not.
    pub(crate) fn out_degree(&self, slot: usize) -> u64 {
        if slot >= self.num_nodes {
            return 0;
        }
        u64::from(self.out_degree[slot / NODES_PER_BATCH][slot % NODES_PER_BATCH])
    }
}

impl OutEdges {
    /// Opens the out-edges in a directory, or writes them: those of the first `keep` in-edges of
    /// each node and relation. Each process has a directory of its own, and all make this call.
    ///
    /// # Errors
    ///
    /// If the files cannot be read or written, or belong to another store, or another process
    /// fails.
    pub fn open_or_write(store: &Store, keep: &[usize], dir: &Path) -> Result<Self, DeltaError> {
        let earlier = Self::find(store, keep, dir)?;
        // If one process has to write them, all do.
        let are_there = gather_processes(store.cluster(), earlier.is_some())?;
        if let Some(found) = earlier.filter(|_| !are_there.contains(&false)) {
            return Ok(found);
        }
        // Written beside it and renamed when it is whole, since `check` may write it beside a run.
        let unfinished = tempfile::Builder::new()
            .prefix("out-edges-unfinished-")
            .tempdir_in(dir.parent().unwrap_or(Path::new(".")))
            .map_err(|source| failed("create", dir, source))?;
        let (read, limits, to) = (store.clone(), keep.to_vec(), unfinished.path().to_owned());
        let files = run_workers(store.cluster(), move |peer| {
            let written = write(peer, &read, &limits, &to);
            peer.agree(written)
        })?;
        let meta = Meta {
            store: store.meta().fingerprint.clone(),
            keep: keep.to_vec(),
            files,
        };
        let path = unfinished.path().join(META);
        let text = serde_json::to_vec_pretty(&meta).expect("it is plain data");
        std::fs::write(&path, text).map_err(|source| failed("write", &path, source))?;
        let rename = || std::fs::rename(unfinished.path(), dir);
        if let Err(first) = rename() {
            // Another process has written the same, or an earlier one was killed there.
            if let Some(found) = Self::find(store, keep, dir)? {
                return Ok(found);
            }
            std::fs::remove_dir_all(dir).map_err(|_| failed("rename", unfinished.path(), first))?;
            rename().map_err(|source| failed("rename", unfinished.path(), source))?;
        }
        Self::open(store, keep, dir)
    }

    /// Opens the out-edges in a directory; none if it has none, or those of other limits.
    fn find(store: &Store, keep: &[usize], dir: &Path) -> Result<Option<Self>, DeltaError> {
        let path = dir.join(META);
        let found = schemas::storage::read(&path)?;
        let found = found.map(|text| serde_json::from_slice::<Meta>(&text));
        let found = found.transpose().map_err(|source| {
            let (verb, source) = ("read", source.into());
            DeltaError::Store(StoreError::File { verb, path, source })
        })?;
        match found {
            Some(meta) if meta.store != store.meta().fingerprint => Err(DeltaError::OtherStore {
                path: dir.to_owned(),
            }),
            Some(meta) if meta.keep == keep && meta.has_workers(store) => {
                verify(dir, &meta.files)?;
                Self::open(store, keep, dir).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn open(store: &Store, keep: &[usize], dir: &Path) -> Result<Self, DeltaError> {
        let workers = own_workers(store).into_par_iter();
        let opened = workers.map(|worker| Ok(Arc::new(OwnOutEdges::open(&file(dir, worker))?)));
        // All are opened first, so that the error of the first one is returned.
        let opened: Vec<Result<_, StoreError>> = opened.collect();
        Ok(Self {
            keep: keep.to_vec(),
            first_worker: store.cluster().first_worker(),
            of_workers: opened.into_iter().collect::<Result<_, _>>()?,
        })
    }
}

impl Meta {
    /// Tells whether the files are there for the workers of this process: `check` writes those of
    /// the workers of all processes.
    fn has_workers(&self, store: &Store) -> bool {
        let has = |worker| {
            let name = file(Path::new(""), worker);
            self.files.iter().any(|of| Path::new(&of.path) == name)
        };
        own_workers(store).all(has)
    }
}

/// Returns the workers of this process.
fn own_workers(store: &Store) -> Range<usize> {
    let first_worker = store.cluster().first_worker();
    first_worker..first_worker + store.cluster().num_threads()
}

impl OutEdges {
    /// Returns the out-edges of the nodes of a worker of this process.
    pub(crate) fn of_worker(&self, worker: usize) -> &Arc<OwnOutEdges> {
        &self.of_workers[worker - self.first_worker]
    }
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> DeltaError {
    let path = path.to_owned();
    DeltaError::Io {
        action,
        path,
        source,
    }
}

fn file(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("out-edges-{worker:03}.arrow"))
}

fn verify(dir: &Path, files: &[FileEntry]) -> Result<(), DeltaError> {
    for expected in files {
        let path = dir.join(&expected.path);
        let found = file_checksum(&path)?;
        if found != expected.checksum {
            let what = format!("its checksum is {found}, not {}", expected.checksum);
            return Err(DeltaError::Store(StoreError::File {
                verb: "read",
                path,
                source: StoreCause::Damaged(what),
            }));
        }
    }
    Ok(())
}

/// Sends each kept in-edge of this worker's nodes to the owner of its source, and writes those that
/// this worker receives.
fn write(
    peer: &mut Peer<'_>,
    store: &Store,
    keep: &[usize],
    dir: &Path,
) -> Result<FileEntry, DeltaError> {
    let (placement, worker) = (store.placement(), peer.index());
    let partition = store.partition(worker);
    let mut outgoing = vec![Vec::new(); peer.peers()];
    let mut num_out = vec![0u32; placement.num_nodes()];
    for (relation, &limit) in keep.iter().enumerate() {
        for local in partition.locals(partition.relation_to(relation)) {
            let dst = placement.node(worker, local);
            let kept = partition.in_edges(relation, 0, local, limit);
            for (rank, &src) in kept.src.iter().enumerate() {
                let (owner, slot) = placement.owner_and_local(src);
                outgoing[owner].push((slot.raw(), OutEdge::new(dst, relation, rank).0));
            }
            for src in partition.unranked(relation, local).src {
                num_out[src.index()] += 1;
            }
        }
    }
    let counts = (0..peer.peers()).map(|owner| {
        let locals = placement.locals(owner);
        locals
            .map(|local| num_out[placement.node(owner, local).index()])
            .collect::<Vec<_>>()
    });
    let counts: Vec<_> = counts.collect();
    let messages = outgoing.into_iter().zip(counts).enumerate().map(Ok);
    let received = peer.shuffle::<(Vec<(u32, u64)>, Vec<u32>), DeltaError>(messages)?;
    let num_nodes = placement.num_local(worker);
    let mut degrees = vec![0u32; num_nodes];
    for (_, (_, num_more)) in &received {
        let sums = degrees.iter_mut().zip(num_more);
        sums.for_each(|(sum, num)| *sum += num);
    }
    let received: Vec<Vec<(u32, u64)>> = received.into_iter().map(|(_, (of, _))| of).collect();
    let (offset, mut edges) = by_slot(&received, num_nodes);
    drop(received);
    let (mut open, path) = (None, file(dir, worker));
    for start in (0..num_nodes.max(1)).step_by(NODES_PER_BATCH) {
        let end = (start + NODES_PER_BATCH).min(num_nodes);
        let first = offset[start];
        for slot in start..end {
            let list = index(offset[slot])..index(offset[slot + 1]);
            edges[list].sort_unstable();
        }
        let values = edges[index(first)..index(offset[end])].to_vec();
        let own: Vec<u64> = offset[start..=end].iter().map(|at| at - first).collect();
        let values: ArrayRef = Arc::new(UInt64Array::from(values));
        let degrees: ArrayRef = Arc::new(UInt32Array::from(degrees[start..end].to_vec()));
        let lists = arrow_file::list(&own, values);
        let batch = arrow_file::batch(vec![("edges", lists), ("out_degree", degrees)]);
        append(&mut open, &path, &batch)?;
    }
    Ok(open.expect("a batch was written").finish()?)
}

/// Gathers edges by position; returns where the edges of each position start, and the edges.
fn by_slot(received: &[Vec<(u32, u64)>], num_nodes: usize) -> (Vec<u64>, Vec<u64>) {
    let mut offset = vec![0u64; num_nodes + 1];
    let all = || received.iter().flatten();
    all().for_each(|&(slot, _)| offset[slot as usize + 1] += 1);
    for slot in 0..num_nodes {
        offset[slot + 1] += offset[slot];
    }
    let mut next = offset.clone();
    let mut edges = vec![0; index(offset[num_nodes])];
    for &(slot, edge) in all() {
        let place = &mut next[slot as usize];
        edges[index(*place)] = edge;
        *place += 1;
    }
    (offset, edges)
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("edges are in memory")
}
