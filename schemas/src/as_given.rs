//! Label and split columns of output tables, in the types that the input had.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Int64Array, LargeListArray, ListArray,
    StringArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field};

use crate::columns::{LabelKind, LabelMeta, Labels, NO_CLASS, Split, SplitMeta};
use crate::error::{Result, SchemaError};
use crate::input::{label, split};
use crate::parquet_file::Batch;

/// The field of a label or prediction column.
pub(crate) fn label_field(name: &str, meta: &LabelMeta) -> Result<Field> {
    Ok(Field::new(name, parse(&meta.data_type)?, true))
}

/// The field of the split column.
pub(crate) fn split_field(meta: &SplitMeta) -> Result<Field> {
    Ok(Field::new("split", parse(&meta.data_type)?, true))
}

fn parse(data_type: &str) -> Result<DataType> {
    DataType::from_str(data_type).map_err(|source| SchemaError::Invalid {
        what: "column type",
        problem: source.to_string(),
    })
}

/// Makes a label column; no label is null.
pub(crate) fn label_array(labels: &Labels, meta: &LabelMeta) -> Result<ArrayRef> {
    let data_type = parse(&meta.data_type)?;
    let plain: ArrayRef = match (labels, &meta.kind) {
        (Labels::Class(classes), LabelKind::Class { .. }) => {
            let given = |&class: &u32| (class != NO_CLASS).then_some(i64::from(class));
            Arc::new(classes.iter().map(given).collect::<Int64Array>())
        }
        (Labels::Class(classes), LabelKind::ClassName { names }) => {
            let name = |&class: &u32| names.get(class as usize);
            Arc::new(classes.iter().map(name).collect::<StringArray>())
        }
        (Labels::Number(numbers), LabelKind::Number) => {
            let given = |&number: &f32| (!number.is_nan()).then_some(number);
            Arc::new(numbers.iter().map(given).collect::<Float32Array>())
        }
        (
            Labels::Multi {
                values, present, ..
            },
            LabelKind::MultiLabel { .. },
        ) => {
            return multi_array(values, present, &data_type);
        }
        _ => {
            return Err(SchemaError::Invalid {
                what: "labels",
                problem: format!("they are not of kind {:?}", meta.kind),
            });
        }
    };
    convert(plain.as_ref(), &data_type)
}

fn convert(array: &dyn Array, data_type: &DataType) -> Result<ArrayRef> {
    // A value that the type cannot hold is an error here, not a null.
    let strict = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(array, data_type, &strict).map_err(|source| SchemaError::Invalid {
        what: "label or split column",
        problem: source.to_string(),
    })
}

fn multi_array(values: &[f32], present: &[bool], data_type: &DataType) -> Result<ArrayRef> {
    let item = match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item,
        other => {
            return Err(SchemaError::Invalid {
                what: "labels",
                problem: format!("several classes do not fit a column of type {other}"),
            });
        }
    };
    let items = convert(&Float32Array::from(values.to_vec()), item.data_type())?;
    let nulls = present
        .contains(&false)
        .then(|| NullBuffer::from(present.to_vec()));
    let width = values.len().checked_div(present.len()).unwrap_or(0);
    let item = Arc::clone(item);
    Ok(match data_type {
        DataType::FixedSizeList(_, size) => {
            Arc::new(FixedSizeListArray::new(item, *size, items, nulls))
        }
        DataType::LargeList(_) => {
            let ends = (0..=present.len() as u64).map(|row| (row * width as u64).cast_signed());
            let offsets = OffsetBuffer::new(ends.collect::<ScalarBuffer<i64>>());
            Arc::new(LargeListArray::new(item, offsets, items, nulls))
        }
        _ => {
            let offsets = OffsetBuffer::from_repeated_length(width, present.len());
            Arc::new(ListArray::new(item, offsets, items, nulls))
        }
    })
}

/// Makes a split column; no split is null.
pub(crate) fn split_array(splits: &[Split], meta: &SplitMeta) -> Result<ArrayRef> {
    let data_type = parse(&meta.data_type)?;
    let plain: ArrayRef = match meta.values {
        None => {
            let word = |&split: &Split| (split != Split::None).then(|| split.as_str());
            Arc::new(splits.iter().map(word).collect::<StringArray>())
        }
        Some(values) => {
            let number = |split: &Split| match split {
                Split::None => None,
                Split::Train => Some(values.train),
                Split::Val => Some(values.val),
                Split::Test => Some(values.test),
            };
            Arc::new(splits.iter().map(number).collect::<Int64Array>())
        }
    };
    convert(plain.as_ref(), &data_type)
}

/// Appends the labels of a batch of a file that this program wrote.
pub(crate) fn read_labels(
    batch: &Batch<'_>,
    name: &str,
    meta: &LabelMeta,
    labels: &mut Labels,
) -> Result<()> {
    let array = batch.column(name)?;
    label::append_labels(batch.place(), name, array, meta, labels).map_err(ours(batch.path))
}

/// Appends the splits of a batch of a file that this program wrote.
pub(crate) fn read_splits(
    batch: &Batch<'_>,
    meta: &SplitMeta,
    splits: &mut Vec<Split>,
) -> Result<()> {
    let array = batch.column("split")?;
    split::append_splits(batch.place(), "split", array, meta.values, splits)
        .map_err(ours(batch.path))
}

/// Turns an error of an input value into [`SchemaError::Broken`]: this program wrote the file.
fn ours(path: &Path) -> impl FnOnce(SchemaError) -> SchemaError {
    let path = path.to_owned();
    move |error| match error {
        SchemaError::Value {
            column,
            row,
            problem,
            ..
        } => SchemaError::Broken {
            path,
            problem: format!("column `{column}`, {row}: {problem}"),
        },
        other => other,
    }
}
