//! Dense rows that stay in the tables that hold them until a model reads them.

use std::fmt::Debug;
use std::sync::Arc;

use crate::kernel::gather_rows;
use crate::{Dense, GnnError};

/// A table of dense rows, such as the features of a decoded part.
pub trait RowTable: Debug + Send + Sync {
    /// Returns the values, row after row.
    fn values(&self) -> &[f32];
}

/// The place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// Position of the table.
    pub table: u32,
    /// Position of the row in the table.
    pub row: u32,
}

/// Rows of one or several tables, in any order. Each pass copies them on all its threads.
#[derive(Clone, Debug)]
pub struct PlacedRows {
    tables: Vec<Arc<dyn RowTable>>,
    places: Vec<RowPlace>,
    cols: usize,
}

impl PlacedRows {
    /// Names rows of `cols` values.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if a place is in no table, or rows have no columns.
    pub fn new(
        tables: Vec<Arc<dyn RowTable>>,
        places: Vec<RowPlace>,
        cols: usize,
    ) -> Result<PlacedRows, GnnError> {
        let error = |problem| Err(GnnError::Input { problem });
        if cols == 0 {
            return error("rows in tables have no columns".to_owned());
        }
        let rows_of = |table: &Arc<dyn RowTable>| table.values().len() / cols;
        let num_rows: Vec<usize> = tables.iter().map(rows_of).collect();
        let is_missing = |place: &&RowPlace| {
            let num_rows = num_rows.get(place.table as usize);
            num_rows.is_none_or(|&num_rows| place.row as usize >= num_rows)
        };
        match places.iter().find(is_missing) {
            Some(RowPlace { table, row }) => {
                error(format!("there is no row {row} in table {table}"))
            }
            None => Ok(PlacedRows {
                tables,
                places,
                cols,
            }),
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Copies the rows.
    #[must_use]
    pub fn to_dense(&self) -> Dense {
        let tables: Vec<&[f32]> = self.tables.iter().map(|table| table.values()).collect();
        let of_row = |v: usize| {
            let place = self.places.get(v)?;
            let start = place.row as usize * self.cols;
            tables[place.table as usize].get(start..start + self.cols)
        };
        Dense {
            rows: self.rows(),
            cols: self.cols,
            values: gather_rows(self.rows(), self.cols, of_row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Table(Vec<f32>);

    impl RowTable for Table {
        fn values(&self) -> &[f32] {
            &self.0
        }
    }

    /// Names rows of two tables with 1000 and 3 rows of 40 values, each value its own position.
    fn placed(of: &[(u32, u32)]) -> Result<PlacedRows, GnnError> {
        let table_of = |rows: u16| -> Arc<dyn RowTable> {
            Arc::new(Table((0..rows * 40).map(f32::from).collect()))
        };
        let places = of.iter().map(|&(table, row)| RowPlace { table, row });
        PlacedRows::new(vec![table_of(1000), table_of(3)], places.collect(), 40)
    }

    #[test]
    fn rows_of_all_tables_are_copied_in_order() {
        let mut places: Vec<(u32, u32)> = (0..1000).rev().map(|row| (0, row)).collect();
        places.extend([(1, 2), (0, 5), (0, 5), (1, 0)]);
        let dense = placed(&places).unwrap().to_dense();
        assert_eq!((dense.rows, dense.cols), (1004, 40));
        for (v, &(_, row)) in places.iter().enumerate() {
            let expected: Vec<f32> = (row * 40..(row + 1) * 40).map(|x| x as f32).collect();
            assert_eq!(dense.row(v), expected);
        }
        assert_eq!(placed(&[]).unwrap().to_dense(), Dense::zeros(0, 40));
    }

    #[test]
    fn places_in_no_table_are_errors() {
        for (place, problem) in [
            ((1, 3), "there is no row 3 in table 1"),
            ((2, 0), "there is no row 0 in table 2"),
        ] {
            let error = placed(&[(0, 1), place]).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
        assert!(PlacedRows::new(Vec::new(), Vec::new(), 0).is_err());
    }
}
