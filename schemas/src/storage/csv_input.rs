//! Reads CSV files of the file system and of stores, also compressed with gzip.

mod broken;
mod values;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use bytes::{Buf, Bytes};
use flate2::read::MultiGzDecoder;

use super::object::{Object, Version, object};
use super::parquet_input::Local;
use super::refuse_special;
use super::runtime::wait;
use crate::error::{Result, SchemaError};
use crate::guard::guarded;

/// Endings of the names of CSV files, each with the character between fields.
const ENDINGS: &[(&str, u8)] = &[
    (".csv", b','),
    (".csv.gz", b','),
    (".tsv", b'\t'),
    (".tsv.gz", b'\t'),
];
/// Bytes of one request for a part of an object.
const REQUEST_BYTES: u64 = 8 << 20;
/// Bytes of a read buffer.
const BUFFER_BYTES: usize = 1 << 18;

/// A CSV file with a header, whose rows were counted and whose types were inferred when it was
/// opened.
#[derive(Clone, Debug)]
pub(crate) struct CsvInput {
    path: PathBuf,
    place: Place,
    /// The types of the values.
    inferred: SchemaRef,
    /// The types in which columns are read.
    schema: SchemaRef,
    num_rows: usize,
}

/// Where the bytes of a file are, and its version when it was opened.
#[derive(Clone, Debug)]
enum Place {
    Local(Local),
    Object(Object, Version),
}

/// Reads an object from its start, some megabytes at a time.
struct ObjectRead {
    object: Object,
    version: Version,
    next: u64,
    fetched: Bytes,
}

/// Tells whether the name of a file is one of a CSV file.
pub(crate) fn is_csv(path: &Path) -> bool {
    delimiter_of(path).is_some()
}

fn delimiter_of(path: &Path) -> Option<u8> {
    let name = path.to_string_lossy().to_ascii_lowercase();
    let found = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
    found.map(|(_, delimiter)| *delimiter)
}

impl CsvInput {
    /// Opens a file, counts its rows and infers the type of each column from all of them.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a row has another number of fields than the header.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let place = match object(path)? {
            None => {
                refuse_special(path)?;
                Place::Local(Local::of(path, fs::metadata(path))?)
            }
            Some(object) => {
                let (_, version) = object.tail(1)?;
                Place::Object(object, version)
            }
        };
        let mut input = Self {
            path: path.to_owned(),
            place,
            inferred: Arc::new(Schema::empty()),
            schema: Arc::new(Schema::empty()),
            num_rows: 0,
        };
        let bytes = input.bytes()?;
        let inferred = guarded(|| input.format().infer_schema(bytes, None));
        let inferred = inferred.unwrap_or_else(|problem| Err(ArrowError::CsvError(problem)));
        let (schema, num_rows) = inferred.map_err(|error| input.explain(error, &[]))?;
        if schema.fields().is_empty() {
            return Err(SchemaError::CsvLine {
                path: path.to_owned(),
                line: 1,
                problem: "has no header: the first line names the columns".to_owned(),
            });
        }
        if let [only] = schema.fields().as_ref()
            && let Some(problem) = input.other_delimiter(only.name())
        {
            return Err(SchemaError::CsvLine {
                path: path.to_owned(),
                line: 1,
                problem,
            });
        }
        input.inferred = Arc::new(schema);
        input.schema = Arc::clone(&input.inferred);
        input.num_rows = num_rows;
        input.check_unchanged()?;
        Ok(input)
    }

    /// Returns the columns' names and the types that were inferred; null if there is no value.
    pub(crate) fn inferred(&self) -> &SchemaRef {
        &self.inferred
    }

    /// Returns the columns' names and the types in which they are read.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the number of rows below the header.
    pub(crate) fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Sets the types of the values of all files of a table, in the order of this file's columns.
    pub(crate) fn set_inferred(&mut self, types: &[DataType]) {
        self.inferred = with_types(&self.inferred, types);
        self.schema = Arc::clone(&self.inferred);
    }

    /// Sets the types in which the columns are read, in the order of the file.
    pub(crate) fn set_types(&mut self, types: &[DataType]) {
        self.schema = with_types(&self.schema, types);
    }

    /// Returns the version of an object; none for a local file.
    pub(crate) fn version(&self) -> Option<&Version> {
        match &self.place {
            Place::Local(_) => None,
            Place::Object(_, version) => Some(version),
        }
    }

    /// Refuses a local file that has changed since it was opened. A store refuses each request for
    /// a changed object.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match &self.place {
            Place::Local(opened) => opened.check_unchanged(&self.path),
            Place::Object(..) => Ok(()),
        }
    }

    /// Decodes some columns of all rows, given by their positions. Where text is read as numbers or
    /// times, the usual words for a missing value are nulls.
    pub(crate) fn batches(
        &self,
        columns: Vec<usize>,
        batch_rows: usize,
    ) -> Result<impl Iterator<Item = Result<RecordBatch>> + use<'_>> {
        self.check_unchanged()?;
        let reader = ReaderBuilder::new(self.types_of_fields())
            .with_format(self.format())
            .with_projection(columns.clone())
            .with_batch_size(batch_rows)
            .build(self.bytes()?)
            .map_err(|error| self.explain(error, &columns))?;
        let mut reader = Some(reader);
        Ok(std::iter::from_fn(move || {
            let next = guarded(|| reader.as_mut().and_then(Iterator::next));
            let next = next.unwrap_or_else(|problem| Some(Err(ArrowError::CsvError(problem))));
            match next {
                Some(Ok(batch)) => {
                    let batch = self.read_values(batch);
                    let batch = batch.map_err(|error| self.explain(error, &columns));
                    reader = reader.take().filter(|_| batch.is_ok());
                    Some(batch)
                }
                Some(Err(error)) => {
                    // After a failure, the reader must not be used any more.
                    reader = None;
                    Some(Err(self.explain(error, &columns)))
                }
                None => {
                    let ended = reader.take();
                    ended.and_then(|_| self.check_unchanged().err().map(Err))
                }
            }
        }))
    }

    fn format(&self) -> Format {
        let delimiter = delimiter_of(&self.path).unwrap_or(b',');
        Format::default()
            .with_header(true)
            .with_delimiter(delimiter)
    }

    /// Opens the text of the file, from its start.
    fn bytes(&self) -> Result<Box<dyn Read>> {
        let bytes: Box<dyn Read> = match &self.place {
            Place::Local(_) => {
                let file = File::open(&self.path).map_err(SchemaError::io("open", &self.path))?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
            }
            Place::Object(object, version) => Box::new(ObjectRead {
                object: object.clone(),
                version: version.clone(),
                next: 0,
                fetched: Bytes::new(),
            }),
        };
        let is_gzip = |extension: &std::ffi::OsStr| extension.eq_ignore_ascii_case("gz");
        if !self.path.extension().is_some_and(is_gzip) {
            return Ok(bytes);
        }
        let text = MultiGzDecoder::new(bytes);
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, text)))
    }
}

fn with_types(schema: &SchemaRef, types: &[DataType]) -> SchemaRef {
    let fields = schema.fields().iter().zip(types);
    let fields = fields
        .map(|(field, of_type)| Field::new(field.name(), of_type.clone(), field.is_nullable()));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

impl Read for ObjectRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.fetched.is_empty() && self.next < self.version.size {
            let end = (self.next + REQUEST_BYTES).min(self.version.size);
            let range = std::iter::once(self.next..end).collect();
            let fetched = wait(self.object.fetch(&self.version, range));
            let fetched = fetched.map_err(io::Error::other)?.into_iter().next();
            self.fetched = fetched.unwrap_or_default();
            if self.fetched.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.next += self.fetched.len() as u64;
        }
        let count = buffer.len().min(self.fetched.len());
        buffer[..count].copy_from_slice(&self.fetched[..count]);
        self.fetched.advance(count);
        Ok(count)
    }
}
