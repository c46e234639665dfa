//! Dense feature columns of the node table: numbers, times and categories, read as float32.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, LargeStringArray, LargeStringBuilder, RecordBatch,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, TimeUnit};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::column_kind::{allowed_for, check_bounds, meaning_of};
use super::decode::{self, Lists, Width, column};
use super::label::{is_string, strings};
use super::table::Kinds;
use super::{Place, Table, TableName, doubts};
use crate::columns::{ColumnMeta, ColumnValues, FeatureColumn};
use crate::config::{ColumnKind, NodesSpec};
use crate::error::{Result, SchemaError};

/// Greatest float whose neighbours are whole numbers at a distance of 1.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Dense feature columns, checked.
#[derive(Clone, Debug)]
pub(super) struct DenseColumns {
    table: TableName,
    columns: Vec<DenseColumn>,
    dim: usize,
}

#[derive(Clone, Debug)]
struct DenseColumn {
    name: String,
    width: usize,
    kind: ColumnKind,
    /// Number of columns of categories before this one.
    categorical: usize,
    /// Number of categories that the column may have.
    max_values: usize,
}

/// The distinct categories of each column of categories, in the order of the columns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Categories(Vec<BTreeSet<String>>);

/// Where the categories of a table are looked up: for each column of categories, the position of
/// each.
pub(super) type Positions<'a> = Vec<HashMap<&'a str, f32>>;

impl DenseColumns {
    /// Checks the columns of `features` and finds their meanings and widths.
    ///
    /// # Errors
    ///
    /// If a column is named twice or of another type, its lists are empty, or `columns` has an entry
    /// that is not allowed.
    pub(super) fn plan(spec: &NodesSpec, table: &Table, kinds: &Kinds) -> Result<Self> {
        let names = &spec.features;
        let mut columns: Vec<DenseColumn> = Vec::with_capacity(names.len());
        for name in names {
            if columns.iter().any(|other| other.name == *name) {
                return Err(SchemaError::Key {
                    key: table.key("features"),
                    problem: format!("names column `{name}` twice"),
                });
            }
            let declared = spec.columns.get(name).cloned().unwrap_or_default();
            let (kind, width) = plan_kind(table, name, (declared.kind, kinds.get(name).copied()))?;
            let width = match width {
                Width::Scalar => Some(1),
                Width::Fixed(width) => Some(width),
                Width::Varying => decode::first_list_len(table, name)?,
            };
            if width.is_none() && decode::has_rows(table, name)? {
                return Err(table.name().unusable(format!(
                    "all rows of {} are null, so the width of its lists is not known; leave it \
                     out of `features`",
                    table.place_of(name)
                )));
            }
            if width == Some(0) {
                return Err(table.name().unusable(format!(
                    "the lists of {} are empty, hence no features",
                    table.place_of(name)
                )));
            }
            check_bounds(&declared, kind, &table.key(&format!("columns.{name}")))?;
            let before = columns.iter();
            let before = before.filter(|column| column.kind == ColumnKind::Category);
            columns.push(DenseColumn {
                categorical: before.count(),
                name: name.clone(),
                width: width.unwrap_or(0),
                kind,
                max_values: declared.max_values() as usize,
            });
        }
        let inferred = columns.iter().filter(|column| {
            column.kind == ColumnKind::Category && !kinds.contains_key(&column.name)
        });
        doubts::warn(
            table,
            &inferred.map(|column| &*column.name).collect::<Vec<_>>(),
            doubts::Doubt::Categories,
        )?;
        let dim = columns.iter().map(|column| column.width).sum();
        Ok(Self {
            table: table.name().clone(),
            columns,
            dim,
        })
    }

    /// Lists the columns with their widths and meanings.
    pub(super) fn columns(&self) -> Vec<FeatureColumn> {
        let columns = self.columns.iter();
        let column = columns.map(|column| FeatureColumn {
            name: column.name.clone(),
            width: Some(column.width),
            kind: column.kind,
        });
        column.collect()
    }

    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    fn categorical(&self) -> impl Iterator<Item = &DenseColumn> {
        let columns = self.columns.iter();
        columns.filter(|column| column.kind == ColumnKind::Category)
    }

    /// Returns the names of the columns of categories.
    pub(super) fn categorical_names(&self) -> Vec<&str> {
        self.categorical()
            .map(|column| column.name.as_str())
            .collect()
    }

    /// Adds the categories of a batch.
    ///
    /// # Errors
    ///
    /// If a column has more categories than allowed.
    pub(super) fn collect(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        found: &mut Categories,
    ) -> Result<()> {
        found
            .0
            .resize_with(self.categorical().count(), BTreeSet::new);
        for (categorical, values) in self.categorical().zip(&mut found.0) {
            let array = texts(place, &categorical.name, column(batch, &categorical.name))?;
            let mut last = None;
            for text in array.as_string::<i64>().iter().flatten() {
                if last != Some(text) && !values.contains(text) {
                    values.insert(text.to_owned());
                }
                last = Some(text);
            }
            let path = place.path.display().to_string();
            categorical.check_count(values.len(), (&self.table, &path))?;
        }
        Ok(())
    }

    /// Adds the categories of other rows.
    ///
    /// # Errors
    ///
    /// If a column has more categories than allowed; `path` names the table.
    pub(super) fn merge(&self, all: &mut Categories, more: Categories, path: &str) -> Result<()> {
        all.0.resize_with(self.categorical().count(), BTreeSet::new);
        for ((categorical, values), others) in self.categorical().zip(&mut all.0).zip(more.0) {
            values.extend(others);
            categorical.check_count(values.len(), (&self.table, path))?;
        }
        Ok(())
    }

    /// Describes the columns, given all categories and the columns with missing values.
    pub(super) fn describe(&self, categories: Categories, gaps: &[bool]) -> Vec<ColumnMeta> {
        let mut categories = categories.0.into_iter();
        let columns = self.columns.iter().enumerate();
        let describe = |(at, column): (usize, &DenseColumn)| ColumnMeta {
            name: column.name.clone(),
            width: column.width,
            values: match column.kind {
                ColumnKind::Number => ColumnValues::Number,
                ColumnKind::Time => ColumnValues::Time,
                ColumnKind::Category => {
                    let found = categories.next().unwrap_or_default();
                    ColumnValues::Category(found.into_iter().collect())
                }
            },
            gaps: gaps.get(at).copied().unwrap_or(false),
        };
        columns.map(describe).collect()
    }

    /// Appends a batch's rows, `dim` values each, and marks the columns with missing values.
    pub(super) fn append(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        positions: &Positions<'_>,
        gaps: &mut [bool],
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let start = out.len();
        let is_alone = self.columns.len() == 1;
        if !is_alone {
            out.resize(start + batch.num_rows() * self.dim, 0.0);
        }
        let mut first = start;
        for (read, has_gaps) in self.columns.iter().zip(gaps) {
            let values = match read.kind {
                _ if *column(batch, &read.name).data_type() == DataType::Null => {
                    Arc::new(Float32Array::from(vec![
                        f32::NAN;
                        batch.num_rows() * read.width
                    ]))
                }
                ColumnKind::Number => read.numbers(place, batch)?,
                ColumnKind::Time => read.times(place, batch)?,
                ColumnKind::Category => {
                    let known = &positions[read.categorical];
                    read.categories(place, batch, known)?
                }
            };
            let values = values.as_primitive::<Float32Type>().values();
            *has_gaps |= read.check_finite(place, values, column(batch, &read.name))?;
            if is_alone {
                out.extend_from_slice(values);
            } else if read.width > 0 {
                for (row, row_values) in values.chunks_exact(read.width).enumerate() {
                    let at = first + row * self.dim;
                    out[at..at + read.width].copy_from_slice(row_values);
                }
            }
            first += read.width;
        }
        Ok(())
    }
}

/// Returns the kind and the width of a column. A kind that is not `declared`, but `given` by a model,
/// holds for CSV files and for columns without a type.
fn plan_kind(
    table: &Table,
    name: &str,
    (declared, given): (Option<ColumnKind>, Option<ColumnKind>),
) -> Result<(ColumnKind, Width)> {
    let (key, allowed) = match declared {
        None => (
            "features".to_owned(),
            "numbers, lists of numbers, strings, dictionaries, dates and timestamps",
        ),
        Some(kind) => (format!("columns.{name}.kind"), allowed_for(kind)),
    };
    if given.is_none() && table.is_without_values(name) {
        return Err(table.name().unusable(format!(
            "{} has no value in any row, so its type is not known; set `{}`, or leave the column \
             out of `features`",
            table.place_of(name),
            table.key(&format!("columns.{name}.kind"))
        )));
    }
    let is_csv = table.is_csv();
    table.nullable_column(&key, name, "features", allowed, |data_type| {
        let takes_given = is_csv || *data_type == DataType::Null;
        let of_given = given.filter(|_| declared.is_none() && takes_given);
        let found = of_given.and_then(|kind| meaning_of(data_type, Some(kind)));
        found.or_else(|| meaning_of(data_type, declared))
    })
}

impl DenseColumn {
    fn check_count(&self, count: usize, (table, path): (&TableName, &str)) -> Result<()> {
        if count <= self.max_values {
            return Ok(());
        }
        let (name, max_values) = (&self.name, self.max_values);
        let key = table.key(&format!("columns.{name}.max_values"));
        Err(table.unusable(format!(
            "column `{name}` of {path} has {count} or more categories, allowed are {max_values}: \
             raise `{key}`, or leave the column out"
        )))
    }

    /// Refuses infinite values; returns whether values are missing.
    fn check_finite(&self, place: Place<'_>, values: &[f32], array: &dyn Array) -> Result<bool> {
        // Without an early exit the pass over good values vectorises.
        let good = values
            .iter()
            .fold(true, |good, value| good & value.is_finite());
        if good {
            return Ok(false);
        }
        let Some(at) = values.iter().position(|value| value.is_infinite()) else {
            return Ok(true);
        };
        let (row, value) = (at / self.width.max(1), values[at]);
        let found = match Lists::of(array) {
            None => decode::not_finite(array, row, value),
            Some((lists, source)) => {
                let in_row = at - row * self.width;
                decode::not_finite(&source, lists.range(row).start + in_row, value)
            }
        };
        let problem = format!(
            "{found}; allowed are finite float32 numbers, and null or NaN for a missing one"
        );
        Err(place.value(&self.name, row, problem))
    }

    /// Reads numbers, `width` a row; a missing number becomes NaN.
    fn numbers(&self, place: Place<'_>, batch: &RecordBatch) -> Result<ArrayRef> {
        let (name, width) = (&self.name, self.width);
        let array = column(batch, name);
        Ok(match Lists::of(array) {
            None => with_nan(&to_f32(place, array)?),
            Some((lists, values)) => {
                let other = |&row: &usize| !array.is_null(row) && lists.len(row) != width;
                if let Some(row) = (0..array.len()).find(other) {
                    let problem = format!(
                        "holds {} numbers, the first row holds {width}",
                        lists.len(row)
                    );
                    return Err(place.value(name, row, problem));
                }
                if array.null_count() == 0 {
                    let first = match array.is_empty() {
                        true => 0,
                        false => lists.range(0).start,
                    };
                    with_nan(&to_f32(place, &values.slice(first, array.len() * width))?)
                } else {
                    let values = with_nan(&to_f32(place, values.as_ref())?);
                    let values = values.as_primitive::<Float32Type>().values();
                    let mut numbers = Vec::with_capacity(array.len() * width);
                    for row in 0..array.len() {
                        match array.is_null(row) {
                            true => numbers.resize(numbers.len() + width, f32::NAN),
                            false => numbers.extend_from_slice(&values[lists.range(row)]),
                        }
                    }
                    Arc::new(Float32Array::from(numbers))
                }
            }
        })
    }

    /// Reads dates and times as days since 1970-01-01.
    fn times(&self, place: Place<'_>, batch: &RecordBatch) -> Result<ArrayRef> {
        let array = column(batch, &self.name);
        let per_day = match array.data_type() {
            DataType::Date32 => 1.0,
            DataType::Timestamp(TimeUnit::Second, _) => 86_400.0,
            DataType::Timestamp(TimeUnit::Microsecond, _) => 86_400e6,
            DataType::Timestamp(TimeUnit::Nanosecond, _) => 86_400e9,
            _ => 86_400e3,
        };
        let counts = match array.data_type() {
            DataType::Date32 => {
                let days = cast(array, &DataType::Int32).map_err(place.convert())?;
                cast(&days, &DataType::Int64).map_err(place.convert())?
            }
            _ => cast(array, &DataType::Int64).map_err(place.convert())?,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "features are float32"
        )]
        let days = counts
            .as_primitive::<Int64Type>()
            .unary::<_, Float32Type>(|count| (count as f64 / per_day) as f32);
        Ok(with_nan(&days))
    }

    /// Reads categories as positions in the list of the table's categories.
    fn categories(
        &self,
        place: Place<'_>,
        batch: &RecordBatch,
        known: &HashMap<&str, f32>,
    ) -> Result<ArrayRef> {
        let array = texts(place, &self.name, column(batch, &self.name))?;
        let mut values = Vec::with_capacity(array.len());
        for (row, text) in array.as_string::<i64>().iter().enumerate() {
            values.push(match text {
                None => f32::NAN,
                Some(text) => *known.get(text).ok_or_else(|| {
                    let problem = format!("is {text:?}, a category that was not there before");
                    place.value(&self.name, row, problem)
                })?,
            });
        }
        Ok(Arc::new(Float32Array::from(values)))
    }
}

/// Makes the lookup of the categories of described columns.
pub(super) fn positions(columns: &[ColumnMeta]) -> Positions<'_> {
    let mut all = Positions::new();
    for column in columns {
        if let ColumnValues::Category(values) = &column.values {
            let positions = values.iter().enumerate();
            all.push(
                positions
                    .map(|(at, value)| (value.as_str(), narrow(at)))
                    .collect(),
            );
        }
    }
    all
}

#[expect(
    clippy::cast_precision_loss,
    reason = "float32 holds every position below the greatest number of categories"
)]
fn narrow(position: usize) -> f32 {
    position as f32
}

fn to_f32(place: Place<'_>, array: &dyn Array) -> Result<ArrayRef> {
    cast(array, &DataType::Float32).map_err(place.convert())
}

/// Replaces nulls by NaN.
fn with_nan(array: &dyn Array) -> ArrayRef {
    let numbers = array.as_primitive::<Float32Type>();
    if numbers.null_count() == 0 {
        return Arc::new(numbers.clone());
    }
    let values = numbers.iter().map(|value| value.unwrap_or(f32::NAN));
    Arc::new(Float32Array::from_iter_values(values))
}

/// Returns the values of a column of categories as text.
fn texts(place: Place<'_>, name: &str, array: &dyn Array) -> Result<ArrayRef> {
    if is_string(array.data_type()) {
        let texts = strings(place, name, array)?;
        return Ok(match place.csv {
            Some(_) => as_typed(&texts),
            None => texts,
        });
    }
    if array.data_type().is_floating() {
        return whole_numbers(place, name, array);
    }
    cast(array, &DataType::LargeUtf8).map_err(place.convert())
}

/// Writes the text of CSV files as that of typed columns: `1.0` as 1, which pandas makes of integers
/// with gaps, and `True` as true. So a category does not depend on the other values of a day.
fn as_typed(texts: &ArrayRef) -> ArrayRef {
    let texts = texts.as_string::<i64>();
    let values = texts.iter().map(|text| text.map(category));
    Arc::new(values.collect::<LargeStringArray>())
}

fn category(text: &str) -> &str {
    if let Some(boolean) = ["true", "false"]
        .iter()
        .find(|of| text.eq_ignore_ascii_case(of))
    {
        return boolean;
    }
    let (sign, number) = match text.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", text),
    };
    let Some((whole, fraction)) = number.split_once('.') else {
        return text;
    };
    let is_whole = !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
    if !is_whole || fraction.is_empty() || fraction.bytes().any(|byte| byte != b'0') {
        return text;
    }
    match whole {
        "0" => "0",
        _ => &text[..sign.len() + whole.len()],
    }
}

/// Returns floats without a fraction as text: pandas writes integers with gaps as floats.
fn whole_numbers(place: Place<'_>, name: &str, array: &dyn Array) -> Result<ArrayRef> {
    let numbers = cast(array, &DataType::Float64).map_err(place.convert())?;
    let mut texts = LargeStringBuilder::with_capacity(array.len(), array.len() * 4);
    for (row, number) in numbers.as_primitive::<Float64Type>().iter().enumerate() {
        match number.filter(|number| !number.is_nan()) {
            None => texts.append_null(),
            Some(number) if number.fract() == 0.0 && number.abs() <= WHOLE_MAX => {
                // Adding 0 makes -0 the category of 0.
                texts.append_value((number + 0.0).to_string());
            }
            Some(number) => {
                let problem = format!("is {number}; a category that is a number has no fraction");
                return Err(place.value(name, row, problem));
            }
        }
    }
    Ok(Arc::new(texts.finish()))
}
