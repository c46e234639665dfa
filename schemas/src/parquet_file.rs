//! Parquet files of our own: how they are written, opened and decoded.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, ListArray, PrimitiveArray};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::dataset::{FileEntry, Output, PartFile};
use crate::error::{Result, SchemaError};
use crate::input::Place;

/// Version of the tables' schemas, in each file's metadata.
pub(crate) const TABLE_SCHEMA: &str = "1";

/// Encoded bytes of a row group, which the writer holds in memory.
const ROW_GROUP_BYTES_MAX: usize = 16 << 20;
const ROW_GROUP_ROWS_MAX: usize = 1 << 20;
const ZSTD_LEVEL: i32 = 1;
/// Bytes of a float column that are compressed to see whether it is worth it.
const SAMPLE_BYTES: usize = 1 << 18;
/// Rows decoded at once from our own files.
const READ_BATCH_ROWS: usize = 4096;

/// A Parquet file of a part, being written.
#[derive(Debug)]
pub(crate) struct TableWriter {
    /// Until the first batch, which decides how floats are compressed.
    fresh: Option<Fresh>,
    writer: Option<ArrowWriter<PartFile>>,
    schema: SchemaRef,
    path: std::path::PathBuf,
}

#[derive(Debug)]
struct Fresh {
    file: PartFile,
    strings: Strings,
    metadata: Vec<KeyValue>,
}

/// Whether a column's strings repeat, which decides their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strings {
    Repeated,
    Distinct,
}

impl TableWriter {
    pub(crate) fn create(
        output: &Output,
        name: &str,
        schema: Schema,
        strings: Strings,
        metadata: &[(&str, String)],
    ) -> Result<Self> {
        let pairs = metadata
            .iter()
            .map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
        let fresh = Fresh {
            file: output.create(name)?,
            strings,
            metadata: pairs.collect(),
        };
        Ok(Self {
            fresh: Some(fresh),
            writer: None,
            schema: Arc::new(schema),
            path: output.dir().join(name),
        })
    }

    /// Writes a batch; `columns` are in the order of the schema.
    pub(crate) fn write(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|source| {
            SchemaError::Arrow {
                action: "write",
                path: self.path.clone(),
                source,
            }
        })?;
        self.open(&batch)?;
        let writer = self.writer.as_mut().expect("opened");
        writer.write(&batch).map_err(write_error(&self.path))
    }

    fn open(&mut self, first: &RecordBatch) -> Result<()> {
        if let Some(fresh) = self.fresh.take() {
            let properties = properties(first, fresh.strings, fresh.metadata);
            let schema = Arc::clone(&self.schema);
            let writer = ArrowWriter::try_new(fresh.file, schema, Some(properties));
            self.writer = Some(writer.map_err(write_error(&self.path))?);
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<FileEntry> {
        self.open(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
        self.writer
            .expect("opened")
            .into_inner()
            .map_err(write_error(&self.path))?
            .finish()
    }
}

fn write_error(path: &Path) -> impl FnOnce(ParquetError) -> SchemaError {
    let path = path.to_owned();
    move |source| SchemaError::Parquet {
        action: "write",
        path,
        source,
    }
}

/// Encodings by type: floats plain, integers as deltas, strings by whether they repeat.
///
/// Floats are compressed only where that makes the first ones much smaller: random features do
/// not shrink, and compressing them would take most of the time of writing.
fn properties(first: &RecordBatch, strings: Strings, metadata: Vec<KeyValue>) -> WriterProperties {
    let level = ZstdLevel::try_new(ZSTD_LEVEL).expect("zstd has a level 1");
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS_MAX))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES_MAX))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_created_by(concat!("graphflat ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(metadata));
    for (field, column) in first.schema_ref().fields().iter().zip(first.columns()) {
        let (path, data_type) = leaf(field);
        if data_type.is_floating() {
            if !shrinks(column) {
                builder = builder.set_column_compression(path.clone(), Compression::UNCOMPRESSED);
            }
            builder = builder.set_column_dictionary_enabled(path, false);
        } else if data_type.is_integer() {
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        } else if *data_type == DataType::Utf8 && strings == Strings::Distinct {
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BYTE_ARRAY);
        }
    }
    builder.build()
}

/// Tells whether compression makes a column of floats, or of lists of them, smaller by a quarter.
fn shrinks(column: &ArrayRef) -> bool {
    let values = match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().values(),
        DataType::FixedSizeList(_, _) => column.as_fixed_size_list().values(),
        _ => column,
    };
    let bytes = match values.as_primitive_opt::<Float32Type>() {
        Some(floats) => floats.values().inner().as_slice(),
        None => return true,
    };
    let sample = &bytes[..bytes.len().min(SAMPLE_BYTES)];
    match zstd::bulk::compress(sample, ZSTD_LEVEL) {
        Ok(compressed) => compressed.len() * 4 <= sample.len() * 3,
        Err(_) => true,
    }
}

/// The Parquet column of a field, and the type of its values.
fn leaf(field: &Field) -> (ColumnPath, &DataType) {
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let path = vec![field.name().clone(), "list".to_owned(), item.name().clone()];
            (ColumnPath::new(path), item.data_type())
        }
        data_type => (ColumnPath::new(vec![field.name().clone()]), data_type),
    }
}

/// The field of a list column without nulls.
pub(crate) fn list_field(name: &str, item: DataType) -> Field {
    Field::new(name, DataType::List(item_field(item)), false)
}

fn item_field(item: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", item, false))
}

/// A list column, from where each row ends in its values.
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

/// An array of numbers.
pub(crate) fn number_array<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), None))
}

/// A Parquet file of ours, being read.
pub(crate) struct TableReader<'a> {
    path: &'a Path,
    batches: ParquetRecordBatchReader,
    pub(crate) num_rows: usize,
}

/// One batch of it.
pub(crate) struct Batch<'a> {
    pub(crate) path: &'a Path,
    pub(crate) first_row: u64,
    pub(crate) rows: RecordBatch,
}

impl<'a> TableReader<'a> {
    /// Opens a file and checks its schema version under metadata key `key`.
    pub(crate) fn open(path: &'a Path, key: &str) -> Result<Self> {
        let read_error = |source| SchemaError::Parquet {
            action: "read",
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(SchemaError::io("open", path))?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(read_error)?;
        let metadata = builder.metadata().file_metadata();
        let pairs = metadata
            .key_value_metadata()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let found = pairs
            .iter()
            .find(|pair| pair.key == key)
            .and_then(|pair| pair.value.as_deref());
        if found != Some(TABLE_SCHEMA) {
            let problem = format!(
                "its metadata says `{key}` = {}, this build reads {TABLE_SCHEMA}",
                found.unwrap_or("nothing")
            );
            return Err(SchemaError::Broken {
                path: path.to_owned(),
                problem,
            });
        }
        let num_rows = usize::try_from(metadata.num_rows()).unwrap_or_default();
        let batches = builder
            .with_batch_size(READ_BATCH_ROWS)
            .build()
            .map_err(read_error)?;
        Ok(Self {
            path,
            batches,
            num_rows,
        })
    }

    pub(crate) fn has_column(&self, name: &str) -> bool {
        self.batches.schema().column_with_name(name).is_some()
    }

    pub(crate) fn for_each(self, mut consume: impl FnMut(&Batch<'_>) -> Result<()>) -> Result<()> {
        let mut first_row = 0;
        for batch in self.batches {
            let rows = batch.map_err(|source| SchemaError::Arrow {
                action: "read",
                path: self.path.to_owned(),
                source,
            })?;
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

impl Batch<'_> {
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            path: self.path,
            first_row: self.first_row,
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
        SchemaError::Broken {
            path: self.path.to_owned(),
            problem,
        }
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
            "column `{name}` is {found} with {nulls} nulls, not {want} without"
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
