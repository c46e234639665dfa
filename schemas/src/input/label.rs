//! Label and split columns of input tables.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Int64Type};

use super::decode::{self, Lists, Width};
use super::{Place, Table};
use crate::columns::{LabelKind, LabelMeta, Labels, NO_CLASS, Split};
use crate::config::{CLASSES_MAX, SplitValues};
use crate::error::{Result, SchemaError};
use crate::ids::IdType;

const LABELS: &str =
    "integers (class numbers), strings (class names), lists of zeros and ones, floats (numbers)";
const SPLITS: &str = "strings (train, val, test), or integers with `split_values`";

/// What a label column's type says about its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelRole {
    Class,
    ClassName,
    Multi { width: usize },
    Number,
}

/// Checks the label column.
pub(super) fn plan_label(table: &Table, column: &str) -> Result<LabelRole> {
    let role = table.column("label", column, "labels", LABELS, |data_type| {
        if is_string(data_type) {
            return Some((LabelRole::ClassName, false));
        }
        Some(match Width::of(data_type)? {
            Width::Fixed(width) => (LabelRole::Multi { width }, false),
            Width::Varying => (LabelRole::Multi { width: 0 }, true),
            Width::Scalar if data_type.is_floating() => (LabelRole::Number, false),
            Width::Scalar => (LabelRole::Class, false),
        })
    })?;
    // They are written in the type of the first file, which must not lose those of another.
    if matches!(role.0, LabelRole::Class | LabelRole::Number) {
        table.same_type("label", column, "labels")?;
    }
    Ok(match role {
        (LabelRole::Multi { .. }, true) => LabelRole::Multi {
            width: decode::first_list_len(table, column)?.unwrap_or(0),
        },
        (role, _) => role,
    })
}

/// Says why a column cannot hold `num_classes` class numbers, which predictions are written as.
pub(super) fn num_classes_problem(
    table: &Table,
    column: Option<&str>,
    num_classes: u32,
) -> Result<Option<String>> {
    let column = column.unwrap_or_default();
    let data_type = table.data_type("label", column)?;
    let max: u32 = match data_type {
        DataType::Int8 => 0x7f,
        DataType::UInt8 => 0xff,
        DataType::Int16 => 0x7fff,
        DataType::UInt16 => 0xffff,
        DataType::Boolean => 1,
        _ => u32::MAX,
    };
    let fits = num_classes - 1 <= max;
    Ok((!fits).then(|| {
        format!("is {num_classes}; column `{column}` is {data_type}, whose greatest is {max}")
    }))
}

/// Checks the split column against `split_values`.
pub(super) fn plan_split(table: &Table, column: &str, values: Option<SplitValues>) -> Result<()> {
    let is_text = table.column("split", column, "splits", SPLITS, |data_type| {
        if is_string(data_type) {
            Some(true)
        } else {
            data_type.is_integer().then_some(false)
        }
    })?;
    if !is_text {
        table.same_type("split", column, "splits")?;
    }
    let key = table.key("split_values");
    match (is_text, values) {
        (true, Some(_)) => Err(SchemaError::Key {
            key,
            problem: format!("column `{column}` holds words; leave out the numbers"),
        }),
        (false, None) => Err(SchemaError::Key {
            key,
            problem: format!(
                "column `{column}` holds numbers; say which, as in \
                 {{ train = 0, val = 1, test = 2 }}"
            ),
        }),
        (false, Some(values)) if !are_distinct(values) => Err(SchemaError::Key {
            key,
            problem: "the numbers must differ".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn are_distinct(values: SplitValues) -> bool {
    let mut numbers = vec![values.train, values.val, values.test];
    numbers.extend(values.none);
    let written = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len() == written
}

fn is_string(data_type: &DataType) -> bool {
    IdType::of(data_type) == Some(IdType::Utf8)
}

/// Converts a column, telling values that do not fit from nulls.
fn to_i64(place: Place<'_>, name: &str, array: &dyn Array) -> Result<ArrayRef> {
    let converted = cast(array, &DataType::Int64).map_err(place.convert())?;
    if converted.null_count() > array.null_count() {
        let lost = |row: &usize| converted.is_null(*row) && !array.is_null(*row);
        let row = (0..array.len()).find(lost).unwrap_or_default();
        return Err(place.value(name, row, "is beyond int64"));
    }
    Ok(converted)
}

/// Reads class numbers; null and -1 are none.
///
/// `limit` is the number of classes and whether the job file gave it.
fn classes(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    limit: Option<u32>,
    mut push: impl FnMut(u32),
) -> Result<()> {
    let array = to_i64(place, name, array)?;
    let numbers = array.as_primitive::<Int64Type>();
    for (row, class) in numbers.iter().enumerate() {
        match class {
            None | Some(-1) => push(NO_CLASS),
            Some(class) => match u32::try_from(class) {
                Ok(class) if class < limit.unwrap_or(CLASSES_MAX) => push(class),
                _ => {
                    let bound = limit.unwrap_or(CLASSES_MAX);
                    let problem = format!(
                        "is {class}; allowed are class numbers from 0 below {bound}, and -1 or \
                         null for none"
                    );
                    return Err(place.value(name, row, problem));
                }
            },
        }
    }
    Ok(())
}

/// Returns the greatest class of a batch and checks the range.
pub(super) fn max_class(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    limit: Option<u32>,
) -> Result<Option<u32>> {
    let mut max = None;
    classes(place, name, array, limit, |class| {
        if class != NO_CLASS {
            max = max.max(Some(class));
        }
    })?;
    Ok(max)
}

/// Appends which rows of a batch have a label.
pub(super) fn append_presence(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    role: LabelRole,
    limit: Option<u32>,
    out: &mut Vec<bool>,
) -> Result<()> {
    if role == LabelRole::Class {
        return classes(place, name, array, limit, |class| {
            out.push(class != NO_CLASS)
        });
    }
    out.extend((0..array.len()).map(|row| array.is_valid(row)));
    Ok(())
}

/// Returns a column of strings in the plain encoding.
pub(super) fn strings(place: Place<'_>, array: &dyn Array) -> Result<ArrayRef> {
    cast(array, &DataType::LargeUtf8).map_err(place.convert())
}

/// Appends a batch's labels.
pub(crate) fn append_labels(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    meta: &LabelMeta,
    labels: &mut Labels,
) -> Result<()> {
    match (labels, &meta.kind) {
        (Labels::Class(out), LabelKind::Class { num_classes }) => {
            classes(place, name, array, Some(*num_classes), |class| {
                out.push(class)
            })
        }
        (Labels::Class(out), LabelKind::ClassName { names }) => {
            append_names(place, name, array, names, out)
        }
        (
            Labels::Multi {
                width,
                values,
                present,
            },
            LabelKind::MultiLabel { .. },
        ) => append_multi(place, name, array, *width, values, present),
        (Labels::Number(out), LabelKind::Number) => append_numbers(place, name, array, out),
        _ => panic!("labels are of the kind that their description says"),
    }
}

fn append_names(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    names: &[String],
    out: &mut Vec<u32>,
) -> Result<()> {
    let array = strings(place, array)?;
    for (row, text) in array.as_string::<i64>().iter().enumerate() {
        let class = match text {
            None => NO_CLASS,
            Some(text) => match names.binary_search_by(|known| known.as_str().cmp(text)) {
                Ok(class) => u32::try_from(class).expect("classes fit 32 bits"),
                Err(_) => {
                    return Err(place.value(name, row, format!("is {text:?}, no known class")));
                }
            },
        };
        out.push(class);
    }
    Ok(())
}

fn append_multi(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    width: usize,
    out: &mut Vec<f32>,
    present: &mut Vec<bool>,
) -> Result<()> {
    let (lists, values) = Lists::of(array).expect("the plan checked that it is a list column");
    let numbers = decode::to_f32(place, values.as_ref())?;
    for row in 0..array.len() {
        if array.is_null(row) {
            out.resize(out.len() + width, 0.0);
            present.push(false);
            continue;
        }
        let range = lists.range(row);
        if range.len() != width {
            let problem = format!("holds {} classes, the first row holds {width}", range.len());
            return Err(place.value(name, row, problem));
        }
        if range.clone().any(|i| values.is_null(i)) {
            return Err(place.value(name, row, "holds a null"));
        }
        let classes = &numbers[range];
        if let Some(other) = classes.iter().find(|&&class| class != 0.0 && class != 1.0) {
            return Err(place.value(name, row, format!("holds {other}; allowed are 0 and 1")));
        }
        out.extend_from_slice(classes);
        present.push(true);
    }
    Ok(())
}

fn append_numbers(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    out: &mut Vec<f32>,
) -> Result<()> {
    let array = cast(array, &DataType::Float32).map_err(place.convert())?;
    for (row, number) in array.as_primitive::<Float32Type>().iter().enumerate() {
        match number {
            None => out.push(f32::NAN),
            Some(number) if number.is_finite() => out.push(number),
            Some(number) => {
                let problem =
                    format!("is {number}; allowed are finite float32 numbers, and null for none");
                return Err(place.value(name, row, problem));
            }
        }
    }
    Ok(())
}

/// Appends a batch's splits.
pub(crate) fn append_splits(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    values: Option<SplitValues>,
    out: &mut Vec<Split>,
) -> Result<()> {
    if let Some(values) = values {
        return append_split_numbers(place, name, array, values, out);
    }
    let array = strings(place, array)?;
    for (row, text) in array.as_string::<i64>().iter().enumerate() {
        out.push(match text {
            None | Some("" | "none") => Split::None,
            Some("train") => Split::Train,
            Some("val") => Split::Val,
            Some("test") => Split::Test,
            Some(other) => {
                let problem = format!(
                    "is {other:?}; allowed are \"train\", \"val\", \"test\", and \"none\", \"\" or \
                     null for none"
                );
                return Err(place.value(name, row, problem));
            }
        });
    }
    Ok(())
}

fn append_split_numbers(
    place: Place<'_>,
    name: &str,
    array: &dyn Array,
    values: SplitValues,
    out: &mut Vec<Split>,
) -> Result<()> {
    let array = to_i64(place, name, array)?;
    for (row, number) in array.as_primitive::<Int64Type>().iter().enumerate() {
        out.push(match number {
            None => Split::None,
            Some(number) if number == values.train => Split::Train,
            Some(number) if number == values.val => Split::Val,
            Some(number) if number == values.test => Split::Test,
            Some(number) if values.none == Some(number) => Split::None,
            Some(-1) => Split::None,
            Some(other) => {
                let none = values.none.map(|none| format!("{none}, "));
                let problem = format!(
                    "is {other}; `split_values` allows {} (train), {} (val), {} (test), and {}-1 \
                     or null for none (`none` names another number)",
                    values.train,
                    values.val,
                    values.test,
                    none.unwrap_or_default()
                );
                return Err(place.value(name, row, problem));
            }
        });
    }
    Ok(())
}
