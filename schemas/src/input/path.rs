//! Paths of input tables as written, to their files.

use std::path::{Path, PathBuf};

use crate::error::{Result, SchemaError};
use crate::path::WILDCARDS;

/// Finds the Parquet files of a path: a file, a directory or a glob; sorted by path.
///
/// Each comes with its name below the path. Entries of directories that start with `_` or `.` are
/// ignored.
pub(super) fn resolve(key: &str, base: &Path, written: &str) -> Result<Vec<(PathBuf, String)>> {
    let path = crate::path::local(key, base, Path::new(written))?;
    let missing = |problem| SchemaError::NoFile {
        key: key.to_owned(),
        problem,
        path: path.clone(),
    };
    if path.is_file() {
        return Ok(vec![(path.clone(), file_name(&path))]);
    }
    let mut files = Vec::new();
    if path.is_dir() {
        walk(&path, "", &mut files)?;
        if files.is_empty() {
            return Err(missing("no *.parquet file below"));
        }
    } else if written.contains(WILDCARDS) {
        expand(key, &path, &mut files)?;
        if files.is_empty() {
            return Err(missing("no file matches"));
        }
    } else {
        return Err(missing("no such file or directory"));
    }
    files.sort();
    files.dedup();
    Ok(files)
}

fn expand(key: &str, pattern: &Path, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    let matches = glob::glob(&pattern.to_string_lossy()).map_err(|error| SchemaError::Key {
        key: key.to_owned(),
        problem: format!("{} is no glob: {error}", pattern.display()),
    })?;
    for found in matches {
        let found = found.map_err(|error| {
            let path = error.path().to_owned();
            SchemaError::Io {
                action: "list",
                path,
                source: error.into(),
            }
        })?;
        let name = file_name(&found);
        if name.starts_with(['_', '.']) {
            continue;
        }
        if found.is_dir() {
            walk(&found, &name, files)?;
        } else {
            files.push((found, name));
        }
    }
    Ok(())
}

fn walk(dir: &Path, prefix: &str, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    let entries = std::fs::read_dir(dir).map_err(SchemaError::io("list", dir))?;
    for entry in entries {
        let path = entry.map_err(SchemaError::io("list", dir))?.path();
        let name = file_name(&path);
        if name.starts_with(['_', '.']) {
            continue;
        }
        let below = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}/{name}")
        };
        if path.is_dir() {
            walk(&path, &below, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "parquet")
        {
            files.push((path, below));
        }
    }
    Ok(())
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
