//! Files of a store partition: Arrow IPC, a record batch for every [`NODES_PER_BATCH`] nodes.

use crate::error::{StoreCause, StoreError};
use crate::map::{MappedFile, map_paged};
use crate::memory::Budget;
use arrow::array::{Array, ArrayRef, AsArray, LargeListArray, RecordBatch};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{Field, Schema};
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::writer::FileWriter;
use schemas::FileEntry;
use schemas::xxh::Hashed;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Nodes in every record batch but the last.
///
/// The number is fixed, so that the batch of a node is computed, and small, so that a batch takes
/// little memory.
pub const NODES_PER_BATCH: usize = 1 << 13;

/// Bytes at the end of an Arrow file: 4 that hold the length of the footer, 6 that hold `ARROW1`.
const TRAILER_BYTES: usize = 10;

/// Writes record batches of one schema to a file, which has a temporary name until it is complete.
pub struct BatchFile {
    path: PathBuf,
    temporary: PathBuf,
    writer: FileWriter<BufWriter<Hashed<File>>>,
}

impl BatchFile {
    /// Creates the file; every batch has the schema of `first`.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
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
    /// If the file cannot be written.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), StoreError> {
        self.writer
            .write(batch)
            .map_err(|e| failed("write", &self.path, e.into()))
    }

    /// Completes the file, gives it its name and returns its size and checksum.
    ///
    /// It does not wait for the disk (no fsync). If a power failure cuts the file, its checksum
    /// shows this, and the store can be built again.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<FileEntry, StoreError> {
        let mut finish = || -> Result<FileEntry, StoreCause> {
            self.writer.finish()?;
            self.writer.get_mut().flush()?;
            std::fs::rename(&self.temporary, &self.path)?;
            let written = self.writer.get_ref().get_ref();
            Ok(FileEntry {
                path: crate::meta::file_name(&self.path),
                bytes: written.num_bytes(),
                checksum: written.checksum(),
            })
        };
        finish().map_err(|source| failed("write", &self.path, source))
    }
}

/// Appends a batch to a file, which is created with the first one.
///
/// # Errors
///
/// If the file cannot be written.
pub fn append(
    file: &mut Option<BatchFile>,
    path: &Path,
    batch: &RecordBatch,
) -> Result<(), StoreError> {
    let mut open = match file.take() {
        Some(open) => open,
        None => BatchFile::create(path, batch)?,
    };
    open.write(batch)?;
    *file = Some(open);
    Ok(())
}

/// Record batches of one schema: in memory up to a bound, the others in an unlinked file.
pub(crate) struct SpilledBatches {
    dir: PathBuf,
    budget: Budget,
    memory: Vec<RecordBatch>,
    spill: Option<FileWriter<BufWriter<File>>>,
}

impl SpilledBatches {
    /// Keeps batches in memory while they fit the budget, the others in `dir`.
    pub(crate) fn new(budget: Budget, dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            budget,
            memory: Vec::new(),
            spill: None,
        }
    }

    /// Adds a batch.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), StoreError> {
        let bytes = batch.get_array_memory_size();
        if self.budget.fits(bytes) {
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
    /// If the file cannot be written or mapped.
    pub(crate) fn into_batches(mut self) -> Result<Vec<RecordBatch>, StoreError> {
        if let Some(mut spill) = self.spill.take() {
            let mut finish = || -> Result<(), StoreCause> {
                spill.finish()?;
                Ok(spill.get_mut().flush()?)
            };
            finish().map_err(|source| failed("write", &self.dir, source))?;
            let map = || decode_batches(&map_paged(spill.get_ref().get_ref())?);
            let spilled = map().map_err(|source| failed("read", &self.dir, source))?;
            self.memory.extend(spilled);
        }
        Ok(self.memory)
    }
}

/// Maps a file and returns its record batches; their arrays point into the mapped file.
///
/// # Errors
///
/// If the file cannot be mapped, or [`BatchFile`] did not write it.
pub fn map_batches(path: &Path) -> Result<Vec<RecordBatch>, StoreError> {
    Ok(open_batches(path)?.1)
}

/// [Maps](map_batches) a file; also returns the map.
pub(crate) fn open_batches(path: &Path) -> Result<(MappedFile, Vec<RecordBatch>), StoreError> {
    let read = || -> Result<(MappedFile, Vec<RecordBatch>), StoreCause> {
        let file = MappedFile::open(path)?;
        let batches = decode_batches(&Buffer::from(file.bytes().clone()))?;
        Ok((file, batches))
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
        let (start, length) = range().ok_or(damaged("a batch has no valid position"))?;
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
pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields = columns.iter().map(|(name, array)| {
        let nullable = array.null_count() > 0 || !array.data_type().is_primitive();
        Field::new(*name, array.data_type().clone(), nullable)
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(schema, arrays).expect("columns of one batch have one length")
}

/// Makes a list column from offsets and flat values.
pub fn list(offset: &[u64], values: ArrayRef) -> ArrayRef {
    let offset = offset
        .iter()
        .map(|&o| i64::try_from(o).expect("lengths fit in memory"));
    let offset = OffsetBuffer::new(ScalarBuffer::from_iter(offset));
    let item = Field::new("item", values.data_type().clone(), false);
    Arc::new(LargeListArray::new(Arc::new(item), offset, values, None))
}

/// Returns the range of the values of list `i`.
pub fn bounds(offset: &OffsetBuffer<i64>, i: usize) -> std::ops::Range<usize> {
    let at = |place: usize| usize::try_from(offset[place]).expect("offsets are not negative");
    at(i)..at(i + 1)
}

/// Returns the values of a column of numbers, or `None` if the column has another type.
pub fn column<T: arrow::datatypes::ArrowPrimitiveType>(
    array: &ArrayRef,
) -> Option<ScalarBuffer<T::Native>> {
    Some(array.as_primitive_opt::<T>()?.values().clone())
}
