//! Output directories: parts are committed one by one, the whole output by its manifest.
//!
//! ```text
//! DIR/part-00000.parquet ...   files of the parts, in place only when they are whole
//! DIR/_progress/plan.json      stage and fingerprint of the run that writes here
//! DIR/_progress/part-00000.json  one a committed part
//! DIR/_progress/tmp/           files being written, but on S3
//! DIR/_lock                    held by the run that writes here
//! DIR/_manifest.json           at the end
//! DIR/_SUCCESS                 last
//! DIR/_new/                    all of that again, while a finished output is replaced
//! ```
//!
//! The file system and HDFS rename a part into place; S3 shows an upload only when it is complete.

mod committed;
mod kept_parts;
mod lease;
mod lock;
mod output;
mod owner;
mod part_file;
mod remove;
mod replace;
#[cfg(test)]
mod tests;
mod version;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use kept_parts::ReplacedRows;
pub(crate) use kept_parts::{RowsPart, broken, rows_parts, write_replaced};
pub use lock::DirLock;
pub use output::{Opened, Output};
pub use owner::{is_begun, refuse_foreign, refuse_taken};
pub use part_file::PartFile;
pub(crate) use version::{CHANGES, DEGREES, DELETES, REPLACED, VERSION};
pub use version::{KeptOutput, ParentOutput, VersionMeta};

use crate::columns::{GraphMeta, Split};
use crate::error::{Result, SchemaError};
use crate::fanout::FlattenMeta;
use crate::storage;
use crate::xxh;

/// Version of the layout of manifests.
pub const MANIFEST_SCHEMA: u32 = 1;

pub(crate) const MANIFEST: &str = "_manifest.json";
/// Earlier name of manifests, which other programs read as data; it is read and never written.
const OLD_MANIFEST: &str = "manifest.json";
pub(crate) const SUCCESS: &str = "_SUCCESS";
const PROGRESS: &str = "_progress";
const TMP: &str = "tmp";
/// File in [`PROGRESS`] that names the run which writes a directory.
const PLAN: &str = "plan.json";
const LOCK: &str = "_lock";
/// Directory of the new output while the old one stays.
const ASIDE: &str = "_new";
/// File in [`ASIDE`] that exists from the removal of the old output until the new one is moved.
const MOVING: &str = "_moving";
/// Folders of parts inside an output directory, for parts of several files.
const TABLES: [&str; 5] = ["nodes", "edges", "pairs", "items", CHANGES];
/// Folder, inside an output directory, of folders of parts; it holds no parts itself.
const FOLDERS: &str = crate::embeddings::FOLDER;

/// One file of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the output directory, with `/`.
    pub path: String,
    /// Size in bytes.
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
    /// Graph features: targets, in either layout, or pairs where the input has pairs. Embeddings:
    /// nodes.
    pub rows: u64,
    /// Targets or pairs by split, where the part holds targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<SplitCounts>,
}

/// Description of an output directory; `_manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_SCHEMA`].
    pub schema: u32,
    /// `flatten`, `train`, `infer` or `score`.
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
    /// Description of the tables, if the output has graph features or embeddings.
    pub graph: Option<GraphMeta>,
    /// How graph features were made, if the output has them.
    pub flatten: Option<FlattenMeta>,
    /// The parts in order.
    pub parts: Vec<PartEntry>,
    /// The stage's report.
    pub report: serde_json::Value,
    /// How the output follows from an earlier one, if it holds changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionMeta>,
}

impl Manifest {
    /// Creates the manifest of a stage of this program, without parts.
    ///
    /// `plan` is the plan as run, `input` the fingerprints of the input.
    pub fn new(
        stage: &str,
        fingerprint: String,
        (plan, input): (serde_json::Value, serde_json::Value),
        seed: u64,
    ) -> Self {
        Self {
            schema: MANIFEST_SCHEMA,
            stage: stage.to_owned(),
            program: concat!("graphflat ", env!("CARGO_PKG_VERSION")).to_owned(),
            fingerprint,
            plan,
            seed,
            input,
            graph: None,
            flatten: None,
            parts: Vec::new(),
            report: serde_json::Value::Null,
            version: None,
        }
    }
}

impl SplitCounts {
    /// Counts a target.
    pub fn add(&mut self, split: Split) {
        *self.of(split) += 1;
    }

    /// Takes a target away that was counted.
    pub fn remove(&mut self, split: Split) {
        let count = self.of(split);
        *count = count.saturating_sub(1);
    }

    fn of(&mut self, split: Split) -> &mut u64 {
        match split {
            Split::None => &mut self.none,
            Split::Train => &mut self.train,
            Split::Val => &mut self.val,
            Split::Test => &mut self.test,
        }
    }

    /// Returns the number of targets.
    pub fn total(&self) -> u64 {
        self.train + self.val + self.test + self.none
    }
}

/// Returns the name of a part: `part-00000` and so on.
pub fn part_name(index: usize) -> String {
    format!("part-{index:05}")
}

/// Tells whether a directory holds an output, finished or not.
///
/// # Errors
///
/// If the directory cannot be listed.
pub fn holds_output(dir: &Path) -> Result<bool> {
    let names = storage::entries(dir)?;
    let traces = [MANIFEST, OLD_MANIFEST, SUCCESS, PROGRESS, ASIDE];
    Ok(names.iter().any(|name| traces.contains(&name.as_str())))
}

/// Reads the manifest of a finished output.
///
/// # Errors
///
/// If the directory holds no finished output, or its manifest cannot be read.
pub fn read_manifest(dir: &Path) -> Result<Manifest> {
    let not_finished = |problem: &str| SchemaError::NotFinished {
        dir: dir.to_owned(),
        problem: problem.to_owned(),
    };
    if !storage::is_file(&dir.join(SUCCESS))? {
        return Err(not_finished(match storage::is_dir(dir)? {
            true if replace::is_due(dir)? => {
                "a new output was about to replace the old one; run its job again"
            }
            true => "_SUCCESS is missing",
            false => "there is no such directory",
        }));
    }
    let Some((path, manifest)) = load_manifest(dir)? else {
        return Err(not_finished("_manifest.json is missing"));
    };
    if manifest.schema != MANIFEST_SCHEMA {
        let problem = format!(
            "schema {}, this build reads {MANIFEST_SCHEMA}",
            manifest.schema
        );
        return Err(SchemaError::Broken { path, problem });
    }
    Ok(manifest)
}

/// Reads the manifest of a directory, finished or not, and returns it with its path.
fn load_manifest(dir: &Path) -> Result<Option<(PathBuf, Manifest)>> {
    for name in [MANIFEST, OLD_MANIFEST] {
        let path = dir.join(name);
        if let Some(manifest) = read_json(&path)? {
            return Ok(Some((path, manifest)));
        }
    }
    Ok(None)
}

/// Reads a JSON file; none if it does not exist.
fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let Some(text) = storage::read(path)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&text);
    value.map(Some).map_err(|source| SchemaError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Checks that the files of some parts exist and have the sizes in their entries.
///
/// # Errors
///
/// Names the first file that differs.
pub fn verify_sizes(dir: &Path, parts: &[PartEntry]) -> Result<()> {
    let files: Vec<&FileEntry> = parts.iter().flat_map(|part| &part.files).collect();
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    for (file, found) in files.iter().zip(storage::sizes(dir, &names)?) {
        let path = dir.join(&file.path);
        let Some(bytes) = found else {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(SchemaError::io("read the size of", &path)(missing));
        };
        if bytes != file.bytes {
            let problem = format!("{bytes} bytes, its manifest says {}", file.bytes);
            return Err(SchemaError::Broken { path, problem });
        }
    }
    Ok(())
}

/// Checks that the files of some parts have the checksums in their entries.
///
/// # Errors
///
/// Names the first file that differs.
pub fn verify_checksums(dir: &Path, parts: &[PartEntry]) -> Result<()> {
    for file in parts.iter().flat_map(|part| &part.files) {
        let path = dir.join(&file.path);
        let checksum = xxh::file_checksum(&path)?;
        if checksum != file.checksum {
            let problem = format!("checksum {checksum}, its manifest says {}", file.checksum);
            return Err(SchemaError::Broken { path, problem });
        }
    }
    Ok(())
}
