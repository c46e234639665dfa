//! A file of a part while it is written.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::FileEntry;
use super::lease::Fence;
use crate::error::Result;
use crate::storage::{self, NewFile, Pending};
use crate::xxh::Hashed;

/// Greatest number of files that a store is finishing at a time.
const UNFINISHED_MAX: usize = 8;

/// Files that a store is still finishing, by name.
pub(super) type Unfinished = Mutex<BTreeMap<String, Pending<()>>>;

/// A file being written, invisible under its name until [`PartFile::finish`].
///
/// Dropping it without that removes it.
pub struct PartFile {
    name: String,
    path: PathBuf,
    writer: Hashed<NewFile>,
    unfinished: Arc<Unfinished>,
    fence: Option<Fence>,
}

impl PartFile {
    /// Starts a file of a directory; `temporary` is its path until it is finished.
    pub(super) fn create(
        dir: &Path,
        name: &str,
        temporary: &Path,
        unfinished: Arc<Unfinished>,
        fence: Option<Fence>,
    ) -> Result<Self> {
        let path = dir.join(name);
        Ok(Self {
            name: name.to_owned(),
            writer: Hashed::new(NewFile::create(&path, temporary)?),
            path,
            unfinished,
            fence,
        })
    }
}

impl std::fmt::Debug for PartFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl PartFile {
    /// Writes the remaining bytes and gives the file its name;
    /// [`Output::commit_part`](super::Output::commit_part) makes it durable, and waits until a
    /// store has it.
    ///
    /// # Errors
    ///
    /// If the file system refuses.
    pub fn finish(self) -> Result<FileEntry> {
        let (bytes, checksum) = (self.writer.num_bytes(), self.writer.checksum());
        let fence = self.fence;
        let is_ours = move || fence.as_ref().map_or(Ok(()), Fence::check);
        if let Some(pending) = self.writer.into_inner().finish(is_ours)? {
            let mut unfinished = self
                .unfinished
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            unfinished.insert(self.name.clone(), pending);
            // Each holds the remaining bytes of its file in memory.
            if unfinished.len() > UNFINISHED_MAX
                && let Some((_, first)) = unfinished.pop_first()
            {
                drop(unfinished);
                storage::wait(first)?;
            }
        }
        Ok(FileEntry {
            path: self.name,
            bytes,
            checksum,
        })
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
