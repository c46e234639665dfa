//! Converts id columns from and to Arrow.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, Int64Array, OffsetSizeTrait, StringArray, UInt64Array,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;

use super::{IdType, Ids, SIGN_BIT, Values, index};
use crate::error::{Result, SchemaError};

impl Ids {
    /// Reads an Arrow column: integers of any width, strings of any encoding, dictionaries of those.
    ///
    /// The caller checks for nulls: the id of a null is the value that the array holds there.
    ///
    /// # Errors
    ///
    /// If the array is of a type that ids cannot have.
    pub fn from_array(array: &dyn Array) -> Result<Self> {
        let data_type = array.data_type();
        let Some(id_type) = IdType::of(data_type) else {
            return Err(SchemaError::Invalid {
                what: "ids",
                problem: format!("a column of type {data_type} holds no ids"),
            });
        };
        Ok(match data_type {
            DataType::Int8 => signed::<Int8Type>(id_type, array),
            DataType::Int16 => signed::<Int16Type>(id_type, array),
            DataType::Int32 => signed::<Int32Type>(id_type, array),
            DataType::Int64 => signed::<Int64Type>(id_type, array),
            DataType::UInt8 => signed::<UInt8Type>(id_type, array),
            DataType::UInt16 => signed::<UInt16Type>(id_type, array),
            DataType::UInt32 => signed::<UInt32Type>(id_type, array),
            DataType::UInt64 => Self::from_keys(
                id_type,
                array.as_primitive::<UInt64Type>().values().to_vec(),
            ),
            DataType::Utf8 => text::<i32>(array),
            DataType::LargeUtf8 => text::<i64>(array),
            DataType::Utf8View => {
                let mut ids = Self::with_capacity(id_type, array.len());
                array
                    .as_string_view()
                    .iter()
                    .for_each(|id| ids.push_str(id.unwrap_or_default()));
                ids
            }
            _ => {
                let plain = cast(array, &id_type.data_type()).map_err(invalid_array)?;
                return Self::from_array(plain.as_ref());
            }
        })
    }

    /// Makes an Arrow column without nulls, of [`IdType::data_type`].
    ///
    /// # Panics
    ///
    /// If strings take 2 GiB or more; writers cut their batches well below.
    pub fn to_array(&self) -> ArrayRef {
        self.slice_to_array(0..self.len())
    }

    /// Makes an Arrow column of a range of ids.
    ///
    /// # Panics
    ///
    /// If strings take 2 GiB or more; writers cut their batches well below.
    pub fn slice_to_array(&self, range: Range<usize>) -> ArrayRef {
        match &self.values {
            Values::Keys(keys) => {
                let bits = keys[range].iter().map(|&key| self.value_bits(key));
                match self.id_type {
                    IdType::Int32 => Arc::new(Int32Array::from_iter_values(bits.map(low_i32))),
                    IdType::Int64 => {
                        Arc::new(Int64Array::from_iter_values(bits.map(u64::cast_signed)))
                    }
                    _ => Arc::new(UInt64Array::from_iter_values(bits)),
                }
            }
            Values::Text { offsets, bytes } => {
                let ends = &offsets[range.start..=range.end];
                let start = ends[0];
                let end = ends[ends.len() - 1];
                let relative = ends.iter().map(|offset| {
                    i32::try_from(offset - start).expect("a batch of strings is below 2 GiB")
                });
                let offset_buffer = OffsetBuffer::new(relative.collect::<ScalarBuffer<i32>>());
                let data = Buffer::from_slice_ref(&bytes[index(start)..index(end)]);
                Arc::new(StringArray::new(offset_buffer, data, None))
            }
        }
    }
}

fn invalid_array(source: ArrowError) -> SchemaError {
    SchemaError::Invalid {
        what: "ids",
        problem: source.to_string(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the key was made from 32 bits"
)]
fn low_i32(bits: u64) -> i32 {
    bits.cast_signed() as i32
}

fn signed<T: ArrowPrimitiveType>(id_type: IdType, array: &dyn Array) -> Ids
where
    T::Native: Into<i64>,
{
    let values = array.as_primitive::<T>().values().iter();
    let keys = values.map(|&value| Into::<i64>::into(value).cast_unsigned() ^ SIGN_BIT);
    Ids::from_keys(id_type, keys.collect())
}

fn text<O: OffsetSizeTrait>(array: &dyn Array) -> Ids {
    let array = array.as_string::<O>();
    let first = array.value_offsets()[0];
    let last = array.value_offsets()[array.len()];
    let relative = |offset: &O| (*offset - first).as_usize() as u64;
    let offsets = array.value_offsets().iter().map(relative).collect();
    let bytes = array.value_data()[first.as_usize()..last.as_usize()].to_vec();
    Ids {
        id_type: IdType::Utf8,
        values: Values::Text { offsets, bytes },
    }
}
