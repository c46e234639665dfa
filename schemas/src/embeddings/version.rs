//! Tables of a version of embeddings besides its rows: what it replaces and what it removes.

use std::sync::Arc;

use arrow::array::new_null_array;
use arrow::array::{Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use half::f16;

use super::{EmbeddingColumns, Precision, SCHEMA_KEY, invalid};
use crate::as_given;
use crate::config::{DELETE, OP, UPSERT};
use crate::dataset::{
    CHANGES, DELETES, FileEntry, Output, PartEntry, ReplacedRows, VERSION, write_replaced,
};
use crate::error::Result;
use crate::ids::Ids;
use crate::parquet_file::TABLE_SCHEMA;
use crate::table_writer::{Column, Strings, TableWriter};

/// The removed nodes of a type.
#[derive(Clone, Debug)]
pub struct DeletedNodes<'a> {
    /// Name of the type; none if nodes have no types.
    pub type_name: Option<&'a str>,
    /// Their ids.
    pub ids: Ids,
    /// The columns of the rows, in which they have nulls.
    pub columns: &'a EmbeddingColumns,
}

/// Writes the tables of a version besides its rows; `deleted` has an entry for each type that is
/// written. The caller commits the part.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write_version_part(
    output: &Output,
    replaced: &ReplacedRows,
    deleted: &[DeletedNodes<'_>],
) -> Result<PartEntry> {
    let mut files = vec![write_replaced(output, replaced, SCHEMA_KEY)?];
    for of_type in deleted {
        files.push(write_deletes(output, of_type)?);
    }
    Ok(PartEntry {
        name: VERSION.to_owned(),
        files,
        rows: 0,
        targets: None,
    })
}

fn create(output: &Output, name: &str, columns: Vec<Field>) -> Result<TableWriter> {
    let metadata = [(SCHEMA_KEY, TABLE_SCHEMA.to_owned())];
    let schema = Schema::new(columns);
    TableWriter::create(output, name, schema, Strings::Repeated, &metadata)
}

/// Writes the removed nodes of a type.
fn write_deletes(output: &Output, deleted: &DeletedNodes<'_>) -> Result<FileEntry> {
    let (ids, of) = (&deleted.ids, deleted.columns);
    let num_rows = ids.len();
    let mut fields = vec![
        Field::new("id", ids.id_type().data_type(), false),
        Field::new(OP, DataType::Utf8, false),
    ];
    let mut columns = vec![ids.to_array(), ops(DELETE, num_rows)];
    for &(name, dim) in &of.vectors {
        let width = i32::try_from(dim).map_err(|e| invalid(e.to_string()))?;
        let item = Arc::new(Field::new("item", of.precision.data_type(), false));
        let values = new_zeros(of.precision, dim * num_rows);
        let nulls = Some(NullBuffer::new_null(num_rows));
        let list = FixedSizeListArray::try_new(item, width, values, nulls);
        let list = list.map_err(|e| invalid(e.to_string()))?;
        fields.push(Field::new(name, list.data_type().clone(), true));
        columns.push(Arc::new(list));
    }
    if let Some(meta) = &of.prediction {
        let field = as_given::label_field("prediction", meta)?;
        columns.push(new_null_array(field.data_type(), num_rows));
        fields.push(field.with_nullable(true));
    }
    let path = match deleted.type_name {
        None => format!("{CHANGES}/{DELETES}"),
        Some(name) => format!("{CHANGES}/{name}/{DELETES}"),
    };
    let mut table = create(output, &path, fields)?;
    table.write(columns.into_iter().map(Column::from).collect())?;
    table.finish()
}

fn new_zeros(precision: Precision, count: usize) -> ArrayRef {
    match precision {
        Precision::F32 => Arc::new(Float32Array::from(vec![0.0; count])),
        Precision::F16 => Arc::new(Float16Array::from(vec![f16::ZERO; count])),
    }
}

/// Returns the column `op` of written rows.
pub(super) fn upserts(num_rows: usize) -> ArrayRef {
    ops(UPSERT, num_rows)
}

fn ops(op: &str, num_rows: usize) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
        op, num_rows,
    )))
}
