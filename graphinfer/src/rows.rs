//! Rows of numbers, one for each node, in a file: written range by range, then read by map.

use crate::InferError;
use gnn::SharedRows;
use schemas::xxh::hash_bytes;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file of rows being written; threads may share it.
#[derive(Debug)]
pub(crate) struct RowWriter {
    path: PathBuf,
    file: File,
    cols: usize,
    checksum: AtomicU64,
}

/// A whole file of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowRecord {
    /// Name in its directory.
    pub(crate) name: String,
    pub(crate) cols: usize,
    /// Sum of a hash of each range that was written.
    checksum: u64,
}

impl RowWriter {
    /// Creates the file, or writes it anew.
    pub(crate) fn create(path: PathBuf, rows: usize, cols: usize) -> Result<Self, InferError> {
        let create = || -> std::io::Result<File> {
            // A file of another run may still be mapped there: it must not change.
            if path.exists() {
                std::fs::remove_file(&path)?;
            }
            let file = File::create_new(&path)?;
            file.set_len(rows as u64 * cols as u64 * 4)?;
            Ok(file)
        };
        let file = create().map_err(InferError::io("create", &path))?;
        Ok(Self {
            path,
            file,
            cols,
            checksum: AtomicU64::new(0),
        })
    }

    /// Writes some rows from row `first` on; each row is written once.
    pub(crate) fn write(&self, first: usize, values: &[f32]) -> Result<(), InferError> {
        let bytes = bytemuck::cast_slice(values);
        let at = first as u64 * self.cols as u64 * 4;
        let written = self.file.write_all_at(bytes, at);
        written.map_err(InferError::io("write", &self.path))?;
        self.checksum
            .fetch_add(checksum(first, bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Ends the writing and returns what was written.
    pub(crate) fn finish(self) -> RowRecord {
        let name = self.path.file_name().unwrap_or_default();
        RowRecord {
            name: name.to_string_lossy().into_owned(),
            cols: self.cols,
            checksum: self.checksum.into_inner(),
        }
    }
}

impl RowRecord {
    /// Maps the rows.
    pub(crate) fn map(&self, dir: &Path) -> Result<SharedRows, InferError> {
        let path = dir.join(&self.name);
        let map = || graphflat::store::map_bytes(&File::open(&path)?);
        let bytes = map().map_err(InferError::io("read", &path))?;
        Ok(SharedRows::new(bytes, self.cols)?)
    }

    /// Tells whether the mapped rows are those that were written, range by range.
    pub(crate) fn is_intact(&self, rows: &SharedRows, ranges: &[Range<usize>]) -> bool {
        if rows.rows() != ranges.last().map_or(0, |range| range.end) {
            return false;
        }
        let hashes = ranges.iter().map(|range| {
            let rows = rows.slice(range.clone());
            checksum(range.start, bytemuck::cast_slice(rows.values()))
        });
        hashes.fold(0, u64::wrapping_add) == self.checksum
    }
}

/// A hash of some rows and their place.
fn checksum(first: usize, bytes: &[u8]) -> u64 {
    // The multiplier is that of SplitMix64.
    hash_bytes(bytes).wrapping_add((first as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
