//! Decodes number and list columns of input tables into flat float32.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type};

use super::table::BATCH_VALUES;
use super::{Place, Table};
use crate::columns::FeatureColumn;
use crate::config::ColumnKind;
use crate::error::{Result, SchemaError};

pub(super) const NUMBERS: &str = "numbers and lists of numbers";

/// Number and list columns that are read side by side.
#[derive(Clone, Debug)]
pub(super) struct NumberColumns {
    /// Names and widths, in the given order.
    columns: Vec<(String, usize)>,
    dim: usize,
}

/// Rows of a list column within its values.
pub(super) enum Lists {
    Fixed { first: usize, width: usize },
    Offsets(Vec<usize>),
}

/// Width of a number or list column, as far as its type gives it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Scalar,
    Fixed(usize),
    /// Known from the first row only.
    Varying,
}

impl Width {
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::FixedSizeList(item, width) if is_number(item.data_type()) => {
                Self::Fixed(usize::try_from(*width).ok()?)
            }
            DataType::List(item) | DataType::LargeList(item) if is_number(item.data_type()) => {
                Self::Varying
            }
            other if is_number(other) => Self::Scalar,
            _ => return None,
        })
    }
}

pub(super) fn is_number(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_floating()
        || data_type.is_decimal()
        || *data_type == DataType::Boolean
}

impl Lists {
    /// Splits a list column into its rows and its values.
    pub(super) fn of(array: &dyn Array) -> Option<(Self, ArrayRef)> {
        Some(match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                let offsets = list.value_offsets().iter();
                let offsets = offsets.map(|&o| usize::try_from(o).expect("offsets are positive"));
                (
                    Self::Offsets(offsets.collect()),
                    ArrayRef::clone(list.values()),
                )
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                let offsets = list.value_offsets().iter();
                let offsets = offsets.map(|&o| usize::try_from(o).expect("offsets are positive"));
                (
                    Self::Offsets(offsets.collect()),
                    ArrayRef::clone(list.values()),
                )
            }
            DataType::FixedSizeList(_, _) => {
                let list = array.as_fixed_size_list();
                let width = usize::try_from(list.value_length()).expect("widths are positive");
                let first = list.value_offset_at(0);
                (Self::Fixed { first, width }, ArrayRef::clone(list.values()))
            }
            _ => return None,
        })
    }

    pub(super) fn range(&self, row: usize) -> std::ops::Range<usize> {
        match self {
            Self::Fixed { first, width } => first + row * width..first + (row + 1) * width,
            Self::Offsets(offsets) => offsets[row]..offsets[row + 1],
        }
    }

    pub(super) fn len(&self, row: usize) -> usize {
        self.range(row).len()
    }
}

/// Finds the first null of a column or of its lists' values.
pub(super) fn no_nulls(place: Place<'_>, name: &str, array: &dyn Array) -> Result<()> {
    if array.null_count() > 0 {
        let row = (0..array.len())
            .position(|row| array.is_null(row))
            .unwrap_or_default();
        return Err(place.value(name, row, "is null"));
    }
    if let Some((lists, values)) = Lists::of(array)
        && values.null_count() > 0
    {
        let with_null = |row: &usize| lists.range(*row).any(|i| values.is_null(i));
        if let Some(row) = (0..array.len()).find(with_null) {
            return Err(place.value(name, row, "holds a null"));
        }
    }
    Ok(())
}

/// Converts numbers to float32; numbers that are float32 already are not copied.
pub(super) fn to_f32(place: Place<'_>, values: &dyn Array) -> Result<ScalarBuffer<f32>> {
    let values = cast(values, &DataType::Float32).map_err(place.convert())?;
    Ok(values.as_primitive::<Float32Type>().values().clone())
}

/// Returns the problem of a value that is not finite as float32, with the number of the table.
/// `source` has the numbers before they were converted.
pub(super) fn not_finite(source: &dyn Array, at: usize, value: f32) -> String {
    let wide = cast(&source.slice(at, 1), &DataType::Float64).ok();
    let wide = wide.map(|wide| wide.as_primitive::<Float64Type>().value(0));
    match wide.filter(|wide| wide.is_finite()) {
        Some(wide) => format!("is {wide:e}, beyond 32-bit floats"),
        None => format!("is {value}"),
    }
}

/// Finds the first value that is NaN or infinite; `row_of` tells a value's row, and `source` has the
/// numbers before they were converted.
pub(super) fn all_finite(
    place: Place<'_>,
    name: &str,
    (values, source): (&[f32], &dyn Array),
    row_of: impl Fn(usize) -> usize,
) -> Result<()> {
    // Without an early exit the pass over good values vectorises.
    if !values
        .iter()
        .fold(false, |found, value| found | !value.is_finite())
    {
        return Ok(());
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(i) => Err(place.value(
            name,
            row_of(i),
            format!(
                "{}; allowed are finite float32 numbers",
                not_finite(source, i, values[i])
            ),
        )),
        None => Ok(()),
    }
}

impl NumberColumns {
    /// Checks the columns of a key and finds their widths.
    ///
    /// # Errors
    ///
    /// If a column is named twice or of another type, or its lists are empty.
    pub(super) fn plan(
        table: &Table,
        key: &str,
        names: &[String],
        role: &'static str,
    ) -> Result<Self> {
        let mut columns: Vec<(String, usize)> = Vec::with_capacity(names.len());
        for name in names {
            if columns.iter().any(|(other, _)| other == name) {
                return Err(SchemaError::Key {
                    key: table.key(key),
                    problem: format!("names column `{name}` twice"),
                });
            }
            let width = match table.column(key, name, role, NUMBERS, Width::of)? {
                Width::Scalar => Some(1),
                Width::Fixed(width) => Some(width),
                Width::Varying => first_list_len(table, name)?,
            };
            if width == Some(0) {
                let place = table.place_of(name);
                let problem = format!("the lists of {place} are empty, hence no {role}");
                return Err(table.name().unusable(problem));
            }
            columns.push((name.clone(), width.unwrap_or(0)));
        }
        let dim = columns.iter().map(|(_, width)| width).sum();
        Ok(Self { columns, dim })
    }

    /// Lists the columns with their widths.
    pub(super) fn columns(&self) -> Vec<FeatureColumn> {
        let columns = self.columns.iter();
        let column = columns.map(|(name, width)| FeatureColumn {
            name: name.clone(),
            width: Some(*width),
            kind: ColumnKind::Number,
        });
        column.collect()
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Appends a batch's rows, `dim` values each.
    pub(super) fn append(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let start = out.len();
        if let [(name, width)] = self.columns.as_slice() {
            return self.append_column(place, batch, name, *width, |values| {
                out.extend_from_slice(values);
            });
        }
        out.resize(start + batch.num_rows() * self.dim, 0.0);
        let mut first = start;
        for (name, width) in &self.columns {
            self.append_column(place, batch, name, *width, |values| {
                if *width == 0 {
                    return;
                }
                for (row, row_values) in values.chunks_exact(*width).enumerate() {
                    let at = first + row * self.dim;
                    out[at..at + width].copy_from_slice(row_values);
                }
            })?;
            first += width;
        }
        Ok(())
    }

    /// Checks one column's batch and passes on its values, `width` a row.
    fn append_column(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        name: &str,
        width: usize,
        emit: impl FnOnce(&[f32]),
    ) -> Result<()> {
        let array = column(batch, name);
        no_nulls(place, name, array)?;
        let (values, source) = match Lists::of(array) {
            None => (to_f32(place, array)?, array.slice(0, array.len())),
            Some((lists, values)) => {
                if let Some(row) = (0..array.len()).find(|&row| lists.len(row) != width) {
                    let problem = format!(
                        "holds {} numbers, the first row holds {width}",
                        lists.len(row)
                    );
                    return Err(place.value(name, row, problem));
                }
                let first = if array.is_empty() {
                    0
                } else {
                    lists.range(0).start
                };
                let values = values.slice(first, array.len() * width);
                (to_f32(place, &values)?, values)
            }
        };
        let source = source.as_ref();
        all_finite(place, name, (&values, source), |i| i / width.max(1))?;
        emit(&values);
        Ok(())
    }
}

/// Returns a column that was requested from the scan.
pub(super) fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a dyn Array {
    batch
        .column_by_name(name)
        .expect("the plan checked that every file has it")
        .as_ref()
}

/// Tells whether the table takes rows of its files.
pub(super) fn has_rows(table: &Table, name: &str) -> Result<bool> {
    for unit in table.units() {
        for item in table.batches(unit, &[name], BATCH_VALUES)? {
            if item?.rows.num_rows() > 0 {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The length of a list column's first list that is not null; none if there is none.
pub(super) fn first_list_len(table: &Table, name: &str) -> Result<Option<usize>> {
    for unit in table.units() {
        for item in table.batches(unit, &[name], BATCH_VALUES)? {
            let read = item?;
            let array = column(&read.rows, name);
            let row = (0..array.len()).find(|&row| !array.is_null(row));
            let length = row.and_then(|row| Some(Lists::of(array)?.0.len(row)));
            if length.is_some() {
                return Ok(length);
            }
        }
    }
    Ok(None)
}
