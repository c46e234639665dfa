//! The lock that keeps two runs from writing one directory.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::lease::{Fence, Lease};
use crate::error::{Result, SchemaError};
use crate::storage;

pub(super) const LOCK: &str = "_lock";

/// Keeps other runs from an output directory, wherever it lies.
#[derive(Debug)]
pub(super) enum OutputLock {
    /// Released by the system if this process is killed.
    Local(#[expect(dead_code, reason = "held")] DirLock),
    Remote(Lease),
    /// Held by another process of the run, whose end is the end of this one.
    Elsewhere,
}

impl OutputLock {
    /// Takes the lock of a directory.
    pub(super) fn take(dir: &Path) -> Result<Self> {
        if storage::is_remote(dir) {
            Lease::take(dir).map(Self::Remote)
        } else {
            DirLock::take(dir).map(Self::Local)
        }
    }

    /// Fails if another run has taken the lock from this one, which stood still for too long.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Local(_) | Self::Elsewhere => Ok(()),
            Self::Remote(lease) => lease.check(),
        }
    }

    /// Returns what tells a thread the same; a local lock is never lost.
    pub(super) fn fence(&self) -> Option<Fence> {
        match self {
            Self::Local(_) | Self::Elsewhere => None,
            Self::Remote(lease) => Some(lease.fence()),
        }
    }
}

/// Held while a run writes a local directory; released when dropped, and by the system when killed.
#[derive(Debug)]
pub struct DirLock {
    path: PathBuf,
    /// Open for as long as the lock is held.
    _file: File,
}

impl DirLock {
    /// Takes the lock of a directory that exists.
    ///
    /// # Errors
    ///
    /// Another run holds it, or its file cannot be created.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        loop {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(SchemaError::io("create", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(SchemaError::OutputLocked {
                        dir: dir.to_owned(),
                        holder: String::new(),
                    });
                }
                Err(TryLockError::Error(source)) => {
                    return Err(SchemaError::Io {
                        action: "lock",
                        path,
                        source,
                    });
                }
            }
            // The run that held it may have removed the file between our open and our lock.
            if is_same_file(&file, &path) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // A left-over lock file does no harm: the next run locks it.
        std::fs::remove_file(&self.path).ok();
    }
}

#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(named)) => identity(held) == identity(named),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_file(_file: &File, path: &Path) -> bool {
    path.exists()
}
