//! Columns of the node table that are copied to an output.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, interleave};
use arrow::datatypes::{DataType, Field, Schema};

use super::id_column::append_ids;
use super::{NodesPlan, decode};
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
    /// Checks columns to copy: they must exist, be of plain types and have other names than
    /// `taken`.
    ///
    /// # Errors
    ///
    /// Names the column, and the allowed types and names.
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
            let role = "columns that are handed on";
            let allowed = "numbers, strings, bytes, booleans, dates, times and lists of these";
            let check = || {
                let table = self.table();
                let data_type = table.column("columns", column, role, allowed, written_type)?;
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
    /// As [`check_passed`](Self::check_passed), or if a file cannot be read.
    pub fn read_passed(&self, columns: &[String]) -> Result<PassedColumns> {
        let fields = self.passed_fields(columns, &[])?;
        let id = &self.spec().id;
        let mut wanted: Vec<&str> = columns.iter().map(String::as_str).collect();
        wanted.push(id);
        let schema = Arc::new(Schema::new(fields.clone()));
        let mut ids = Ids::new(self.id_type());
        let (mut batches, mut rows) = (Vec::new(), Vec::new());
        for unit in self.units() {
            for item in self.table().batches(unit, &wanted, 1)? {
                let read = item?;
                let (place, batch) = (read.place(), &read.rows);
                append_ids(place, id, batch, &mut ids, None)?;
                rows.extend((0..batch.num_rows()).map(|row| (batches.len(), row)));
                let kept = fields.iter().map(|field| {
                    let given = decode::column(batch, field.name());
                    cast(given, field.data_type()).map_err(place.convert())
                });
                let kept = kept.collect::<Result<Vec<_>>>()?;
                let num_rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let kept = RecordBatch::try_new_with_options(Arc::clone(&schema), kept, &num_rows);
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

    /// Returns the columns of some nodes, given by their positions in the order of ids.
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

/// Returns the type in which a column is copied; none if it is not one leaf of a file. It is the
/// column's own, but for dictionaries and views, which become the type of their values.
fn written_type(data_type: &DataType) -> Option<DataType> {
    let item = |field: &Field| {
        let written = plain_type(field.data_type())?;
        Some(Arc::new(Field::new(field.name(), written, true)))
    };
    Some(match data_type {
        DataType::List(field) | DataType::ListView(field) => DataType::List(item(field)?),
        DataType::LargeList(field) | DataType::LargeListView(field) => {
            DataType::LargeList(item(field)?)
        }
        DataType::FixedSizeList(field, width) if *width > 0 => {
            DataType::FixedSizeList(item(field)?, *width)
        }
        other => plain_type(other)?,
    })
}

fn plain_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Dictionary(_, values) => plain_type(values)?,
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::FixedSizeBinary(_)
        | DataType::Boolean => data_type.clone(),
        other => other.is_primitive().then(|| other.clone())?,
    })
}

fn unreadable(source: arrow::error::ArrowError) -> SchemaError {
    SchemaError::Unreadable {
        path: Path::new("input.nodes").to_owned(),
        source,
    }
}
