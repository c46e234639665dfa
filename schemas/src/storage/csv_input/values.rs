//! Values of CSV columns that are declared as numbers or times, and values that do not look like the
//! others of their column.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, RecordBatch, RecordBatchOptions,
    TimestampMicrosecondArray,
};
use arrow::compute::kernels::cast_utils::{Parser as _, string_to_datetime};
use arrow::datatypes::{DataType, Date32Type, Field, Float64Type, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use chrono::Utc;

use super::{CsvInput, with_types};
use crate::config::ColumnKind;
use crate::error::{RowPlace, SchemaError};

/// Words that stand for a missing number or time, besides the empty field.
const GAPS: &[&str] = &["NA", "N/A", "null", "NULL", "nan", "NaN"];

/// Number of values after which a column with fewer numbers and times than other values is text.
const FIRST_VALUES: u64 = 1000;

/// A text column whose values are mostly numbers, or mostly times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OddValues {
    /// The kind of most values.
    pub(crate) kind: ColumnKind,
    /// Number of values of that kind.
    pub(crate) fitting: u64,
    /// Number of other values, without empty fields.
    pub(crate) others: u64,
    /// The first other value, and its place.
    pub(crate) first: (String, RowPlace),
    /// Whether all other values are words for a missing one.
    pub(crate) are_gaps: bool,
}

/// Counts of a column's values.
#[derive(Default)]
struct Counts {
    kinds: [KindCounts; 2],
    num_values: u64,
    is_text: bool,
}

/// Values of one kind, and the others.
struct KindCounts {
    fitting: u64,
    /// The first other value, and the first byte of its row in the text.
    first: Option<(String, u64)>,
    are_gaps: bool,
}

impl Default for KindCounts {
    fn default() -> Self {
        Self {
            fitting: 0,
            first: None,
            are_gaps: true,
        }
    }
}

/// The kinds that a text column may have, each with the type in which it is read.
const KINDS: [(ColumnKind, DataType); 2] = [
    (ColumnKind::Number, DataType::Float64),
    (
        ColumnKind::Time,
        DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, None),
    ),
];

impl CsvInput {
    /// The types of the fields as they are parsed: text where numbers or times are made of it.
    pub(super) fn types_of_fields(&self) -> SchemaRef {
        let fields = self.schema.fields().iter();
        let types = fields.zip(self.inferred.fields()).map(|(field, inferred)| {
            match reads_text(inferred, field) {
                true => DataType::Utf8,
                false => field.data_type().clone(),
            }
        });
        with_types(&self.schema, &types.collect::<Vec<_>>())
    }

    /// Makes numbers and times of the text of a batch.
    ///
    /// # Errors
    ///
    /// If a text is neither a value nor a word for a missing one.
    pub(super) fn read_values(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let (read, columns, num_rows) = batch.into_parts();
        let mut fields = Vec::with_capacity(columns.len());
        let mut arrays = Vec::with_capacity(columns.len());
        for (found, array) in read.fields().iter().zip(columns) {
            let wanted = self.schema.field_with_name(found.name())?;
            let array = match found.data_type() == wanted.data_type() {
                true => array,
                false => values_of(array.as_ref(), wanted.data_type())?,
            };
            fields.push(wanted.clone());
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(num_rows));
        let schema = Arc::new(Schema::new(fields));
        RecordBatch::try_new_with_options(schema, arrays, &options)
    }

    /// Counts the values of text columns; none for a column whose values are mostly text, or whose
    /// values are all of one kind.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub(crate) fn odd_values(
        &self,
        columns: &[usize],
    ) -> Result<Vec<Option<OddValues>>, SchemaError> {
        let mut counts: Vec<Counts> = columns.iter().map(|_| Counts::default()).collect();
        let explain = |error: csv::Error| ArrowError::CsvError(error.to_string());
        let (mut rows, mut row) = (self.rows()?, csv::StringRecord::new());
        while rows
            .read_record(&mut row)
            .map_err(|error| self.explain(explain(error), &[]))?
        {
            let start = row.position().map_or(0, csv::Position::byte);
            for (of_column, &at) in counts.iter_mut().zip(columns) {
                of_column.add(row.get(at).unwrap_or_default(), start);
            }
            if counts.iter().all(|of_column| of_column.is_text) {
                break;
            }
        }
        Ok(counts.into_iter().map(|of| self.odd(of)).collect())
    }

    /// Returns the counts of a column if most of its values are of a kind, but not all.
    fn odd(&self, counts: Counts) -> Option<OddValues> {
        let num_values = counts.num_values;
        let kinds = KINDS.iter().zip(counts.kinds);
        let mut most = kinds.filter(|(_, of)| of.fitting * 2 > num_values);
        let ((kind, _), of) = most.next().filter(|_| !counts.is_text)?;
        let (first, start) = of.first?;
        Some(OddValues {
            kind: *kind,
            fitting: of.fitting,
            others: num_values - of.fitting,
            first: (first, RowPlace::Line(self.line_at(start)?)),
            are_gaps: of.are_gaps,
        })
    }
}

impl Counts {
    /// Counts a value of the row that starts at a byte of the text.
    fn add(&mut self, text: &str, start: u64) {
        if self.is_text || text.is_empty() {
            return;
        }
        self.num_values += 1;
        for (counts, (_, data_type)) in self.kinds.iter_mut().zip(&KINDS) {
            if !is_gap(text) && is_of_type(text, data_type, true) {
                counts.fitting += 1;
            } else {
                counts.first.get_or_insert_with(|| (text.to_owned(), start));
                counts.are_gaps &= is_gap(text);
            }
        }
        let most = self.kinds.iter().map(|kind| kind.fitting).max();
        self.is_text |= self.num_values == FIRST_VALUES && most.unwrap_or(0) * 2 <= self.num_values;
    }
}

/// Tells whether a column is parsed as text, and numbers or times are made of it.
pub(super) fn reads_text(inferred: &Field, read: &Field) -> bool {
    *inferred.data_type() == DataType::Utf8 && *read.data_type() != DataType::Utf8
}

fn is_gap(text: &str) -> bool {
    text.is_empty() || GAPS.contains(&text)
}

/// Tells whether a field has a value of a type that is inferred or declared. An empty one is null; so
/// are words for a missing value, if the column `may_have_gaps`.
pub(super) fn is_of_type(text: &str, data_type: &DataType, may_have_gaps: bool) -> bool {
    text.is_empty()
        || may_have_gaps && is_gap(text)
        || match data_type {
            DataType::Int64 => Int64Type::parse(text).is_some(),
            DataType::Float64 if may_have_gaps => number(text).is_some(),
            DataType::Float64 => Float64Type::parse(text).is_some(),
            DataType::Date32 => Date32Type::parse(text).is_some(),
            DataType::Timestamp(..) => string_to_datetime(&Utc, text).is_ok(),
            _ => true,
        }
}

/// Returns the word for a value of a type.
pub(super) fn word(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Int64 => "integer",
        DataType::Float64 => "number",
        DataType::Date32 => "date",
        DataType::Timestamp(..) => "time",
        _ => "value of its column",
    }
}

/// Reads a number, or a boolean as 1 or 0. The words for infinite numbers and for NaN are none.
fn number(text: &str) -> Option<f64> {
    if text.eq_ignore_ascii_case("true") {
        return Some(1.0);
    }
    if text.eq_ignore_ascii_case("false") {
        return Some(0.0);
    }
    let is_digit = |c: char| c.is_ascii_digit();
    Float64Type::parse(text).filter(|_| text.contains(is_digit))
}

fn values_of(array: &dyn Array, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let misfit = |text: &str| ArrowError::ParseError(format!("{text:?} is no {}", word(data_type)));
    let texts = array.as_string::<i32>().iter();
    let texts = texts.map(|text| text.filter(|text| !is_gap(text)));
    Ok(match data_type {
        DataType::Float64 => {
            let values = texts.map(|text| {
                text.map(|text| number(text).ok_or_else(|| misfit(text)))
                    .transpose()
            });
            Arc::new(values.collect::<Result<Float64Array, ArrowError>>()?)
        }
        _ => {
            let micros = |text: &str| {
                let time = string_to_datetime(&Utc, text).map_err(|_| misfit(text))?;
                Ok(time.timestamp_micros())
            };
            let values = texts.map(|text| text.map(micros).transpose());
            Arc::new(values.collect::<Result<TimestampMicrosecondArray, ArrowError>>()?)
        }
    })
}
