//! Replaces a finished output by a new one; the old one stays until the new one is whole.
//!
//! The new output is written into [`ASIDE`], a directory inside the old one that other programs
//! ignore. When it has its own manifest and `_SUCCESS` there, it replaces the old one: the old
//! `_SUCCESS` is removed, then the old files and the old manifest; then each new file is moved, and
//! manifest and `_SUCCESS` are written last. If the run is killed meanwhile, the next run completes
//! the replacement. At any time either the old output or the new one is whole.

use std::path::{Path, PathBuf};

use super::remove::{clear, is_below, remove_aside, remove_output, table_folders};
use super::{ASIDE, MANIFEST, MOVING, Manifest, SUCCESS, verify_sizes};
use crate::error::{Result, SchemaError};
use crate::storage::{self, remove_file, write_whole};

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

/// Tells whether a new output is whole and has not replaced the old one yet.
pub(super) fn is_due(dir: &Path) -> Result<bool> {
    storage::is_file(&dir.join(ASIDE).join(SUCCESS))
}

/// Replaces the old output by the new one, or completes a replacement; the caller holds the lock.
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
        // A file that is missing was moved before.
        if storage::size(&aside.join(name))?.is_some() {
            storage::rename(&aside.join(name), &dir.join(name))?;
        }
    }
    for below in table_folders(dir)? {
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

#[cfg(test)]
mod tests;
