//! The files of an input table, and the rows that one table takes from them.

mod csv;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field};
use xxhash_rust::xxh3::Xxh3;

use super::file_input::FileInput;
use super::filter::RowFilter;
use super::type_words::type_words;
use super::{Place, Unit, hints, path, unreadable};
use crate::config::{ColumnKind, RowsWhere, TablePath};
use crate::error::{Result, RowPlace, SchemaError};
use crate::{known, xxh};

/// Values of the widest column in a batch: few enough that they and their levels are still in the
/// cache when they are copied.
pub(super) const BATCH_VALUES: usize = 1 << 16;
/// Greatest number of rows in a batch.
const BATCH_ROWS_MAX: usize = 1 << 16;

/// Kind of the table of pairs that are scored.
const SCORED: &str = "scored pairs";

/// Kind of the table of nodes where it is read as edges to their graphs.
const MEMBERS: &str = "nodes of graphs";

/// Name of a table in the job file.
#[derive(Clone, Debug)]
pub(crate) struct TableName {
    /// `nodes`, `edges`, `pairs`, `graphs`, `targets`, [`SCORED`] or [`MEMBERS`].
    kind: &'static str,
    /// The type or the relation; empty if it has no name.
    of: String,
}

/// An input table: the rows of some files that its `where` keeps.
#[derive(Clone, Debug)]
pub(super) struct Table {
    name: TableName,
    files: Arc<TableFiles>,
    filter: RowFilter,
}

/// Files with their columns and units. Several tables may take their rows from the same files.
#[derive(Debug)]
pub(super) struct TableFiles {
    files: Vec<TableFile>,
    units: Vec<Unit>,
    num_rows: u64,
    /// Kinds of columns, which decide how CSV files are read.
    kinds: Kinds,
    /// Number of units that were opened to read rows.
    units_read: AtomicU64,
}

#[derive(Clone, Debug)]
pub(super) struct TableFile {
    path: PathBuf,
    /// Path relative to the table's path, so that a moved table keeps its fingerprint.
    name: String,
    first_row: u64,
    input: FileInput,
}

/// The files of several tables; files of the same path are opened once, CSV files once for each way
/// to read their columns.
#[derive(Default)]
pub(crate) struct OpenFiles {
    opened: Vec<(TablePath, Arc<TableFiles>)>,
}

/// Kinds of feature columns that the job file or a model gives.
pub(super) type Kinds = BTreeMap<String, ColumnKind>;

/// Rows that were read together, or those of them that a table takes.
pub(super) struct ReadBatch<'a> {
    file: &'a TableFile,
    /// Row of the file, from 0, of the first row that was read.
    first_row: u64,
    /// Positions of the rows among those that were read; none if they are all of these.
    pub(super) kept: Option<Vec<u32>>,
    pub(super) rows: RecordBatch,
}

impl TableName {
    /// Names the node table of a type; the type is empty if nodes have no types.
    pub(crate) fn nodes(of: &str) -> Self {
        let (kind, of) = ("nodes", of.to_owned());
        Self { kind, of }
    }

    /// Names the edge table of a relation; the relation is empty if nodes have no types.
    pub(crate) fn edges(of: &str) -> Self {
        let (kind, of) = ("edges", of.to_owned());
        Self { kind, of }
    }

    pub(super) fn pairs() -> Self {
        let (kind, of) = ("pairs", String::new());
        Self { kind, of }
    }

    /// Names the table of the pairs that are scored.
    pub(super) fn scored() -> Self {
        let (kind, of) = (SCORED, String::new());
        Self { kind, of }
    }

    /// Names the table of graphs.
    pub(super) fn graphs() -> Self {
        let (kind, of) = ("graphs", String::new());
        Self { kind, of }
    }

    /// Names the node table of a type where it is read as edges to the graphs of nodes.
    pub(super) fn members(of: &str) -> Self {
        let (kind, of) = (MEMBERS, of.to_owned());
        Self { kind, of }
    }

    pub(super) fn is_of_graphs(&self) -> bool {
        self.kind == MEMBERS
    }

    pub(super) fn is_of_pairs(&self) -> bool {
        ["pairs", SCORED].contains(&self.kind)
    }

    pub(super) fn targets() -> Self {
        let (kind, of) = ("targets", String::new());
        Self { kind, of }
    }

    /// The dotted name of the table in the job file.
    pub(super) fn table(&self) -> String {
        let kind = match self.kind {
            MEMBERS => "nodes",
            kind => kind,
        };
        match (kind, self.of.is_empty()) {
            (SCORED, _) => "score.pairs".to_owned(),
            (_, true) => format!("input.{kind}"),
            (_, false) => format!("input.{kind}.{}", self.of),
        }
    }

    /// The dotted name of one of the table's keys.
    pub(super) fn key(&self, key: &str) -> String {
        let key = match (self.kind, key) {
            (MEMBERS, "src") => "id",
            (MEMBERS, "dst") => "graph",
            (_, key) => key,
        };
        format!("{}.{key}", self.table())
    }

    /// The words for the table in messages.
    pub(super) fn title(&self) -> String {
        match self.of.is_empty() {
            true => self.kind.to_owned(),
            false => format!("`{}`", self.table()),
        }
    }

    /// The error of a table that as a whole is not usable.
    pub(super) fn unusable(&self, problem: String) -> SchemaError {
        SchemaError::Table {
            table: self.title().into(),
            problem,
        }
    }
}

impl OpenFiles {
    /// Finds the files of `path` as written and opens them.
    fn open(
        &mut self,
        name: &TableName,
        base: &Path,
        (path, kinds): (&TablePath, &Kinds),
    ) -> Result<Arc<TableFiles>> {
        let mut opened = self.opened.iter();
        let known = opened.find(|(opened, files)| {
            opened == path && (files.kinds == *kinds || files.inferred().is_none())
        });
        if let Some((_, files)) = known {
            return Ok(Arc::clone(files));
        }
        let mut files = TableFiles::open(&name.key("path"), base, path)?;
        files.kinds.clone_from(kinds);
        files.declare(&BTreeSet::new());
        let files = Arc::new(files);
        self.opened.push((path.clone(), Arc::clone(&files)));
        Ok(files)
    }
}

impl TableFiles {
    fn open(key: &str, base: &Path, path: &TablePath) -> Result<Self> {
        let mut table = Self {
            files: Vec::new(),
            units: Vec::new(),
            num_rows: 0,
            kinds: Kinds::new(),
            units_read: AtomicU64::new(0),
        };
        let found = path::resolve(key, base, path)?;
        let (paths, names): (Vec<PathBuf>, Vec<String>) = found.into_iter().unzip();
        let inputs = FileInput::open_all(&paths)?;
        for ((file_path, file_name), input) in paths.into_iter().zip(names).zip(inputs) {
            let first_row = table.num_rows;
            table.add_units(&input.unit_rows(&file_path)?, input.is_divisible());
            table.files.push(TableFile {
                path: file_path,
                name: file_name,
                first_row,
                input,
            });
        }
        Ok(table)
    }

    fn add_units(&mut self, unit_rows: &[usize], is_divisible: bool) {
        for (row_group, &num_rows) in unit_rows.iter().enumerate() {
            let (file, first_row) = (self.files.len(), self.num_rows);
            self.units.push(Unit {
                file,
                row_group,
                first_row,
                num_rows,
                skipped_rows: 0,
                is_divisible,
            });
            self.num_rows = self.num_rows.saturating_add(num_rows as u64);
        }
    }

    /// Reads the columns of CSV files as their kinds need it, and the columns of `text` as text.
    fn declare(&mut self, text: &BTreeSet<String>) {
        for file in &mut self.files {
            file.input.declare(&self.kinds, text);
        }
    }

    /// Returns the columns with the types that were inferred; none if no file is CSV.
    fn inferred(&self) -> Option<Vec<(String, String)>> {
        let csv = self.csv_files().next()?.1;
        let fields = csv.schema().fields().iter();
        let shown = fields.map(|field| (field.name().clone(), type_words(field.data_type())));
        Some(shown.collect())
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Decodes some columns of a unit, batch by batch.
    ///
    /// `width` is the number of values a row of the widest column.
    pub(super) fn batches<'a>(
        &'a self,
        unit: &Unit,
        columns: &[&str],
        width: usize,
    ) -> Result<impl Iterator<Item = Result<ReadBatch<'a>>> + use<'a>> {
        let file = &self.files[unit.file];
        let batch_rows = (BATCH_VALUES / width.max(1)).clamp(64, BATCH_ROWS_MAX);
        let mut batches = file.input.batches(unit, columns, batch_rows)?;
        self.units_read.fetch_add(1, Ordering::Relaxed);
        let (row_group, mut next_row) = (unit.row_group, unit.first_row - file.first_row);
        let end = next_row + unit.num_rows as u64;
        let mut is_done = false;
        Ok(std::iter::from_fn(move || {
            let first_row = next_row;
            match batches.next() {
                _ if is_done => None,
                Some(Ok(rows)) => {
                    next_row += rows.num_rows() as u64;
                    Some(Ok(ReadBatch {
                        file,
                        first_row,
                        kept: None,
                        rows,
                    }))
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

    /// Returns a fingerprint of the files: their names, sizes and contents.
    pub(super) fn fingerprint(&self) -> Result<String> {
        let paths: Vec<&Path> = self.files.iter().map(|file| &*file.path).collect();
        let names: Vec<&str> = self.files.iter().map(|file| &*file.name).collect();
        let found = known::checksum_of_table(&names, &paths, || self.hash())?;
        self.check_unchanged()?;
        Ok(found)
    }

    fn check_unchanged(&self) -> Result<()> {
        let mut files = self.files.iter();
        files.try_for_each(|file| file.input.check_unchanged())
    }

    fn is_known_by_content(&self) -> bool {
        let mut versions = self.files.iter().filter_map(|file| file.input.version());
        versions.all(|version| version.has_e_tag())
    }

    fn hash(&self) -> Result<String> {
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
        }
        Ok(format!("{:032x}", state.digest128()))
    }
}

impl ReadBatch<'_> {
    /// Returns the place of the rows, for their errors.
    pub(super) fn place(&self) -> Place<'_> {
        Place {
            path: &self.file.path,
            first_row: self.first_row,
            kept: self.kept.as_deref(),
            csv: self.file.input.csv(),
        }
    }

    /// Returns the number of the first row that was read, over all files.
    pub(super) fn first_row(&self) -> u64 {
        self.file.first_row + self.first_row
    }

    /// Returns the rows at some positions.
    pub(super) fn keep(&self, kept: Vec<u32>, rows: RecordBatch) -> Self {
        Self {
            kept: Some(kept),
            rows,
            ..*self
        }
    }

    /// Returns all rows again.
    pub(super) fn all(&self) -> Self {
        Self {
            kept: None,
            rows: self.rows.clone(),
            ..*self
        }
    }
}

impl Table {
    /// Finds the files of `path` as written and opens them, columns of CSV files as `kinds` needs
    /// them; takes all rows.
    pub(super) fn open(
        name: TableName,
        base: &Path,
        (path, kinds): (&TablePath, &Kinds),
        files: &mut OpenFiles,
    ) -> Result<Self> {
        let files = files.open(&name, base, (path, kinds))?;
        Ok(Self {
            name,
            files,
            filter: RowFilter::default(),
        })
    }

    /// Takes only the rows that `wanted` describes; names each column that is wrong.
    pub(super) fn take_where(&mut self, wanted: &RowsWhere) -> Result<(), Vec<SchemaError>> {
        self.filter = RowFilter::plan(wanted, self)?;
        Ok(())
    }

    pub(super) fn name(&self) -> &TableName {
        &self.name
    }

    pub(super) fn files(&self) -> &Arc<TableFiles> {
        &self.files
    }

    pub(super) fn filter(&self) -> &RowFilter {
        &self.filter
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.files.units
    }

    /// The number of rows of the files, whether the table takes them or not.
    pub(super) fn num_rows(&self) -> u64 {
        self.files.num_rows
    }

    pub(super) fn units_read(&self) -> u64 {
        self.files.units_read.load(Ordering::Relaxed)
    }

    /// Returns the columns with the types that were inferred; none if no file is CSV.
    pub(super) fn inferred(&self) -> Option<Vec<(String, String)>> {
        self.files.inferred()
    }

    /// The dotted name of one of the table's keys.
    pub(super) fn key(&self, key: &str) -> String {
        self.name.key(key)
    }

    /// Decodes some columns of the rows that the table takes from a unit, batch by batch.
    ///
    /// `width` is the number of values a row of the widest column.
    pub(super) fn batches<'a>(
        &'a self,
        unit: &Unit,
        columns: &[&str],
        width: usize,
    ) -> Result<impl Iterator<Item = Result<ReadBatch<'a>>> + use<'a>> {
        let mut columns = columns.to_vec();
        columns.extend(self.filter.columns());
        let batches = self.files.batches(unit, &columns, width)?;
        Ok(batches.map(|item| {
            let read = item?;
            match self.filter.is_all() {
                true => Ok(read),
                false => self.filter.apply(&read),
            }
        }))
    }

    /// Checks one column in every file: `check` returns the meaning of its type, or `None` if the
    /// type is not allowed.
    ///
    /// The meaning must be the same in all files.
    pub(super) fn column<T: PartialEq>(
        &self,
        key: &str,
        column: &str,
        role: &'static str,
        allowed: &'static str,
        check: impl Fn(&DataType) -> Option<T>,
    ) -> Result<T> {
        let mut meaning = None;
        for file in &self.files.files {
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

    /// Checks one column as [`Table::column`] does. A file in which the column has no type, because
    /// all its values are null, agrees with any file in which it has one.
    pub(super) fn nullable_column<T: PartialEq>(
        &self,
        key: &str,
        column: &str,
        role: &'static str,
        allowed: &'static str,
        check: impl Fn(&DataType) -> Option<T>,
    ) -> Result<T> {
        let mut typed = None;
        for file in &self.files.files {
            let data_type = file.field(&self.key(key), column)?.data_type();
            if *data_type != DataType::Null {
                typed = typed.or(Some(data_type));
            }
        }
        let of_nulls = typed.unwrap_or(&DataType::Null);
        self.column(key, column, role, allowed, |data_type| match data_type {
            DataType::Null => check(of_nulls),
            other => check(other),
        })
    }

    /// Checks that a column is of one type in all files.
    pub(super) fn same_type(&self, key: &str, column: &str, role: &'static str) -> Result<()> {
        let first = self.data_type(key, column)?;
        for file in &self.files.files {
            let field = file.field(&self.key(key), column)?;
            if *field.data_type() != first {
                return Err(self.unlike_first(file, field, role));
            }
        }
        Ok(())
    }

    /// Names a column and the files of the table, for errors about all rows.
    pub(super) fn place_of(&self, column: &str) -> String {
        let files = &self.files.files;
        let first = files[0].path.display();
        match files.len() - 1 {
            0 => format!("column `{column}` of {first}"),
            1 => format!("column `{column}` of {first} and one more file"),
            more => format!("column `{column}` of {first} and {more} more files"),
        }
    }

    fn unlike_first(&self, file: &TableFile, field: &Field, role: &'static str) -> SchemaError {
        let first = &self.files.files[0];
        let types = first.input.schema().fields();
        let type_there = types
            .find(field.name())
            .map(|(_, field)| type_words(field.data_type()));
        let allowed = format!(
            "{}, as in {}",
            type_there.unwrap_or_default(),
            first.path.display()
        );
        file.wrong_type(field, role, &allowed)
    }

    /// The Arrow type of a column in the first file.
    pub(super) fn data_type(&self, key: &str, column: &str) -> Result<DataType> {
        Ok(self.files.files[0]
            .field(&self.key(key), column)?
            .data_type()
            .clone())
    }

    /// Finds a row counted over all files: its file, and its place there.
    pub(super) fn locate(&self, row: u64) -> (PathBuf, RowPlace) {
        assert!(row < self.num_rows(), "row {row} of {}", self.num_rows());
        let files = &self.files.files;
        let file = files.partition_point(|file| file.first_row <= row) - 1;
        let (file, row_there) = (&files[file], row - files[file].first_row);
        let csv = file.input.csv();
        let place = csv.map_or(RowPlace::Row(row_there), |csv| csv.line(row_there));
        (file.path.clone(), place)
    }

    pub(super) fn fingerprint(&self) -> Result<String> {
        self.files.fingerprint()
    }

    pub(super) fn is_known_by_content(&self) -> bool {
        self.files.is_known_by_content()
    }

    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.files.check_unchanged()
    }
}

impl TableFile {
    fn wrong_type(&self, field: &Field, role: &'static str, allowed: &str) -> SchemaError {
        SchemaError::ColumnType {
            path: self.path.clone(),
            column: field.name().clone(),
            role,
            found: type_words(field.data_type()).into(),
            allowed: allowed.into(),
        }
    }

    fn field(&self, key: &str, column: &str) -> Result<&Field> {
        let fields = self.input.schema().fields();
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
            hint: hints::of_missing(column, &names, &self.path).map(Box::from),
            columns: names.join(", ").into(),
        })
    }
}
