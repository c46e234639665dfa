//! The error of this crate: a file or value that could not be read, checked or written.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Shorthand for results of this crate.
pub type Result<T, E = SchemaError> = std::result::Result<T, E>;

/// Who can mend an error; the program turns it into its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The user must change the job file, a path or an output directory (exit code 2).
    Usage,
    /// The user must change the input data (exit code 3).
    Data,
    /// Reading or writing failed, or a file is broken (exit code 1).
    Failed,
}

impl ErrorKind {
    /// Returns the exit code of the program.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Data => 3,
        }
    }
}

/// Where a row stands in its file, as people find it: Parquet has rows, CSV has lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPlace {
    /// A row of a Parquet file, from 0.
    Row(u64),
    /// The line of a CSV file at which the row starts. The header is line 1.
    Line(u64),
}

impl std::fmt::Display for RowPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Row(row) => write!(f, "row {row}"),
            Self::Line(line) => write!(f, "line {line}"),
        }
    }
}

/// A table or an output directory could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A key of the job file holds something impossible.
    #[error("`{key}`: {problem}")]
    Key {
        /// Dotted name of the key, such as `input.nodes.features`.
        key: String,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// The system refused a thread.
    #[error(
        "cannot start another thread: raise the limit on processes (`pids.max` of the container, \
         `ulimit -u`), or set fewer `workers`"
    )]
    Thread {
        /// The cause.
        source: std::io::Error,
    },
    /// A path names a storage this build cannot reach.
    #[error("`{key}`: {path} {problem}")]
    Storage {
        /// Dotted name of the key.
        key: String,
        /// The path as written.
        path: String,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// A path names no file of a table.
    #[error("`{key}`: {problem}: {}", path.display())]
    NoFile {
        /// Dotted name of the key.
        key: String,
        /// The problem of the path.
        problem: String,
        /// The path, made absolute.
        path: PathBuf,
    },
    /// A column named in the job file does not exist.
    #[error(
        "`{key}`: no column `{column}` in {}; {}its columns are {columns}",
        path.display(),
        hint.as_deref().unwrap_or_default()
    )]
    NoColumn {
        /// Dotted name of the key.
        key: String,
        /// The file that lacks it.
        path: PathBuf,
        /// The column as written.
        column: String,
        /// The columns there are, comma separated.
        columns: Box<str>,
        /// What may be meant, or why there is no such column, with a space behind it.
        hint: Option<Box<str>>,
    },
    /// A column is of a type that its role does not allow.
    #[error("column `{column}` of {} is {found}, allowed for {role}: {allowed}", path.display())]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Role of the column, such as `ids`.
        role: &'static str,
        /// Its type in words.
        found: Box<str>,
        /// The types allowed.
        allowed: Box<str>,
    },
    /// An input file is no Parquet file, or a broken one.
    #[error("cannot read {} as Parquet", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: arrow::error::ArrowError,
    },
    /// An input file is no CSV file, or a broken one.
    #[error("cannot read {} as CSV", path.display())]
    UnreadableCsv {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: arrow::error::ArrowError,
    },
    /// A line of a CSV file is broken.
    #[error("{}, line {line}: {problem}", path.display())]
    CsvLine {
        /// The file.
        path: PathBuf,
        /// 1-based line of the file at which the row starts.
        line: u64,
        /// The problem, and the mend.
        problem: String,
    },
    /// An input file is of another format.
    #[error(
        "cannot read {} as Parquet: it is {found}; only Parquet is read, which pandas \
         (`to_parquet`), pyarrow and DuckDB (`COPY ... TO 'FILE.parquet'`) write, and CSV in files \
         named `*.csv`, `*.csv.gz` or `*.tsv`",
        path.display()
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The format that it seems to have.
        found: &'static str,
    },
    /// A value of the input is not allowed.
    #[error("column `{column}` of {}, {row}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The row of that file.
        row: RowPlace,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// An input table as a whole is not usable.
    #[error("{} table: {problem}", table)]
    Table {
        /// `nodes` or `edges`, or the table of the job file.
        table: Box<str>,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// The output directory holds another output or other files.
    #[error("output {} {problem}", dir.display())]
    OutputTaken {
        /// The directory.
        dir: PathBuf,
        /// The content of the directory, and the mend.
        problem: String,
    },
    /// Another run is writing the directory.
    #[error("{} is being written by another run{holder}", dir.display())]
    OutputLocked {
        /// The directory.
        dir: PathBuf,
        /// Host and process of the other run, in brackets, if the lock names them.
        holder: String,
    },
    /// A directory holds no finished output.
    #[error("{} holds no finished output: {problem}", dir.display())]
    NotFinished {
        /// The directory.
        dir: PathBuf,
        /// The part that is missing.
        problem: String,
    },
    /// An operation of the file system failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, such as `open`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A Parquet file could not be decoded or encoded.
    #[error("cannot {action} Parquet file {}", path.display())]
    Parquet {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: parquet::errors::ParquetError,
    },
    /// An Arrow batch could not be decoded, converted or built.
    #[error("cannot {action} a batch of {}", path.display())]
    Arrow {
        /// `read`, `convert` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: arrow::error::ArrowError,
    },
    /// A JSON file of an output directory could not be read.
    #[error("cannot read {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A file of an output differs from what was written.
    #[error("{} is broken: {problem}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The values that disagree.
        problem: String,
    },
    /// A file was replaced, or removed from its store, while the job read it.
    #[error("{} was changed while the job read it; run the job again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A table in memory breaks its own rules.
    #[error("invalid {what}: {problem}")]
    Invalid {
        /// `graph feature`, `shard` or `ids`.
        what: &'static str,
        /// The values that disagree.
        problem: String,
    },
}

impl SchemaError {
    /// Returns who can mend the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Key { .. }
            | Self::Storage { .. }
            | Self::NoFile { .. }
            | Self::NoColumn { .. }
            | Self::OutputTaken { .. }
            | Self::NotFinished { .. } => ErrorKind::Usage,
            Self::ColumnType { .. }
            | Self::Unreadable { .. }
            | Self::UnreadableCsv { .. }
            | Self::CsvLine { .. }
            | Self::OtherFormat { .. }
            | Self::Value { .. }
            | Self::Table { .. } => ErrorKind::Data,
            Self::Io { .. }
            | Self::OutputLocked { .. }
            | Self::Thread { .. }
            | Self::Parquet { .. }
            | Self::Arrow { .. }
            | Self::Json { .. }
            | Self::Broken { .. }
            | Self::Changed { .. }
            | Self::Invalid { .. } => ErrorKind::Failed,
        }
    }

    /// Replaces the key of the job file that the error names, if it names one.
    pub fn under_key(self, key: &str) -> Self {
        let key = key.to_owned();
        match self {
            Self::Key { problem, .. } => Self::Key { key, problem },
            Self::Storage { path, problem, .. } => Self::Storage { key, path, problem },
            Self::NoFile { problem, path, .. } => Self::NoFile { key, problem, path },
            Self::NoColumn {
                path,
                column,
                columns,
                hint,
                ..
            } => Self::NoColumn {
                key,
                path,
                column,
                columns,
                hint,
            },
            other => other,
        }
    }

    /// Turns [`SchemaError::Invalid`] into [`SchemaError::Broken`] of the file `path`.
    pub(crate) fn found_in(self, path: &std::path::Path) -> Self {
        match self {
            Self::Invalid { what, problem } => Self::Broken {
                path: path.to_owned(),
                problem: format!("{what}: {problem}"),
            },
            other => other,
        }
    }

    /// Wraps an error of the file system.
    pub(crate) fn io<'a>(
        action: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<'a> {
        move |source| Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// Returns an error and its causes on one line, each after a colon.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    format!("{error}{}", error_causes(error))
}

/// Returns the causes of an error, each after a colon.
pub fn error_causes(error: &dyn std::error::Error) -> String {
    causes(error).map(|cause| format!(": {cause}")).collect()
}

/// Returns the first cause of an error, which is the last one of the chain.
pub(crate) fn root_cause<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a (dyn std::error::Error + 'static)> {
    causes(error).last()
}

/// Iterates over the causes of an error, from the nearest one on.
pub(crate) fn causes<'a>(
    error: &'a dyn std::error::Error,
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |cause| cause.source())
}
