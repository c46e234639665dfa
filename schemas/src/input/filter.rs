//! The rows that a table takes from its files: those whose columns equal the values of `where`.

use arrow::array::{
    Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, Scalar, StringArray,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::eq;
use arrow::compute::{cast, filter};
use arrow::datatypes::DataType;
use std::sync::Arc;

use super::Place;
use super::decode::column;
use super::label::is_string;
use super::table::{ReadBatch, Table};
use crate::config::{RowsWhere, WhereValue};
use crate::error::{Result, SchemaError};

/// The checked columns and values of `where`.
#[derive(Clone, Debug, Default)]
pub(super) struct RowFilter {
    wanted: RowsWhere,
}

impl RowFilter {
    /// Checks that each column exists and holds values of the type that is wanted.
    pub(super) fn plan(wanted: &RowsWhere, table: &Table) -> Result<Self, Vec<SchemaError>> {
        let mut found = Vec::new();
        for (name, value) in wanted {
            let key = format!("where.{name}");
            let checked = match value {
                WhereValue::Text(_) => {
                    let role = "a string of `where`";
                    // Every column of a CSV file can be read as text.
                    let is_fit = |t: &DataType| table.is_csv() || is_string(t);
                    table.column(&key, name, role, "strings", |t| of_type(t, is_fit))
                }
                WhereValue::Integer(_) => {
                    let role = "a whole number of `where`";
                    let is_integer = DataType::is_integer;
                    table.column(&key, name, role, "integers", |t| of_type(t, is_integer))
                }
                WhereValue::Bool(_) => {
                    let role = "true or false of `where`";
                    let is_bool = |t: &DataType| *t == DataType::Boolean;
                    table.column(&key, name, role, "booleans", |t| of_type(t, is_bool))
                }
            };
            found.extend(checked.err());
        }
        match found.is_empty() {
            true => Ok(Self {
                wanted: wanted.clone(),
            }),
            false => Err(found),
        }
    }

    /// Tells whether all rows are taken.
    pub(super) fn is_all(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Returns the columns that decide.
    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        self.wanted.keys().map(String::as_str)
    }

    /// Returns the columns that are compared with text.
    pub(super) fn text_columns(&self) -> impl Iterator<Item = &str> {
        let wanted = self.wanted.iter();
        wanted.filter_map(|(name, value)| matches!(value, WhereValue::Text(_)).then_some(&**name))
    }

    /// Returns the rows of a batch that are taken.
    pub(super) fn apply<'a>(&self, read: &ReadBatch<'a>) -> Result<ReadBatch<'a>> {
        let mut mask: Option<BooleanBuffer> = None;
        for (name, value) in &self.wanted {
            let equal = equals(read.place(), column(&read.rows, name), value)?;
            mask = Some(match mask {
                None => equal,
                Some(mask) => &mask & &equal,
            });
        }
        let Some(mask) = mask else {
            return Ok(read.all());
        };
        let kept = mask.set_indices_u32().collect();
        let mask = BooleanArray::new(mask, None);
        let convert = read.place().convert();
        let rows = filter_rows(&read.rows, &mask).map_err(convert)?;
        Ok(read.keep(kept, rows))
    }
}

/// Tells whether a column, or the values of its dictionary, are of a type.
fn of_type(data_type: &DataType, is_wanted: impl Fn(&DataType) -> bool) -> Option<()> {
    is_wanted(value_type(data_type)).then_some(())
}

fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        plain => plain,
    }
}

/// Returns which values of a column equal `value`; nulls do not.
fn equals(place: Place<'_>, array: &dyn Array, value: &WhereValue) -> Result<BooleanBuffer> {
    let one: ArrayRef = match value {
        WhereValue::Text(text) => Arc::new(StringArray::from(vec![text.as_str()])),
        WhereValue::Integer(number) => Arc::new(Int64Array::from(vec![*number])),
        WhereValue::Bool(value) => Arc::new(BooleanArray::from(vec![*value])),
    };
    // A number that the column cannot hold becomes a null, which no row equals.
    let one = cast(&one, value_type(array.data_type())).map_err(place.convert())?;
    let equal = eq(&array, &Scalar::new(one)).map_err(place.convert())?;
    Ok(match equal.nulls() {
        Some(nulls) => equal.values() & nulls.inner(),
        None => equal.values().clone(),
    })
}

fn filter_rows(
    rows: &RecordBatch,
    mask: &BooleanArray,
) -> Result<RecordBatch, arrow::error::ArrowError> {
    let columns = rows.columns().iter().map(|column| filter(column, mask));
    let num_rows = RecordBatchOptions::new().with_row_count(Some(mask.true_count()));
    RecordBatch::try_new_with_options(rows.schema(), columns.collect::<Result<_, _>>()?, &num_rows)
}
