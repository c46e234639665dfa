//! Names the line of a CSV file that cannot be read.

use std::io::{self, BufRead, BufReader};

use arrow::error::ArrowError;

use super::values::{is_of_type, reads_text, word};
use super::{CsvInput, delimiter_of};
use crate::error::{RowPlace, SchemaError};
use crate::guard::guarded;

/// Characters that stand between the fields of files that are not read.
const OTHER_DELIMITERS: &[char] = &[';', '|', '\t', ','];

impl CsvInput {
    /// Returns the place of a row: its line, if the file can still be read.
    pub(crate) fn line(&self, row: u64) -> RowPlace {
        let line = || {
            let mut rows = self.rows().ok()?.into_byte_records();
            let row = rows.nth(usize::try_from(row).ok()?)?.ok()?;
            self.line_at(row.position()?.byte())
        };
        match guarded(line) {
            Ok(Some(line)) => RowPlace::Line(line),
            // The header is line 1.
            _ => RowPlace::Line(row + 2),
        }
    }

    /// Returns the line of the row that starts at a byte of the text, or after the line breaks from
    /// there on; none if the file can no longer be read.
    pub(super) fn line_at(&self, start: u64) -> Option<u64> {
        let mut text = BufReader::new(self.bytes().ok()?);
        let (mut line, mut at) = (1, 0);
        loop {
            let bytes = text.fill_buf().ok()?;
            let is_break = |byte: u8| byte == b'\n' || byte == b'\r';
            let len = bytes.len();
            for &byte in bytes {
                if at >= start && !is_break(byte) {
                    return Some(line);
                }
                line += u64::from(byte == b'\n');
                at += 1;
            }
            if len == 0 {
                return Some(line);
            }
            text.consume(len);
        }
    }

    /// Returns the mend for a header of one field that has the delimiter of another format.
    pub(super) fn other_delimiter(&self, header: &str) -> Option<String> {
        let own = char::from(delimiter_of(&self.path).unwrap_or(b','));
        let mut others = OTHER_DELIMITERS.iter().filter(|other| **other != own);
        others.find(|other| header.contains(**other)).map(|other| {
            format!(
                "the header is one field, {header:?}; {other:?} does not separate fields: write \
                 commas in `*.csv` files, tabs in `*.tsv` files"
            )
        })
    }

    /// Opens the rows below the header.
    pub(super) fn rows(&self) -> Result<csv::Reader<Box<dyn io::Read>>, SchemaError> {
        let delimiter = delimiter_of(&self.path).unwrap_or(b',');
        let mut builder = csv::ReaderBuilder::new();
        Ok(builder.delimiter(delimiter).from_reader(self.bytes()?))
    }

    /// Turns an error of the reader into one that names the line, if the file has a broken row, or a
    /// value of another type in one of the columns that were read.
    pub(super) fn explain(&self, error: ArrowError, columns: &[usize]) -> SchemaError {
        let broken = guarded(|| self.broken_row(columns)).unwrap_or_default();
        broken.unwrap_or_else(|| SchemaError::UnreadableCsv {
            path: self.path.clone(),
            source: error,
        })
    }

    /// Finds the first row that has another number of fields than the header, is no UTF-8 text, or
    /// has a value of another type in a column.
    fn broken_row(&self, columns: &[usize]) -> Option<SchemaError> {
        let mut reader = match self.rows() {
            Ok(reader) => reader,
            Err(error) => return Some(error),
        };
        let header = reader.headers().cloned();
        let found = match &header {
            Ok(_) => reader.records().find_map(|row| match row {
                Ok(row) => self.misfit(&row, columns).map(Ok),
                Err(error) => Some(Err(error)),
            }),
            Err(_) => None,
        };
        let (found, header) = match header {
            Ok(header) => (found?, header),
            Err(error) => (Err(error), csv::StringRecord::new()),
        };
        let found = match found {
            Ok(misfit) => return Some(misfit),
            Err(error) => error,
        };
        let (pos, problem) = match found.into_kind() {
            csv::ErrorKind::UnequalLengths {
                pos,
                expected_len,
                len,
            } => match self
                .other_delimiter(&header[0])
                .filter(|_| expected_len == 1)
            {
                Some(problem) => (None, problem),
                None => {
                    let problem = format!(
                        "has {len} fields, the header has {expected_len}; a field with the \
                         delimiter, a quote or a line break stands in double quotes"
                    );
                    (pos, problem)
                }
            },
            csv::ErrorKind::Utf8 { pos, err } => {
                let problem = format!("field {} is no UTF-8 text", err.field() + 1);
                (pos, problem)
            }
            csv::ErrorKind::Io(source) => return self.unread(source),
            _ => return None,
        };
        Some(SchemaError::CsvLine {
            path: self.path.clone(),
            line: pos.and_then(|pos| self.line_at(pos.byte())).unwrap_or(1),
            problem,
        })
    }

    /// Returns the error of the first value of a row that is not of its column's type.
    fn misfit(&self, row: &csv::StringRecord, columns: &[usize]) -> Option<SchemaError> {
        let mut values = columns.iter().filter_map(|&at| {
            let (field, text) = (self.schema.fields().get(at)?, row.get(at)?);
            let may_have_gaps = reads_text(self.inferred.fields().get(at)?, field);
            let is_misfit = !is_of_type(text, field.data_type(), may_have_gaps);
            is_misfit.then_some((field, text))
        });
        let (field, text) = values.next()?;
        Some(SchemaError::Value {
            path: self.path.clone(),
            column: field.name().clone(),
            row: RowPlace::Line(
                row.position()
                    .and_then(|pos| self.line_at(pos.byte()))
                    .unwrap_or(1),
            ),
            problem: format!("is {text:?}, which is no {}", word(field.data_type())),
        })
    }

    /// Returns the error of bytes that could not be read; none if they are no gzip.
    fn unread(&self, source: io::Error) -> Option<SchemaError> {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        if matches!(source.kind(), InvalidData | InvalidInput | UnexpectedEof) {
            return None;
        }
        Some(match source.downcast::<SchemaError>() {
            Ok(of_store) => of_store,
            Err(source) => SchemaError::io("read", &self.path)(source),
        })
    }
}
