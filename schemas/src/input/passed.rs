//! Columns of the node table that are handed on as they are.

use std::collections::BTreeSet;
use std::path::Path;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field};

use super::{NodesPlan, nodes};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;

const KEY: &str = "infer.columns";

/// Columns of all nodes, held in memory.
#[derive(Debug)]
pub struct PassedColumns {
    fields: Vec<Field>,
    batches: Vec<RecordBatch>,
    /// Batch and row of each node, in the order of ids.
    places: Vec<(usize, usize)>,
}

impl NodesPlan {
    /// Checks columns to hand on: there, of plain types, of other names than `taken`.
    ///
    /// # Errors
    ///
    /// Names the column, and what is allowed.
    pub fn check_passed(&self, columns: &[String], taken: &[&str]) -> Result<()> {
        self.passed_fields(columns, taken).map(|_| ())
    }

    fn passed_fields(&self, columns: &[String], taken: &[&str]) -> Result<Vec<Field>> {
        let mut seen: BTreeSet<&str> = taken.iter().copied().collect();
        if let Some(column) = columns.iter().find(|column| !seen.insert(column)) {
            let problem = format!(
                "`{column}` is named twice, or is the name of a column that inference writes"
            );
            return Err(SchemaError::Key {
                key: KEY.to_owned(),
                problem,
            });
        }
        let field = |column: &String| {
            let allowed = "numbers, strings, booleans, dates and times";
            let plain = |found: &DataType| is_plain(found).then_some(());
            let check = || {
                let table = self.table();
                table.column(
                    "columns",
                    column,
                    "columns that are handed on",
                    allowed,
                    plain,
                )?;
                table.same_type("columns", column, "columns that are handed on")?;
                let data_type = table.data_type("columns", column)?;
                Ok(Field::new(column, data_type, true))
            };
            check().map_err(|error: SchemaError| error.under_key(KEY))
        };
        columns.iter().map(field).collect()
    }

    /// Reads columns of all nodes.
    ///
    /// # Errors
    ///
    /// As [`check_passed`](Self::check_passed), or a file that cannot be read.
    pub fn read_passed(&self, columns: &[String]) -> Result<PassedColumns> {
        let fields = self.passed_fields(columns, &[])?;
        let id = &self.spec().id;
        let mut wanted: Vec<&str> = columns.iter().map(String::as_str).collect();
        wanted.push(id);
        let mut ids = Ids::new(self.id_type());
        let (mut batches, mut rows) = (Vec::new(), Vec::new());
        for unit in self.units() {
            for item in self.table().batches(unit, &wanted, 1)? {
                let (place, batch) = item?;
                nodes::append_ids(place, id, &batch, &mut ids, None)?;
                rows.extend((0..batch.num_rows()).map(|row| (batches.len(), row)));
                let kept = columns.iter().map(|name| batch.schema().index_of(name));
                let kept = kept.collect::<std::result::Result<Vec<_>, _>>();
                let kept = kept.and_then(|kept| batch.project(&kept));
                batches.push(kept.map_err(unreadable)?);
            }
        }
        let order = ids.sort_permutation();
        let places = order.into_iter().map(|row| rows[row as usize]).collect();
        Ok(PassedColumns {
            fields,
            batches,
            places,
        })
    }
}

impl PassedColumns {
    /// Returns the columns' names and types.
    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Returns the columns of some nodes, by their places in the order of ids.
    pub(crate) fn gather(&self, nodes: &[u32]) -> Result<Vec<ArrayRef>> {
        let places: Vec<(usize, usize)> = nodes
            .iter()
            .map(|&node| self.places[node as usize])
            .collect();
        let gather = |column: usize| {
            let arrays = self.batches.iter().map(|batch| &**batch.column(column));
            interleave(&arrays.collect::<Vec<&dyn Array>>(), &places).map_err(unreadable)
        };
        (0..self.fields.len()).map(gather).collect()
    }
}

/// Types whose columns are one leaf of a file.
fn is_plain(data_type: &DataType) -> bool {
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
    is_text || data_type.is_primitive() || *data_type == DataType::Boolean
}

fn unreadable(source: arrow::error::ArrowError) -> SchemaError {
    SchemaError::Unreadable {
        path: Path::new("input.nodes").to_owned(),
        source,
    }
}
