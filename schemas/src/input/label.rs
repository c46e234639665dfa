//! Label columns of input tables.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, Int64Type};

use super::decode::{self, Lists, Width};
use super::id_column::text_of_bytes;
use super::type_words::type_words;
use super::{Place, Table};
use crate::columns::{LabelKind, LabelMeta, Labels, NO_CLASS};
use crate::config::{CLASSES_MAX, NodesSpec, NumericLabel};
use crate::error::{Result, SchemaError};
use crate::ids::IdType;

const LABELS: &str =
    "integers (class numbers), strings (class names), lists of zeros and ones, floats (numbers)";

/// Kind of a column's labels, which follows from its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelRole {
    Class,
    ClassName,
    Multi { width: usize },
    Number,
}

/// Checks the label column; `kind` says whether numbers are classes or numbers to predict.
pub(super) fn plan_label(
    table: &Table,
    column: &str,
    kind: Option<NumericLabel>,
) -> Result<LabelRole> {
    let role = table.column("label", column, "labels", LABELS, |data_type| {
        if is_string(data_type) {
            return Some((LabelRole::ClassName, false));
        }
        Some(
            match Width::of(data_type).filter(|_| !is_decimal(data_type))? {
                Width::Fixed(width) => (LabelRole::Multi { width }, false),
                Width::Varying => (LabelRole::Multi { width: 0 }, true),
                Width::Scalar => match kind {
                    Some(NumericLabel::Class) => (LabelRole::Class, false),
                    Some(NumericLabel::Number) => (LabelRole::Number, false),
                    None if data_type.is_floating() => (LabelRole::Number, true),
                    None => (LabelRole::Class, false),
                },
            },
        )
    })?;
    // Labels are written in the type of the first file, which must hold those of every other file.
    if matches!(role.0, LabelRole::Class | LabelRole::Number) {
        table.same_type("label", column, "labels")?;
    } else if kind.is_some() {
        return Err(SchemaError::Key {
            key: table.key("label_kind"),
            problem: "is for labels that are numbers; leave it out".to_owned(),
        });
    }
    Ok(match role {
        (LabelRole::Multi { .. }, true) => LabelRole::Multi {
            width: decode::first_list_len(table, column)?.unwrap_or(0),
        },
        (LabelRole::Number, true) => {
            refuse_whole_numbers(table, column)?;
            LabelRole::Number
        }
        (role, _) => role,
    })
}

/// Refuses a column of floats without any fraction: they may be class numbers, which pandas writes
/// as floats if some are missing, or numbers to predict.
fn refuse_whole_numbers(table: &Table, column: &str) -> Result<()> {
    let mut has_whole = false;
    for unit in table.units() {
        for item in table.batches(unit, &[column], 1)? {
            let read = item?;
            let array = decode::column(&read.rows, column);
            let numbers = cast(array, &DataType::Float64).map_err(read.place().convert())?;
            for number in numbers.as_primitive::<Float64Type>().iter().flatten() {
                if number.is_finite() && number.fract() != 0.0 {
                    return Ok(());
                }
                has_whole |= number.is_finite();
            }
        }
    }
    if !has_whole {
        return Ok(());
    }
    Err(SchemaError::Key {
        key: table.key("label_kind"),
        problem: format!(
            "is missing: column `{column}` holds floats, all of them whole: they may be class \
             numbers (pandas writes floats if some are missing) or numbers to predict; allowed are \
             \"class\" and \"number\""
        ),
    })
}

/// Checks `label_kind` and `num_classes` against the labels.
pub(super) fn check_settings(
    spec: &NodesSpec,
    table: &Table,
    role: Option<LabelRole>,
) -> Result<()> {
    let wrong = |key: &str, problem: String| {
        Err(SchemaError::Key {
            key: table.key(key),
            problem,
        })
    };
    if role.is_none() && spec.label_kind.is_some() {
        return wrong(
            "label_kind",
            "needs `label`, the column it is about".to_owned(),
        );
    }
    let Some(num_classes) = spec.num_classes else {
        return Ok(());
    };
    let problem = if role != Some(LabelRole::Class) {
        Some("is for labels that are class numbers; leave it out".to_owned())
    } else if !(1..=CLASSES_MAX).contains(&num_classes) {
        None // a mistake of its own
    } else {
        num_classes_problem(table, spec.label.as_deref(), num_classes)?
    };
    problem.map_or(Ok(()), |problem| wrong("num_classes", problem))
}

/// Returns the type in which labels and predictions are written, for labels of a type.
///
/// It is the type of the labels, without the metadata of list items, such as Iceberg's field ids.
/// For integers that are numbers to predict it is a float type, since predictions have a fraction.
pub(super) fn written_type(role: LabelRole, data_type: DataType) -> DataType {
    let item = |field: FieldRef| {
        let (name, nullable) = (field.name().clone(), field.is_nullable());
        Arc::new(Field::new(name, field.data_type().clone(), nullable))
    };
    match data_type {
        DataType::List(field) => DataType::List(item(field)),
        DataType::LargeList(field) => DataType::LargeList(item(field)),
        DataType::FixedSizeList(field, width) => DataType::FixedSizeList(item(field), width),
        other if role == LabelRole::Number && !other.is_floating() => DataType::Float32,
        other => other,
    }
}

/// Returns why a column's type cannot hold `num_classes` class numbers, as which predictions are
/// written.
fn num_classes_problem(
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
        // Beyond this number, float16 does not hold every integer.
        DataType::Float16 => 0x800,
        _ => u32::MAX,
    };
    let fits = num_classes - 1 <= max;
    Ok((!fits).then(|| {
        let found = type_words(&data_type);
        format!("is {num_classes}; column `{column}` is {found}, whose greatest is {max}")
    }))
}

pub(super) fn is_string(data_type: &DataType) -> bool {
    IdType::of(data_type) == Some(IdType::Utf8)
}

fn is_decimal(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_decimal()
        }
        other => other.is_decimal(),
    }
}

/// Converts a column; a value that does not fit is an error, not a null.
pub(super) fn to_i64(place: Place<'_>, name: &str, array: &dyn Array) -> Result<ArrayRef> {
    let converted = cast(array, &DataType::Int64).map_err(place.convert())?;
    if converted.null_count() > array.null_count() {
        let lost = |row: &usize| converted.is_null(*row) && !array.is_null(*row);
        let row = (0..array.len()).find(lost).unwrap_or_default();
        return Err(place.value(name, row, "is beyond int64"));
    }
    Ok(converted)
}

/// Converts a column of class numbers. Floats must be whole; NaN becomes null.
fn class_numbers(place: Place<'_>, name: &str, array: &dyn Array) -> Result<ArrayRef> {
    if !array.data_type().is_floating() {
        return to_i64(place, name, array);
    }
    let floats = cast(array, &DataType::Float64).map_err(place.convert())?;
    let floats = floats.as_primitive::<Float64Type>();
    let is_wrong = |number: f64| !number.is_nan() && number.fract() != 0.0;
    let wrong = |row: &usize| floats.is_valid(*row) && is_wrong(floats.value(*row));
    if let Some(row) = (0..floats.len()).find(wrong) {
        let problem = format!("is {}; class numbers are whole", floats.value(row));
        return Err(place.value(name, row, problem));
    }
    cast(floats, &DataType::Int64).map_err(place.convert())
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
    let array = class_numbers(place, name, array)?;
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

/// Appends, for each row of a batch, whether it has a label.
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
pub(super) fn strings(place: Place<'_>, name: &str, array: &dyn Array) -> Result<ArrayRef> {
    if let Some(text) = text_of_bytes(place, name, array)? {
        return Ok(text);
    }
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
    let array = strings(place, name, array)?;
    for (row, text) in array.as_string::<i64>().iter().enumerate() {
        let class = match text {
            None => NO_CLASS,
            Some(text) => match names.binary_search_by(|known| known.as_str().cmp(text)) {
                Ok(class) => u32::try_from(class).expect("classes fit 32 bits"),
                Err(_) => {
                    return Err(place.value(name, row, format!("is {text:?}, an unknown class")));
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
    let source = array;
    let array = cast(array, &DataType::Float32).map_err(place.convert())?;
    for (row, number) in array.as_primitive::<Float32Type>().iter().enumerate() {
        match number {
            None => out.push(f32::NAN),
            Some(number) if number.is_finite() => out.push(number),
            Some(number) => {
                let problem = format!(
                    "{}; allowed are finite float32 numbers, and null for none",
                    decode::not_finite(source, row, number)
                );
                return Err(place.value(name, row, problem));
            }
        }
    }
    Ok(())
}
