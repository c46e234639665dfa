//! A new output in place of a finished one, which stays until the new one is whole.
//!
//! The new one is written into [`ASIDE`], a directory of the output that other programs pass over.
//! Once it has its own manifest and `_SUCCESS` there, it takes its place: the old `_SUCCESS` goes,
//! then the old files and the old manifest, then each new file moves, and manifest and `_SUCCESS`
//! follow. A run that is killed meanwhile leaves enough for the next one to go on with it. So at any
//! time either the old output is whole, or the new one is.

use std::path::{Path, PathBuf};

use super::remove::{clear, is_below, remove_output};
use super::{MANIFEST, Manifest, PROGRESS, SUCCESS, TABLES, verify_sizes};
use crate::error::{Result, SchemaError};
use crate::storage::{self, remove_dir_all, remove_file, write_whole};

/// Where the new output is written while the old one stays.
pub(super) const ASIDE: &str = "_new";

/// Notes that the old output is gone and the new one moves; in [`ASIDE`].
const MOVING: &str = "_moving";

/// Returns where a new output is written: aside if there is a finished one.
pub(super) fn begin(dir: &Path) -> Result<PathBuf> {
    let aside = dir.join(ASIDE);
    remove_file(&aside.join(MOVING))?;
    if storage::is_file(&dir.join(SUCCESS))? {
        return Ok(aside);
    }
    clear(&aside)?;
    storage::remove_empty_dir(&aside);
    Ok(dir.to_owned())
}

/// Tells whether a new output is whole and has yet to take its place.
pub(super) fn is_due(dir: &Path) -> Result<bool> {
    storage::is_file(&dir.join(ASIDE).join(SUCCESS))
}

/// Puts the new output in the place of the old one, or goes on with that; the caller has the lock.
pub(super) fn take_place(dir: &Path) -> Result<()> {
    let aside = dir.join(ASIDE);
    let path = aside.join(MANIFEST);
    let Some(text) = storage::read(&path)? else {
        // A late write of a dead run: there is nothing to move.
        return remove_file(&aside.join(SUCCESS));
    };
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|source| SchemaError::Json {
        path: path.clone(),
        source,
    })?;
    if !storage::is_file(&aside.join(MOVING))? {
        remove_output(dir)?;
        write_whole(&aside.join(MOVING), b"")?;
    }
    for file in manifest.parts.iter().flat_map(|part| &part.files) {
        let name = Path::new(&file.path);
        if !is_below(name) {
            let problem = format!("`{}` lies outside of its directory", file.path);
            return Err(SchemaError::Broken { path, problem });
        }
        // One that is not there was moved before.
        if storage::size(&aside.join(name))?.is_some() {
            storage::rename(&aside.join(name), &dir.join(name))?;
        }
    }
    for below in TABLES.map(|table| dir.join(table)) {
        if storage::is_dir(&below)? {
            storage::sync_dir(&below)?;
        }
    }
    storage::sync_dir(dir)?;
    verify_sizes(dir, &manifest.parts)?;
    write_whole(&dir.join(MANIFEST), &text)?;
    write_whole(&dir.join(SUCCESS), b"")?;
    remove_aside(dir)
}

/// Removes what is left where the new output was written. `_SUCCESS` goes first: without it there is
/// nothing to move.
pub(super) fn remove_aside(dir: &Path) -> Result<()> {
    let aside = dir.join(ASIDE);
    for name in [SUCCESS, MOVING, MANIFEST] {
        remove_file(&aside.join(name))?;
    }
    remove_dir_all(&aside.join(PROGRESS))?;
    for table in TABLES {
        storage::remove_empty_dir(&aside.join(table));
    }
    storage::remove_empty_dir(&aside);
    Ok(())
}

#[cfg(test)]
mod tests;
