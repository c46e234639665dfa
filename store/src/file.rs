//! Files of a store partition: Arrow IPC, a record batch for every so many nodes.

use crate::error::{StoreCause, StoreError};
use crate::map::map_file;
use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, LargeListArray, RecordBatch,
    UInt8Array, UInt32Array,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, UInt8Type, UInt32Type};
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::writer::FileWriter;
use schemas::xxh::Hashed;
use schemas::{Features, FileEntry, Labels, NodeIdx, Split};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Nodes in one record batch: lists are found by arithmetic, and batches stay small in memory.
pub(crate) const NODES_PER_BATCH: usize = 1 << 13;

/// Bytes at the end of an Arrow file: length of the footer and the magic.
const TRAILER_BYTES: usize = 10;

/// Writes record batches of one schema to a file, under another name until it is complete.
pub(crate) struct BatchFile {
    path: PathBuf,
    temporary: PathBuf,
    writer: FileWriter<BufWriter<Hashed<File>>>,
}

impl BatchFile {
    /// Creates the file; `columns` names the columns of every batch to come.
    ///
    /// # Errors
    ///
    /// The file cannot be created.
    pub(crate) fn create(path: &Path, first: &RecordBatch) -> Result<Self, StoreError> {
        let temporary = path.with_extension("tmp");
        let create = || -> Result<_, StoreCause> {
            let file = Hashed::new(File::create(&temporary)?);
            Ok(FileWriter::try_new(BufWriter::new(file), &first.schema())?)
        };
        let writer = create().map_err(|source| failed("write", path, source))?;
        Ok(Self {
            path: path.to_owned(),
            temporary,
            writer,
        })
    }

    /// Appends a batch.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), StoreError> {
        self.writer
            .write(batch)
            .map_err(|e| failed("write", &self.path, e.into()))
    }

    /// Completes the file, gives it its name and returns its size and checksum.
    ///
    /// It is not forced to the disk: a store can be built again, and one that a power failure has
    /// cut is told by its checksum.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn finish(mut self) -> Result<FileEntry, StoreError> {
        let mut finish = || -> Result<FileEntry, StoreCause> {
            self.writer.finish()?;
            self.writer.get_mut().flush()?;
            std::fs::rename(&self.temporary, &self.path)?;
            let written = self.writer.get_ref().get_ref();
            Ok(FileEntry {
                path: crate::store::file_name(&self.path),
                bytes: written.num_bytes(),
                checksum: written.checksum(),
            })
        };
        finish().map_err(|source| failed("write", &self.path, source))
    }
}

/// Record batches of one schema, in memory up to a bound and in a nameless file beyond it.
pub(crate) struct SpilledBatches {
    dir: PathBuf,
    bytes_max: usize,
    memory: Vec<RecordBatch>,
    spill: Option<FileWriter<BufWriter<File>>>,
}

impl SpilledBatches {
    /// Keeps up to `bytes_max` bytes in memory, the others in `dir`.
    pub(crate) fn new(bytes_max: usize, dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            bytes_max,
            memory: Vec::new(),
            spill: None,
        }
    }

    /// Takes a batch.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), StoreError> {
        let bytes = batch.get_array_memory_size();
        if bytes <= self.bytes_max {
            self.bytes_max -= bytes;
            self.memory.push(batch);
            return Ok(());
        }
        self.write(&batch)
            .map_err(|source| failed("write", &self.dir, source))
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), StoreCause> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => {
                let file = BufWriter::new(tempfile::tempfile_in(&self.dir)?);
                self.spill
                    .insert(FileWriter::try_new(file, &batch.schema())?)
            }
        };
        Ok(spill.write(batch)?)
    }

    /// Returns all batches, those in memory first.
    ///
    /// # Errors
    ///
    /// The file cannot be written or mapped.
    pub(crate) fn into_batches(mut self) -> Result<Vec<RecordBatch>, StoreError> {
        if let Some(mut spill) = self.spill.take() {
            let mut map = || -> Result<Vec<RecordBatch>, StoreCause> {
                spill.finish()?;
                spill.get_mut().flush()?;
                decode_batches(&map_file(spill.get_ref().get_ref())?)
            };
            let spilled = map().map_err(|source| failed("read", &self.dir, source))?;
            self.memory.extend(spilled);
        }
        Ok(self.memory)
    }
}

/// Maps a file and returns its record batches; their arrays lie in the map.
///
/// # Errors
///
/// The file cannot be mapped, or is not what [`BatchFile`] writes.
pub(crate) fn map_batches(path: &Path) -> Result<Vec<RecordBatch>, StoreError> {
    let read = || -> Result<Vec<RecordBatch>, StoreCause> {
        let buffer = map_file(&File::open(path)?)?;
        decode_batches(&buffer)
    };
    read().map_err(|source| failed("read", path, source))
}

fn decode_batches(buffer: &Buffer) -> Result<Vec<RecordBatch>, StoreCause> {
    let damaged = |what: &str| StoreCause::Damaged(what.to_owned());
    let footer_end = buffer
        .len()
        .checked_sub(TRAILER_BYTES)
        .ok_or(damaged("it is cut off"))?;
    let trailer = buffer[footer_end..].try_into().expect("TRAILER_BYTES long");
    let footer_start = footer_end.checked_sub(read_footer_length(trailer)?);
    let footer = &buffer[footer_start.ok_or(damaged("its footer is cut off"))?..footer_end];
    let footer = arrow::ipc::root_as_footer(footer).map_err(|e| damaged(&e.to_string()))?;
    let schema = footer.schema().ok_or(damaged("it has no schema"))?;
    let schema = Arc::new(arrow::ipc::convert::try_fb_to_schema(schema)?);
    let decoder = FileDecoder::new(schema, footer.version());
    let blocks = footer.recordBatches().ok_or(damaged("it has no batches"))?;
    let decode = |block: &arrow::ipc::Block| {
        let range = || Some((usize::try_from(block.offset()).ok()?, block_length(block)?));
        let (start, length) = range().ok_or(damaged("a batch has no place"))?;
        if start
            .checked_add(length)
            .is_none_or(|end| end > buffer.len())
        {
            return Err(damaged("a batch is cut off"));
        }
        let batch = decoder.read_record_batch(block, &buffer.slice_with_length(start, length))?;
        batch.ok_or(damaged("a batch is missing"))
    };
    blocks.iter().map(decode).collect()
}

fn block_length(block: &arrow::ipc::Block) -> Option<usize> {
    let length = block
        .bodyLength()
        .checked_add(i64::from(block.metaDataLength()))?;
    usize::try_from(length).ok()
}

fn failed(verb: &'static str, path: &Path, source: StoreCause) -> StoreError {
    StoreError::File {
        verb,
        path: path.to_owned(),
        source,
    }
}

/// Names columns and makes a record batch of them.
pub(crate) fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields = columns.iter().map(|(name, array)| {
        let nullable = array.null_count() > 0 || !array.data_type().is_primitive();
        Field::new(*name, array.data_type().clone(), nullable)
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(schema, arrays).expect("columns of one batch have one length")
}

/// Makes a list column from offsets and flat values.
pub(crate) fn list(offset: &[u64], values: ArrayRef) -> ArrayRef {
    let offset = offset
        .iter()
        .map(|&o| i64::try_from(o).expect("lengths fit in memory"));
    let offset = OffsetBuffer::new(ScalarBuffer::from_iter(offset));
    let item = Field::new("item", values.data_type().clone(), false);
    Arc::new(LargeListArray::new(Arc::new(item), offset, values, None))
}

/// Makes the columns of features: none, one (`feature`) or two (`feature_index`, `_value`).
pub(crate) fn feature_columns(
    features: Features,
    num_nodes: usize,
) -> Vec<(&'static str, ArrayRef)> {
    match features {
        Features::None => Vec::new(),
        Features::Dense { dim, values } => {
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            let width = i32::try_from(dim).expect("feature widths fit 32 bits");
            let values = Arc::new(Float32Array::from(values));
            let list =
                FixedSizeListArray::try_new_with_length(item, width, values, None, num_nodes);
            vec![(
                "feature",
                Arc::new(list.expect("dim values a node")) as ArrayRef,
            )]
        }
        Features::Sparse {
            offset,
            index,
            value,
            ..
        } => vec![
            (
                "feature_index",
                list(&offset, Arc::new(UInt32Array::from(index))),
            ),
            (
                "feature_value",
                list(&offset, Arc::new(Float32Array::from(value))),
            ),
        ],
    }
}

/// Makes the column of labels.
pub(crate) fn label_columns(labels: Labels, num_nodes: usize) -> Vec<(&'static str, ArrayRef)> {
    let column: ArrayRef = match labels {
        Labels::None => return Vec::new(),
        Labels::Class(classes) => Arc::new(UInt32Array::from(classes)),
        Labels::Number(numbers) => Arc::new(Float32Array::from(numbers)),
        Labels::Multi {
            width,
            values,
            present,
        } => {
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            let values = Arc::new(Float32Array::from(values));
            let width = i32::try_from(width).expect("label widths fit 32 bits");
            let nulls = Some(present.into());
            let list =
                FixedSizeListArray::try_new_with_length(item, width, values, nulls, num_nodes);
            Arc::new(list.expect("width values a node"))
        }
    };
    vec![("label", column)]
}

/// Makes the column of splits.
pub(crate) fn split_column(split: &[Split]) -> ArrayRef {
    Arc::new(UInt8Array::from_iter_values(split.iter().map(|&s| s as u8)))
}

/// Degrees of the nodes of one record batch, lying in the map.
pub(crate) struct DegreeColumns {
    pub(crate) in_degree: ScalarBuffer<u32>,
    least_src: ScalarBuffer<u32>,
    pub(crate) in_weight: Option<ScalarBuffer<f32>>,
    pub(crate) self_loops: ScalarBuffer<u32>,
    pub(crate) self_weight: Option<ScalarBuffer<f32>>,
}

impl DegreeColumns {
    /// Returns the least sources.
    pub(crate) fn least_src(&self) -> &[NodeIdx] {
        NodeIdx::slice(&self.least_src)
    }

    /// Takes the columns of a batch.
    pub(crate) fn of(batch: &RecordBatch) -> Option<Self> {
        let floats = |name: &str| column::<Float32Type>(batch.column_by_name(name)?);
        let counts = |name: &str| column::<UInt32Type>(batch.column_by_name(name)?);
        Some(Self {
            in_degree: counts("in_degree")?,
            least_src: counts("least_src")?,
            in_weight: floats("in_weight"),
            self_loops: counts("self_loops")?,
            self_weight: floats("self_weight"),
        })
    }
}

/// Columns of the node table for the nodes of one record batch, lying in the map.
pub(crate) struct NodeColumns {
    feature: Option<(usize, ScalarBuffer<f32>)>,
    sparse: Option<(OffsetBuffer<i64>, ScalarBuffer<u32>, ScalarBuffer<f32>)>,
    label: LabelColumn,
    split: ScalarBuffer<u8>,
}

impl NodeColumns {
    /// Takes the columns of a batch.
    pub(crate) fn of(batch: &RecordBatch) -> Option<Self> {
        let feature = batch.column_by_name("feature").and_then(|array| {
            let array = array.as_fixed_size_list_opt()?;
            let dim = usize::try_from(array.value_length()).ok()?;
            Some((dim, column::<Float32Type>(array.values())?))
        });
        let sparse = batch.column_by_name("feature_index").and_then(|index| {
            let index = index.as_list_opt::<i64>()?;
            let value = batch
                .column_by_name("feature_value")?
                .as_list_opt::<i64>()?;
            let values = column::<Float32Type>(value.values())?;
            Some((
                index.offsets().clone(),
                column::<UInt32Type>(index.values())?,
                values,
            ))
        });
        Some(Self {
            feature,
            sparse,
            label: LabelColumn::of(batch)?,
            split: column::<UInt8Type>(batch.column_by_name("split")?)?,
        })
    }

    pub(crate) fn split(&self, i: usize) -> Split {
        match self.split[i] {
            1 => Split::Train,
            2 => Split::Val,
            3 => Split::Test,
            _ => Split::None,
        }
    }

    /// Returns the dense features of node `i`; nothing where features are not dense.
    pub(crate) fn dense(&self, i: usize) -> &[f32] {
        match &self.feature {
            Some((dim, feature)) => &feature[i * dim..(i + 1) * dim],
            None => &[],
        }
    }

    /// Returns the bytes of the features of node `i`.
    pub(crate) fn feature_bytes(&self, i: usize) -> usize {
        match &self.sparse {
            Some((offsets, _, _)) => 8 * bounds(offsets, i).len(),
            None => 4 * self.dense(i).len(),
        }
    }

    /// Returns the bytes of all sparse features.
    pub(crate) fn sparse_bytes(&self) -> usize {
        self.sparse
            .as_ref()
            .map_or(0, |(_, index, _)| 8 * index.len())
    }

    /// Appends the features of node `i`.
    pub(crate) fn features_into(&self, i: usize, out: &mut Features) {
        match out {
            Features::None => {}
            Features::Dense { dim, values } => {
                let (width, feature) = self.feature.as_ref().expect("checked when opened");
                assert_eq!(dim, width, "one width in a store");
                values.extend_from_slice(&feature[i * *dim..(i + 1) * *dim]);
            }
            Features::Sparse {
                offset,
                index,
                value,
                ..
            } => {
                let (offsets, indices, weights) =
                    self.sparse.as_ref().expect("checked when opened");
                let range = bounds(offsets, i);
                index.extend_from_slice(&indices[range.clone()]);
                value.extend_from_slice(&weights[range]);
                offset.push(index.len() as u64);
            }
        }
    }

    /// Appends the label of node `i`.
    pub(crate) fn label_into(&self, i: usize, out: &mut Labels) {
        match (&self.label, out) {
            (LabelColumn::Class(from), Labels::Class(classes)) => classes.push(from[i]),
            (LabelColumn::Number(from), Labels::Number(numbers)) => numbers.push(from[i]),
            (
                LabelColumn::Multi(list),
                Labels::Multi {
                    values, present, ..
                },
            ) => {
                values.extend_from_slice(list.value(i).as_primitive::<Float32Type>().values());
                present.push(list.is_valid(i));
            }
            (_, Labels::None) => {}
            _ => panic!("labels of a store are of one kind"),
        }
    }
}

/// Labels of the nodes of one record batch, lying in the map.
enum LabelColumn {
    None,
    Class(ScalarBuffer<u32>),
    Number(ScalarBuffer<f32>),
    Multi(FixedSizeListArray),
}

impl LabelColumn {
    fn of(batch: &RecordBatch) -> Option<Self> {
        let Some(array) = batch.column_by_name("label") else {
            return Some(Self::None);
        };
        Some(match array.data_type() {
            DataType::UInt32 => Self::Class(column::<UInt32Type>(array)?),
            DataType::Float32 => Self::Number(column::<Float32Type>(array)?),
            _ => Self::Multi(array.as_fixed_size_list_opt()?.clone()),
        })
    }
}

/// In-edges of the nodes of one record batch, lying in the map.
pub(crate) struct EdgeLists {
    offset: OffsetBuffer<i64>,
    src: ScalarBuffer<u32>,
    weight: Option<ScalarBuffer<f32>>,
    feature: Option<ScalarBuffer<f32>>,
}

/// The ranked in-edges that the store keeps of one node.
#[derive(Clone, Copy, Debug)]
pub struct InEdges<'a> {
    /// Sources, in rank order.
    pub src: &'a [NodeIdx],
    /// Weights, where the input has them.
    pub weight: Option<&'a [f32]>,
    /// Features, `[num_edges * dim]`, where the input has them.
    pub feature: Option<&'a [f32]>,
}

impl EdgeLists {
    /// Takes the columns of a batch.
    pub(crate) fn of(batch: &RecordBatch) -> Option<Self> {
        let src = batch.column_by_name("src")?.as_list_opt::<i64>()?;
        let floats = |name: &str| {
            column::<Float32Type>(batch.column_by_name(name)?.as_list_opt::<i64>()?.values())
        };
        Some(Self {
            offset: src.offsets().clone(),
            src: column::<UInt32Type>(src.values())?,
            weight: floats("weight"),
            feature: floats("feature"),
        })
    }

    /// Returns the in-edges of node `i`, at most `limit` of them.
    pub(crate) fn in_edges(&self, i: usize, limit: usize, dim: usize) -> InEdges<'_> {
        let mut range = bounds(&self.offset, i);
        range.end = range.end.min(range.start.saturating_add(limit));
        InEdges {
            src: NodeIdx::slice(&self.src[range.clone()]),
            weight: self.weight.as_ref().map(|weight| &weight[range.clone()]),
            feature: self
                .feature
                .as_ref()
                .map(|f| &f[range.start * dim..range.end * dim]),
        }
    }
}

fn bounds(offset: &OffsetBuffer<i64>, i: usize) -> std::ops::Range<usize> {
    let at = |place: usize| usize::try_from(offset[place]).expect("offsets are not negative");
    at(i)..at(i + 1)
}

fn column<T: arrow::datatypes::ArrowPrimitiveType>(
    array: &ArrayRef,
) -> Option<ScalarBuffer<T::Native>> {
    Some(array.as_primitive_opt::<T>()?.values().clone())
}
