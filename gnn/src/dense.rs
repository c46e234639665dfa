//! A dense matrix of plain numbers.

use crate::GnnError;

/// A dense row-major matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dense {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// `rows * cols` values, row after row.
    pub values: Vec<f32>,
}

impl Dense {
    /// Makes a matrix of zeros.
    #[must_use]
    pub fn zeros(rows: usize, cols: usize) -> Dense {
        Dense {
            rows,
            cols,
            values: vec![0.0; rows * cols],
        }
    }

    /// Returns one row.
    ///
    /// # Panics
    ///
    /// If `row` is not less than `rows`.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    pub(crate) fn check(&self) -> Result<(), GnnError> {
        if self.values.len() == self.rows * self.cols {
            return Ok(());
        }
        let (rows, cols, len) = (self.rows, self.cols, self.values.len());
        Err(GnnError::Input {
            problem: format!("a {rows} x {cols} matrix cannot hold {len} values"),
        })
    }
}
