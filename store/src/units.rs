//! The units of a table that a worker reads.

use schemas::Unit;

/// Least number of rows of each part of a unit that is cut. A cut unit is opened more than once, and
/// the pages before a part are read past.
const PART_ROWS_MIN: u64 = 1 << 14;

/// The share of a worker: the rows of a table are cut into as many ranges as there are workers.
///
/// Programs like pyarrow write row groups of a million rows, so a row group may be read by several
/// workers.
#[derive(Clone, Copy)]
pub(crate) struct OwnUnits {
    pub(crate) worker: usize,
    pub(crate) workers: usize,
}

impl OwnUnits {
    /// Returns this worker's units of a table, in order; the first and the last may be parts.
    pub(crate) fn of(self, units: &[Unit]) -> impl Iterator<Item = Unit> + use<> {
        let num_rows = units.last().map_or(0, end_row);
        let bound = |worker: usize| {
            let row = u128::from(num_rows) * worker as u128 / self.workers as u128;
            let row = u64::try_from(row).expect("at most the number of rows");
            cut_near(units, row)
        };
        let (start, end) = (bound(self.worker), bound(self.worker + 1));
        let own = units.iter().filter_map(|unit| {
            let (first, last) = (unit.first_row.max(start), end_row(unit).min(end));
            let at = |row: u64| usize::try_from(row - unit.first_row).expect("a row of the unit");
            (first < last).then(|| unit.part(at(first)..at(last)))
        });
        own.collect::<Vec<_>>().into_iter()
    }
}

fn end_row(unit: &Unit) -> u64 {
    unit.first_row.saturating_add(unit.num_rows as u64)
}

/// Returns `row` if the unit that holds it can be cut there, else the nearest end of that unit.
fn cut_near(units: &[Unit], row: u64) -> u64 {
    let Some(unit) = units.iter().find(|unit| row < end_row(unit)) else {
        return row;
    };
    let (before, after) = (row - unit.first_row, end_row(unit) - row);
    match before.min(after) >= PART_ROWS_MIN && unit.is_divisible() {
        true => row,
        false if before < after => unit.first_row,
        false => end_row(unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use schemas::{NodesPlan, NodesSpec};
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    /// Writes a file with row groups of these numbers of rows; the ids are 0, 1, 2...
    fn write(path: &Path, groups: &[usize]) {
        let column = |ids| -> ArrayRef { Arc::new(Int64Array::from_iter_values(ids)) };
        let none = RecordBatch::try_from_iter([("id", column(0..0))]).unwrap();
        let mut writer =
            ArrowWriter::try_new(File::create(path).unwrap(), none.schema(), None).unwrap();
        let mut first = 0;
        for &num_rows in groups {
            let next = first + i64::try_from(num_rows).unwrap();
            let group = RecordBatch::try_from_iter([("id", column(first..next))]).unwrap();
            writer.write(&group).unwrap();
            writer.flush().unwrap();
            first = next;
        }
        writer.close().unwrap();
    }

    fn plan(dir: &Path, groups: &[usize]) -> NodesPlan {
        write(&dir.join("nodes.parquet"), groups);
        let spec = serde_json::json!({ "path": "nodes.parquet", "id": "id" });
        let spec: NodesSpec = serde_json::from_value(spec).unwrap();
        spec.into_plan(dir).unwrap()
    }

    fn shares(units: &[Unit], workers: usize) -> Vec<Vec<Unit>> {
        let share = |worker| OwnUnits { worker, workers }.of(units).collect();
        (0..workers).map(share).collect()
    }

    fn num_rows(units: &[Unit]) -> usize {
        units.iter().map(|unit| unit.num_rows).sum()
    }

    #[test]
    fn each_row_belongs_to_one_worker() {
        let part = usize::try_from(PART_ROWS_MIN).unwrap();
        for groups in [
            vec![],
            vec![1],
            vec![2 * part - 1],
            vec![2 * part],
            vec![7 * part],
            vec![3, 5 * part, 1, 2 * part, 9],
            vec![10; 20],
        ] {
            let dir = tempfile::tempdir().unwrap();
            let plan = plan(dir.path(), &groups);
            let total: usize = groups.iter().sum();
            for workers in [1, 2, 3, 4, 7, 16] {
                let mut ids = Vec::new();
                for unit in shares(plan.units(), workers).into_iter().flatten() {
                    let keys = plan.read_keys(&unit).unwrap();
                    assert_eq!(keys.ids.len(), unit.num_rows);
                    assert_eq!(keys.rows.row(0), ids.len() as u64);
                    ids.extend((0..keys.ids.len()).map(|row| keys.ids.display(row)));
                }
                let expected: Vec<String> = (0..total).map(|id| id.to_string()).collect();
                assert_eq!(ids, expected, "{groups:?} {workers}");
            }
        }
    }

    #[test]
    fn a_large_row_group_is_shared() {
        let part = usize::try_from(PART_ROWS_MIN).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let one = plan(dir.path(), &[8 * part]);
        for workers in [2, 4, 8] {
            let mut shares = shares(one.units(), workers).into_iter();
            assert!(shares.all(|own| num_rows(&own) == 8 * part / workers));
        }
        // Parts below the least number of rows are not worth a second pass.
        let small = plan(dir.path(), &[2 * part - 2]);
        let rows: Vec<usize> = shares(small.units(), 2)
            .iter()
            .map(|own| num_rows(own))
            .collect();
        assert_eq!(rows, [2 * part - 2, 0]);
    }

    #[test]
    fn row_groups_of_unequal_size_are_dealt_by_rows() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path(), &[1000, 1, 1000, 1, 1000, 1, 1000, 1]);
        let shares = shares(plan.units(), 2);
        assert_eq!([2002, 2002], [num_rows(&shares[0]), num_rows(&shares[1])]);
    }
}
