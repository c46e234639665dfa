//! Finds the files of an input table from its path as written.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::{NamedFile, versioned};
use crate::config::{TablePath, expand_braces};
use crate::error::{Result, SchemaError};
use crate::path::WILDCARDS;
use crate::storage;

/// Files of a table, each once.
#[derive(Default)]
struct Files {
    found: Vec<NamedFile>,
    /// Paths of the files with all links resolved.
    real: BTreeSet<PathBuf>,
}

/// Finds the files of files, directories and globs, in the order of the paths and sorted
/// within each.
///
/// Each file has its name relative to its path. Entries of directories that start with `_` or `.`
/// are ignored. A file that several paths or links lead to is read once.
pub(super) fn resolve(key: &str, base: &Path, written: &TablePath) -> Result<Vec<NamedFile>> {
    let mut files = Files::default();
    for one in written.written() {
        for path in alternatives(key, base, one)? {
            files.add_all(key, resolve_one(key, base, &path)?)?;
        }
    }
    Ok(files.found)
}

/// Returns the paths that the braces of a path stand for; the path itself, if a file or directory
/// has the braces in its name.
fn alternatives(key: &str, base: &Path, written: &str) -> Result<Vec<String>> {
    let path = crate::path::resolve(key, base, Path::new(written))?;
    if written.contains('{') && storage::exists(&path)? {
        return Ok(vec![written.to_owned()]);
    }
    expand_braces(written).map_err(|problem| SchemaError::Key {
        key: key.to_owned(),
        problem,
    })
}

fn resolve_one(key: &str, base: &Path, written: &str) -> Result<Vec<NamedFile>> {
    let path = crate::path::resolve(key, base, Path::new(written))?;
    let missing = |problem: String| SchemaError::NoFile {
        key: key.to_owned(),
        problem,
        path: path.clone(),
    };
    let mut files = Vec::new();
    // Directories are checked first: some servers of S3 do not answer whether a directory is an
    // object.
    if storage::is_dir(&path)? {
        let names = storage::list(&path)?;
        versioned::refuse_above(key, &path)?;
        let tables = table_files(&names).into_iter();
        files.extend(tables.map(|name| (path.join(&name), name)));
        versioned::refuse_below(key, &path, &names, &files)?;
        if files.is_empty() {
            return Err(missing(no_table_file(&names)));
        }
    } else if storage::is_file(&path)? {
        return Ok(vec![(path.clone(), file_name(&path))]);
    } else if written.contains(WILDCARDS) {
        expand(key, &path, &mut files)?;
        if files.is_empty() {
            return Err(missing("no file matches".to_owned()));
        }
    } else if !storage::is_remote(&path) && path.exists() {
        return Err(missing("neither a file nor a directory".to_owned()));
    } else {
        return Err(missing("no such file or directory".to_owned()));
    }
    files.sort();
    Ok(files)
}

/// Returns the problem that a directory has no table file, and names a file that it has.
fn no_table_file(names: &[String]) -> String {
    let hidden = |part: &std::ffi::OsStr| is_hidden(Path::new(part));
    let seen = |name: &&String| !Path::new(name).iter().any(hidden);
    match names.iter().find(seen) {
        None => "no *.parquet or *.csv file below".to_owned(),
        Some(name) => format!(
            "no *.parquet or *.csv file, but `{name}`, below (a glob such as `DIR/*` takes Parquet \
             files of other names)"
        ),
    }
}

impl Files {
    /// Adds files that are not in the list yet, under any link.
    fn add_all(&mut self, key: &str, files: Vec<NamedFile>) -> Result<()> {
        for (path, name) in files {
            let Some(real) = real_file(key, &path)? else {
                self.found.push((path, name));
                continue;
            };
            if self.real.insert(real.clone()) {
                self.found.push((path, name));
            } else {
                let (path, real) = (path.display(), real.display());
                tracing::warn!("`{key}`: {path} is left out: it is {real}, which is read already");
            }
        }
        Ok(())
    }
}

/// Returns a file's path with links resolved; none for a file that cannot be looked up, which fails
/// later when it is read.
fn real_file(key: &str, path: &Path) -> Result<Option<PathBuf>> {
    if storage::is_remote(path) {
        return Ok(Some(path.to_owned()));
    }
    let Ok(metadata) = path.metadata() else {
        return Ok(None);
    };
    if !metadata.is_file() {
        return Err(SchemaError::NoFile {
            key: key.to_owned(),
            problem: "neither a file nor a directory".to_owned(),
            path: path.to_owned(),
        });
    }
    Ok(path.canonicalize().ok())
}

/// Adds the files and directories that match a pattern.
fn expand(key: &str, pattern: &Path, files: &mut Vec<NamedFile>) -> Result<()> {
    let no_glob = |error: &dyn std::fmt::Display| SchemaError::Key {
        key: key.to_owned(),
        problem: format!("{} is no glob: {error}", pattern.display()),
    };
    // Links below `**` may form loops, which listings detect.
    let is_deep = pattern.iter().any(|part| part == "**");
    if storage::is_remote(pattern) || is_deep {
        return expand_listed(key, pattern, &no_glob, files);
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
        if !is_hidden_match(&found, pattern) {
            add(key, found, files)?;
        }
    }
    versioned::refuse_around(key, files)
}

/// Adds the files that match a pattern, from a listing of the directory before its first wildcard.
fn expand_listed(
    key: &str,
    pattern: &Path,
    no_glob: &dyn Fn(&dyn std::fmt::Display) -> SchemaError,
    files: &mut Vec<NamedFile>,
) -> Result<()> {
    let text = pattern.to_string_lossy();
    let plain = text.find(WILDCARDS).unwrap_or(text.len());
    let dir = match text[..plain].rfind('/') {
        None => Path::new(""),
        Some(0) => Path::new("/"),
        Some(end) => Path::new(&text[..end]),
    };
    let options = MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot: true,
        ..MatchOptions::default()
    };
    let wanted = Pattern::new(&text).map_err(|error| no_glob(&error))?;
    let listed = match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    };
    let names = storage::list(listed)?;
    let mut below_match = Vec::new();
    for name in &names {
        // The match may be a directory that contains the file.
        let found = dir.join(name);
        let above = found.ancestors().take_while(|above| *above != dir);
        let matching = above.filter(|above| wanted.matches_path_with(above, options));
        let Some(matching) = matching.last() else {
            continue;
        };
        if is_hidden_match(matching, pattern) {
            continue;
        }
        let below = found.strip_prefix(matching).unwrap_or(Path::new(""));
        if below.as_os_str().is_empty() {
            files.push((found.clone(), file_name(&found)));
        } else if is_table_file(below) {
            let shown = Path::new(&file_name(matching)).join(below);
            below_match.push((found.clone(), shown.to_string_lossy().into_owned()));
        }
    }
    if below_match.iter().any(|(path, _)| is_parquet(path)) {
        below_match.retain(|(path, _)| is_parquet(path));
    }
    files.extend(below_match);
    versioned::refuse_above(key, dir)?;
    versioned::refuse_below(key, dir, &names, files)
}

/// Adds a file, or the files of a directory; their names start with the name of the directory.
fn add(key: &str, found: PathBuf, files: &mut Vec<NamedFile>) -> Result<()> {
    let name = file_name(&found);
    if !found.is_dir() {
        files.push((found, name));
        return Ok(());
    }
    let names = storage::list(&found)?;
    let below: Vec<NamedFile> = table_files(&names)
        .iter()
        .map(|file| (found.join(file), format!("{name}/{file}")))
        .collect();
    versioned::refuse_below(key, &found, &names, &below)?;
    files.extend(below);
    Ok(())
}

/// Returns the files of a directory that belong to its table: the Parquet files, or the CSV files
/// of a directory without Parquet files.
fn table_files(names: &[String]) -> Vec<String> {
    let shown = names.iter().filter(|name| {
        !Path::new(name)
            .iter()
            .any(|part| is_hidden(Path::new(part)))
    });
    let (parquet, other): (Vec<&String>, Vec<&String>) =
        shown.partition(|name| is_parquet(Path::new(name)));
    match parquet.is_empty() {
        true => other
            .into_iter()
            .filter(|name| storage::is_csv(Path::new(name)))
            .cloned()
            .collect(),
        false => parquet.into_iter().cloned().collect(),
    }
}

fn is_parquet(name: &Path) -> bool {
    name.extension()
        .is_some_and(|extension| extension == "parquet")
}

/// Tells whether a file below a matching directory may belong to a table.
fn is_table_file(name: &Path) -> bool {
    let is_table = is_parquet(name) || storage::is_csv(name);
    is_table && !name.iter().any(|part| is_hidden(Path::new(part)))
}

/// Tells whether a pattern's wildcards match a name that readers of tables ignore.
fn is_hidden_match(found: &Path, pattern: &Path) -> bool {
    let is_written = |part: &Component<'_>| pattern.components().any(|written| written == *part);
    let names = found.components();
    names
        .filter(|part| matches!(part, Component::Normal(name) if is_hidden(Path::new(name))))
        .any(|part| !is_written(&part))
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
