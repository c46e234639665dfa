//! The description of a store, and the names of its files.

use crate::StoreError;
use crate::error::StoreCause;
use schemas::xxh::file_checksum;
use schemas::{FileEntry, GraphMeta, Sampling};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the store's layout; a store of another version is built again.
pub(crate) const VERSION: u32 = 4;

/// Name of the store's description, written last.
pub(crate) const META_FILE: &str = "store.json";

/// Description of a store; `store.json`.
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
    /// Whether all in-edges are kept beside the samples, so that other samples can be drawn.
    #[serde(default)]
    pub redraw: bool,
    /// Number of partitions.
    pub workers: usize,
    /// Name of the id column, which lists of targets use too.
    pub id_column: String,
    /// Number of nodes.
    pub num_nodes: u64,
    /// Description of the tables.
    pub graph: GraphMeta,
    /// Counts of in-edges and dropped rows.
    pub edges: EdgeCounts,
    /// Files with their checksums.
    pub files: Vec<FileEntry>,
}

/// Counts of in-edges and dropped rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EdgeCounts {
    /// Number of in-edges, including reversed ones.
    pub in_edges: u64,
    /// Rows left out because an end is no node.
    pub dropped_rows: u64,
    /// Number of in-edges that each worker ranked, including its shares of re-indexed nodes: the
    /// skew of the map.
    pub received_by_worker: Vec<u64>,
}

pub(crate) fn nodes_path(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("nodes-{worker:03}.arrow"))
}

pub(crate) fn degrees_path(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("degrees-{worker:03}.arrow"))
}

/// Path of a list of in-edges. The lists are one for each sample and then, if it is kept, the list
/// of all in-edges.
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

/// Checks the sizes and checksums of a store's files.
pub(crate) fn verify(dir: &Path, meta: &StoreMeta) -> Result<(), StoreError> {
    for expected in &meta.files {
        let path = dir.join(&expected.path);
        let found = file_entry(&path)?;
        if found != *expected {
            let what = format!(
                "it has {} bytes and checksum {}, but {} bytes and checksum {} were written",
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
