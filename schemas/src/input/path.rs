//! Paths of input tables as written, to their files.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::error::{Result, SchemaError};
use crate::path::WILDCARDS;
use crate::storage;

/// Finds the Parquet files of a path: a file, a directory or a glob; sorted by path.
///
/// Each comes with its name below the path. Entries of directories that start with `_` or `.` are
/// ignored.
pub(super) fn resolve(key: &str, base: &Path, written: &str) -> Result<Vec<(PathBuf, String)>> {
    let path = crate::path::resolve(key, base, Path::new(written))?;
    let missing = |problem| SchemaError::NoFile {
        key: key.to_owned(),
        problem,
        path: path.clone(),
    };
    let mut files = Vec::new();
    // Asked first, because not all servers of S3 answer whether a directory is an object.
    if storage::is_dir(&path)? {
        walk(&path, &mut files)?;
        if files.is_empty() {
            return Err(missing("no *.parquet file below"));
        }
    } else if storage::is_file(&path)? {
        return Ok(vec![(path.clone(), file_name(&path))]);
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
    let no_glob = |error: &dyn std::fmt::Display| SchemaError::Key {
        key: key.to_owned(),
        problem: format!("{} is no glob: {error}", pattern.display()),
    };
    if storage::is_remote(pattern) {
        return expand_remote(pattern, &no_glob, files);
    }
    let matches = glob::glob(&pattern.to_string_lossy()).map_err(|error| no_glob(&error))?;
    for found in matches {
        let found = found.map_err(|error| {
            let path = error.path().to_owned();
            SchemaError::Io {
                action: "list",
                path,
                source: error.into(),
            }
        })?;
        add(found, files)?;
    }
    Ok(())
}

/// Finds what matches a pattern by all that lies below its plain start.
fn expand_remote(
    pattern: &Path,
    no_glob: &dyn Fn(&dyn std::fmt::Display) -> SchemaError,
    files: &mut Vec<(PathBuf, String)>,
) -> Result<()> {
    let text = pattern.to_string_lossy();
    let plain = text.find(WILDCARDS).unwrap_or(text.len());
    let dir = Path::new(&text[..text[..plain].rfind('/').unwrap_or_default()]);
    let options = MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot: true,
        ..MatchOptions::default()
    };
    let wanted = Pattern::new(&text).map_err(|error| no_glob(&error))?;
    for name in storage::list(dir)? {
        // What matches may be a directory above the file.
        let found = dir.join(&name);
        let above = found.ancestors().take_while(|above| *above != dir);
        let matching = above.filter(|above| wanted.matches_path_with(above, options));
        let Some(matching) = matching.last() else {
            continue;
        };
        let below = found.strip_prefix(matching).unwrap_or(Path::new(""));
        if below.as_os_str().is_empty() {
            if !is_hidden(&found) {
                files.push((found.clone(), file_name(&found)));
            }
        } else if !is_hidden(matching) && is_table_file(below) {
            let shown = Path::new(&file_name(matching)).join(below);
            files.push((found.clone(), shown.to_string_lossy().into_owned()));
        }
    }
    Ok(())
}

/// Adds a file, or the files of a directory, whose names start with that of the directory.
fn add(found: PathBuf, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    if is_hidden(&found) {
        return Ok(());
    }
    let name = file_name(&found);
    if !found.is_dir() {
        files.push((found, name));
        return Ok(());
    }
    let mut below = Vec::new();
    walk(&found, &mut below)?;
    let below = below.into_iter();
    files.extend(below.map(|(path, file)| (path, format!("{name}/{file}"))));
    Ok(())
}

/// Adds the files of a directory by their names below it.
fn walk(dir: &Path, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for name in storage::list(dir)? {
        if is_table_file(Path::new(&name)) {
            files.push((dir.join(&name), name));
        }
    }
    Ok(())
}

/// Tells whether a file of a directory belongs to its table.
fn is_table_file(name: &Path) -> bool {
    let is_parquet = name
        .extension()
        .is_some_and(|extension| extension == "parquet");
    is_parquet && !name.iter().any(|part| is_hidden(Path::new(part)))
}

/// Tells whether a name is one that readers of tables ignore.
fn is_hidden(path: &Path) -> bool {
    file_name(path).starts_with(['_', '.'])
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
