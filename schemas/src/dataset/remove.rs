//! Removes replaced outputs, and the files that killed runs leave in an output directory.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::committed::committed_parts;
use super::lease::is_lock_aside;
use super::lock::OutputLock;
use super::owner::is_ours;
use super::{
    ASIDE, CHANGES, DEGREES, DELETES, FOLDERS, LOCK, MANIFEST, MOVING, Manifest, OLD_MANIFEST,
    PLAN, PROGRESS, PartEntry, REPLACED, SUCCESS, TABLES, load_manifest, part_name, read_json,
};
use crate::error::{Result, error_chain};
use crate::storage::{self, entries, remove_dir_all, remove_file};

/// Removes the output in a directory, if this program wrote it.
pub(super) fn clear(dir: &Path) -> Result<()> {
    match is_ours(dir) {
        true => remove_output(dir),
        false => Ok(()),
    }
}

/// Removes an output that this program wrote, `_SUCCESS` first.
///
/// It consists of the files that manifest and records of progress list, and of files named as
/// parts, which a killed run leaves unlisted. Manifest and plan are removed last: they show that
/// this program wrote the rest.
pub(super) fn remove_output(dir: &Path) -> Result<()> {
    remove_file(&dir.join(SUCCESS))?;
    // A broken record must not stop a fresh start.
    let manifest = load_manifest(dir).unwrap_or_default();
    let manifest = manifest.map(|(_path, manifest)| manifest.parts);
    let mut parts: Vec<PartEntry> = manifest.unwrap_or_default();
    parts.extend(committed_parts(dir).unwrap_or_default().into_values());
    let files = parts.iter().flat_map(|part| &part.files);
    for path in files
        .map(|file| Path::new(&file.path))
        .filter(|path| is_below(path))
    {
        remove_file(&dir.join(path))?;
    }
    remove_parts(dir)?;
    // A killed run may leave this one and tables of removed nodes unlisted.
    remove_file(&dir.join(REPLACED))?;
    for name in entries(dir)?.iter().filter(|name| is_of_degrees(name)) {
        remove_file(&dir.join(name))?;
    }
    for below in table_folders(dir)? {
        if below.starts_with(dir.join(CHANGES)) {
            remove_file(&below.join(DELETES))?;
        }
        // A directory of this name may also be another output, below this one.
        if below != dir.join(FOLDERS) {
            remove_parts(&below)?;
        }
        storage::remove_empty_dir(&below);
    }
    let progress = dir.join(PROGRESS);
    for name in entries(&progress)?.iter().filter(|name| *name != PLAN) {
        let path = progress.join(name);
        if storage::is_dir(&path)? {
            remove_dir_all(&path)?
        } else {
            remove_file(&path)?
        }
    }
    remove_file(&dir.join(MANIFEST))?;
    remove_old_manifest(dir)?;
    remove_dir_all(&progress)
}

/// Removes a manifest under its old name, which other programs use too.
pub(super) fn remove_old_manifest(dir: &Path) -> Result<()> {
    let path = dir.join(OLD_MANIFEST);
    match read_json::<Manifest>(&path) {
        Ok(Some(_)) => remove_file(&path),
        _ => Ok(()),
    }
}

/// Whether a listed path stays in its directory.
pub(super) fn is_below(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}

/// Removes files named exactly as parts.
fn remove_parts(dir: &Path) -> Result<()> {
    for name in entries(dir)?.iter().filter(|name| is_part(name)) {
        remove_file(&dir.join(name))?;
    }
    Ok(())
}

/// Removes parts in a store that the manifest does not list: late writes of a dead run.
pub(super) fn remove_unlisted(dir: &Path, parts: &[PartEntry]) -> Result<()> {
    if !storage::is_remote(dir) {
        return Ok(());
    }
    let files = parts.iter().flat_map(|part| &part.files);
    let listed: BTreeSet<&str> = files.map(|file| file.path.as_str()).collect();
    let mut folders = table_folders(dir)?;
    folders.retain(|folder| *folder != dir.join(FOLDERS));
    folders.push(dir.to_owned());
    for folder in folders {
        for name in entries(&folder)?.iter().filter(|name| is_part(name)) {
            let path = folder.join(name);
            let below = path.strip_prefix(dir).unwrap_or(&path);
            if !listed.contains(below.to_string_lossy().as_ref()) {
                remove_file(&path)?;
            }
        }
    }
    Ok(())
}

/// Returns the folders of tables, below `dir`, that may hold parts: those of node types and
/// relations, each before its table.
pub(super) fn table_folders(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    let tables = TABLES.into_iter().chain([FOLDERS]);
    for table in tables.map(|table| dir.join(table)) {
        let of_types = folders_in(&table)?;
        if table == dir.join(CHANGES) {
            // Changes of graph features have the tables of whole outputs.
            for of_table in &of_types {
                folders.extend(folders_in(of_table)?);
            }
        }
        folders.extend(of_types);
        folders.push(table);
    }
    Ok(folders)
}

/// Returns the folders in a folder.
fn folders_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for name in entries(dir)?.iter().filter(|name| !is_part(name)) {
        let folder = dir.join(name);
        if storage::is_dir(&folder)? {
            folders.push(folder);
        }
    }
    Ok(folders)
}

/// Tells whether a file is named exactly as a part.
fn is_part(name: &str) -> bool {
    let index = name
        .strip_prefix("part-")
        .and_then(|rest| rest.strip_suffix(".parquet"));
    index.is_some_and(|index| index.parse().is_ok_and(|i| part_name(i)[5..] == *index))
}

/// Tells whether a file is named as a table of degrees.
fn is_of_degrees(name: &str) -> bool {
    name.starts_with(DEGREES) && name.ends_with(".parquet")
}

/// Removes what unfinished requests to a store leave: temporary files of HDFS, unfinished uploads
/// of S3, the locks of dead runs.
pub(super) fn remove_temporary(dir: &Path) -> Result<()> {
    if !storage::is_remote(dir) {
        return Ok(());
    }
    for name in entries(dir)?.iter().filter(|name| is_temporary(name)) {
        remove_file(&dir.join(name))?;
    }
    storage::abort_unfinished(dir)
}

/// Tells whether a directory of a store holds a file that [`remove_temporary`] removes.
fn has_temporary(dir: &Path) -> Result<bool> {
    Ok(storage::is_remote(dir) && entries(dir)?.iter().any(|name| is_temporary(name)))
}

/// Tells whether a file is one that [`remove_temporary`] removes.
fn is_temporary(name: &str) -> bool {
    // The temporary file of a temporary file starts with two dots.
    let hidden = name.trim_start_matches('.');
    let is_of = |file: &&str| {
        let rest = hidden.strip_prefix(*file);
        rest.is_some_and(|rest| rest.starts_with(".tmp"))
    };
    let names = [LOCK, MANIFEST, OLD_MANIFEST, SUCCESS];
    (name.starts_with('.') && names.iter().any(is_of)) || is_lock_aside(name)
}

/// Removes files that killed runs have left in a finished output. A failure is only a warning,
/// since the output is whole.
pub(super) fn remove_left(dir: &Path) {
    let is_there = |found: Result<bool>| found.is_ok_and(|is_there| is_there);
    let is_left = [PROGRESS, ASIDE].map(|name| is_there(storage::is_dir(&dir.join(name))));
    if (is_left.contains(&true)
        || is_there(storage::is_file(&dir.join(LOCK)))
        || is_there(has_temporary(dir)))
        && let Ok(_lock) = OutputLock::take(dir)
    {
        warn_if_left(remove_temporary(dir));
        warn_if_left(remove_dir_all(&dir.join(PROGRESS)));
        warn_if_left(clear(&dir.join(ASIDE)).and_then(|()| remove_aside(dir)));
    }
}

/// Removes the directory in which the new output was written. The plan is removed first: without it,
/// no run resumes the new output. `_SUCCESS` follows: without it, no run moves the rest.
pub(super) fn remove_aside(dir: &Path) -> Result<()> {
    let aside = dir.join(ASIDE);
    remove_dir_all(&aside.join(PROGRESS))?;
    for name in [SUCCESS, MOVING, MANIFEST] {
        remove_file(&aside.join(name))?;
    }
    for folder in table_folders(&aside)? {
        storage::remove_empty_dir(&folder);
    }
    storage::remove_empty_dir(&aside);
    Ok(())
}

/// Warns of a file that could not be removed from a whole output.
pub(super) fn warn_if_left(removed: Result<()>) {
    if let Err(error) = removed {
        let error = error_chain(&error);
        tracing::warn!("{error}; the output is whole, remove the file by hand");
    }
}
