//! The lock that keeps two runs from writing one directory.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LOCK;
use super::lease::{Fence, Lease, OtherLock};
use crate::cleanup::{Cleanup, remove_at_early_end};
use crate::error::{Result, SchemaError};
use crate::storage;

/// The lock of an output directory, local or in a store.
#[derive(Debug)]
pub(super) enum OutputLock {
    /// Released by the system if this process is killed.
    Local(#[expect(dead_code, reason = "held")] DirLock),
    Remote(Lease),
    /// Held by another process of the run; none for a local lock, which that process holds until it
    /// ends.
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

    /// Fails if another run has taken the lock over because this process was suspended for too
    /// long.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Local(_) | Self::Elsewhere(None) => Ok(()),
            Self::Remote(lease) => lease.check(),
            Self::Elsewhere(Some(other)) => other.check(),
        }
    }

    /// Returns the same check for another thread; none for a local lock, which is never lost.
    pub(super) fn fence(&self) -> Option<Fence> {
        match self {
            Self::Local(_) => None,
            Self::Remote(lease) => Some(lease.fence()),
            Self::Elsewhere(other) => other.clone().map(Fence::Other),
        }
    }

    /// Returns the number that identifies this run's lock in a store; none for other locks.
    pub(super) fn token(&self) -> Option<u64> {
        match self {
            Self::Remote(lease) => Some(lease.token()),
            Self::Local(_) | Self::Elsewhere(_) => None,
        }
    }
}

/// The lock of a local directory; dropping it releases it, and the system does if the process is
/// killed.
#[derive(Debug)]
pub struct DirLock {
    path: PathBuf,
    /// Open for as long as the lock is held.
    _file: File,
    _cleanup: Cleanup,
}

impl DirLock {
    /// Takes the lock of a directory that exists.
    ///
    /// # Errors
    ///
    /// If another run holds it, or its file cannot be created.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        loop {
            storage::refuse_special(&path)?;
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
            if is_same_file(&file, &path).map_err(SchemaError::io("look up", &path))? {
                let _cleanup = remove_at_early_end(&path);
                return Ok(Self {
                    path,
                    _file: file,
                    _cleanup,
                });
            }
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // A lock file that stays does no harm: the next run takes it.
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            let path = self.path.display();
            tracing::warn!("cannot remove {path}: {error}; it is not needed any more");
        }
    }
}

/// Tells whether a path still names an open file.
#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(named) => Ok(identity(file.metadata()?) == identity(named)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_same_file(_file: &File, path: &Path) -> io::Result<bool> {
    path.try_exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_cannot_be_looked_up_is_an_error_and_no_endless_loop() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(LOCK);
        let file = File::create(&path).unwrap();
        assert!(is_same_file(&file, &path).unwrap());
        assert!(!is_same_file(&file, &root.path().join("gone")).unwrap());
        // Looking up a path below a file is an error other than "not found".
        is_same_file(&file, &path.join("below")).unwrap_err();
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_that_is_no_file_is_refused_at_once() {
        let root = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(root.path().join(LOCK))
            .status();
        assert!(made.unwrap().success());
        let error = DirLock::take(root.path()).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.to_string().contains("_lock"), "{error}");
        assert_eq!(cause, "it is a named pipe, not a file");
    }

    /// Keeps the warnings of a thread.
    #[derive(Clone, Default)]
    struct Warnings(std::sync::Arc<std::sync::Mutex<String>>);

    impl tracing::field::Visit for Warnings {
        fn record_debug(&mut self, _field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.lock().unwrap().push_str(&format!("{value:?}\n"));
        }
    }

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }

        fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _span: &tracing::span::Id) {}

        fn exit(&self, _span: &tracing::span::Id) {}
    }

    #[test]
    fn a_lock_that_cannot_be_removed_is_warned_of() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(LOCK);
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            drop(DirLock::take(root.path()).unwrap());
            let lock = DirLock::take(root.path()).unwrap();
            // Not even root can remove a directory as a file.
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            drop(lock);
        });
        let text = warnings.0.lock().unwrap().clone();
        let expected = format!("cannot remove {}: ", path.display());
        assert!(text.starts_with(&expected), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
