//! What later versions need of earlier ones, in the working directory: changes of the graph, rows
//! of layers, and the nodes of each output.

use crate::InferError;
use crate::kept_rows::{KeptRows, damaged, map_checked};
use crate::rows::RowRecord;
use arrow::array::{ArrayRef, UInt32Array};
use arrow::datatypes::UInt32Type;
use graphdelta::{OutEdges, Overlay};
use schemas::dataset::DirLock;
use schemas::{ColumnMeta, FileEntry, NodeIdx};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Store;
use store::arrow_file::{self, append};

/// Name of the directory of kept versions in the working directory.
pub(crate) const VERSIONS: &str = "versions";

const RECORD: &str = "version.json";
const OVERLAY: &str = "overlay";
const NODES: &str = "nodes.arrow";

/// Name of the directory in which a version is written before it gets its name.
const UNFINISHED: &str = "unfinished";

/// Name of a directory that is being removed.
const REMOVED: &str = "removed";

/// The kept versions of a working directory.
pub(crate) struct KeptVersions {
    dir: PathBuf,
    /// None if nothing is written.
    _lock: Option<DirLock>,
}

/// What is kept of a version; `version.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VersionRecord {
    /// Fingerprint of the nodes and edges of the store, which numbers follow from.
    pub(crate) graph: String,
    /// Columns of the store's features; none if all are numbers without gaps, or nodes have types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnMeta>,
    /// By type, columns of the store's features; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns_of_types: Vec<Vec<ColumnMeta>>,
    /// Fingerprint of the parent; none if the version has none.
    #[serde(default)]
    parent: Option<String>,
    /// The plan by which its rows were computed.
    pub(crate) plan: Value,
    /// Fingerprints of the earlier versions whose rows are its rows too, oldest first.
    pub(crate) earlier: Vec<String>,
    /// Rows of all nodes of the store after each inner layer, where a full run has left them.
    stored: Vec<RowRecord>,
    /// Rows that the version has changed, for each inner layer.
    changed: Vec<FileEntry>,
    /// Nodes of the rows of its output, in their order; none: the nodes of the store.
    nodes: Option<FileEntry>,
    /// In-edges of a node that its changes of the graph hold; none if it has no changes.
    pub(crate) overlay: Option<Vec<usize>>,
}

/// A version from which the next one is computed.
pub(crate) struct OpenVersion {
    pub(crate) record: VersionRecord,
    pub(crate) rows: KeptRows,
    /// Nodes of the rows of each output, the version's own last; none: the nodes of the store.
    pub(crate) nodes: Vec<Option<Vec<NodeIdx>>>,
}

/// A new version.
pub(crate) struct NewVersion<'a> {
    pub(crate) parent: &'a str,
    pub(crate) plan: &'a Value,
    pub(crate) earlier: Vec<String>,
    pub(crate) overlay: &'a Overlay,
    /// In-edges of a node that the overlay has at most.
    pub(crate) keep: &'a [usize],
    pub(crate) rows: &'a KeptRows,
    /// Layers whose rows are kept.
    pub(crate) num_layers: usize,
    pub(crate) nodes: &'a [NodeIdx],
}

impl VersionRecord {
    /// Returns the record of a version that has the graph of a store, and no rows yet.
    fn new(store: &Store, plan: &Value) -> Self {
        let meta = store.meta();
        let columns: Vec<_> = meta
            .graph
            .types
            .iter()
            .map(|of| of.columns.clone())
            .collect();
        let (columns, columns_of_types) = match meta.graph.is_typed() {
            true => (Vec::new(), columns),
            false => (columns.concat(), Vec::new()),
        };
        Self {
            graph: meta.edges_fingerprint(),
            columns,
            columns_of_types,
            parent: None,
            plan: plan.clone(),
            earlier: Vec::new(),
            stored: Vec::new(),
            changed: Vec::new(),
            nodes: None,
            overlay: None,
        }
    }

    /// Returns the columns of the store's features, by type.
    pub(crate) fn columns(&self) -> Vec<&[ColumnMeta]> {
        match &self.columns_of_types[..] {
            [] => vec![&self.columns],
            of_types => of_types.iter().map(|of| &of[..]).collect(),
        }
    }

    fn read(dir: &Path) -> Option<Self> {
        let text = std::fs::read(dir.join(RECORD)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Tells whether a version is kept, with all earlier ones that it needs.
pub(crate) fn find(work_dir: &Path, fingerprint: &str) -> Option<VersionRecord> {
    let read = |name: &str| VersionRecord::read(&work_dir.join(VERSIONS).join(folder(name)));
    let record = read(fingerprint)?;
    let mut earlier = record.earlier.iter();
    earlier.all(|name| read(name).is_some()).then_some(record)
}

/// Returns the name of the directory of a version.
fn folder(fingerprint: &str) -> String {
    fingerprint.replace(':', "-")
}

impl KeptVersions {
    /// Locks the kept versions of a working directory.
    ///
    /// # Errors
    ///
    /// If another run has locked them, or the directory cannot be written.
    pub(crate) fn lock(work_dir: &Path) -> Result<Self, InferError> {
        let dir = work_dir.join(VERSIONS);
        std::fs::create_dir_all(&dir).map_err(InferError::io("create", &dir))?;
        let lock = DirLock::take(&dir)?;
        Ok(Self {
            dir,
            _lock: Some(lock),
        })
    }

    /// Returns the kept versions of a working directory for reading.
    pub(crate) fn unlocked(work_dir: &Path) -> Self {
        Self {
            dir: work_dir.join(VERSIONS),
            _lock: None,
        }
    }

    fn path(&self, fingerprint: &str) -> PathBuf {
        self.dir.join(folder(fingerprint))
    }

    /// Returns the out-edges of a store, which are written once.
    pub(crate) fn out_edges(&self, store: &Store, keep: &[usize]) -> Result<OutEdges, InferError> {
        let name = format!("out-edges-{}", folder(&store.meta().fingerprint));
        Ok(OutEdges::open_or_write(store, keep, &self.dir.join(name))?)
    }

    /// Opens a version with the rows and nodes of the earlier ones; none if it is not kept.
    pub(crate) fn open(&self, fingerprint: &str) -> Result<Option<OpenVersion>, InferError> {
        let Some(record) = VersionRecord::read(&self.path(fingerprint)) else {
            return Ok(None);
        };
        let mut open = OpenVersion {
            rows: KeptRows::default(),
            nodes: Vec::new(),
            record,
        };
        for name in open.record.earlier.clone() {
            let Some(earlier) = VersionRecord::read(&self.path(&name)) else {
                return Ok(None);
            };
            open.add(&self.path(&name), &earlier)?;
        }
        let own = open.record.clone();
        open.add(&self.path(fingerprint), &own)?;
        Ok(Some(open))
    }

    /// Tells whether the graph of a version is kept, so that changes can be applied to it.
    pub(crate) fn has_graph(&self, fingerprint: &str, record: &VersionRecord) -> bool {
        record.overlay.is_none() || self.path(fingerprint).join(OVERLAY).exists()
    }

    /// Reads what a version has changed of the graph of a store; `keep` in-edges of a node are read.
    pub(crate) fn overlay(
        &self,
        fingerprint: &str,
        (store, keep): (&Store, &[usize]),
    ) -> Result<Overlay, InferError> {
        let dir = self.path(fingerprint).join(OVERLAY);
        Ok(Overlay::read(store, keep, &dir)?)
    }

    /// Keeps the rows of a full run. `link` puts their files into a directory; `nodes` are those of
    /// the rows of its output, none if it has those of the store.
    pub(crate) fn keep_full(
        &self,
        (fingerprint, plan): (&str, &Value),
        store: &Store,
        (nodes, link): (
            Option<&[NodeIdx]>,
            impl FnOnce(&Path) -> Result<Vec<RowRecord>, InferError>,
        ),
    ) -> Result<(), InferError> {
        let dir = self.begin()?;
        let write = |listed| write_nodes(&dir.join(NODES), listed);
        let record = VersionRecord {
            stored: link(&dir)?,
            nodes: nodes.map(write).transpose()?,
            ..VersionRecord::new(store, plan)
        };
        self.finish(fingerprint, &record)
    }

    /// Keeps a version.
    pub(crate) fn keep(
        &self,
        fingerprint: &str,
        store: &Store,
        version: NewVersion<'_>,
    ) -> Result<(), InferError> {
        let dir = self.begin()?;
        let overlay = dir.join(OVERLAY);
        version.overlay.write(store, version.keep, &overlay)?;
        let record = VersionRecord {
            parent: Some(version.parent.to_owned()),
            earlier: version.earlier,
            changed: version.rows.write(&dir, version.num_layers)?,
            nodes: Some(write_nodes(&dir.join(NODES), version.nodes)?),
            overlay: Some(version.keep.to_vec()),
            ..VersionRecord::new(store, version.plan)
        };
        self.finish(fingerprint, &record)
    }

    /// Keeps a version under another name, with all that its rows need in one directory. `nodes`:
    /// those of the rows of its output, in their order.
    pub(crate) fn keep_compacted(
        &self,
        (fingerprint, of): (&str, &str),
        version: OpenVersion,
        nodes: &[NodeIdx],
    ) -> Result<(), InferError> {
        let dir = self.begin()?;
        let own = [of.to_owned()];
        let names = version.record.earlier.iter().chain(&own);
        let mut stored = Vec::new();
        for name in names {
            let from = self.path(name);
            let record = VersionRecord::read(&from);
            for rows in record.into_iter().flat_map(|record| record.stored) {
                link(&from.join(&rows.name), &dir.join(&rows.name))?;
                stored.push(rows);
            }
        }
        if version.record.overlay.is_some() {
            let (from, to) = (self.path(of).join(OVERLAY), dir.join(OVERLAY));
            std::fs::create_dir(&to).map_err(InferError::io("create", &to))?;
            for entry in std::fs::read_dir(&from).map_err(InferError::io("read", &from))? {
                let entry = entry.map_err(InferError::io("read", &from))?;
                link(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
        let num_layers = version.record.changed.len();
        let record = VersionRecord {
            parent: Some(of.to_owned()),
            earlier: Vec::new(),
            stored,
            changed: version.rows.write_all(&dir, num_layers)?,
            nodes: Some(write_nodes(&dir.join(NODES), nodes)?),
            ..version.record
        };
        self.finish(fingerprint, &record)
    }

    /// Removes what no later version needs of the ancestors of a version, apart from its parent:
    /// their graphs, and the rows of those that no other version keeps.
    pub(crate) fn remove_old(&self, fingerprint: &str) -> Result<(), InferError> {
        let read = |name: &String| VersionRecord::read(&self.path(name));
        let parent_of = |name: &String| read(name).and_then(|record| record.parent);
        let parent = parent_of(&fingerprint.to_owned());
        let mut old: Vec<String> = Vec::new();
        let mut next = parent.as_ref().and_then(parent_of);
        while let Some(name) = next.filter(|name| !old.contains(name)) {
            next = parent_of(&name);
            old.push(name);
        }
        let folders: BTreeSet<String> = old.iter().map(|name| folder(name)).collect();
        let mut needed = BTreeSet::new();
        let entries = std::fs::read_dir(&self.dir).map_err(InferError::io("read", &self.dir))?;
        for entry in entries {
            let entry = entry.map_err(InferError::io("read", &self.dir))?;
            if !folders.contains(&*entry.file_name().to_string_lossy()) {
                let record = VersionRecord::read(&entry.path());
                needed.extend(record.into_iter().flat_map(|record| record.earlier));
            }
        }
        // The oldest first: the others lead to it.
        for name in old.iter().rev() {
            match needed.contains(name) {
                true => self.remove(&self.path(name).join(OVERLAY))?,
                false => self.remove(&self.path(name))?,
            }
        }
        Ok(())
    }

    /// Removes a directory, if it is there; readers see all of it or nothing.
    fn remove(&self, dir: &Path) -> Result<(), InferError> {
        let to = self.dir.join(REMOVED);
        if to.exists() {
            std::fs::remove_dir_all(&to).map_err(InferError::io("remove", &to))?;
        }
        if dir.exists() {
            std::fs::rename(dir, &to).map_err(InferError::io("rename", dir))?;
            std::fs::remove_dir_all(&to).map_err(InferError::io("remove", &to))?;
        }
        Ok(())
    }

    /// Returns an empty directory for a version.
    fn begin(&self) -> Result<PathBuf, InferError> {
        let dir = self.dir.join(UNFINISHED);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(InferError::io("remove", &dir))?;
        }
        std::fs::create_dir(&dir).map_err(InferError::io("create", &dir))?;
        Ok(dir)
    }

    /// Writes the record of the unfinished version and gives it its name.
    fn finish(&self, fingerprint: &str, record: &VersionRecord) -> Result<(), InferError> {
        let (from, to) = (self.dir.join(UNFINISHED), self.path(fingerprint));
        let path = from.join(RECORD);
        let text = serde_json::to_vec_pretty(record).expect("a record is plain data");
        std::fs::write(&path, text).map_err(InferError::io("write", &path))?;
        if to.exists() {
            std::fs::remove_dir_all(&to).map_err(InferError::io("remove", &to))?;
        }
        std::fs::rename(&from, &to).map_err(InferError::io("rename", &from))
    }
}

impl OpenVersion {
    /// Adds the rows and nodes of a version; earlier ones come before.
    fn add(&mut self, dir: &Path, record: &VersionRecord) -> Result<(), InferError> {
        if !record.stored.is_empty() {
            self.rows = KeptRows::of_files(dir, &record.stored)?;
        }
        self.rows.add(dir, &record.changed)?;
        let nodes = record.nodes.as_ref();
        let nodes = nodes.map(|entry| read_nodes(&dir.join(&entry.path), entry));
        self.nodes.push(nodes.transpose()?);
        Ok(())
    }
}

/// Puts a file into another directory, without a copy where it can.
pub(crate) fn link(from: &Path, to: &Path) -> Result<(), InferError> {
    std::fs::hard_link(from, to)
        .or_else(|_| std::fs::copy(from, to).map(drop))
        .map_err(InferError::io("link", to))
}

fn write_nodes(path: &Path, nodes: &[NodeIdx]) -> Result<FileEntry, InferError> {
    let numbers = UInt32Array::from_iter_values(nodes.iter().map(|node| node.raw()));
    let numbers: ArrayRef = Arc::new(numbers);
    let mut file = None;
    append(&mut file, path, &arrow_file::batch(vec![("node", numbers)]))?;
    Ok(file.expect("a batch was written").finish()?)
}

fn read_nodes(path: &Path, entry: &FileEntry) -> Result<Vec<NodeIdx>, InferError> {
    let damaged = || damaged(path, "a column is missing");
    let mut nodes = Vec::new();
    for batch in map_checked(path, entry)? {
        let column = batch.column_by_name("node").ok_or_else(damaged)?;
        let numbers = arrow_file::column::<UInt32Type>(column).ok_or_else(damaged)?;
        nodes.extend_from_slice(NodeIdx::slice(&numbers));
    }
    Ok(nodes)
}
