//! The numbers of rows that were read.

use super::table::ReadBatch;

/// Numbers of some rows of a table, counted over all its files; ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowNumbers {
    rows: Rows,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rows {
    /// So many rows from the first one on.
    All(u64, usize),
    Listed(Vec<u64>),
}

impl Default for RowNumbers {
    fn default() -> Self {
        Self {
            rows: Rows::All(0, 0),
        }
    }
}

impl RowNumbers {
    pub(super) fn of(read: &ReadBatch<'_>) -> Self {
        let first = read.first_row();
        let rows = match &read.kept {
            None => Rows::All(first, read.rows.num_rows()),
            Some(kept) => Rows::Listed(kept.iter().map(|&at| first + u64::from(at)).collect()),
        };
        Self { rows }
    }

    /// Makes a list of rows.
    pub fn listed(rows: Vec<u64>) -> Self {
        Self {
            rows: Rows::Listed(rows),
        }
    }

    /// Returns the number of the row at a position.
    ///
    /// # Panics
    ///
    /// If there are not so many rows.
    pub fn row(&self, at: usize) -> u64 {
        match &self.rows {
            Rows::All(first, len) => {
                assert!(at < *len, "row {at} of {len}");
                first + at as u64
            }
            Rows::Listed(rows) => rows[at],
        }
    }

    /// Returns all numbers.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|at| self.row(at))
    }

    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        match &self.rows {
            Rows::All(_, len) => *len,
            Rows::Listed(rows) => rows.len(),
        }
    }

    /// Tells whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds later rows.
    pub(super) fn extend(&mut self, later: Self) {
        match (&mut self.rows, later.rows) {
            (Rows::All(_, 0), later) => self.rows = later,
            (Rows::All(first, len), Rows::All(next, more)) if *first + *len as u64 == next => {
                *len += more;
            }
            (_, later) => {
                let mut rows: Vec<u64> = self.iter().collect();
                rows.extend(Self { rows: later }.iter());
                self.rows = Rows::Listed(rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_numbers_when_more_are_added() {
        let all = |first, len| RowNumbers {
            rows: Rows::All(first, len),
        };
        let listed = |rows: &[u64]| RowNumbers {
            rows: Rows::Listed(rows.to_vec()),
        };
        let check = |parts: &[RowNumbers], expected: &[u64]| {
            let mut rows = RowNumbers::default();
            parts.iter().for_each(|part| rows.extend(part.clone()));
            assert_eq!(rows.iter().collect::<Vec<_>>(), expected);
            assert_eq!(
                (rows.len(), rows.is_empty()),
                (expected.len(), expected.is_empty())
            );
        };
        check(&[], &[]);
        check(&[all(3, 2), all(5, 1)], &[3, 4, 5]);
        check(&[all(3, 2), all(7, 1)], &[3, 4, 7]);
        check(
            &[listed(&[1, 4]), all(7, 2), listed(&[11])],
            &[1, 4, 7, 8, 11],
        );
        check(&[listed(&[]), listed(&[2])], &[2]);
    }
}
