//! A table of ids, such as a list of targets.

use std::collections::BTreeMap;
use std::path::Path;

use arrow::datatypes::DataType;

use super::id_column::append_ids;
use super::{OpenFiles, Table, TableName};
use crate::config::TablePath;
use crate::error::{Result, SchemaError};
use crate::ids::{IdType, Ids};

/// A table that lists nodes by their ids, checked against the files' schemas.
#[derive(Clone, Debug)]
pub struct IdListPlan {
    table: Table,
    column: String,
    id_type: IdType,
}

impl IdListPlan {
    /// Finds the files and the column, which must hold integers or strings as the ids of the nodes
    /// do.
    ///
    /// # Errors
    ///
    /// Names `key`, file or column, and the allowed values.
    pub fn open(key: &str, path: &Path, column: &str, id_type: IdType) -> Result<Self> {
        let open = || {
            let path = TablePath::from(path.to_string_lossy().into_owned());
            let mut files = OpenFiles::default();
            let path = (&path, &BTreeMap::new());
            let mut table = Table::open(TableName::targets(), Path::new(""), path, &mut files)?;
            let allowed = match id_type.is_integer() {
                true => "integers, as the nodes have",
                false => "strings, as the nodes have",
            };
            let is_csv = table.is_csv();
            let fits = |found: &DataType| {
                let is_same = || Some(IdType::of(found)?.is_integer() == id_type.is_integer());
                (is_csv || is_same()?).then_some(())
            };
            table.column("id", column, "listed ids", allowed, fits)?;
            let text = table.id_text(column, id_type).map(str::to_owned);
            Table::read_as_text(&mut [(&mut table, text.into_iter().collect())]);
            Ok(Self {
                table,
                column: column.to_owned(),
                id_type,
            })
        };
        open().map_err(|error: SchemaError| error.under_key(key))
    }

    /// Reads all ids, as ids of the nodes' type.
    ///
    /// # Errors
    ///
    /// Names file, column and row of a null, or of an id that no node can have.
    pub fn read(&self) -> Result<Ids> {
        let mut ids = Ids::new(self.id_type);
        for unit in self.table.units() {
            for item in self.table.batches(unit, &[&self.column], 1)? {
                let read = item?;
                append_ids(read.place(), &self.column, &read.rows, &mut ids, None)?;
            }
        }
        Ok(ids)
    }

    /// Returns the error for a listed id that no node has.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn unknown(&self, ids: &Ids, at: usize) -> SchemaError {
        let (path, row) = self.table.locate(at as u64);
        SchemaError::Value {
            path,
            column: self.column.clone(),
            row,
            problem: format!("is {}, which is no node's id", ids.display(at)),
        }
    }

    /// Returns a fingerprint of the files: their names, sizes and contents.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        self.table.fingerprint()
    }
}
