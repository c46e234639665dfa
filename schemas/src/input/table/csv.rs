//! The CSV files of a table: which of their columns are read as text.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::DataType;

use super::super::id_column::IDS;
use super::{Table, TableFiles};
use crate::error::Result;
use crate::ids::IdType;
use crate::storage::CsvInput;

impl TableFiles {
    /// Returns the same files, of which some columns of CSV files are read as text.
    fn with_text(&self, text: &BTreeSet<String>) -> Self {
        let mut files = Self {
            files: self.files.clone(),
            units: self.units.clone(),
            num_rows: self.num_rows,
            kinds: self.kinds.clone(),
            units_read: AtomicU64::new(0),
        };
        files.declare(text);
        files
    }

    /// Returns the CSV files with their paths.
    pub(super) fn csv_files(&self) -> impl Iterator<Item = (&Path, &CsvInput)> {
        let files = self.files.iter();
        files.filter_map(|file| Some((file.path.as_path(), file.input.csv()?)))
    }
}

impl Table {
    /// Tells whether all files are CSV.
    pub(in crate::input) fn is_csv(&self) -> bool {
        let mut files = self.files.files.iter();
        files.all(|file| file.input.is_csv())
    }

    /// Returns the CSV files with their paths.
    pub(in crate::input) fn csv_files(&self) -> impl Iterator<Item = (&Path, &CsvInput)> {
        self.files.csv_files()
    }

    /// Tells whether a column of CSV files has rows, but no value in any of them.
    pub(in crate::input) fn is_without_values(&self, column: &str) -> bool {
        let is_null = |csv: &CsvInput| {
            let field = csv.inferred().field_with_name(column);
            field.is_ok_and(|field| *field.data_type() == DataType::Null)
        };
        self.is_csv() && self.num_rows() > 0 && self.csv_files().all(|(_, csv)| is_null(csv))
    }

    /// Tells whether all values of a column of CSV files are numbers, some with a fraction.
    pub(in crate::input) fn has_fractions(&self, column: &str) -> bool {
        let data_type = self.data_type("id", column);
        self.is_csv() && data_type.is_ok_and(|of| of == DataType::Float64)
    }

    /// Returns the type of a column of ids. Ids of CSV files are text unless all are integers.
    pub(in crate::input) fn id_type(&self, key: &str, column: &str) -> Result<IdType> {
        self.column(key, column, "ids", IDS, |data_type| match data_type {
            DataType::Int64 => Some(IdType::Int64),
            _ if self.is_csv() => Some(IdType::Utf8),
            other => IdType::of(other),
        })
    }

    /// Returns the columns of CSV files that `where` compares with text, and whose values are all
    /// numbers, times or booleans.
    pub(in crate::input) fn filter_text(&self) -> impl Iterator<Item = String> {
        let is_other = |name: &&str| {
            let data_type = self.data_type("where", name).ok();
            self.is_csv() && data_type.is_some_and(|of| of != DataType::Utf8)
        };
        self.filter
            .text_columns()
            .filter(is_other)
            .map(str::to_owned)
    }

    /// Returns a column of ids if it is in CSV files and must be read as text, so that the ids are
    /// as written, or are parsed where they are needed.
    pub(in crate::input) fn id_text<'a>(
        &self,
        column: &'a str,
        id_type: IdType,
    ) -> Option<&'a str> {
        let data_type = self.data_type("id", column).ok()?;
        let is_fine = match data_type {
            DataType::Utf8 => true,
            DataType::Int64 => id_type.is_integer(),
            _ => false,
        };
        (self.is_csv() && !is_fine).then_some(column)
    }

    /// Reads columns of CSV files as text: `text` has those of each table. Tables of the same files
    /// keep the same files.
    pub(in crate::input) fn read_as_text(tables: &mut [(&mut Self, Vec<String>)]) {
        let mut text: Vec<(Arc<TableFiles>, BTreeSet<String>)> = Vec::new();
        for (table, columns) in tables.iter().filter(|(_, columns)| !columns.is_empty()) {
            let known = text
                .iter_mut()
                .find(|(files, _)| Arc::ptr_eq(files, &table.files));
            match known {
                Some((_, all)) => all.extend(columns.iter().cloned()),
                None => text.push((Arc::clone(&table.files), columns.iter().cloned().collect())),
            }
        }
        for (old, columns) in text {
            let new = Arc::new(old.with_text(&columns));
            for (table, _) in tables.iter_mut() {
                if Arc::ptr_eq(&table.files, &old) {
                    table.files = Arc::clone(&new);
                }
            }
        }
    }
}
