//! Checks the sizes that the pages of a Parquet file state, before memory is taken for them.
//!
//! A page's header states the decompressed size of the page, and the reader of Parquet takes that
//! much memory. The footer states the size of all pages of the column chunk together: a page that
//! states more is broken.

use std::ops::Range;

use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

/// Sizes up to this one are not checked: they are harmless, and some writers state them wrong.
const HARMLESS_BYTES: i64 = 16 << 20;
/// Greatest size of the first three fields of a header: a byte and a number each.
pub(super) const PREFIX_BYTES: usize = 3 * (1 + 10);

/// Column chunks of a file, and the decompressed size of their pages.
#[derive(Debug, Default)]
pub(super) struct ColumnSizes {
    /// Sorted by their position in the file.
    chunks: Vec<(Range<u64>, i64)>,
}

impl ColumnSizes {
    /// Reads the sizes from a footer, and checks that it describes a file of `size` bytes.
    pub(super) fn of(metadata: &ParquetMetaData, size: u64) -> Result<Self, ParquetError> {
        let mut chunks = Vec::new();
        let mut num_rows: i64 = 0;
        for group in metadata.row_groups() {
            let rows = group.num_rows();
            let Some(so_far) = num_rows.checked_add(rows.max(0)) else {
                let problem = "more rows than a file can have".to_owned();
                return Err(ParquetError::General(problem));
            };
            num_rows = so_far;
            for column in group.columns() {
                let name = column.column_path().string();
                let broken = |problem: String| {
                    Err(ParquetError::General(format!("column `{name}`: {problem}")))
                };
                let values = column.num_values();
                // Each row has a value, a null or an empty list.
                if rows < 0 || values < rows {
                    return broken(format!("{values} values in a row group of {rows} rows"));
                }
                let data = column.data_page_offset();
                let start = column
                    .dictionary_page_offset()
                    .map_or(data, |first| first.min(data));
                let len = column.compressed_size();
                let range = u64::try_from(start).ok().zip(u64::try_from(len).ok());
                let range = range.and_then(|(first, bytes)| Some(first..first.checked_add(bytes)?));
                match range.filter(|range| range.end <= size) {
                    Some(range) => chunks.push((range, column.uncompressed_size())),
                    None => {
                        return broken(format!("{len} bytes at byte {start} of {size}"));
                    }
                }
            }
        }
        let stated = metadata.file_metadata().num_rows();
        if stated != num_rows {
            let problem = format!("{stated} rows in all, {num_rows} in its row groups");
            return Err(ParquetError::General(problem));
        }
        chunks.sort_by_key(|(range, _)| range.start);
        Ok(Self { chunks })
    }

    /// Refuses a page larger than its column chunk; `header` are the bytes at `start` of the file.
    pub(super) fn check(&self, start: u64, header: &[u8]) -> Result<(), ParquetError> {
        let Some(page) = uncompressed_size(header).filter(|&bytes| bytes > HARMLESS_BYTES) else {
            return Ok(());
        };
        let after = self
            .chunks
            .partition_point(|(range, _)| range.start <= start);
        let Some((range, whole)) = after.checked_sub(1).map(|last| &self.chunks[last]) else {
            return Ok(());
        };
        if range.contains(&start) && page > *whole {
            return Err(ParquetError::General(format!(
                "a page at byte {start} states {page} bytes, its column chunk {whole}"
            )));
        }
        Ok(())
    }
}

/// Returns the second field of a page header, which is encoded in Thrift's compact protocol: type,
/// uncompressed size, compressed size. None if the header starts in another way; the reader of
/// Parquet refuses it then.
fn uncompressed_size(header: &[u8]) -> Option<i64> {
    /// Header of a field of type i32 that has the next number after the field before.
    const NEXT_I32: u8 = 0x15;
    let mut bytes = header.iter().copied();
    let mut field = || -> Option<i64> {
        if bytes.next()? != NEXT_I32 {
            return None;
        }
        let mut zigzag = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = bytes.next()?;
            zigzag |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let magnitude = i64::try_from(zigzag >> 1).ok()?;
                return Some(if zigzag & 1 == 0 {
                    magnitude
                } else {
                    !magnitude
                });
            }
        }
        None
    };
    field()?;
    field()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_that_a_header_states_is_read() {
        let check = |header: &[u8], size| assert_eq!(uncompressed_size(header), size);
        check(&[0x15, 0x00, 0x15, 0x0e, 0x15, 0x0c], Some(7));
        check(
            &[0x15, 0x04, 0x15, 0x80, 0x80, 0x80, 0x80, 0x08],
            Some(1 << 30),
        );
        check(&[0x15, 0x00, 0x15, 0x01], Some(-1));
        check(&[0x15, 0x00, 0x25, 0x0e], None);
        check(&[0x15, 0x00, 0x15, 0x80], None);
        check(&[0x15, 0xff], None);
        check(&[], None);
    }

    #[test]
    fn a_page_above_its_column_is_refused() {
        let sizes = ColumnSizes {
            chunks: vec![(4..100, 50), (100..200, 1 << 40)],
        };
        let large = [0x15, 0x00, 0x15, 0x80, 0x80, 0x80, 0x80, 0x08];
        let error = sizes.check(50, &large).unwrap_err().to_string();
        assert!(
            error.contains("states 1073741824 bytes, its column chunk 50"),
            "{error}"
        );
        sizes.check(150, &large).unwrap();
        sizes.check(0, &large).unwrap();
        sizes.check(200, &large).unwrap();
        sizes.check(50, &[0x15, 0x00, 0x15, 0x7e]).unwrap();
    }
}
