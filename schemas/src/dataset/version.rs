//! Outputs that hold changes of an earlier output: which rows of it they keep.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Manifest, PartEntry, read_manifest, verify_sizes};
use crate::error::{Result, SchemaError};
use crate::storage;

/// Name of the part that holds [`REPLACED`] and [`DELETES`] or [`DEGREES`], and no rows.
pub(crate) const VERSION: &str = "version";

/// Table of the rows of earlier outputs that are no rows of the version: `file` and `row`.
pub(crate) const REPLACED: &str = "_replaced.parquet";

/// Start of the names of the tables of degrees that a version of graph features has: of each type,
/// those of nodes in rows that it keeps.
pub(crate) const DEGREES: &str = "_degrees";

/// Table of the removed nodes, beside the parts of a version. Its name follows theirs, so that
/// readers of the folder take the columns of a part.
pub(crate) const DELETES: &str = "part-deletes.parquet";

/// Folder of the parts of a version.
pub(crate) const CHANGES: &str = "changes";

/// How an output follows from an earlier one; entry `version` of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionMeta {
    /// The output that changes were applied to.
    pub parent: ParentOutput,
    /// Earlier outputs of which rows are rows of this one too, oldest first; none if all rows were
    /// written again.
    pub kept: Vec<KeptOutput>,
    /// Nodes whose rows were written.
    pub upserts: u64,
    /// Nodes that were removed.
    pub deletes: u64,
}

/// The parent of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentOutput {
    /// Its directory: `../NAME` if both lie in one directory, else the whole path.
    pub path: String,
    /// Its fingerprint.
    pub fingerprint: String,
}

/// An earlier output of which rows are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOutput {
    /// Its directory: `../NAME` if both lie in one directory, else the whole path.
    pub path: String,
    /// Its fingerprint.
    pub fingerprint: String,
    /// Its parts with rows.
    pub parts: Vec<PartEntry>,
}

impl Manifest {
    /// Returns the parts that hold rows.
    pub fn row_parts(&self) -> impl Iterator<Item = &PartEntry> {
        let is_version = self.version.is_some();
        let parts = self.parts.iter();
        parts.filter(move |part| !(is_version && part.name == VERSION))
    }
}

impl VersionMeta {
    /// Returns the outputs of which rows are kept by a version whose parent is the output in `dir`,
    /// for a version in `of`.
    pub fn kept_by_child(of: &Path, dir: &Path, parent: &Manifest) -> Vec<KeptOutput> {
        let before = parent.version.iter().flat_map(|version| &version.kept);
        let before = before.map(|kept| KeptOutput {
            path: path_from(of, &path_at(dir, &kept.path)),
            ..kept.clone()
        });
        let own = KeptOutput {
            path: path_from(of, dir),
            fingerprint: parent.fingerprint.clone(),
            parts: parent.row_parts().cloned().collect(),
        };
        before.chain([own]).collect()
    }
}

impl ParentOutput {
    /// Tells whether this is the output in `dir`, for a version in `of`.
    pub fn is_at(&self, of: &Path, dir: &Path) -> bool {
        self.path == path_from(of, dir)
    }

    /// Describes the output in `dir` as the parent of a version in `of`.
    pub fn of(of: &Path, dir: &Path, parent: &Manifest) -> Self {
        Self {
            path: path_from(of, dir),
            fingerprint: parent.fingerprint.clone(),
        }
    }
}

impl KeptOutput {
    /// Tells whether the output is the version in `dir` itself.
    pub fn is_at(&self, dir: &Path) -> bool {
        self.path == path_from(dir, dir)
    }

    /// Returns the directory, for the version in `dir`, after a check that the output is there
    /// unchanged.
    ///
    /// # Errors
    ///
    /// If it is gone or another output stands there.
    pub fn checked_dir(&self, dir: &Path) -> Result<PathBuf> {
        let found = path_at(dir, &self.path);
        let gone = |problem: String| SchemaError::Broken {
            path: dir.to_owned(),
            problem: format!("its rows lie in {} too, but {problem}", found.display()),
        };
        let manifest = read_manifest(&found).map_err(|error| match error {
            SchemaError::NotFinished { problem, .. } => gone(problem),
            other => other,
        })?;
        if manifest.fingerprint != self.fingerprint {
            return Err(gone("another output has replaced the one there".to_owned()));
        }
        verify_sizes(&found, &self.parts)?;
        Ok(found)
    }
}

/// Returns the path of an output as it is written in a version in `dir`: `../NAME` if both lie in
/// one directory, so that this one may be moved, else the whole path. Symbolic links are resolved:
/// they may name another output later.
fn path_from(dir: &Path, other: &Path) -> String {
    let [dir, other] = [dir, other].map(real_path);
    let is_beside = dir.parent().is_some() && dir.parent() == other.parent();
    match other.file_name().filter(|_| is_beside) {
        Some(name) => format!("../{}", name.to_string_lossy()),
        None => other.to_string_lossy().into_owned(),
    }
}

/// Returns a local path without symbolic links, also if nothing is there yet; a path of a store as
/// it is.
fn real_path(path: &Path) -> PathBuf {
    if storage::is_remote(path) {
        return path.to_owned();
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = path.canonicalize().ok().or_else(|| {
        let above = path.parent()?.canonicalize().ok()?;
        Some(above.join(path.file_name()?))
    });
    real.unwrap_or(path)
}

/// Returns the directory that [`path_from`] has written in a version in `dir`. If that is a
/// symbolic link, outputs beside it are those beside the directory that it names.
fn path_at(dir: &Path, written: &str) -> PathBuf {
    let is_link = !storage::is_remote(dir) && dir.is_symlink();
    let dir = if is_link { &real_path(dir) } else { dir };
    match (written.strip_prefix("../"), dir.parent()) {
        (Some(name), Some(above)) => above.join(name),
        _ => PathBuf::from(written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dir: &str, other: &str, written: &str, found: &str) {
        let (dir, other) = (Path::new(dir), Path::new(other));
        assert_eq!(path_from(dir, other), written);
        assert_eq!(path_at(dir, written), Path::new(found));
    }

    #[test]
    fn outputs_side_by_side_may_be_moved() {
        check("/out/v2", "/out/v1", "../v1", "/out/v1");
        check("/out/v2", "/other/v1", "/other/v1", "/other/v1");
        check(
            "s3://bucket/out/v2",
            "s3://bucket/out/v1",
            "../v1",
            "s3://bucket/out/v1",
        );
        check(
            "s3://bucket/v2",
            "s3://other/v1",
            "s3://other/v1",
            "s3://other/v1",
        );
        check("v2", "v1", "../v1", "v1");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_resolved() {
        use std::os::unix::fs::symlink;
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        for name in ["out/v1", "out/v2", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        symlink("v1", root.join("out/latest")).unwrap();
        symlink("out", root.join("link")).unwrap();
        symlink("../out/v2", root.join("other/newest")).unwrap();
        let at = |name: &str| root.join(name);
        for (dir, other) in [
            ("out/v2", "out/latest"),
            ("link/v2", "out/v1"),
            ("out/v3", "link/latest"),
            ("other/newest", "out/v1"),
        ] {
            assert_eq!(path_from(&at(dir), &at(other)), "../v1", "{dir}, {other}");
        }
        assert_eq!(path_at(&at("other/newest"), "../v1"), at("out/v1"));
    }
}
