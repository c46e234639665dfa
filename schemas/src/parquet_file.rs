//! Reading of Parquet files that this program wrote, and their list columns.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, ListArray, PrimitiveArray};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};
use parquet::arrow::ProjectionMask;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dataset::FileEntry;
use crate::error::{Result, SchemaError};
use crate::input::Place;
use crate::storage::{self, ParquetInput};
use crate::xxh;

/// Version of the tables' schemas, in each file's metadata.
pub(crate) const TABLE_SCHEMA: &str = "1";

/// Rows of a batch.
const READ_BATCH_ROWS: usize = 4096;

/// The field of a list column without nulls.
pub(crate) fn list_field(name: &str, item: DataType) -> Field {
    Field::new(name, DataType::List(item_field(item)), false)
}

pub(crate) fn item_field(item: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", item, false))
}

/// Makes a list column; `ends` holds the end of each row in `values`.
pub(crate) fn list_array(ends: &[usize], values: ArrayRef) -> Result<ArrayRef> {
    let mut offsets = Vec::with_capacity(ends.len() + 1);
    offsets.push(0);
    for &end in ends {
        offsets.push(
            i32::try_from(end).map_err(|_overflow| SchemaError::Invalid {
                what: "list column",
                problem: format!("{end} values in one batch, allowed are 2147483647"),
            })?,
        );
    }
    let offset_buffer = OffsetBuffer::new(ScalarBuffer::from(offsets));
    let item = item_field(values.data_type().clone());
    Ok(Arc::new(ListArray::new(item, offset_buffer, values, None)))
}

/// Makes an array of numbers.
pub(crate) fn number_array<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), None))
}

/// Size up to which a file is held in memory as a whole while it is read. A larger file is read
/// twice, once for its checksum, so that memory stays bounded.
const WHOLE_BYTES_MAX: u64 = 32 << 20;

/// A Parquet file that this program wrote, open for reading.
pub(crate) struct TableReader<'a> {
    path: &'a Path,
    input: ParquetInput,
    pub(crate) num_rows: usize,
}

/// One batch of a [`TableReader`].
pub(crate) struct Batch<'a> {
    pub(crate) path: &'a Path,
    pub(crate) first_row: u64,
    pub(crate) rows: RecordBatch,
}

impl<'a> TableReader<'a> {
    /// Opens a file of a finished output: checks that it has the bytes that `entry` lists, and its
    /// schema version under metadata key `key`.
    pub(crate) fn open(path: &'a Path, entry: &FileEntry, key: &str) -> Result<Self> {
        let input = open_checked(path, entry)?;
        let num_rows = input.metadata.metadata().file_metadata().num_rows();
        let reader = Self {
            path,
            num_rows: usize::try_from(num_rows).unwrap_or_default(),
            input,
        };
        let found = reader.value(key);
        if found != Some(TABLE_SCHEMA) {
            let found = found.unwrap_or("nothing");
            let problem =
                format!("its metadata says `{key}` = {found}, this build reads {TABLE_SCHEMA}");
            return Err(broken(path, problem));
        }
        Ok(reader)
    }

    /// Returns a value of the file's metadata.
    fn value(&self, key: &str) -> Option<&str> {
        let metadata = self.input.metadata.metadata().file_metadata();
        let pairs = metadata.key_value_metadata().map(Vec::as_slice);
        let mut pairs = pairs.unwrap_or_default().iter();
        let pair = pairs.find(|pair| pair.key == key)?;
        pair.value.as_deref()
    }

    /// Checks that the file's metadata has the manifest's value under the key `key`.
    pub(crate) fn agrees<T>(&self, key: &str, manifest: &T) -> Result<()>
    where
        T: PartialEq + Serialize + DeserializeOwned,
    {
        let text = self.value(key).unwrap_or("null");
        let own: Option<T> = serde_json::from_str(text).ok();
        if own.as_ref() == Some(manifest) {
            return Ok(());
        }
        let own = serde_json::to_value(own).unwrap_or_default();
        let manifest = serde_json::to_value(manifest).unwrap_or_default();
        let names = manifest
            .as_object()
            .into_iter()
            .flat_map(|keys| keys.keys());
        let differs = names
            .into_iter()
            .find(|name| own.get(name) != manifest.get(name));
        let problem = match differs {
            Some(name) if !own.is_null() => format!(
                "its metadata says `{name}` = {}, its manifest {}",
                own[name], manifest[name]
            ),
            _ => format!("its metadata has no `{key}` that can be read"),
        };
        Err(broken(self.path, problem))
    }

    pub(crate) fn has_column(&self, name: &str) -> bool {
        self.input
            .metadata
            .schema()
            .column_with_name(name)
            .is_some()
    }

    /// Returns the columns.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(self.input.metadata.schema())
    }

    /// Reads a row group; none after the last one.
    pub(crate) fn row_group(&self, group: usize) -> Result<Option<Vec<RecordBatch>>> {
        if group >= self.input.metadata.metadata().num_row_groups() {
            return Ok(None);
        }
        let columns = ProjectionMask::all();
        let batches = self.input.batches(vec![group], columns, READ_BATCH_ROWS)?;
        let batches = batches.map(|batch| batch.map_err(of_ours));
        batches.collect::<Result<_>>().map(Some)
    }

    pub(crate) fn for_each(self, mut consume: impl FnMut(&Batch<'_>) -> Result<()>) -> Result<()> {
        let mut first_row = 0;
        let row_groups = (0..self.input.metadata.metadata().num_row_groups()).collect();
        let columns = ProjectionMask::all();
        for batch in self.input.batches(row_groups, columns, READ_BATCH_ROWS)? {
            let rows = batch.map_err(of_ours)?;
            let num_rows = rows.num_rows() as u64;
            consume(&Batch {
                path: self.path,
                first_row,
                rows,
            })?;
            first_row += num_rows;
        }
        Ok(())
    }
}

fn broken(path: &Path, problem: String) -> SchemaError {
    SchemaError::Broken {
        path: path.to_owned(),
        problem,
    }
}

/// Opens a file whose size and checksum are those that `entry` lists.
fn open_checked(path: &Path, entry: &FileEntry) -> Result<ParquetInput> {
    let check = |checksum: String| match checksum == entry.checksum {
        true => Ok(()),
        false => {
            let problem = format!("checksum {checksum}, its manifest says {}", entry.checksum);
            Err(broken(path, problem))
        }
    };
    let opened = if entry.bytes <= WHOLE_BYTES_MAX {
        let bytes = storage::read_sized(path, entry.bytes)?;
        check(xxh::checksum(&bytes))?;
        ParquetInput::of_bytes(path, bytes)
    } else {
        let found = storage::size(path)?.unwrap_or_default();
        if found != entry.bytes {
            let problem = format!("{found} bytes, its manifest says {}", entry.bytes);
            return Err(broken(path, problem));
        }
        check(xxh::file_checksum(path)?)?;
        ParquetInput::open(path)
    };
    opened.map_err(of_ours)
}

/// Turns an error of an input file into one of a file that this program wrote, since a user cannot
/// mend its data.
fn of_ours(error: SchemaError) -> SchemaError {
    match error {
        SchemaError::Unreadable { path, source } => SchemaError::Arrow {
            action: "read",
            path,
            source,
        },
        other => other,
    }
}

impl Batch<'_> {
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            path: self.path,
            first_row: self.first_row,
            kept: None,
            csv: None,
        }
    }

    pub(crate) fn column(&self, name: &str) -> Result<&ArrayRef> {
        self.rows
            .column_by_name(name)
            .ok_or_else(|| self.broken(format!("column `{name}` is missing")))
    }

    pub(crate) fn numbers<T: ArrowPrimitiveType>(&self, name: &str) -> Result<&[T::Native]> {
        let array = self.column(name)?;
        match array.as_primitive_opt::<T>() {
            Some(numbers) if numbers.null_count() == 0 => Ok(numbers.values()),
            _ => Err(self.wrong_type(name, array, &T::DATA_TYPE)),
        }
    }

    pub(crate) fn list(&self, name: &str) -> Result<(Vec<usize>, ArrayRef)> {
        let array = self.column(name)?;
        let Some(list) = array
            .as_list_opt::<i32>()
            .filter(|list| list.null_count() == 0)
        else {
            return Err(self.wrong_type(name, array, "a list"));
        };
        let offsets = list.value_offsets().iter();
        let offsets = offsets.map(|&offset| usize::try_from(offset).unwrap_or_default());
        Ok((offsets.collect(), ArrayRef::clone(list.values())))
    }

    /// A list column of numbers: offsets, one more than rows, and values.
    pub(crate) fn number_list<T: ArrowPrimitiveType>(&self, name: &str) -> Result<NumberList<T>> {
        let (offsets, values) = self.list(name)?;
        match values.as_primitive_opt::<T>() {
            Some(numbers) if numbers.null_count() == 0 => Ok(NumberList {
                offsets,
                values: numbers.values().clone(),
            }),
            _ => Err(self.wrong_type(name, &values, &T::DATA_TYPE)),
        }
    }

    pub(crate) fn broken(&self, problem: String) -> SchemaError {
        broken(self.path, problem)
    }

    fn wrong_type(
        &self,
        name: &str,
        array: &ArrayRef,
        want: impl std::fmt::Display,
    ) -> SchemaError {
        let found = array.data_type();
        let nulls = array.null_count();
        self.broken(format!(
            "column `{name}` is {found} with {nulls} nulls, not {want} without nulls"
        ))
    }
}

/// A list column of numbers of one batch.
pub(crate) struct NumberList<T: ArrowPrimitiveType> {
    offsets: Vec<usize>,
    values: ScalarBuffer<T::Native>,
}

impl<T: ArrowPrimitiveType> NumberList<T> {
    pub(crate) fn row(&self, row: usize) -> &[T::Native] {
        &self.values[self.offsets[row]..self.offsets[row + 1]]
    }

    /// The values of all rows.
    pub(crate) fn all(&self) -> &[T::Native] {
        let last = self.offsets.len() - 1;
        &self.values[self.offsets[0]..self.offsets[last]]
    }

    /// The length of each row.
    pub(crate) fn lens(&self) -> impl Iterator<Item = usize> {
        self.offsets.windows(2).map(|pair| pair[1] - pair[0])
    }
}
