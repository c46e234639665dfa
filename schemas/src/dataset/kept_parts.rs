//! Parts of a version: its own, and those of earlier outputs of which it keeps rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};

use super::{FileEntry, Manifest, Output, PartEntry, REPLACED};
use crate::error::{Result, SchemaError};
use crate::parquet_file::{TABLE_SCHEMA, TableReader};
use crate::table_writer::{Strings, TableWriter};

/// Rows of a batch.
const ROWS: usize = 1 << 16;

/// Rows of earlier outputs that a version replaces or removes, by file: `../v1/part-00000.parquet`.
pub type ReplacedRows = BTreeMap<String, Vec<u64>>;

/// A part with rows.
#[derive(Clone, Debug)]
pub(crate) struct RowsPart {
    /// Its output.
    pub(crate) dir: PathBuf,
    pub(crate) entry: PartEntry,
    /// Rows that a version has replaced, ascending.
    pub(crate) replaced: Vec<u64>,
    /// Whether it is one of an earlier output.
    pub(crate) is_kept: bool,
}

/// Lists the parts with rows of an output: those of earlier outputs that it keeps first. The files
/// of its stage have their schema version under metadata key `key`.
///
/// # Errors
///
/// If an earlier output is gone, or the table of replaced rows is broken.
pub(crate) fn rows_parts(dir: &Path, manifest: &Manifest, key: &str) -> Result<Vec<RowsPart>> {
    let mut parts = kept_parts(dir, manifest, key)?;
    parts.extend(manifest.row_parts().map(|entry| RowsPart {
        dir: dir.to_owned(),
        entry: entry.clone(),
        replaced: Vec::new(),
        is_kept: false,
    }));
    Ok(parts)
}

/// Lists the parts of earlier outputs that a version keeps; none if the output is no version.
fn kept_parts(dir: &Path, manifest: &Manifest, key: &str) -> Result<Vec<RowsPart>> {
    let Some(version) = &manifest.version else {
        return Ok(Vec::new());
    };
    let mut files = manifest.parts.iter().flat_map(|part| &part.files);
    let table = files.find(|file| file.path == REPLACED);
    let mut replaced = match table {
        Some(entry) => read_replaced(dir, entry, key)?,
        None => ReplacedRows::new(),
    };
    let mut parts = Vec::new();
    for kept in &version.kept {
        let of_output = kept.checked_dir(dir)?;
        for entry in &kept.parts {
            let names = entry.files.iter();
            let mut of_part = names.map(|file| format!("{}/{}", kept.path, file.path));
            let rows = of_part.find_map(|name| replaced.remove(&name));
            let rows = rows.unwrap_or_default();
            let ascend = rows.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascend || rows.last().is_some_and(|last| *last >= entry.rows) {
                let name = &entry.name;
                return Err(broken(
                    dir,
                    format!("it names a row twice or none of {name}"),
                ));
            }
            parts.push(RowsPart {
                dir: of_output.clone(),
                entry: entry.clone(),
                replaced: rows,
                is_kept: true,
            });
        }
    }
    match replaced.pop_first() {
        None => Ok(parts),
        Some((name, _)) => {
            let problem = format!("it names {name}, which is no file of the version");
            Err(broken(dir, problem))
        }
    }
}

/// Returns an error about the replaced rows of the version in a directory.
pub(crate) fn broken(dir: &Path, problem: String) -> SchemaError {
    SchemaError::Broken {
        path: dir.join(REPLACED),
        problem,
    }
}

/// Writes which rows of earlier outputs a version replaces.
pub(crate) fn write_replaced(
    output: &Output,
    replaced: &ReplacedRows,
    key: &'static str,
) -> Result<FileEntry> {
    let schema = Schema::new(vec![
        Field::new("file", DataType::Utf8, false),
        Field::new("row", DataType::Int64, false),
    ]);
    let metadata = [(key, TABLE_SCHEMA.to_owned())];
    let mut table = TableWriter::create(output, REPLACED, schema, Strings::Repeated, &metadata)?;
    for (file, of_file) in replaced {
        for rows in of_file.chunks(ROWS) {
            let files = rows.iter().map(|_| file);
            let files: ArrayRef = Arc::new(StringArray::from_iter_values(files));
            let numbers = rows.iter().map(|row| row.cast_signed());
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
            table.write(vec![files.into(), numbers.into()])?;
        }
    }
    table.finish()
}

/// Reads which rows of earlier outputs a version replaces; those of a file ascend.
fn read_replaced(dir: &Path, entry: &FileEntry, key: &str) -> Result<ReplacedRows> {
    let path = dir.join(&entry.path);
    let reader = TableReader::open(&path, entry, key)?;
    let mut replaced = ReplacedRows::new();
    reader.for_each(|batch| {
        let columns = (batch.column("file")?, batch.column("row")?);
        let files = columns.0.as_string_opt::<i32>();
        let rows = columns.1.as_primitive_opt::<Int64Type>();
        let (Some(files), Some(rows)) = (files, rows) else {
            let [file, row] = [columns.0, columns.1].map(|column| column.data_type());
            let found = format!("columns `file` and `row` are of types {file} and {row}");
            return Err(batch.broken(found));
        };
        for row in 0..rows.len() {
            let number = u64::try_from(rows.value(row));
            let number = number.map_err(|_| batch.broken("a row is negative".to_owned()))?;
            let of_file = match replaced.get_mut(files.value(row)) {
                Some(of_file) => of_file,
                None => replaced.entry(files.value(row).to_owned()).or_default(),
            };
            of_file.push(number);
        }
        Ok(())
    })?;
    replaced.values_mut().for_each(|rows| rows.sort_unstable());
    Ok(replaced)
}
