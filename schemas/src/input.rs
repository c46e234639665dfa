//! Input tables: their checked plans and their rows.

mod decode;
mod edges;
mod features;
mod hints;
mod id_column;
pub(crate) mod label;
mod list;
mod nodes;
mod passed;
mod path;
pub(crate) mod split;
#[cfg(test)]
mod tests;
mod versioned;

use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use xxhash_rust::xxh3::Xxh3;

pub use edges::{EdgeRows, EdgesPlan};
pub use list::IdListPlan;
pub use nodes::{NodeKeys, NodeReader, NodeRows, NodesPlan, SplitRows};
pub use passed::PassedColumns;

use crate::config::TablePath;
use crate::error::{Result, SchemaError};
use crate::storage::ParquetInput;
use crate::xxh;

/// A file of a table, and its name relative to the path under which it was found.
type NamedFile = (PathBuf, String);

/// Values of the widest column in a batch: few enough that they and their levels are still in the
/// cache when they are copied.
const BATCH_VALUES: usize = 1 << 16;
/// Greatest number of rows in a batch.
const BATCH_ROWS_MAX: usize = 1 << 16;
/// Greatest number of rows for which memory is reserved before they are read.
const RESERVED_ROWS_MAX: usize = 1 << 22;

/// A row group of an input file, which one worker reads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Position of the file among the table's files, which are sorted by path.
    pub file: usize,
    /// Row group within the file.
    pub row_group: usize,
    /// Its first row, counted over all files.
    pub first_row: u64,
    /// Its number of rows.
    pub num_rows: usize,
}

/// Files of one input table, with their footers.
#[derive(Clone, Debug)]
struct Table {
    /// `nodes`, `edges` or `targets`.
    name: &'static str,
    files: Vec<TableFile>,
    units: Vec<Unit>,
    num_rows: u64,
}

#[derive(Clone, Debug)]
struct TableFile {
    path: PathBuf,
    /// Path relative to the table's path, so that a moved table keeps its fingerprint.
    name: String,
    first_row: u64,
    input: ParquetInput,
}

/// File and first row of a batch, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// Row of the file, from 0.
    pub(crate) first_row: u64,
}

impl Place<'_> {
    /// The error for a value of row `row` of the batch.
    fn value(&self, column: &str, row: usize, problem: impl Into<String>) -> SchemaError {
        SchemaError::Value {
            path: self.path.to_owned(),
            column: column.to_owned(),
            row: self.first_row + row as u64,
            problem: problem.into(),
        }
    }

    /// Wraps an error of a conversion.
    fn convert(&self) -> impl FnOnce(arrow::error::ArrowError) -> SchemaError {
        let path = self.path.to_owned();
        move |source| SchemaError::Arrow {
            action: "convert",
            path,
            source,
        }
    }
}

impl Unit {
    /// Number of rows to reserve memory for: the footer may claim too many, so beyond
    /// [`RESERVED_ROWS_MAX`] memory grows with the rows that are read.
    fn num_rows_reserved(&self) -> usize {
        self.num_rows.min(RESERVED_ROWS_MAX)
    }
}

/// The error of a file whose footer and pages do not agree.
fn unreadable(path: &Path, problem: String) -> SchemaError {
    SchemaError::Unreadable {
        path: path.to_owned(),
        source: ArrowError::ParquetError(problem),
    }
}

impl Table {
    /// Finds the files of `path` as written and reads their footers.
    fn open(name: &'static str, base: &Path, path: &TablePath) -> Result<Self> {
        let mut table = Self {
            name,
            files: Vec::new(),
            units: Vec::new(),
            num_rows: 0,
        };
        let found = path::resolve(&format!("input.{name}.path"), base, path)?;
        let (paths, names): (Vec<PathBuf>, Vec<String>) = found.into_iter().unzip();
        let inputs = ParquetInput::open_all(&paths).map_err(hints::explain_format)?;
        for ((file_path, file_name), input) in paths.into_iter().zip(names).zip(inputs) {
            let first_row = table.num_rows;
            table.add_units(&file_path, &input.metadata)?;
            table.files.push(TableFile {
                path: file_path,
                name: file_name,
                first_row,
                input,
            });
        }
        Ok(table)
    }

    fn add_units(&mut self, path: &Path, metadata: &ArrowReaderMetadata) -> Result<()> {
        for (row_group, group) in metadata.metadata().row_groups().iter().enumerate() {
            let Ok(num_rows) = usize::try_from(group.num_rows()) else {
                let problem = format!("row group {row_group} has {} rows", group.num_rows());
                return Err(unreadable(path, problem));
            };
            let (file, first_row) = (self.files.len(), self.num_rows);
            self.units.push(Unit {
                file,
                row_group,
                first_row,
                num_rows,
            });
            self.num_rows = self.num_rows.saturating_add(num_rows as u64);
        }
        Ok(())
    }

    /// The dotted name of one of the table's keys.
    fn key(&self, key: &str) -> String {
        format!("input.{}.{key}", self.name)
    }

    /// Checks one column in every file: `check` returns the meaning of its type, or `None` if the
    /// type is not allowed.
    ///
    /// The meaning must be the same in all files.
    fn column<T: PartialEq>(
        &self,
        key: &str,
        column: &str,
        role: &'static str,
        allowed: &'static str,
        check: impl Fn(&DataType) -> Option<T>,
    ) -> Result<T> {
        let mut meaning = None;
        for file in &self.files {
            let field = file.field(&self.key(key), column)?;
            let found = check(field.data_type());
            let found = found.ok_or_else(|| {
                let hint = hints::of_type(field.data_type(), role);
                file.wrong_type(field, role, &format!("{allowed}{hint}"))
            })?;
            if meaning.as_ref().is_some_and(|meaning| *meaning != found) {
                return Err(self.unlike_first(file, field, role));
            }
            meaning = Some(found);
        }
        Ok(meaning.expect("a table has at least one file"))
    }

    /// Checks that a column is of one type in all files.
    fn same_type(&self, key: &str, column: &str, role: &'static str) -> Result<()> {
        let first = self.data_type(key, column)?;
        for file in &self.files {
            let field = file.field(&self.key(key), column)?;
            if *field.data_type() != first {
                return Err(self.unlike_first(file, field, role));
            }
        }
        Ok(())
    }

    fn unlike_first(&self, file: &TableFile, field: &Field, role: &'static str) -> SchemaError {
        let first = &self.files[0];
        let types = first.input.metadata.schema().fields();
        let type_there = types
            .find(field.name())
            .map(|(_, field)| field.data_type().to_string());
        let allowed = format!(
            "{}, as in {}",
            type_there.unwrap_or_default(),
            first.path.display()
        );
        file.wrong_type(field, role, &allowed)
    }

    /// The Arrow type of a column in the first file.
    fn data_type(&self, key: &str, column: &str) -> Result<DataType> {
        Ok(self.files[0]
            .field(&self.key(key), column)?
            .data_type()
            .clone())
    }

    /// Decodes some columns of a unit, batch by batch.
    ///
    /// `width` is the number of values a row of the widest column.
    fn batches<'a>(
        &'a self,
        unit: &Unit,
        columns: &[&str],
        width: usize,
    ) -> Result<impl Iterator<Item = Result<(Place<'a>, RecordBatch)>> + use<'a>> {
        let file = &self.files[unit.file];
        let metadata = &file.input.metadata;
        let fields = metadata.schema().fields();
        let roots = (0..fields.len()).filter(|&i| columns.contains(&fields[i].name().as_str()));
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots);
        let batch_rows = (BATCH_VALUES / width.max(1)).clamp(64, BATCH_ROWS_MAX);
        let mut batches = file.input.batches(vec![unit.row_group], mask, batch_rows)?;
        let (row_group, mut first_row) = (unit.row_group, unit.first_row - file.first_row);
        let end = first_row + unit.num_rows as u64;
        let mut is_done = false;
        Ok(std::iter::from_fn(move || {
            let place = Place {
                path: &file.path,
                first_row,
            };
            match batches.next() {
                _ if is_done => None,
                Some(Ok(batch)) => {
                    first_row += batch.num_rows() as u64;
                    Some(Ok((place, batch)))
                }
                Some(Err(error)) => {
                    is_done = true;
                    Some(Err(error))
                }
                None if first_row == end => None,
                None => {
                    is_done = true;
                    let problem =
                        format!("row group {row_group} ends at row {first_row}, not {end}");
                    Some(Err(unreadable(&file.path, problem)))
                }
            }
        }))
    }

    fn locate(&self, row: u64) -> (PathBuf, u64) {
        assert!(row < self.num_rows, "row {row} of {}", self.num_rows);
        let file = self.files.partition_point(|file| file.first_row <= row) - 1;
        let file = &self.files[file];
        (file.path.clone(), row - file.first_row)
    }

    fn fingerprint(&self) -> Result<String> {
        let mut state = Xxh3::new();
        for file in &self.files {
            state.update(file.name.as_bytes());
            state.update(&[0]);
            // A store gives each content of an object its own version, so the object is not read.
            if let Some(version) = file.input.version() {
                state.update(version.fingerprint().as_bytes());
                continue;
            }
            let size = std::fs::metadata(&file.path)
                .map_err(SchemaError::io("read the size of", &file.path))?
                .len();
            state.update(&size.to_le_bytes());
            xxh::update_from_file(&mut state, &file.path)?;
            file.input.check_unchanged()?;
        }
        Ok(format!("{:032x}", state.digest128()))
    }
}

impl TableFile {
    fn wrong_type(&self, field: &Field, role: &'static str, allowed: &str) -> SchemaError {
        SchemaError::ColumnType {
            path: self.path.clone(),
            column: field.name().clone(),
            role,
            found: field.data_type().to_string().into(),
            allowed: allowed.into(),
        }
    }

    fn field(&self, key: &str, column: &str) -> Result<&Field> {
        let fields = self.input.metadata.schema().fields();
        let mut found = fields.iter().filter(|field| field.name() == column);
        if let Some(field) = found.next() {
            if found.next().is_some() {
                return Err(SchemaError::Key {
                    key: key.to_owned(),
                    problem: format!("{} has two columns `{column}`", self.path.display()),
                });
            }
            return Ok(field);
        }
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        Err(SchemaError::NoColumn {
            key: key.to_owned(),
            path: self.path.clone(),
            column: column.to_owned(),
            suggestion: closest(column, &names).map(Box::from),
            columns: names.join(", ").into(),
        })
    }
}

/// Returns the result of a check, or adds its error to `found`.
fn keep<T>(checked: Result<T>, found: &mut Vec<SchemaError>) -> Option<T> {
    checked.map_err(|error| found.push(error)).ok()
}

/// Returns the name most like the one written, if at most a third of its letters differ.
fn closest<'a>(written: &str, names: &[&'a str]) -> Option<&'a str> {
    let allowed = (written.chars().count() / 3).max(1);
    let distance = |name: &str| strsim::levenshtein(&written.to_lowercase(), &name.to_lowercase());
    let best = names.iter().copied().min_by_key(|name| distance(name))?;
    (distance(best) <= allowed).then_some(best)
}
