//! Refuses directories of table formats with versions, which hold files that are no part of the
//! table.
//!
//! Delta Lake, Iceberg and Hudi keep the files of older versions beside the live ones, and list the
//! live ones elsewhere. A reader of all files would read deleted rows too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::NamedFile;
use crate::error::{Result, SchemaError};
use crate::storage;

const DELTA: Format = Format {
    name: "Delta Lake",
    marker: "_delta_log",
    listed: "`DeltaTable(PATH).file_uris()` of Python's `deltalake`",
};

const HUDI: Format = Format {
    name: "Hudi",
    marker: ".hoodie",
    listed: "a snapshot query of `_hoodie_file_name`",
};

const ICEBERG: Format = Format {
    name: "Iceberg",
    marker: "metadata",
    listed: "`SELECT file_path FROM TABLE.files`",
};

/// Suffix of the names of Iceberg's metadata files.
const ICEBERG_SUFFIX: &str = ".metadata.json";

/// A table format with versions.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    /// Directory at the root of a table.
    marker: &'static str,
    /// How to list the live files.
    listed: &'static str,
}

/// Refuses a directory that is a table with versions, or lies in one.
pub(super) fn refuse_above(key: &str, dir: &Path) -> Result<()> {
    refuse_roots(key, ancestors(dir))
}

/// Refuses files of a table with versions below a directory; `names` are all names below it.
pub(super) fn refuse_below(
    key: &str,
    dir: &Path,
    names: &[String],
    files: &[NamedFile],
) -> Result<()> {
    let roots: BTreeSet<(PathBuf, &str)> = names.iter().filter_map(|name| root_in(name)).collect();
    for (root, name) in roots {
        let root = if root.as_os_str().is_empty() {
            dir.to_owned()
        } else {
            dir.join(root)
        };
        if files.iter().any(|(file, _)| file.starts_with(&root)) {
            let formats = [DELTA, HUDI, ICEBERG];
            let format = formats.into_iter().find(|format| format.name == name);
            return Err(refused(key, &root, format.expect("it is one of them")));
        }
    }
    Ok(())
}

/// Refuses files that lie in a table with versions.
pub(super) fn refuse_around(key: &str, files: &[NamedFile]) -> Result<()> {
    let parents: BTreeSet<&Path> = files.iter().filter_map(|(file, _)| file.parent()).collect();
    refuse_roots(key, parents.into_iter().flat_map(ancestors).collect())
}

fn refuse_roots(key: &str, dirs: BTreeSet<PathBuf>) -> Result<()> {
    dirs.iter().try_for_each(|dir| match format_of(dir) {
        Some(format) => Err(refused(key, dir, format)),
        None => Ok(()),
    })
}

/// Returns a directory and its parents, up to the host or bucket of a URL.
fn ancestors(dir: &Path) -> BTreeSet<PathBuf> {
    let is_remote = storage::is_remote(dir);
    let dir = match (is_remote, dir.as_os_str().is_empty()) {
        (true, _) => dir.to_owned(),
        (false, is_here) => {
            let dir = if is_here { Path::new(".") } else { dir };
            dir.canonicalize().unwrap_or_else(|_gone| dir.to_owned())
        }
    };
    let above = dir.ancestors();
    let above = above.take_while(|above| !is_remote || storage::is_remote(above));
    above.map(Path::to_owned).collect()
}

/// Returns the format of the table whose root a directory is.
///
/// A parent directory may be unreadable; it then counts as no table.
fn format_of(dir: &Path) -> Option<Format> {
    let has = |name: &str| storage::is_dir(&dir.join(name)).unwrap_or(false);
    if let Some(format) = [DELTA, HUDI].into_iter().find(|format| has(format.marker)) {
        return Some(format);
    }
    let metadata = storage::entries(&dir.join(ICEBERG.marker)).unwrap_or_default();
    let is_iceberg = metadata.iter().any(|name| name.ends_with(ICEBERG_SUFFIX));
    is_iceberg.then_some(ICEBERG)
}

/// Returns root and format of the table to whose log a file belongs.
fn root_in(name: &str) -> Option<(PathBuf, &'static str)> {
    let parts: Vec<&str> = name.split('/').collect();
    let dirs = &parts[..parts.len() - 1];
    let at = |marker: &str| dirs.iter().position(|part| *part == marker);
    let found = |format: Format| {
        let depth = at(format.marker)?;
        let is_log = format.marker != ICEBERG.marker
            || depth + 2 == parts.len() && name.ends_with(ICEBERG_SUFFIX);
        is_log.then(|| (parts[..depth].iter().collect(), format.name))
    };
    [DELTA, HUDI, ICEBERG].into_iter().find_map(found)
}

fn refused(key: &str, root: &Path, format: Format) -> SchemaError {
    let Format {
        name,
        marker,
        listed,
    } = format;
    SchemaError::Key {
        key: key.to_owned(),
        problem: format!(
            "{} is a table of {name} (it has `{marker}`), whose directory holds files of older \
             versions too; name the live files, path = [\"FILE\", ...], which {listed} lists",
            root.display()
        ),
    }
}
