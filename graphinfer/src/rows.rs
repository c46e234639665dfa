//! Files of rows, one row for each node: threads write them in pieces, later rounds map them.

use crate::InferError;
use gnn::kernel::round_all_to_bf16;
use gnn::{RowFormat, SharedRows};
use rangemap::RangeSet;
use rayon::prelude::*;
use schemas::known;
use schemas::xxh::hash_bytes;
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use store::MappedFile;

/// Bytes written at once, and the alignment of writes in the file: the size of the largest page.
/// The page cache then holds the file in such pages, and random reads of its map are faster (by a
/// fifth, on one graph).
const PIECE_BYTES: usize = 2 << 20;

/// Writes a file of rows; threads may share it.
#[derive(Debug)]
pub(crate) struct RowWriter {
    path: PathBuf,
    file: File,
    cols: usize,
    format: RowFormat,
    num_bytes: usize,
    /// Pieces of the file that are not complete.
    pieces: Vec<Mutex<Piece>>,
    /// Buffers of written pieces, for reuse.
    spare: Mutex<Vec<Vec<u8>>>,
    checksum: AtomicU64,
}

/// A piece of the file and how much of it has arrived.
#[derive(Debug, Default)]
struct Piece {
    /// Empty before the first bytes arrive and after the piece is written. Where nothing has arrived
    /// are bytes of an earlier piece.
    bytes: Vec<u8>,
    there: RangeSet<usize>,
}

impl Piece {
    fn is_whole(&self) -> bool {
        let all = 0..self.bytes.len();
        self.there.gaps(&all).next().is_none()
    }

    /// Writes zeros where nothing has arrived.
    fn clear_gaps(&mut self) {
        for gap in self.there.gaps(&(0..self.bytes.len())) {
            self.bytes[gap].fill(0);
        }
    }
}

/// The record of a finished file of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowRecord {
    /// Name of the file in its directory.
    pub(crate) name: String,
    rows: usize,
    pub(crate) cols: usize,
    /// How numbers are kept; f32 if an older program wrote the record.
    #[serde(default)]
    format: RowFormat,
    /// Sum of the checksums of all pieces.
    checksum: u64,
}

impl RowWriter {
    /// Creates the file, or replaces it.
    pub(crate) fn create(
        path: PathBuf,
        (rows, cols): (usize, usize),
        format: RowFormat,
    ) -> Result<Self, InferError> {
        let num_bytes = rows * cols * format.num_bytes();
        let create = || -> std::io::Result<File> {
            // Another run may still map the old file, whose bytes must not change.
            if path.exists() {
                std::fs::remove_file(&path)?;
            }
            let file = File::create_new(&path)?;
            file.set_len(num_bytes as u64)?;
            Ok(file)
        };
        let file = create().map_err(InferError::io("create", &path))?;
        let pieces = (0..num_bytes.div_ceil(PIECE_BYTES)).map(|_| Mutex::default());
        Ok(Self {
            path,
            file,
            cols,
            format,
            num_bytes,
            pieces: pieces.collect(),
            spare: Mutex::default(),
            checksum: AtomicU64::new(0),
        })
    }

    /// Writes rows from row `first` on. Each row must be written at most once.
    pub(crate) fn write(&self, first: usize, values: &[f32]) -> Result<(), InferError> {
        let at = first * self.row_bytes();
        match self.format {
            RowFormat::F32 => self.write_bytes(at, bytemuck::cast_slice(values)),
            RowFormat::Bf16 => {
                self.write_bytes(at, bytemuck::cast_slice(&round_all_to_bf16(values)))
            }
        }
    }

    /// Writes a row given as [`read_words`](Self::read_words) returns it.
    pub(crate) fn write_words(&self, row: usize, words: &[u32]) -> Result<(), InferError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        self.write_bytes(row * self.row_bytes(), &bytes[..self.row_bytes()])
    }

    fn write_bytes(&self, mut at: usize, mut bytes: &[u8]) -> Result<(), InferError> {
        while !bytes.is_empty() {
            let (piece, start) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - start));
            self.add(piece, start, now)?;
            at += now.len();
            bytes = later;
        }
        Ok(())
    }

    /// Copies bytes to a piece, and writes the piece when it is complete.
    fn add(&self, index: usize, start: usize, bytes: &[u8]) -> Result<(), InferError> {
        let offset = index * PIECE_BYTES;
        let whole = PIECE_BYTES.min(self.num_bytes - offset);
        let mut piece = self.pieces[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if piece.bytes.is_empty() {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            let mut reused = spare.pop().unwrap_or_else(|| vec![0; whole]);
            reused.resize(whole, 0);
            piece.bytes = reused;
        }
        let range = start..start + bytes.len();
        piece.bytes[range.clone()].copy_from_slice(bytes);
        piece.there.insert(range);
        if !piece.is_whole() {
            return Ok(());
        }
        let done = std::mem::take(&mut piece.bytes);
        self.write_piece(index, &done)?;
        // The lock was held until the piece was written: a reader finds it in memory or in the
        // file.
        drop(piece);
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push(done);
        Ok(())
    }

    /// Returns the size of a row in bytes.
    fn row_bytes(&self) -> usize {
        self.cols * self.format.num_bytes()
    }

    /// Returns how many words of 32 bits a row takes in messages.
    pub(crate) fn row_words(&self) -> usize {
        self.row_bytes().div_ceil(4)
    }

    /// Reads rows back, each as whole words; rows that were not written are zeros.
    pub(crate) fn read_words(&self, rows: Range<usize>) -> Result<Vec<u32>, InferError> {
        let (num_rows, start) = (rows.len(), rows.start * self.row_bytes());
        let mut words = vec![0; num_rows * self.row_words()];
        if 4 * self.row_words() == self.row_bytes() {
            self.read_bytes(start, bytemuck::cast_slice_mut(&mut words))?;
            return Ok(words);
        }
        let mut bytes = vec![0; num_rows * self.row_bytes()];
        self.read_bytes(start, &mut bytes)?;
        let of_words: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let whole = of_words.chunks_exact_mut(4 * self.row_words());
        for (row, of_row) in bytes.chunks_exact(self.row_bytes()).zip(whole) {
            of_row[..row.len()].copy_from_slice(row);
        }
        Ok(words)
    }

    fn read_bytes(&self, mut at: usize, mut bytes: &mut [u8]) -> Result<(), InferError> {
        while !bytes.is_empty() {
            let (index, start) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let (now, later) = bytes.split_at_mut(bytes.len().min(PIECE_BYTES - start));
            let mut piece = self.pieces[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if piece.bytes.is_empty() {
                let read = self.file.read_exact_at(now, at as u64);
                read.map_err(InferError::io("read", &self.path))?;
            } else {
                piece.clear_gaps();
                now.copy_from_slice(&piece.bytes[start..start + now.len()]);
            }
            at += now.len();
            bytes = later;
        }
        Ok(())
    }

    fn write_piece(&self, index: usize, bytes: &[u8]) -> Result<(), InferError> {
        let offset = (index * PIECE_BYTES) as u64;
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(InferError::io("write", &self.path))?;
        self.checksum
            .fetch_add(checksum(index, bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Finishes the file and returns its record; rows that were not written are zeros.
    pub(crate) fn finish(self) -> Result<RowRecord, InferError> {
        let of_zeros = LazyCell::new(|| hash_bytes(&vec![0; PIECE_BYTES]));
        for index in 0..self.pieces.len() {
            let whole = PIECE_BYTES.min(self.num_bytes - index * PIECE_BYTES);
            let mut piece = self.pieces[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if piece.there.is_empty() && whole == PIECE_BYTES {
                // The file has a hole there, which reads as zeros.
                let sum = checksum_of_hash(index, *of_zeros);
                self.checksum.fetch_add(sum, Ordering::Relaxed);
            } else if piece.there.is_empty() {
                self.write_piece(index, &vec![0; whole])?;
            } else if !piece.bytes.is_empty() {
                piece.clear_gaps();
                self.write_piece(index, &piece.bytes)?;
                piece.bytes = Vec::new();
            }
        }
        let name = self.path.file_name().unwrap_or_default();
        Ok(RowRecord {
            name: name.to_string_lossy().into_owned(),
            rows: self.num_bytes / self.row_bytes().max(1),
            cols: self.cols,
            format: self.format,
            checksum: self.checksum.into_inner(),
        })
    }
}

impl RowRecord {
    /// Maps the file of rows.
    pub(crate) fn map(&self, dir: &Path) -> Result<SharedRows, InferError> {
        Ok(self.map_file(dir)?.0)
    }

    /// Maps the file of rows; returns the map too, whose pages can be released.
    pub(crate) fn map_file(&self, dir: &Path) -> Result<(SharedRows, MappedFile), InferError> {
        let path = dir.join(&self.name);
        let file = MappedFile::open(&path).map_err(InferError::io("read", &path))?;
        let rows = SharedRows::new(file.bytes().clone(), self.cols, self.format)?;
        Ok((rows, file))
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn num_bytes(&self) -> u64 {
        self.format.num_bytes() as u64 * self.rows as u64 * self.cols as u64
    }

    /// Tells whether the mapped rows have the recorded checksum.
    pub(crate) fn is_intact(&self, rows: &SharedRows) -> bool {
        rows.rows() == self.rows && sum_of(rows) == self.checksum
    }

    /// As [`Self::is_intact`] of the rows in the file `path`, which is not read if it has not changed
    /// since its checksum was computed.
    ///
    /// The file is read beside its map, whose pages would count as memory of this process.
    pub(crate) fn is_as_written(&self, rows: &SharedRows, path: &Path) -> Result<bool, InferError> {
        let sum = || {
            Ok(sum_of_file(path)
                .map_err(InferError::io("read", path))?
                .to_string())
        };
        let found = known::checksum_of_file::<InferError>("rows", path, sum)?;
        Ok(rows.rows() == self.rows && found == self.checksum.to_string())
    }
}

/// As [`sum_of`], of a file that is not mapped.
fn sum_of_file(path: &Path) -> std::io::Result<u64> {
    let file = File::open(path)?;
    let num_bytes = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
    let starts = (0..num_bytes)
        .into_par_iter()
        .step_by(PIECE_BYTES)
        .enumerate();
    let hashes = starts.map_init(Vec::new, |piece, (index, start)| {
        piece.resize(PIECE_BYTES.min(num_bytes - start), 0);
        file.read_exact_at(piece, start as u64)?;
        Ok(checksum(index, piece))
    });
    hashes.try_reduce(|| 0, |sum, hash| Ok(sum.wrapping_add(hash)))
}

/// Returns the sum of the checksums of all pieces.
fn sum_of(rows: &SharedRows) -> u64 {
    let pieces = rows.bytes().par_chunks(PIECE_BYTES).enumerate();
    let hashes = pieces.map(|(index, piece)| checksum(index, piece));
    hashes.reduce(|| 0, u64::wrapping_add)
}

/// Returns a hash of a piece and its position.
fn checksum(index: usize, bytes: &[u8]) -> u64 {
    checksum_of_hash(index, hash_bytes(bytes))
}

/// As [`checksum`], given the hash of the bytes.
fn checksum_of_hash(index: usize, hash: u64) -> u64 {
    // The factor is the increment of SplitMix64.
    hash.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn rows_that_were_not_written_are_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let (cols, num_pieces) = (8, 4);
        let rows_a_piece = PIECE_BYTES / (4 * cols);
        let num_rows = num_pieces * rows_a_piece - 1;
        let path = dir.path().join("rows");
        let writer = RowWriter::create(path.clone(), (num_rows, cols), RowFormat::F32).unwrap();
        // Of the last piece all rows, of the first one only one, of the others none.
        let last = 3 * rows_a_piece;
        writer
            .write(last, &vec![2.0; (num_rows - last) * cols])
            .unwrap();
        writer.write(3, &[1.0; 8]).unwrap();
        assert_eq!(writer.read_words(2..3).unwrap(), [0; 8], "not yet written");
        let record = writer.finish().unwrap();
        let on_disk = 512 * std::fs::metadata(&path).unwrap().blocks();
        assert!(on_disk < 3 * PIECE_BYTES as u64, "two pieces are holes");
        let rows = record.map(dir.path()).unwrap();
        assert!(record.is_intact(&rows));
        assert!(record.is_as_written(&rows, &path).unwrap());
        for (row, expected) in [
            (0, 0.0),
            (3, 1.0),
            (4, 0.0),
            (rows_a_piece, 0.0),
            (last, 2.0),
        ] {
            let found = rows.slice(row..row + 1).to_dense().values;
            assert_eq!(found, [expected; 8], "{row}");
        }
    }
}
