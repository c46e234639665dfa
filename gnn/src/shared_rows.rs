//! Rows in shared memory, in 32 or 16 bits a number.

use std::ops::Range;

use half::bf16;
use serde::{Deserialize, Serialize};

use crate::kernel::widen;
use crate::{Dense, GnnError};

/// How the numbers of rows are kept between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowFormat {
    /// Four bytes a number.
    #[default]
    F32,
    /// Two bytes a number: the range of f32, with two to three significant digits.
    Bf16,
}

/// The numbers of rows, row after row.
#[derive(Clone, Copy, Debug)]
pub enum RowValues<'a> {
    /// In 32 bits.
    F32(&'a [f32]),
    /// In 16 bits.
    Bf16(&'a [bf16]),
}

/// A dense row-major matrix in shared memory, such as a mapped file; cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedRows {
    bytes: bytes::Bytes,
    rows: usize,
    cols: usize,
    format: RowFormat,
}

/// Expands to a match that runs one expression on the numbers in either format.
macro_rules! on_values {
    ($rows:expr, $values:ident => $call:expr) => {
        match $rows {
            $crate::RowValues::F32($values) => $call,
            $crate::RowValues::Bf16($values) => $call,
        }
    };
}
pub(crate) use on_values;

impl RowFormat {
    /// Returns the bytes of a number.
    #[must_use]
    pub fn num_bytes(self) -> usize {
        match self {
            RowFormat::F32 => 4,
            RowFormat::Bf16 => 2,
        }
    }
}

impl<'a> RowValues<'a> {
    /// Returns the numbers `range` as f32.
    ///
    /// # Panics
    ///
    /// If the range is longer than the numbers.
    #[must_use]
    pub fn to_f32(self, range: Range<usize>) -> Vec<f32> {
        on_values!(self, values => widen(&values[range]))
    }

    /// Returns the numbers, which are kept in 32 bits.
    ///
    /// # Panics
    ///
    /// If they are kept in 16 bits.
    #[must_use]
    pub fn f32(self) -> &'a [f32] {
        match self {
            RowValues::F32(values) => values,
            RowValues::Bf16(_) => panic!("scores are kept in 32 bits"),
        }
    }
}

impl SharedRows {
    /// Views bytes as rows of numbers, in this machine's byte order.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the bytes are not whole rows, or are not aligned for the numbers.
    pub fn new(
        bytes: bytes::Bytes,
        cols: usize,
        format: RowFormat,
    ) -> Result<SharedRows, GnnError> {
        let values = numbers(&bytes, format).map_err(|e| GnnError::Input {
            problem: format!("cannot read {} bytes as numbers: {e}", bytes.len()),
        })?;
        let len = on_values!(values, values => values.len());
        let rows = len.checked_div(cols).unwrap_or(0);
        if rows * cols != len {
            let problem = format!("{len} values are not whole rows of {cols}");
            return Err(GnnError::Input { problem });
        }
        Ok(SharedRows {
            bytes,
            rows,
            cols,
            format,
        })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns how the numbers are kept.
    #[must_use]
    pub fn format(&self) -> RowFormat {
        self.format
    }

    /// Returns the bytes of the numbers.
    #[must_use]
    pub fn bytes(&self) -> &bytes::Bytes {
        &self.bytes
    }

    /// Returns the numbers, row after row.
    #[must_use]
    pub fn values(&self) -> RowValues<'_> {
        numbers(&self.bytes, self.format).expect("checked when it was made")
    }

    /// Returns the rows in f32.
    #[must_use]
    pub fn to_dense(&self) -> Dense {
        Dense {
            rows: self.rows,
            cols: self.cols,
            values: self.values().to_f32(0..self.rows * self.cols),
        }
    }

    /// Returns some of the rows.
    ///
    /// # Panics
    ///
    /// If `rows` is out of range.
    #[must_use]
    pub fn slice(&self, rows: Range<usize>) -> SharedRows {
        let row_bytes = self.format.num_bytes() * self.cols;
        SharedRows {
            bytes: self
                .bytes
                .slice(rows.start * row_bytes..rows.end * row_bytes),
            rows: rows.len(),
            cols: self.cols,
            format: self.format,
        }
    }
}

/// Casts bytes to numbers; an empty slice needs no alignment.
fn numbers(bytes: &[u8], format: RowFormat) -> Result<RowValues<'_>, bytemuck::PodCastError> {
    Ok(match (format, bytes) {
        (RowFormat::F32, []) => RowValues::F32(&[]),
        (RowFormat::Bf16, []) => RowValues::Bf16(&[]),
        (RowFormat::F32, _) => RowValues::F32(bytemuck::try_cast_slice(bytes)?),
        (RowFormat::Bf16, _) => RowValues::Bf16(bytemuck::try_cast_slice(bytes)?),
    })
}
