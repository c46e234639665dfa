//! A file of an input table, in either of the formats that are read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use parquet::arrow::ProjectionMask;

use super::{Unit, hints, unreadable};
use crate::config::ColumnKind;
use crate::error::Result;
use crate::storage::{CsvInput, ParquetInput, Version, is_csv};

/// An open file of a table.
#[derive(Clone, Debug)]
pub(super) enum FileInput {
    Parquet(ParquetInput),
    Csv(CsvInput),
}

/// Batches of a file, in the order of its rows.
type Batches<'a> = Box<dyn Iterator<Item = Result<RecordBatch>> + 'a>;

impl FileInput {
    /// Opens the files of a table; the name of a file gives its format.
    pub(super) fn open_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        let parquet: Vec<PathBuf> = paths.iter().filter(|path| !is_csv(path)).cloned().collect();
        let opened = ParquetInput::open_all(&parquet).map_err(hints::explain_format)?;
        let mut opened = opened.into_iter();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            files.push(match is_csv(path) {
                true => Self::Csv(CsvInput::open(path)?),
                false => Self::Parquet(opened.next().expect("one a path without such a name")),
            });
        }
        unify_types(&mut files);
        Ok(files)
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        match self {
            Self::Parquet(file) => file.metadata.schema(),
            Self::Csv(file) => file.schema(),
        }
    }

    pub(super) fn is_csv(&self) -> bool {
        matches!(self, Self::Csv(_))
    }

    pub(super) fn csv(&self) -> Option<&CsvInput> {
        match self {
            Self::Parquet(_) => None,
            Self::Csv(csv) => Some(csv),
        }
    }

    /// Reads the columns of a CSV file as their kinds need it: categories as text; numbers and times
    /// as such even if not all values look so. The columns of `text` are read as text.
    pub(super) fn declare(
        &mut self,
        kinds: &BTreeMap<String, ColumnKind>,
        text: &BTreeSet<String>,
    ) {
        let Self::Csv(csv) = self else { return };
        let fields = SchemaRef::clone(csv.inferred());
        let types = fields.fields().iter().map(|field| {
            match (kinds.get(field.name()), field.data_type()) {
                _ if text.contains(field.name()) => DataType::Utf8,
                (Some(ColumnKind::Category), _) => DataType::Utf8,
                (Some(ColumnKind::Number), DataType::Utf8 | DataType::Null) => DataType::Float64,
                (Some(ColumnKind::Time), DataType::Utf8 | DataType::Null) => {
                    DataType::Timestamp(TimeUnit::Microsecond, None)
                }
                (_, DataType::Null) => DataType::Utf8,
                (_, inferred) => inferred.clone(),
            }
        });
        csv.set_types(&types.collect::<Vec<_>>());
    }

    /// Returns the number of rows of each unit: the row groups of a Parquet file, or all of a CSV
    /// file.
    pub(super) fn unit_rows(&self, path: &Path) -> Result<Vec<usize>> {
        let file = match self {
            Self::Csv(file) => return Ok(vec![file.num_rows()]),
            Self::Parquet(file) => file,
        };
        let groups = file.metadata.metadata().row_groups().iter().enumerate();
        let rows = groups.map(|(row_group, group)| {
            usize::try_from(group.num_rows()).map_err(|_| {
                let problem = format!("row group {row_group} has {} rows", group.num_rows());
                unreadable(path, problem)
            })
        });
        rows.collect()
    }

    /// Returns whether a part of a row group can be read alone.
    pub(super) fn is_divisible(&self) -> bool {
        matches!(self, Self::Parquet(file) if file.is_local())
    }

    /// Decodes some columns of a unit.
    pub(super) fn batches(
        &self,
        unit: &Unit,
        columns: &[&str],
        batch_rows: usize,
    ) -> Result<Batches<'_>> {
        let fields = self.schema().fields();
        let roots = (0..fields.len()).filter(|&i| columns.contains(&fields[i].name().as_str()));
        Ok(match self {
            Self::Parquet(file) => {
                let mask = ProjectionMask::roots(file.metadata.parquet_schema(), roots);
                let rows = unit.skipped_rows..unit.skipped_rows + unit.num_rows;
                Box::new(file.batches_of_rows(unit.row_group, rows, mask, batch_rows)?)
            }
            Self::Csv(file) => Box::new(file.batches(roots.collect(), batch_rows)?),
        })
    }

    /// Returns the version of an object; none for a local file.
    pub(super) fn version(&self) -> Option<&Version> {
        match self {
            Self::Parquet(file) => file.version(),
            Self::Csv(file) => file.version(),
        }
    }

    /// Refuses a local file that has changed since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        match self {
            Self::Parquet(file) => file.check_unchanged(),
            Self::Csv(file) => file.check_unchanged(),
        }
    }
}

/// Gives the columns of all CSV files of a table the same types: the narrowest ones that hold all
/// values; null if there is none.
fn unify_types(files: &mut [FileInput]) {
    let all: Vec<SchemaRef> = files
        .iter()
        .filter(|file| file.is_csv())
        .map(|file| SchemaRef::clone(file.schema()))
        .collect();
    let unified = |name: &str| {
        let found = all.iter().filter_map(|schema| schema.fields().find(name));
        let types = found.map(|(_, field)| field.data_type().clone());
        types.reduce(wider).unwrap_or(DataType::Null)
    };
    for file in files {
        if let FileInput::Csv(csv) = file {
            let fields = SchemaRef::clone(csv.inferred());
            let types = fields.fields().iter().map(|field| unified(field.name()));
            csv.set_inferred(&types.collect::<Vec<_>>());
        }
        file.declare(&BTreeMap::new(), &BTreeSet::new());
    }
}

/// Returns the narrowest type that holds the values of both inferred types.
fn wider(left: DataType, right: DataType) -> DataType {
    match (&left, &right) {
        _ if left == right => left,
        (DataType::Null, _) => right,
        (_, DataType::Null) => left,
        (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => {
            DataType::Float64
        }
        (DataType::Date32, DataType::Timestamp(..)) => right,
        (DataType::Timestamp(..), DataType::Date32) => left,
        (DataType::Timestamp(unit, _), DataType::Timestamp(other, _)) => {
            DataType::Timestamp(finer(*unit, *other), None)
        }
        _ => DataType::Utf8,
    }
}

fn finer(left: TimeUnit, right: TimeUnit) -> TimeUnit {
    let order = [
        TimeUnit::Nanosecond,
        TimeUnit::Microsecond,
        TimeUnit::Millisecond,
    ];
    let finest = order.into_iter().find(|unit| [left, right].contains(unit));
    finest.unwrap_or(TimeUnit::Second)
}
