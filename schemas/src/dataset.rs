//! Output directories: parts committed one by one, the whole by its manifest.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::columns::GraphMeta;
use crate::error::Result;
use crate::fanout::FlattenMeta;

/// Version of the layout of manifests.
pub const MANIFEST_SCHEMA: u32 = 1;

/// One file of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the output directory, with `/`.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// `xxh3:` and 16 hexadecimal digits.
    pub checksum: String,
}

/// Targets of a part by split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitCounts {
    /// Targets to train on.
    pub train: u64,
    /// Targets that choose the best epoch.
    pub val: u64,
    /// Targets that measure the result.
    pub test: u64,
    /// Targets in no split.
    pub none: u64,
}

/// A committed part: one or several files that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// Name, a function of the plan alone, such as `part-00000`.
    pub name: String,
    /// Its files.
    pub files: Vec<FileEntry>,
    /// Graph features: targets, in either layout. Embeddings: nodes.
    pub rows: u64,
    /// Targets by split, where the part holds targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<SplitCounts>,
}

/// What an output directory holds; `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_SCHEMA`].
    pub schema: u32,
    /// `flatten`, `train` or `infer`.
    pub stage: String,
    /// Name and version of the program that wrote it.
    pub program: String,
    /// Fingerprint of plan and input: equal fingerprints mean equal rows.
    pub fingerprint: String,
    /// The plan as run.
    pub plan: serde_json::Value,
    /// Random seed.
    pub seed: u64,
    /// Fingerprint of the input, table by table.
    pub input: serde_json::Value,
    /// What the tables hold, where the output has graph features or embeddings.
    pub graph: Option<GraphMeta>,
    /// How graph features were made, where the output has them.
    pub flatten: Option<FlattenMeta>,
    /// The parts in order.
    pub parts: Vec<PartEntry>,
    /// The stage's report.
    pub report: serde_json::Value,
}

/// An output directory that one run writes.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
}

/// What [`Output::open`] found.
#[derive(Debug)]
pub enum Opened {
    /// The output is there already.
    Done(Box<Manifest>),
    /// The output is to be written, or to be continued.
    Open(Output),
}

/// A file being written, invisible under its name until [`PartFile::finish`].
#[derive(Debug)]
pub struct PartFile {
    _path: PathBuf,
}

impl Output {
    /// Opens an output directory for a stage, creating it where it is missing.
    ///
    /// # Errors
    ///
    /// If it holds something else, or another run is writing it.
    pub fn open(_dir: &Path, _stage: &str, _fingerprint: &str, _fresh: bool) -> Result<Opened> {
        todo!()
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a part that is committed already, by this run or by one that was killed.
    pub fn committed(&self, _index: usize) -> Option<PartEntry> {
        todo!()
    }

    /// Returns all committed parts in order of their index.
    pub fn parts(&self) -> Vec<PartEntry> {
        todo!()
    }

    /// Starts a file; `name` is its path below the directory, with `/`.
    ///
    /// # Errors
    ///
    /// If it cannot be created.
    pub fn create(&self, _name: &str) -> Result<PartFile> {
        todo!()
    }

    /// Records a part whose files are finished; from now on no later run writes it again.
    ///
    /// # Errors
    ///
    /// If the record cannot be written.
    pub fn commit_part(&self, _index: usize, _part: PartEntry) -> Result<()> {
        todo!()
    }

    /// Writes the manifest, then `_SUCCESS`, and removes the traces of progress.
    ///
    /// # Errors
    ///
    /// If a part is missing or something cannot be written.
    pub fn finish(self, _manifest: &Manifest) -> Result<()> {
        todo!()
    }
}

impl PartFile {
    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    ///
    /// If the file system refuses.
    pub fn finish(self) -> Result<FileEntry> {
        todo!()
    }
}

impl Write for PartFile {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        todo!()
    }

    fn flush(&mut self) -> io::Result<()> {
        todo!()
    }
}

/// Reads the manifest of a finished output.
///
/// # Errors
///
/// If the directory holds no finished output, or its manifest cannot be read.
pub fn read_manifest(_dir: &Path) -> Result<Manifest> {
    todo!()
}
