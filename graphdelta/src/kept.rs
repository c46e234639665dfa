//! What later versions need of earlier ones, in the working directory: changes of the graph, and
//! the nodes of the rows of each output. A stage may keep more beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::datatypes::UInt32Type;
use schemas::dataset::DirLock;
use schemas::xxh::{file_checksum, fingerprint as hash};
use schemas::{ColumnMeta, FileEntry, NodeIdx};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::arrow_file::{self, append, map_batches};
use store::{Store, StoreCause, StoreError};

use crate::{DeltaError, OutEdges, Overlay, Parent, WholeTables};

/// Name of the directory of kept versions in the working directory.
const VERSIONS: &str = "versions";

const RECORD: &str = "version.json";
const OVERLAY: &str = "overlay";
const NODES: &str = "nodes.arrow";

/// Problem of a parent whose graph is that of other tables.
pub(crate) const OTHER_GRAPH: &str = "\
    is of another graph: the tables or keys of [input], `seed` or the sampling have changed since; \
    they must be those of the first run, with changes in [input.changes] or the tables of today in \
    [input.snapshot]";

/// Names of directories of stores that hold changes start so.
const BASE: &str = "base-";

/// Name of the directory in which a version is written before it gets its name.
const UNFINISHED: &str = "unfinished";

/// Name of a directory that is being removed.
const REMOVED: &str = "removed";

/// The kept versions of a working directory.
#[derive(Debug)]
pub struct KeptVersions {
    dir: PathBuf,
    /// None if nothing is written.
    _lock: Option<DirLock>,
}

/// What is kept of a version; `version.json`. `R` is what its stage keeps besides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VersionRecord<R> {
    /// Fingerprint of the tables, seed and sampling of the store, which numbers follow from.
    pub graph: String,
    /// Names the changes that its store holds too; none if that was built from the tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Columns of the store's features; none if all are numbers without gaps, or nodes have types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnMeta>,
    /// By type, columns of the store's features; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns_of_types: Vec<Vec<ColumnMeta>>,
    /// Fingerprint of the parent; none if the version has none.
    #[serde(default)]
    pub parent: Option<String>,
    /// The plan by which its rows were computed.
    pub plan: Value,
    /// Fingerprints of the earlier versions whose rows are its rows too, oldest first.
    pub earlier: Vec<String>,
    /// Nodes of the rows of its output, in their order; none: the nodes of the store.
    pub nodes: Option<FileEntry>,
    /// Nodes of the rows of the earlier outputs, if they have other numbers than in the records of
    /// these: the version has written a store. Rows that are replaced may have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes_of_earlier: Vec<FileEntry>,
    /// In-edges of a node that its changes of the graph hold; none if it has no changes.
    pub overlay: Option<Vec<usize>>,
    /// The whole tables that its graph was read from, if it has changes; none if tables of changes made
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<WholeTables>,
    /// What the stage keeps besides.
    #[serde(flatten)]
    pub of_stage: R,
}

/// Nothing besides the graph and the nodes of the rows.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct NoRows {}

/// The graph of a parent, as the next changes find it.
#[derive(Debug)]
pub struct ParentGraph {
    /// In-edges of a node that its changes hold, and those of the next version.
    pub keep: Vec<usize>,
    /// What changes have made of the store.
    pub overlay: Overlay,
    /// The whole tables that it was read from, if they are known.
    pub tables: Option<WholeTables>,
    /// Equal for graphs of the same nodes, features and in-edges.
    pub identity: String,
    /// The out-edges of the store.
    pub out: OutEdges,
}

impl<R> VersionRecord<R> {
    /// Returns the record of a version that has the graph of a store, and no changes or listed
    /// nodes yet.
    pub fn new(store: &Store, plan: &Value, of_stage: R) -> Self {
        let meta = store.meta();
        let columns = meta.graph.types.iter().map(|of| of.columns.clone());
        let columns: Vec<_> = columns.collect();
        let (columns, columns_of_types) = match meta.graph.is_typed() {
            true => (Vec::new(), columns),
            false => (columns.concat(), Vec::new()),
        };
        Self {
            graph: meta.tables_fingerprint(),
            base: meta.base.clone(),
            columns,
            columns_of_types,
            parent: None,
            plan: plan.clone(),
            earlier: Vec::new(),
            nodes: None,
            nodes_of_earlier: Vec::new(),
            overlay: None,
            tables: None,
            of_stage,
        }
    }

    /// Tells whether it has the nodes of the rows of the earlier outputs.
    fn knows_earlier(&self) -> bool {
        !self.nodes_of_earlier.is_empty()
    }

    /// Returns the fingerprints of the earlier versions that it needs, oldest first;
    /// `knows_earlier` tells of their records.
    fn needs(&self, knows_earlier: impl Fn(&String) -> bool) -> Vec<String> {
        if self.knows_earlier() {
            return Vec::new();
        }
        let first = self.earlier.iter().rposition(knows_earlier);
        self.earlier[first.unwrap_or(0)..].to_vec()
    }

    /// Returns the columns of the store's features, by type.
    pub fn columns(&self) -> Vec<&[ColumnMeta]> {
        match &self.columns_of_types[..] {
            [] => vec![&self.columns],
            of_types => of_types.iter().map(|of| &of[..]).collect(),
        }
    }

    /// Returns why an output with another plan keeps none of the version's rows; none if it has the
    /// same plan. `other_key` is the reason if a key of the job differs.
    pub fn why_full(&self, plan: &Value, other_key: &'static str) -> Option<&'static str> {
        match () {
            () if self.plan["engine"] != plan["engine"] => Some(
                "the parent was written by a version of graphflat that may compute other bytes",
            ),
            () if self.plan != *plan => Some(other_key),
            () => None,
        }
    }
}

fn read_record<R: DeserializeOwned>(dir: &Path) -> Option<VersionRecord<R>> {
    let text = std::fs::read(dir.join(RECORD)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Finds what is kept of a version in a working directory, if all earlier ones that it needs are
/// kept too.
pub fn find_kept<R: DeserializeOwned>(
    work_dir: &Path,
    fingerprint: &str,
) -> Option<VersionRecord<R>> {
    let versions = KeptVersions::unlocked(work_dir);
    let record = versions.record::<R>(fingerprint)?;
    let is_kept = |name: &String| versions.record::<NoRows>(name).is_some();
    versions
        .needed_by(&record)
        .iter()
        .all(is_kept)
        .then_some(record)
}

/// Lists the files below a directory in `dir`, by their paths from `dir`.
pub(crate) fn files_below(dir: &Path, below: &Path) -> Result<Vec<String>, DeltaError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(below).map_err(failed("read", below))? {
        let path = entry.map_err(failed("read", below))?.path();
        if path.is_dir() {
            files.extend(files_below(dir, &path)?);
            continue;
        }
        let name = path.strip_prefix(dir).ok().and_then(Path::to_str);
        files.push(name.expect("names of kept files are plain").to_owned());
    }
    Ok(files)
}

/// Returns the name of the directory of a version.
fn folder(fingerprint: &str) -> String {
    fingerprint.replace(':', "-")
}

pub(crate) fn failed(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> DeltaError + use<> {
    let path = path.to_owned();
    move |source| DeltaError::Io {
        action,
        path,
        source,
    }
}

impl KeptVersions {
    /// Locks the kept versions of a working directory.
    ///
    /// # Errors
    ///
    /// If another run has locked them, or the directory cannot be written.
    pub fn lock(work_dir: &Path) -> Result<Self, DeltaError> {
        let dir = work_dir.join(VERSIONS);
        std::fs::create_dir_all(&dir).map_err(failed("create", &dir))?;
        let lock = DirLock::take(&dir)?;
        Ok(Self {
            dir,
            _lock: Some(lock),
        })
    }

    /// Returns the kept versions of a working directory for reading.
    pub fn unlocked(work_dir: &Path) -> Self {
        Self {
            dir: work_dir.join(VERSIONS),
            _lock: None,
        }
    }

    /// Tells whether a run has kept anything in the working directory.
    pub fn are_there(&self) -> bool {
        self.dir.is_dir()
    }

    /// Returns the directory of all versions.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the working directory.
    pub fn work_dir(&self) -> &Path {
        self.dir
            .parent()
            .expect("it is a folder of the working directory")
    }

    /// Returns the directory of a version.
    pub fn path(&self, fingerprint: &str) -> PathBuf {
        self.dir.join(folder(fingerprint))
    }

    /// Returns what is kept of a version; none if nothing is.
    pub fn record<R: DeserializeOwned>(&self, fingerprint: &str) -> Option<VersionRecord<R>> {
        read_record(&self.path(fingerprint))
    }

    /// Returns the fingerprints of the earlier versions that a version needs, oldest first: from
    /// the last one on that has written a store, and so knows the nodes of those before it.
    pub fn needed_by<R>(&self, record: &VersionRecord<R>) -> Vec<String> {
        record.needs(|name| {
            let of_name = self.record::<NoRows>(name);
            of_name.is_some_and(|of| of.knows_earlier())
        })
    }

    /// Returns what is kept of a version and of the earlier ones that it needs, with their
    /// fingerprints, its own last; none if some of it is not kept.
    pub fn records<R: DeserializeOwned>(
        &self,
        fingerprint: &str,
    ) -> Option<Vec<(String, VersionRecord<R>)>> {
        let own = self.record::<R>(fingerprint)?;
        let names = self.needed_by(&own).into_iter();
        let earlier = names.map(|name| Some((name.clone(), self.record(&name)?)));
        let own = std::iter::once(Some((fingerprint.to_owned(), own)));
        earlier.chain(own).collect()
    }

    /// Reads the nodes of the rows of each output of a version, its own last; none: those of the
    /// store. `records` are those that [`Self::records`] returns.
    ///
    /// # Errors
    ///
    /// If a file was changed or cannot be read.
    pub fn nodes_of_outputs<R>(
        &self,
        records: &[(String, VersionRecord<R>)],
    ) -> Result<Vec<Option<Vec<NodeIdx>>>, DeltaError> {
        let mut all = Vec::new();
        for (name, record) in records {
            let dir = self.path(name);
            for entry in &record.nodes_of_earlier {
                all.push(Some(read_nodes(&dir, entry)?));
            }
            let nodes = record.nodes.as_ref();
            let nodes = nodes.map(|entry| read_nodes(&dir, entry));
            all.push(nodes.transpose()?);
        }
        Ok(all)
    }

    /// Returns the directory of a store that holds changes; `name` names them.
    pub(crate) fn base_dir(&self, name: &str) -> PathBuf {
        self.dir.join(folder(&format!("{BASE}{name}")))
    }

    /// Returns the directory of the changes of a version in that of its record.
    pub(crate) fn overlay_in(&self, dir: &Path) -> PathBuf {
        dir.join(OVERLAY)
    }

    /// Returns the out-edges of a store, which are written once: those of the first `keep` in-edges
    /// of each node and relation.
    ///
    /// # Errors
    ///
    /// As [`OutEdges::open_or_write`].
    pub fn out_edges(&self, store: &Store, keep: &[usize]) -> Result<OutEdges, DeltaError> {
        let of_store = folder(&store.meta().fingerprint);
        let stored = &store.meta().keep;
        let kept = match stored.is_enough(keep) {
            true => format!("{keep:?}"),
            false => format!("{keep:?} of {stored:?}"),
        };
        let of_keep = folder(&hash(kept.as_bytes()));
        if let Some(base) = &store.meta().base {
            // They are removed with the store.
            let own = self.base_dir(base).join(store.meta().workers.to_string());
            let dir = own.join(format!("out-edges-{of_keep}"));
            return OutEdges::open_or_write(store, keep, &dir);
        }
        let dir = self.dir.join(format!("out-edges-{of_store}-{of_keep}"));
        // Their name before it had the number of in-edges.
        let old = self.dir.join(format!("out-edges-{of_store}"));
        if self._lock.is_some() && old.exists() {
            std::fs::remove_dir_all(&old).map_err(failed("remove", &old))?;
        }
        OutEdges::open_or_write(store, keep, &dir)
    }

    /// Tells whether the graph of a version is kept, so that changes can be applied to it.
    pub fn has_graph<R>(&self, fingerprint: &str, record: &VersionRecord<R>) -> bool {
        record.overlay.is_none() || self.path(fingerprint).join(OVERLAY).exists()
    }

    /// Opens the graph of a parent, to apply changes to it. `read` are the in-edges of a node that
    /// the next version reads; `keep`, those that are kept if the parent has no changes.
    ///
    /// # Errors
    ///
    /// If the graph is not kept any more, is that of other tables, or has fewer in-edges.
    pub fn parent_graph<R>(
        &self,
        (parent, record): (&Parent, &VersionRecord<R>),
        store: &Store,
        (read, keep): (&[usize], Vec<usize>),
    ) -> Result<ParentGraph, DeltaError> {
        let name = &parent.manifest.fingerprint;
        if !self.has_graph(name, record) {
            return Err(parent.problem(
                "cannot be continued: `work_dir` keeps the graphs of the last version and of its \
                 parent alone; name a later parent, or start with a run without a parent",
            ));
        }
        let meta = store.meta();
        if (&record.graph, &record.base) != (&meta.tables_fingerprint(), &meta.base) {
            return Err(parent.problem(OTHER_GRAPH));
        }
        let has_all = |kept: &[usize]| kept.iter().zip(read).all(|(kept, read)| kept >= read);
        let (keep, overlay, files) = match &record.overlay {
            None => (keep, Overlay::default(), Vec::new()),
            Some(kept) if has_all(kept) => {
                let dir = self.path(name).join(OVERLAY);
                let (overlay, files) = Overlay::read_with_files(store, kept, &dir)?;
                (kept.clone(), overlay, files)
            }
            Some(_) => {
                return Err(parent.problem(
                    "was computed with other fan-outs; start with a run without a parent",
                ));
            }
        };
        let identity = (&store.meta().fingerprint, &keep, files);
        Ok(ParentGraph {
            identity: serde_json::json!(identity).to_string(),
            out: self.out_edges(store, &keep)?,
            keep,
            overlay,
            tables: match &record.overlay {
                // It has no changes.
                None => WholeTables::of_store(store),
                Some(_) => record.tables.clone(),
            },
        })
    }

    /// Returns an empty directory for a version, which [`Self::finish`] names.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn begin(&self) -> Result<PathBuf, DeltaError> {
        let dir = self.dir.join(UNFINISHED);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(failed("remove", &dir))?;
        }
        std::fs::create_dir(&dir).map_err(failed("create", &dir))?;
        Ok(dir)
    }

    /// Writes the record of the unfinished version and gives it its name.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish<R: Serialize>(
        &self,
        fingerprint: &str,
        record: &VersionRecord<R>,
    ) -> Result<(), DeltaError> {
        let (from, to) = (self.dir.join(UNFINISHED), self.path(fingerprint));
        let path = from.join(RECORD);
        let text = serde_json::to_vec_pretty(record).expect("a record is plain data");
        std::fs::write(&path, text).map_err(failed("write", &path))?;
        // The old one is deleted last, so that a kill leaves one of both.
        let old = self.put_aside(&to)?;
        std::fs::rename(&from, &to).map_err(failed("rename", &from))?;
        match old {
            Some(old) => std::fs::remove_dir_all(&old).map_err(failed("remove", &old)),
            None => Ok(()),
        }
    }

    /// Puts the changes of the graph of a version into the directory of another one.
    ///
    /// # Errors
    ///
    /// If a file cannot be linked or copied.
    pub fn link_overlay(&self, fingerprint: &str, dir: &Path) -> Result<(), DeltaError> {
        let (from, to) = (self.path(fingerprint).join(OVERLAY), dir.join(OVERLAY));
        std::fs::create_dir(&to).map_err(failed("create", &to))?;
        for entry in std::fs::read_dir(&from).map_err(failed("read", &from))? {
            let entry = entry.map_err(failed("read", &from))?;
            link(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    }

    /// Removes what no later version needs of the ancestors of a version, apart from its parent:
    /// their graphs, and the rows of those that no other version keeps.
    ///
    /// # Errors
    ///
    /// If a directory cannot be read or removed.
    pub fn remove_old(&self, fingerprint: &str) -> Result<(), DeltaError> {
        let parent_of = |name: &String| self.record::<NoRows>(name)?.parent;
        let parent = parent_of(&fingerprint.to_owned());
        let mut old: Vec<String> = Vec::new();
        let mut next = parent.as_ref().and_then(parent_of);
        while let Some(name) = next.filter(|name| !old.contains(name)) {
            next = parent_of(&name);
            old.push(name);
        }
        let records = self.all_records()?;
        let knows_earlier = |name: &String| {
            let of_name = records.get(&folder(name)).and_then(Option::as_ref);
            of_name.is_some_and(VersionRecord::knows_earlier)
        };
        let folders: BTreeSet<String> = old.iter().map(|name| folder(name)).collect();
        let others = records.iter().filter(|(name, _)| !folders.contains(*name));
        let others = others.filter_map(|(_, record)| record.as_ref());
        let needed: BTreeSet<String> = others.flat_map(|of| of.needs(knows_earlier)).collect();
        // The oldest first: the others lead to it.
        for name in old.iter().rev() {
            match needed.contains(name) {
                true => self.remove(&self.path(name).join(OVERLAY))?,
                false => self.remove(&self.path(name))?,
            }
        }
        self.remove_bases(&records)
    }

    /// Reads the records in all directories, by name; none where it cannot be read.
    fn all_records(&self) -> Result<BTreeMap<String, Option<VersionRecord<NoRows>>>, DeltaError> {
        let mut records = BTreeMap::new();
        let entries = std::fs::read_dir(&self.dir).map_err(failed("read", &self.dir))?;
        for entry in entries {
            let entry = entry.map_err(failed("read", &self.dir))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            records.insert(name, read_record(&entry.path()));
        }
        Ok(records)
    }

    /// Tells whether a version is kept that has rows of an output.
    pub fn are_continued(&self, fingerprint: &str) -> bool {
        let records = self.all_records().unwrap_or_default();
        let mut records = records.into_values().flatten();
        records.any(|of| of.earlier.iter().any(|name| name == fingerprint))
    }

    /// Removes the stores that hold changes, and that no kept graph starts from; `records` are
    /// [all](Self::all_records) of before old graphs were removed.
    fn remove_bases(
        &self,
        records: &BTreeMap<String, Option<VersionRecord<NoRows>>>,
    ) -> Result<(), DeltaError> {
        let names = records.keys().filter(|name| name.starts_with(BASE));
        let mut bases: Vec<PathBuf> = names.map(|name| self.dir.join(name)).collect();
        let graphs = records.iter();
        let graphs = graphs.filter(|(name, _)| self.overlay_in(&self.dir.join(name)).exists());
        for (name, record) in graphs.filter(|(name, _)| *name != UNFINISHED) {
            match record {
                Some(record) => {
                    let own = record.base.as_ref().map(|base| self.base_dir(base));
                    bases.retain(|base| Some(base) != own.as_ref());
                }
                // It may start from any of them.
                None => {
                    tracing::warn!(
                        "what is kept in {name} of {} cannot be read",
                        self.dir.display()
                    );
                    return Ok(());
                }
            }
        }
        bases.iter().try_for_each(|base| self.remove(base))
    }

    /// Removes a directory, if it is there; readers see all of it or nothing.
    pub(crate) fn remove(&self, dir: &Path) -> Result<(), DeltaError> {
        match self.put_aside(dir)? {
            Some(aside) => std::fs::remove_dir_all(&aside).map_err(failed("remove", &aside)),
            None => Ok(()),
        }
    }

    /// Renames a directory, to be deleted; returns its new name, or none if it is not there.
    fn put_aside(&self, dir: &Path) -> Result<Option<PathBuf>, DeltaError> {
        let to = self.dir.join(REMOVED);
        if to.exists() {
            std::fs::remove_dir_all(&to).map_err(failed("remove", &to))?;
        }
        if !dir.exists() {
            return Ok(None);
        }
        std::fs::rename(dir, &to).map_err(failed("rename", dir))?;
        Ok(Some(to))
    }
}

/// Puts a file into another directory, without a copy where it can.
///
/// # Errors
///
/// If it can neither be linked nor copied.
pub fn link(from: &Path, to: &Path) -> Result<(), DeltaError> {
    std::fs::hard_link(from, to)
        .or_else(|_| std::fs::copy(from, to).map(drop))
        .map_err(failed("link", to))
}

/// Writes the nodes of the rows of an output to the directory of its version.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_nodes(dir: &Path, nodes: &[NodeIdx]) -> Result<FileEntry, DeltaError> {
    write_listed(&dir.join(NODES), nodes)
}

/// Writes the nodes of some rows to a file.
pub(crate) fn write_listed(path: &Path, nodes: &[NodeIdx]) -> Result<FileEntry, DeltaError> {
    let numbers = UInt32Array::from_iter_values(nodes.iter().map(|node| node.raw()));
    let numbers: ArrayRef = Arc::new(numbers);
    let mut file = None;
    let batch = arrow_file::batch(vec![("node", numbers)]);
    append(&mut file, path, &batch)?;
    Ok(file.expect("a batch was written").finish()?)
}

/// Reads the nodes of the rows of an output from the directory of its version.
///
/// # Errors
///
/// If the file was changed or cannot be read.
fn read_nodes(dir: &Path, entry: &FileEntry) -> Result<Vec<NodeIdx>, DeltaError> {
    let path = dir.join(&entry.path);
    let damaged = |what: &str| StoreError::File {
        verb: "read",
        path: path.clone(),
        source: StoreCause::Damaged(what.to_owned()),
    };
    if file_checksum(&path)? != entry.checksum {
        return Err(damaged("it was changed since it was written").into());
    }
    let mut nodes = Vec::new();
    for batch in map_batches(&path)? {
        let column = batch.column_by_name("node");
        let numbers = column.and_then(arrow_file::column::<UInt32Type>);
        let numbers = numbers.ok_or_else(|| damaged("a column is missing"))?;
        nodes.extend_from_slice(NodeIdx::slice(&numbers));
    }
    Ok(nodes)
}
