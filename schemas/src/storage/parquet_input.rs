//! Reads Parquet files of the file system and of stores.
//!
//! The reader of Parquet requests a few bytes at a time, which is slow on a store. Of an object,
//! the footer is read first, then the chosen columns of a row group in one go; while they are
//! decoded, the columns of the next row group are fetched.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::object::object;
use super::object::{Object, Version};
use super::page_header::{ColumnSizes, PREFIX_BYTES};
use super::runtime::{Pending, start_blocking, wait};
use super::{is_remote, refuse_special};
use crate::error::{Result, SchemaError};
use crate::guard::guarded;

/// Number of a store's files that are opened at the same time.
const OPENED_MAX: usize = 32;
/// Bytes at the end of an object that are read with its version: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// An open Parquet file, with its footer.
#[derive(Clone, Debug)]
pub(crate) struct ParquetInput {
    path: PathBuf,
    place: Place,
    pub(crate) metadata: ArrowReaderMetadata,
    columns: Arc<ColumnSizes>,
}

/// Where the bytes of a file are, and its version when it was opened.
#[derive(Clone, Debug)]
enum Place {
    Local(Local),
    /// All its bytes.
    Memory(Bytes),
    Object(Object, Version),
}

/// Size and time of change, which identify the content of a local file as well as its file system
/// can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    size: u64,
    modified: Option<SystemTime>,
}

/// Batches of some row groups, in their order.
pub(crate) struct Batches<'a> {
    input: &'a ParquetInput,
    columns: ProjectionMask,
    batch_rows: usize,
    row_groups: VecDeque<usize>,
    /// Which rows are read of the only row group; all of every row group if none.
    rows: Option<RowSelection>,
    /// The next row group of an object, being fetched.
    next: Option<Fetching>,
    current: Option<ParquetRecordBatchReader>,
}

/// The chosen columns of a row group, being fetched.
struct Fetching {
    row_group: usize,
    ranges: Vec<Range<u64>>,
    pending: Pending<Vec<Bytes>>,
}

/// A file, as the reader of Parquet sees it.
struct Source {
    bytes: SourceBytes,
    columns: Arc<ColumnSizes>,
}

enum SourceBytes {
    File(File),
    Memory(Bytes),
    Object(Fetched),
}

/// Fetched ranges of an object, with their positions.
struct Fetched {
    object: Object,
    version: Version,
    ranges: Vec<(u64, Bytes)>,
}

impl ParquetInput {
    /// Opens a file and reads its footer.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is no Parquet file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let Some(object) = object(path)? else {
            refuse_special(path)?;
            let file = File::open(path).map_err(SchemaError::io("open", path))?;
            let place = Place::Local(Local::of(path, file.metadata())?);
            return Self::of(path, place, SourceBytes::File(file));
        };
        let (tail, version) = object.tail(TAIL_BYTES)?;
        let fetched = Fetched {
            object: object.clone(),
            version: version.clone(),
            ranges: vec![(version.size - tail.len() as u64, tail)],
        };
        Self::of(
            path,
            Place::Object(object, version),
            SourceBytes::Object(fetched),
        )
    }

    /// Opens a file whose bytes were read before.
    ///
    /// # Errors
    ///
    /// If it is no Parquet file.
    pub(crate) fn of_bytes(path: &Path, bytes: Bytes) -> Result<Self> {
        Self::of(
            path,
            Place::Memory(bytes.clone()),
            SourceBytes::Memory(bytes),
        )
    }

    fn of(path: &Path, place: Place, bytes: SourceBytes) -> Result<Self> {
        let source = Source {
            bytes,
            columns: Arc::default(),
        };
        let load = || -> Result<_, ParquetError> {
            let metadata = ArrowReaderMetadata::load(&source, ArrowReaderOptions::new())?;
            let columns = ColumnSizes::of(metadata.metadata(), source.len())?;
            Ok((metadata, columns))
        };
        let loaded = guarded(load).map_err(|problem| panicked(path, problem))?;
        let (metadata, columns) = loaded.map_err(|error| unreadable(path, error.into()))?;
        Ok(Self {
            path: path.to_owned(),
            place,
            metadata,
            columns: Arc::new(columns),
        })
    }

    /// Opens several files; files of stores are opened many at a time.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], of the first file that cannot be opened.
    pub(crate) fn open_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        let mut inputs = Vec::new();
        for some in paths.chunks(OPENED_MAX) {
            let opened = some.iter().map(|path| {
                let path = path.clone();
                is_remote(&path).then(|| start_blocking(move || Self::open(&path)))
            });
            let opened: Vec<Option<Pending<Self>>> = opened.collect();
            for (path, pending) in some.iter().zip(opened) {
                inputs.push(pending.map_or_else(|| Self::open(path), wait)?);
            }
        }
        Ok(inputs)
    }

    /// Returns the version of an object; none for a local file.
    pub(crate) fn version(&self) -> Option<&Version> {
        match &self.place {
            Place::Local(_) | Place::Memory(_) => None,
            Place::Object(_, version) => Some(version),
        }
    }

    /// Refuses a local file that has changed since it was opened. A store refuses each request for
    /// a changed object.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match &self.place {
            Place::Local(opened) => opened.check_unchanged(&self.path),
            Place::Memory(_) | Place::Object(..) => Ok(()),
        }
    }

    /// Returns whether the bytes are on this machine, so that several may read them without a request.
    pub(crate) fn is_local(&self) -> bool {
        !matches!(self.place, Place::Object(..))
    }

    /// Decodes some columns of some row groups.
    pub(crate) fn batches(
        &self,
        row_groups: Vec<usize>,
        columns: ProjectionMask,
        batch_rows: usize,
    ) -> Result<Batches<'_>> {
        self.start(Batches {
            input: self,
            columns,
            batch_rows,
            row_groups: row_groups.into(),
            rows: None,
            next: None,
            current: None,
        })
    }

    /// Decodes some columns of some rows of a row group. Pages without any of them are skipped; they
    /// are decompressed all the same if they are of a list and do not give their number of rows.
    pub(crate) fn batches_of_rows(
        &self,
        row_group: usize,
        rows: Range<usize>,
        columns: ProjectionMask,
        batch_rows: usize,
    ) -> Result<Batches<'_>> {
        let num_rows = self.metadata.metadata().row_group(row_group).num_rows();
        let is_last = i64::try_from(rows.end) == Ok(num_rows);
        let is_all = rows.start == 0 && is_last;
        // The last part also reads a row that the footer does not count, so that it is found.
        let wanted = rows.len().saturating_add(usize::from(is_last));
        let selected = [RowSelector::skip(rows.start), RowSelector::select(wanted)];
        self.start(Batches {
            input: self,
            columns,
            batch_rows,
            row_groups: VecDeque::from([row_group]),
            rows: (!is_all).then(|| selected.to_vec().into()),
            next: None,
            current: None,
        })
    }

    fn start<'a>(&self, mut batches: Batches<'a>) -> Result<Batches<'a>> {
        let bytes = match &self.place {
            Place::Object(..) => {
                batches.fetch_next();
                return Ok(batches);
            }
            Place::Local(_) => {
                self.check_unchanged()?;
                let file = File::open(&self.path).map_err(SchemaError::io("open", &self.path))?;
                SourceBytes::File(file)
            }
            Place::Memory(bytes) => SourceBytes::Memory(bytes.clone()),
        };
        let all = std::mem::take(&mut batches.row_groups).into();
        batches.current = Some(batches.reader(bytes, all)?);
        Ok(batches)
    }
}

impl Local {
    pub(super) fn of(path: &Path, metadata: io::Result<fs::Metadata>) -> Result<Self> {
        let metadata = metadata.map_err(SchemaError::io("look up", path))?;
        Ok(Self {
            size: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    /// Refuses a file that has changed since it was opened.
    pub(super) fn check_unchanged(&self, path: &Path) -> Result<()> {
        if *self == Self::of(path, fs::metadata(path))? {
            return Ok(());
        }
        Err(SchemaError::Changed {
            path: path.to_owned(),
        })
    }
}

impl Batches<'_> {
    /// Starts to fetch the next row group, if there is one.
    fn fetch_next(&mut self) {
        let Place::Object(object, version) = &self.input.place else {
            return;
        };
        let Some(row_group) = self.row_groups.pop_front() else {
            return;
        };
        let metadata = self.input.metadata.metadata().row_group(row_group);
        let columns = metadata.columns().iter().enumerate();
        let ranges: Vec<Range<u64>> = columns
            .filter(|(leaf, _)| self.columns.leaf_included(*leaf))
            .map(|(_, column)| column.byte_range())
            .map(|(start, len)| start..start + len)
            .collect();
        let pending = object.fetch(version, ranges.clone());
        self.next = Some(Fetching {
            row_group,
            ranges,
            pending,
        });
    }

    /// Opens the row group that was fetched, and starts to fetch the one after it.
    fn open_next(&mut self) -> Option<Result<ParquetRecordBatchReader>> {
        let Fetching {
            row_group,
            ranges,
            pending,
        } = self.next.take()?;
        let Place::Object(object, version) = &self.input.place else {
            return None;
        };
        let fetched = match wait(pending) {
            Ok(fetched) => fetched,
            Err(error) => return Some(Err(error)),
        };
        self.fetch_next();
        let starts = ranges.iter().map(|range| range.start);
        let bytes = SourceBytes::Object(Fetched {
            object: object.clone(),
            version: version.clone(),
            ranges: starts.zip(fetched).collect(),
        });
        Some(self.reader(bytes, vec![row_group]))
    }

    fn reader(
        &self,
        bytes: SourceBytes,
        row_groups: Vec<usize>,
    ) -> Result<ParquetRecordBatchReader> {
        let path = &self.input.path;
        let metadata = self.input.metadata.clone();
        let source = Source {
            bytes,
            columns: Arc::clone(&self.input.columns),
        };
        let build = || {
            let all = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata)
                .with_projection(self.columns.clone())
                .with_row_groups(row_groups)
                .with_batch_size(self.batch_rows);
            match &self.rows {
                Some(rows) => all.with_row_selection(rows.clone()).build(),
                None => all.build(),
            }
        };
        let built = guarded(build).map_err(|problem| panicked(path, problem))?;
        built.map_err(|error| unreadable(path, error.into()))
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = &self.input.path;
        loop {
            let current = self.current.as_mut();
            match guarded(|| current.and_then(Iterator::next)) {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(batch.map_err(|error| unreadable(path, error))),
                Err(problem) => {
                    // After a panic, the decoder must not be used any more.
                    self.current = None;
                    return Some(Err(panicked(path, problem)));
                }
            }
            let Some(opened) = self.open_next() else {
                // The last batch may have been read from a changed file.
                return self
                    .current
                    .take()
                    .and_then(|_| self.input.check_unchanged().err().map(Err));
            };
            match opened {
                Ok(reader) => self.current = Some(reader),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        match &self.bytes {
            SourceBytes::File(file) => Length::len(file),
            SourceBytes::Memory(bytes) => bytes.len() as u64,
            SourceBytes::Object(fetched) => fetched.version.size,
        }
    }
}

/// Bytes of a source from some position on.
enum SourceRead {
    File(BufReader<File>),
    Bytes(bytes::buf::Reader<Bytes>),
}

impl Read for SourceRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Bytes(bytes) => bytes.read(buffer),
        }
    }
}

impl ChunkReader for Source {
    type T = SourceRead;

    /// Returns the bytes from `start` on. The reader calls it for the header of a page, which is
    /// checked here.
    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let bytes = match &self.bytes {
            SourceBytes::File(file) => {
                let mut read = file.get_read(start)?;
                let found = read.fill_buf()?;
                let prefix = &found[..found.len().min(PREFIX_BYTES)];
                self.columns.check(start, prefix)?;
                return Ok(SourceRead::File(read));
            }
            SourceBytes::Memory(bytes) => {
                bytes.slice(within(start, 0, bytes.len() as u64)?.start..)
            }
            SourceBytes::Object(fetched) => fetched.from(start).unwrap_or_default(),
        };
        self.columns
            .check(start, &bytes[..bytes.len().min(PREFIX_BYTES)])?;
        Ok(SourceRead::Bytes(bytes.reader()))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match &self.bytes {
            SourceBytes::File(file) => file.get_bytes(start, length),
            SourceBytes::Memory(bytes) => {
                within(start, length, bytes.len() as u64).map(|range| bytes.slice(range))
            }
            SourceBytes::Object(fetched) => match fetched.from(start) {
                Some(bytes) if bytes.len() >= length => Ok(bytes.slice(..length)),
                _ => fetched.fetch(start, length),
            },
        }
    }
}

impl Fetched {
    /// Returns the fetched bytes from a position on; none if they were not fetched.
    fn from(&self, start: u64) -> Option<Bytes> {
        let holds =
            |(first, bytes): &&(u64, Bytes)| *first <= start && start < first + bytes.len() as u64;
        let (first, bytes) = self.ranges.iter().find(holds)?;
        Some(bytes.slice(usize::try_from(start - first).ok()?..))
    }

    /// Fetches bytes that were not fetched yet, such as the start of a long footer.
    fn fetch(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        within(start, length, self.version.size)?;
        let range = std::iter::once(start..start + length as u64).collect();
        let fetched = wait(self.object.fetch(&self.version, range));
        let fetched = fetched.map_err(|error| ParquetError::External(Box::new(error)))?;
        Ok(fetched.into_iter().next().unwrap_or_default())
    }
}

/// Returns the range of some bytes; bytes beyond the end of the file are an error.
fn within(start: u64, length: usize, size: u64) -> Result<Range<usize>, ParquetError> {
    let end = start.checked_add(length as u64).filter(|&end| end <= size);
    let range = end.and_then(|end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
    range.ok_or_else(|| ParquetError::EOF(format!("{length} bytes at byte {start} of {size}")))
}

/// Returns the error of a file whose decoder panicked.
fn panicked(path: &Path, problem: String) -> SchemaError {
    unreadable(path, ArrowError::ParquetError(problem))
}

/// Returns the error of a file that cannot be decoded; an error of its store stays as it is.
fn unreadable(path: &Path, error: ArrowError) -> SchemaError {
    match error {
        ArrowError::ExternalError(error) => match error.downcast::<SchemaError>() {
            Ok(error) => *error,
            Err(error) => SchemaError::Unreadable {
                path: path.to_owned(),
                source: ArrowError::ExternalError(error),
            },
        },
        source => SchemaError::Unreadable {
            path: path.to_owned(),
            source,
        },
    }
}
