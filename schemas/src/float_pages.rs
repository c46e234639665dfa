//! Pages of a list column of floats, put together row by row.
//!
//! Parquet stores two levels beside each value of a list. The Arrow writer computes and encodes
//! them value by value, which costs several times as much as the values of wide rows; here the
//! levels of a row of any length are two runs. The result is an ordinary plain-encoded column
//! chunk.

use std::io::{Read, Write};

use bytes::{Buf, Bytes};
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

/// Bytes of the values of a page: few enough that the page stays in the cache until it is written.
const PAGE_BYTES: usize = 1 << 19;

/// Bytes kept free before the values of a page, for the levels.
const LEVEL_BYTES: usize = 1 << 14;

/// Bytes that one more row may add to the levels, and their lengths.
const ROW_LEVEL_BYTES: usize = 64;

/// Lists of floats of one row group; no list and no value is null.
#[derive(Debug, Default)]
pub(crate) struct FloatPages {
    done: Vec<FloatPage>,
    open: FloatPage,
    num_rows: usize,
    num_values: usize,
}

#[derive(Debug, Default)]
struct FloatPage {
    /// The values, from byte [`LEVEL_BYTES`] on; empty before the first row.
    bytes: Vec<u8>,
    repetition: Runs,
    definition: Runs,
}

/// Levels (0 or 1) as runs of equal levels.
#[derive(Debug, Default)]
struct Runs {
    encoded: Vec<u8>,
    level: u8,
    length: u32,
    num_levels: u32,
}

/// An encoded column chunk and the metadata that its row group needs.
pub(crate) struct FloatChunk {
    pub(crate) pages: ChunkPages,
    pub(crate) close: ColumnCloseResult,
}

/// The bytes of a column chunk, in pieces as they were written.
#[derive(Default)]
pub(crate) struct ChunkPages {
    pieces: Vec<Bytes>,
    /// The page being written: a piece that is this buffer is shared, not copied.
    page: Bytes,
}

impl Write for ChunkPages {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.pieces.push(if std::ptr::eq(bytes, &*self.page) {
            self.page.clone()
        } else {
            Bytes::copy_from_slice(bytes)
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl ChunkPages {
    fn num_bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

impl Length for ChunkPages {
    fn len(&self) -> u64 {
        self.num_bytes() as u64
    }
}

impl ChunkReader for ChunkPages {
    type T = Pieces;

    fn get_read(&self, start: u64) -> Result<Pieces> {
        let mut skipped =
            usize::try_from(start).map_err(|e| ParquetError::General(e.to_string()))?;
        let rest = self.pieces.iter().filter_map(|piece| {
            let cut = skipped.min(piece.len());
            skipped -= cut;
            (cut < piece.len()).then(|| piece.slice(cut..))
        });
        let mut pieces: Vec<Bytes> = rest.collect();
        pieces.reverse();
        Ok(Pieces { pieces })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = Vec::with_capacity(length);
        self.get_read(start)?
            .take(length as u64)
            .read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// Reads the pieces of a chunk, the last of the list first.
pub(crate) struct Pieces {
    pieces: Vec<Bytes>,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.pieces.last_mut() else {
            return Ok(0);
        };
        let length = out.len().min(piece.len());
        piece.copy_to_slice(&mut out[..length]);
        if piece.is_empty() {
            self.pieces.pop();
        }
        Ok(length)
    }
}

impl Runs {
    fn push(&mut self, level: u8, length: u32) {
        if level != self.level {
            self.end_run();
            self.level = level;
        }
        self.length += length;
        self.num_levels += length;
    }

    /// Writes a run of the RLE encoding: twice its length as a varint, then the level.
    fn end_run(&mut self) {
        if self.length == 0 {
            return;
        }
        let mut header = u64::from(self.length) << 1;
        while header >= 0x80 {
            self.encoded.push(low_bits(header) | 0x80);
            header >>= 7;
        }
        self.encoded.extend([low_bits(header), self.level]);
        self.length = 0;
    }

    /// Writes the runs, with their length in bytes before them, so that they end at `end`; returns
    /// where they start.
    fn write_before(&mut self, end: usize, page: &mut [u8]) -> usize {
        self.end_run();
        let length = u32::try_from(self.encoded.len()).expect("below LEVEL_BYTES");
        let start = end - self.encoded.len();
        page[start..end].copy_from_slice(&self.encoded);
        page[start - 4..start].copy_from_slice(&length.to_le_bytes());
        start - 4
    }
}

fn low_bits(header: u64) -> u8 {
    u8::try_from(header & 0x7f).expect("seven bits")
}

impl FloatPages {
    /// Appends a row whose values come in slices.
    ///
    /// # Panics
    ///
    /// If the row holds 2^32 values or more.
    pub(crate) fn push<'a>(&mut self, slices: impl Iterator<Item = &'a [f32]>) {
        let page = &mut self.open;
        if page.bytes.is_empty() {
            page.bytes
                .reserve_exact(LEVEL_BYTES + PAGE_BYTES + PAGE_BYTES / 8);
            page.bytes.resize(LEVEL_BYTES, 0);
        }
        let before = page.bytes.len();
        slices.for_each(|slice| append_le(&mut page.bytes, slice));
        let length = (page.bytes.len() - before) / 4;
        let more = u32::try_from(length.saturating_sub(1)).expect("a row holds below 2^32 values");
        page.repetition.push(0, 1);
        if length == 0 {
            page.definition.push(0, 1);
        } else {
            page.repetition.push(1, more);
            page.definition.push(1, more + 1);
        }
        self.num_rows += 1;
        self.num_values += length;
        let levels = page.repetition.encoded.len() + page.definition.encoded.len();
        if page.bytes.len() >= LEVEL_BYTES + PAGE_BYTES || levels + ROW_LEVEL_BYTES > LEVEL_BYTES {
            self.done.push(std::mem::take(page));
        }
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.num_rows
    }

    pub(crate) fn num_values(&self) -> usize {
        self.num_values
    }

    /// Bytes of the first values, at most a page of them.
    pub(crate) fn sample(&self) -> &[u8] {
        let first = self.done.first().unwrap_or(&self.open);
        first.bytes.get(LEVEL_BYTES..).unwrap_or_default()
    }

    /// Encodes the pages, uncompressed or compressed by zstd.
    pub(crate) fn encode(
        mut self,
        column: ColumnDescPtr,
        compression: Compression,
    ) -> Result<FloatChunk> {
        if self.open.repetition.num_levels > 0 {
            self.done.push(std::mem::take(&mut self.open));
        }
        let mut sink = TrackedWrite::new(ChunkPages::default());
        let (mut num_levels, mut uncompressed) = (0, 0);
        for page in self.done {
            num_levels += i64::from(page.repetition.num_levels);
            let page = page.encode(compression)?;
            sink.flush()?;
            sink.inner_mut().page = page.compressed_page().buffer().clone();
            let written = SerializedPageWriter::new(&mut sink).write_page(page)?;
            uncompressed += written.uncompressed_size;
        }
        let pages = sink.into_inner()?;
        let size = |size: usize| {
            i64::try_from(size).map_err(|e| ParquetError::General(format!("a column chunk: {e}")))
        };
        let metadata = ColumnChunkMetaData::builder(column)
            .set_compression(compression)
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE])
            .set_num_values(num_levels)
            .set_total_compressed_size(size(pages.num_bytes())?)
            .set_total_uncompressed_size(size(uncompressed)?)
            .set_data_page_offset(0)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: pages.num_bytes() as u64,
            rows_written: self.num_rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok(FloatChunk { pages, close })
    }
}

impl FloatPage {
    fn encode(mut self, compression: Compression) -> Result<CompressedPage> {
        let num_values = self.repetition.num_levels;
        let definition = self.definition.write_before(LEVEL_BYTES, &mut self.bytes);
        let start = self.repetition.write_before(definition, &mut self.bytes);
        let mut page = Bytes::from(self.bytes).slice(start..);
        let uncompressed = page.len();
        if let Compression::ZSTD(level) = compression {
            page = zstd::bulk::compress(&page, level.compression_level())?.into();
        }
        let data = Page::DataPage {
            buf: page,
            num_values,
            encoding: Encoding::PLAIN,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        Ok(CompressedPage::new(data, uncompressed))
    }
}

fn append_le(page: &mut Vec<u8>, values: &[f32]) {
    if cfg!(target_endian = "little") {
        page.extend_from_slice(bytemuck::cast_slice(values));
    } else {
        page.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray, RecordBatchReader};
    use arrow::datatypes::Float32Type;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::basic::ZstdLevel;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    /// Writes rows as the only column of a file and reads them with the Arrow reader.
    fn read_back(rows: &[Vec<f32>], compression: Compression) -> Vec<Vec<f32>> {
        let schema = "message m { required group v (LIST) { repeated group list { \
                      required float item; } } }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let mut file = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
        let mut pages = FloatPages::default();
        for row in rows {
            // Slices are cut anywhere.
            pages.push(row.chunks(3));
        }
        assert_eq!(pages.num_rows(), rows.len());
        let column = file.schema_descr().column(0);
        let chunk = pages.encode(column, compression).unwrap();
        let mut group = file.next_row_group().unwrap();
        group.append_column(&chunk.pages, chunk.close).unwrap();
        group.close().unwrap();
        let bytes = Bytes::from(file.into_inner().unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
        let mut found = Vec::new();
        let reader = reader.with_batch_size(1000).build().unwrap();
        assert_eq!(reader.schema().fields().len(), 1);
        for batch in reader {
            let lists = batch.unwrap().column(0).as_list::<i32>().clone();
            found.extend((0..lists.len()).map(|row| {
                let values = lists.value(row);
                values.as_primitive::<Float32Type>().values().to_vec()
            }));
        }
        found
    }

    #[test]
    fn rows_of_any_length_come_back() {
        let lengths = [0, 1, 1, 2, 0, 0, 63, 64, 65, 127, 128, 129, 8191, 8192, 0];
        let whole_pages = [
            PAGE_BYTES / 4 - 1,
            1,
            PAGE_BYTES / 4,
            3 * PAGE_BYTES / 4 + 5,
            0,
        ];
        let many_ones = std::iter::repeat_n(1, 20_000);
        let lengths = lengths.into_iter().chain(whole_pages).chain(many_ones);
        let mut next = 0.0;
        let row = |length: usize| -> Vec<f32> {
            let values = (0..length).map(|_| {
                next += 0.5;
                next
            });
            values.collect()
        };
        let rows: Vec<Vec<f32>> = lengths.map(row).collect();
        let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap());
        for compression in [Compression::UNCOMPRESSED, zstd] {
            assert!(read_back(&rows, compression) == rows, "{compression:?}");
            let empty = [Vec::new()];
            assert_eq!(read_back(&empty, compression), empty);
        }
    }
}
