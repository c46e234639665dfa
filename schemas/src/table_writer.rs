//! Writing of Parquet files of outputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Schema, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use crate::dataset::{FileEntry, Output, PartFile};
use crate::error::{Result, SchemaError};
use crate::float_pages::FloatPages;
use crate::parquet_file::item_field;

/// Encoded bytes of a row group, which the writer holds in memory.
const ROW_GROUP_BYTES_MAX: usize = 16 << 20;
const ROW_GROUP_ROWS_MAX: usize = 1 << 20;
const ZSTD_LEVEL: i32 = 1;
/// Compression ratio x 100 below which floats stay uncompressed.
const SHRINK: usize = 133;
/// Bytes of a column of floats that are compressed to measure the ratio.
const SAMPLE_BYTES: usize = 1 << 18;

/// A Parquet file of a part, being written.
pub(crate) struct TableWriter {
    /// State before the first batch, which decides whether floats are compressed.
    fresh: Option<Fresh>,
    open: Option<Open>,
    schema: SchemaRef,
    path: PathBuf,
}

struct Fresh {
    file: PartFile,
    strings: Strings,
    /// As [`SHRINK`].
    shrink: usize,
    metadata: Vec<KeyValue>,
}

struct Open {
    file: SerializedFileWriter<PartFile>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    group: Option<RowGroup>,
}

/// A row group being written: one writer a column, since every column here has one leaf.
struct RowGroup {
    writers: Vec<ArrowColumnWriter>,
    /// Columns of floats, which do not use their Arrow writers.
    floats: BTreeMap<usize, FloatPages>,
    num_rows: usize,
}

/// A column of a batch.
pub(crate) enum Column {
    Array(ArrayRef),
    /// A list column of floats; its batch is a row group of its own.
    Floats(FloatPages),
}

/// Whether a column's strings repeat, which decides their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strings {
    Repeated,
    Distinct,
}

impl From<ArrayRef> for Column {
    fn from(array: ArrayRef) -> Self {
        Self::Array(array)
    }
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Array(array) => array.len(),
            Self::Floats(pages) => pages.num_rows(),
        }
    }

    /// Tells whether the column is of a type; [`Self::Floats`] may be of lists of fixed size too.
    fn is_of(&self, data_type: &DataType) -> bool {
        match (self, data_type) {
            (Self::Floats(_), DataType::FixedSizeList(item, _)) => {
                !item.is_nullable() && *item.data_type() == DataType::Float32
            }
            _ => self.data_type() == *data_type,
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Array(array) => array.data_type().clone(),
            Self::Floats(_) => DataType::List(item_field(DataType::Float32)),
        }
    }

    /// Bytes of the first floats of a column; none where it holds no floats.
    fn sample(&self) -> Option<&[u8]> {
        let array = match self {
            Self::Floats(pages) => return Some(pages.sample()),
            Self::Array(array) => array,
        };
        let values = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().values(),
            DataType::FixedSizeList(_, _) => array.as_fixed_size_list().values(),
            _ => array,
        };
        if let Some(halves) = values.as_primitive_opt::<Float16Type>() {
            return Some(halves.values().inner().as_slice());
        }
        let floats = values.as_primitive_opt::<Float32Type>()?.values();
        Some(bytemuck::cast_slice(floats))
    }
}

impl std::fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
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
            shrink: SHRINK,
            metadata: pairs.collect(),
        };
        Ok(Self {
            fresh: Some(fresh),
            open: None,
            schema: Arc::new(schema),
            path: output.parts_dir().join(name),
        })
    }

    /// Sets the compression ratio x 100 below which floats stay uncompressed.
    pub(crate) fn with_shrink(mut self, shrink: usize) -> Self {
        if let Some(fresh) = &mut self.fresh {
            fresh.shrink = shrink;
        }
        self
    }

    /// Writes a batch; `columns` are in the order of the schema.
    pub(crate) fn write(&mut self, columns: Vec<Column>) -> Result<()> {
        self.check(&columns)?;
        self.open(&columns)?
            .write(columns)
            .map_err(write_error(&self.path))
    }

    /// Checks that columns are those of the schema, and of one length.
    fn check(&self, columns: &[Column]) -> Result<()> {
        let fields = self.schema.fields();
        let rows = columns.first().map_or(0, Column::len);
        let fits = |(field, column): (&Arc<Field>, &Column)| {
            column.len() == rows && column.is_of(field.data_type())
        };
        if fields.len() == columns.len() && fields.iter().zip(columns).all(fits) {
            return Ok(());
        }
        let found = columns.iter().map(|c| (c.len(), c.data_type().to_string()));
        Err(SchemaError::Invalid {
            what: "batch",
            problem: format!(
                "columns of lengths and types {:?} do not make rows of {}",
                found.collect::<Vec<_>>(),
                self.schema
            ),
        })
    }

    fn open(&mut self, first: &[Column]) -> Result<&mut Open> {
        if let Some(fresh) = self.fresh.take() {
            let open = Open::new(fresh, first, &self.schema);
            self.open = Some(open.map_err(write_error(&self.path))?);
        }
        Ok(self.open.as_mut().expect("opened"))
    }

    pub(crate) fn finish(mut self) -> Result<FileEntry> {
        let empty = RecordBatch::new_empty(Arc::clone(&self.schema));
        let columns = empty.columns().iter().cloned().map(Column::from);
        self.open(&columns.collect::<Vec<_>>())?;
        let mut open = self.open.expect("opened");
        open.end_group()
            .and_then(|()| open.file.into_inner())
            .map_err(write_error(&self.path))?
            .finish()
    }
}

impl Open {
    fn new(
        fresh: Fresh,
        first: &[Column],
        schema: &SchemaRef,
    ) -> std::result::Result<Self, ParquetError> {
        let mut properties = properties(schema, first, &fresh);
        add_encoded_arrow_schema_to_metadata(schema, &mut properties);
        let columns = ArrowSchemaConverter::new().convert(schema)?;
        let root = columns.root_schema_ptr();
        let file = SerializedFileWriter::new(fresh.file, root, Arc::new(properties))?;
        Ok(Self {
            factory: ArrowRowGroupWriterFactory::new(&file, Arc::clone(schema)),
            file,
            schema: Arc::clone(schema),
            group: None,
        })
    }

    fn write(&mut self, columns: Vec<Column>) -> std::result::Result<(), ParquetError> {
        let rows = columns.first().map_or(0, Column::len);
        if rows == 0 {
            return Ok(());
        }
        let is_whole = columns.iter().any(|c| matches!(c, Column::Floats(_)));
        if is_whole {
            self.end_group()?;
        }
        let group = match &mut self.group {
            Some(group) => group,
            None => {
                let index = self.file.flushed_row_groups().len();
                self.group.insert(RowGroup {
                    writers: self.factory.create_column_writers(index)?,
                    floats: BTreeMap::new(),
                    num_rows: 0,
                })
            }
        };
        group.num_rows += rows;
        for (i, column) in columns.into_iter().enumerate() {
            match column {
                Column::Floats(pages) => {
                    group.floats.insert(i, pages);
                }
                Column::Array(array) => {
                    for leaf in compute_leaves(self.schema.field(i), &array)? {
                        group.writers[i].write(&leaf)?;
                    }
                }
            }
        }
        let bytes: usize = group
            .writers
            .iter()
            .map(ArrowColumnWriter::get_estimated_total_bytes)
            .sum();
        if is_whole || bytes >= ROW_GROUP_BYTES_MAX || group.num_rows >= ROW_GROUP_ROWS_MAX {
            self.end_group()?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> std::result::Result<(), ParquetError> {
        let Some(mut group) = self.group.take() else {
            return Ok(());
        };
        let columns = self.file.schema_descr().columns().to_vec();
        let properties = Arc::clone(self.file.properties());
        let mut writer = self.file.next_row_group()?;
        for (i, (column, column_writer)) in columns.into_iter().zip(group.writers).enumerate() {
            match group.floats.remove(&i) {
                None => column_writer.close()?.append_to_row_group(&mut writer)?,
                Some(pages) => {
                    let compression = properties.compression(column.path());
                    let chunk = pages.encode(column, compression)?;
                    writer.append_column(&chunk.pages, chunk.close)?;
                }
            }
        }
        writer.close()?;
        Ok(())
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
fn properties(schema: &Schema, first: &[Column], fresh: &Fresh) -> WriterProperties {
    let level = ZstdLevel::try_new(ZSTD_LEVEL).expect("zstd has a level 1");
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_created_by(concat!("graphflat ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(fresh.metadata.clone()));
    for (field, column) in schema.fields().iter().zip(first) {
        let (path, data_type) = leaf(field);
        if data_type.is_floating() {
            if column
                .sample()
                .is_some_and(|sample| !shrinks(sample, fresh.shrink))
            {
                builder = builder.set_column_compression(path.clone(), Compression::UNCOMPRESSED);
            }
            builder = builder.set_column_dictionary_enabled(path, false);
        } else if data_type.is_integer() {
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        } else if *data_type == DataType::Utf8 && fresh.strings == Strings::Distinct {
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BYTE_ARRAY);
        }
    }
    builder.build()
}

/// Tells whether floats reach a compression ratio x 100 of `times`.
fn shrinks(floats: &[u8], times: usize) -> bool {
    let sample = &floats[..floats.len().min(SAMPLE_BYTES)];
    match zstd::bulk::compress(sample, ZSTD_LEVEL) {
        Ok(compressed) => compressed.len() * times <= sample.len() * 100,
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
