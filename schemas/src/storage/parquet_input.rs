//! Parquet files of the file system and of stores.
//!
//! The reader of Parquet asks for a few bytes at a time, which a store answers slowly. Of an object
//! we read the footer first, then the chosen columns of a row group at once, and those of the next
//! one while the first are decoded.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::is_remote;
use super::object::{Object, Pending, Version, object, start_blocking, wait};
use crate::error::{Result, SchemaError};

/// Files of stores that are opened at a time.
const OPENED_MAX: usize = 32;
/// Bytes at the end of an object that are read with its version: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// A Parquet file that can be read, with its footer.
#[derive(Clone, Debug)]
pub(crate) struct ParquetInput {
    path: PathBuf,
    place: Place,
    pub(crate) metadata: ArrowReaderMetadata,
}

/// Where a file lies, and which it was when it was opened.
#[derive(Clone, Debug)]
enum Place {
    Local(Local),
    Object(Object, Version),
}

/// What tells one content of a local file from another, as far as its file system does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Local {
    size: u64,
    modified: Option<SystemTime>,
}

/// Batches of some row groups, in their order.
pub(crate) struct Batches<'a> {
    input: &'a ParquetInput,
    columns: ProjectionMask,
    batch_rows: usize,
    row_groups: VecDeque<usize>,
    /// The next row group of an object, on its way.
    next: Option<Fetching>,
    current: Option<ParquetRecordBatchReader>,
}

/// The chosen columns of a row group, on their way.
struct Fetching {
    row_group: usize,
    ranges: Vec<Range<u64>>,
    pending: Pending<Vec<Bytes>>,
}

/// Bytes of a file, for the reader of Parquet.
enum Source {
    File(File),
    Object(Fetched),
}

/// What was fetched of an object, by position.
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
        let options = ArrowReaderOptions::new();
        let unreadable = |error: ParquetError| unreadable(path, error.into());
        let Some(object) = object(path)? else {
            let file = File::open(path).map_err(SchemaError::io("open", path))?;
            return Ok(Self {
                path: path.to_owned(),
                place: Place::Local(Local::of(path, file.metadata())?),
                metadata: ArrowReaderMetadata::load(&file, options).map_err(unreadable)?,
            });
        };
        let (tail, version) = object.tail(TAIL_BYTES)?;
        let source = Source::Object(Fetched {
            object: object.clone(),
            version: version.clone(),
            ranges: vec![(version.size - tail.len() as u64, tail)],
        });
        let metadata = ArrowReaderMetadata::load(&source, options).map_err(unreadable)?;
        Ok(Self {
            path: path.to_owned(),
            place: Place::Object(object, version),
            metadata,
        })
    }

    /// Opens some files, those of stores many at a time.
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

    /// Returns what a fingerprint takes for the contents of an object.
    pub(crate) fn version(&self) -> Option<&Version> {
        match &self.place {
            Place::Local(_) => None,
            Place::Object(_, version) => Some(version),
        }
    }

    /// Refuses a local file that is not the one that was opened; a store refuses each request.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match &self.place {
            Place::Local(opened) if *opened != Local::of(&self.path, fs::metadata(&self.path))? => {
                Err(SchemaError::Changed {
                    path: self.path.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Decodes some columns of some row groups.
    pub(crate) fn batches(
        &self,
        row_groups: Vec<usize>,
        columns: ProjectionMask,
        batch_rows: usize,
    ) -> Result<Batches<'_>> {
        let mut batches = Batches {
            input: self,
            columns,
            batch_rows,
            row_groups: row_groups.into(),
            next: None,
            current: None,
        };
        match &self.place {
            Place::Object(..) => batches.fetch_next(),
            Place::Local(_) => {
                self.check_unchanged()?;
                let file = File::open(&self.path).map_err(SchemaError::io("open", &self.path))?;
                let all = std::mem::take(&mut batches.row_groups).into();
                let reader = batches.reader(Source::File(file), all);
                batches.current = Some(reader.map_err(|error| unreadable(&self.path, error))?);
            }
        }
        Ok(batches)
    }
}

impl Local {
    fn of(path: &Path, metadata: io::Result<fs::Metadata>) -> Result<Self> {
        let metadata = metadata.map_err(SchemaError::io("look up", path))?;
        Ok(Self {
            size: metadata.len(),
            modified: metadata.modified().ok(),
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
    fn open_next(&mut self) -> Option<Result<ParquetRecordBatchReader, ArrowError>> {
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
            Err(error) => return Some(Err(ArrowError::ExternalError(Box::new(error)))),
        };
        self.fetch_next();
        let starts = ranges.iter().map(|range| range.start);
        let source = Source::Object(Fetched {
            object: object.clone(),
            version: version.clone(),
            ranges: starts.zip(fetched).collect(),
        });
        Some(self.reader(source, vec![row_group]))
    }

    fn reader(
        &self,
        source: Source,
        row_groups: Vec<usize>,
    ) -> Result<ParquetRecordBatchReader, ArrowError> {
        let metadata = self.input.metadata.clone();
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata)
            .with_projection(self.columns.clone())
            .with_row_groups(row_groups)
            .with_batch_size(self.batch_rows)
            .build()?;
        Ok(reader)
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = &self.input.path;
        loop {
            if let Some(batch) = self.current.as_mut().and_then(Iterator::next) {
                return Some(batch.map_err(|error| unreadable(path, error)));
            }
            let Some(opened) = self.open_next() else {
                // The last batch may have come of another file.
                return self
                    .current
                    .take()
                    .and_then(|_| self.input.check_unchanged().err().map(Err));
            };
            match opened {
                Ok(reader) => self.current = Some(reader),
                Err(error) => return Some(Err(unreadable(path, error))),
            }
        }
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        match self {
            Self::File(file) => Length::len(file),
            Self::Object(fetched) => fetched.version.size,
        }
    }
}

/// Bytes of a source from some position on.
enum SourceRead {
    File(BufReader<File>),
    Object(bytes::buf::Reader<Bytes>),
}

impl Read for SourceRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Object(bytes) => bytes.read(buffer),
        }
    }
}

impl ChunkReader for Source {
    type T = SourceRead;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        match self {
            Self::File(file) => file.get_read(start).map(SourceRead::File),
            Self::Object(fetched) => {
                let bytes = fetched.from(start).unwrap_or_default();
                Ok(SourceRead::Object(bytes.reader()))
            }
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match self {
            Self::File(file) => file.get_bytes(start, length),
            Self::Object(fetched) => match fetched.from(start) {
                Some(bytes) if bytes.len() >= length => Ok(bytes.slice(..length)),
                _ => fetched.fetch(start, length),
            },
        }
    }
}

impl Fetched {
    /// Returns what was fetched from a position on.
    fn from(&self, start: u64) -> Option<Bytes> {
        let holds =
            |(first, bytes): &&(u64, Bytes)| *first <= start && start < first + bytes.len() as u64;
        let (first, bytes) = self.ranges.iter().find(holds)?;
        Some(bytes.slice(usize::try_from(start - first).ok()?..))
    }

    /// Fetches what was not, such as the start of a long footer.
    fn fetch(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start + length as u64;
        if end > self.version.size {
            return Err(ParquetError::EOF(format!(
                "byte {end} of {}",
                self.version.size
            )));
        }
        let range = std::iter::once(start..end).collect();
        let fetched = wait(self.object.fetch(&self.version, range));
        let fetched = fetched.map_err(|error| ParquetError::External(Box::new(error)))?;
        Ok(fetched.into_iter().next().unwrap_or_default())
    }
}

/// The error of a file that cannot be decoded; one of its store comes out as it was.
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
