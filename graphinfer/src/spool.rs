//! Bytes in buckets, in a file: written in any order of buckets, read bucket by bucket.
//!
//! What the page cache cannot hold is read and written in large pieces, each byte once, instead of
//! being read from where it lies again and again.

use crate::InferError;
use rayon::prelude::*;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buckets of bytes in a file without a name, which threads fill and read.
pub(crate) struct Spool {
    dir: PathBuf,
    file: File,
    /// Where the next piece is written.
    end: AtomicU64,
    piece_bytes: usize,
    buckets: Vec<Mutex<Bucket>>,
}

#[derive(Default)]
struct Bucket {
    /// Start and length of each piece of the file.
    pieces: Vec<(u64, usize)>,
    /// The last bytes, which are not in the file yet.
    open: Vec<u8>,
    num_bytes: usize,
}

impl Spool {
    /// Creates empty buckets; the file is in `dir`. Each bucket keeps at most `piece_bytes` in
    /// memory, or one longer item, and writes them at once.
    pub(crate) fn create(
        dir: &Path,
        num_buckets: usize,
        piece_bytes: usize,
    ) -> Result<Self, InferError> {
        std::fs::create_dir_all(dir).map_err(InferError::io("create", dir))?;
        let file = tempfile::tempfile_in(dir);
        Ok(Self {
            dir: dir.to_owned(),
            file: file.map_err(InferError::io("create a file in", dir))?,
            end: AtomicU64::new(0),
            piece_bytes,
            buckets: (0..num_buckets).map(|_| Mutex::default()).collect(),
        })
    }

    /// Adds items to a bucket.
    pub(crate) fn append<'a>(
        &self,
        bucket: usize,
        items: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), InferError> {
        let mut to = self.bucket(bucket);
        for item in items {
            if to.open.len() + item.len() > self.piece_bytes {
                self.write(&mut to)?;
            }
            if to.open.capacity() == 0 {
                to.open.reserve_exact(self.piece_bytes.max(item.len()));
            }
            to.open.extend_from_slice(item);
            to.num_bytes += item.len();
        }
        Ok(())
    }

    /// Writes what is in memory; nothing is added after this.
    pub(crate) fn seal(&self) -> Result<(), InferError> {
        (0..self.buckets.len()).try_for_each(|bucket| {
            let mut bucket = self.bucket(bucket);
            self.write(&mut bucket)?;
            bucket.open = Vec::new();
            Ok(())
        })
    }

    fn write(&self, bucket: &mut Bucket) -> Result<(), InferError> {
        let len = bucket.open.len();
        if len == 0 {
            return Ok(());
        }
        let at = self.end.fetch_add(len as u64, Ordering::Relaxed);
        let written = self.file.write_all_at(&bucket.open, at);
        written.map_err(InferError::io("write a file in", &self.dir))?;
        bucket.pieces.push((at, len));
        bucket.open.clear();
        bucket.open.shrink_to(self.piece_bytes);
        Ok(())
    }

    /// Announces all pieces of a bucket of sealed ones, so that the system reads them at once.
    pub(crate) fn will_need(&self, bucket: usize) {
        let bucket = self.bucket(bucket);
        let pieces = bucket.pieces.iter();
        pieces.for_each(|&(at, len)| will_need(&self.file, at, len));
    }

    /// Returns the number of buckets.
    pub(crate) fn num_buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the number of bytes of a bucket.
    pub(crate) fn num_bytes(&self, bucket: usize) -> usize {
        self.bucket(bucket).num_bytes
    }

    /// Reads a bucket of sealed ones on all threads, in the order in which it was filled. `to` has its
    /// size.
    ///
    /// # Panics
    ///
    /// If `to` has another size.
    pub(crate) fn read(&self, bucket: usize, mut to: &mut [u8]) -> Result<(), InferError> {
        assert_eq!(to.len(), self.num_bytes(bucket), "bytes of bucket {bucket}");
        self.will_need(bucket);
        let pieces = self.bucket(bucket).pieces.clone();
        let mut reads = Vec::with_capacity(pieces.len());
        for (at, len) in pieces {
            let (piece, rest) = to.split_at_mut(len);
            reads.push((at, piece));
            to = rest;
        }
        reads.into_par_iter().try_for_each(|(at, piece)| {
            let read = self.file.read_exact_at(piece, at);
            read.map_err(InferError::io("read a file in", &self.dir))
        })
    }

    /// Reads a bucket of 32-bit words.
    pub(crate) fn words(&self, bucket: usize) -> Result<Vec<u32>, InferError> {
        let mut words = vec![0; self.num_bytes(bucket) / 4];
        self.read(bucket, bytemuck::cast_slice_mut(&mut words))?;
        Ok(words)
    }

    fn bucket(&self, bucket: usize) -> MutexGuard<'_, Bucket> {
        let bucket = self.buckets[bucket].lock();
        bucket.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to read some bytes of a file into the page cache. A system that does not do so changes
/// nothing but time.
#[cfg(target_os = "linux")]
fn will_need(file: &File, at: u64, len: usize) {
    // No piece is empty; none would mean up to the end of the file.
    let len = std::num::NonZeroU64::new(len as u64);
    // The call only advises: reads do not depend on it.
    let _advised = rustix::fs::fadvise(file, at, len, rustix::fs::Advice::WillNeed);
}

#[cfg(not(target_os = "linux"))]
fn will_need(_file: &File, _at: u64, _len: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_come_back_in_the_order_in_which_they_were_filled() {
        let dir = tempfile::tempdir().unwrap();
        for piece_bytes in [1, 10, 1000] {
            let spool = Spool::create(dir.path(), 3, piece_bytes).unwrap();
            let mut expected = vec![Vec::new(); 3];
            for at in 0..100_u32 {
                let bucket = at as usize * 7 % 5 % 2;
                let words = vec![at; at as usize % 4];
                let items = words.chunks(2).map(bytemuck::cast_slice);
                spool.append(bucket, items).unwrap();
                expected[bucket].extend(words);
            }
            spool.seal().unwrap();
            let read: Vec<Vec<u32>> = (0..3).map(|at| spool.words(at).unwrap()).collect();
            assert_eq!(read, expected, "{piece_bytes}");
        }
        // The files have no names.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
