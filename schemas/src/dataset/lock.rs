//! The lock that keeps two runs from writing one directory.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::lease::{Fence, Lease, OtherLock};
use crate::error::{Result, SchemaError};
use crate::storage;

pub(super) const LOCK: &str = "_lock";

/// Keeps other runs from an output directory, wherever it lies.
#[derive(Debug)]
pub(super) enum OutputLock {
    /// Released by the system if this process is killed.
    Local(#[expect(dead_code, reason = "held")] DirLock),
    Remote(Lease),
    /// Held by another process of the run; none where it is a local one, which that process holds until
    /// its end.
    Elsewhere(Option<Arc<OtherLock>>),
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
            Self::Local(_) | Self::Elsewhere(None) => Ok(()),
            Self::Remote(lease) => lease.check(),
            Self::Elsewhere(Some(other)) => other.check(),
        }
    }

    /// Returns what tells a thread the same; a local lock is never lost.
    pub(super) fn fence(&self) -> Option<Fence> {
        match self {
            Self::Local(_) => None,
            Self::Remote(lease) => Some(lease.fence()),
            Self::Elsewhere(other) => other.clone().map(Fence::Other),
        }
    }

    /// Returns what tells this run from others that lock the directory, where a store needs it.
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Remote(lease) => Some(lease.token()),
            Self::Local(_) | Self::Elsewhere(_) => None,
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
