//! Embeddings on disk: `id`, `embedding`, and `prediction` where a head was applied.
//!
//! The nodes of a typed graph have a folder for each type, `embeddings/TYPE`.

mod version;
mod whole;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Schema};
use half::f16;
use serde::{Deserialize, Serialize};

use crate::as_given;
use crate::columns::{LabelMeta, Labels};
use crate::config::OP;
use crate::dataset::{
    CHANGES, FileEntry, Manifest, Output, PartEntry, RowsPart, part_name, read_manifest,
    rows_parts, verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::float_pages::FloatPages;
use crate::ids::{IdType, Ids};
use crate::idx::NodeIdx;
use crate::input::PassedColumns;
use crate::parquet_file::{Batch, TABLE_SCHEMA, TableReader, number_array};
use crate::table_writer::{Column, Strings, TableWriter};

pub use version::{DeletedNodes, write_version_part};
pub use whole::{PartSizes, RowPosition};

/// Metadata key of the table's schema version.
const SCHEMA_KEY: &str = "graphinfer.schema";

/// Folder, in an output, of the folders of node types.
pub(crate) const FOLDER: &str = "embeddings";

/// Compression ratio x 100 below which embeddings stay uncompressed. At a lower ratio, such as for
/// the zeros that `relu` leaves, compression would take most of the time of inference.
const SHRINK: usize = 200;

/// How the numbers of vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Four bytes a number.
    #[default]
    F32,
    /// Two bytes a number: up to 65504, with three significant digits.
    F16,
}

/// The columns of a table of embeddings.
#[derive(Clone, Debug)]
pub struct EmbeddingColumns {
    /// Type of the ids.
    pub id_type: IdType,
    /// Columns of the node table that are copied to the output.
    pub passed: Option<Arc<PassedColumns>>,
    /// Columns of vectors: name and width.
    pub vectors: Vec<(&'static str, usize)>,
    /// Precision of the vectors.
    pub precision: Precision,
    /// Labels of the input, if there are predictions: predictions are written in the same form
    /// (class number or name, list of zeros and ones, number).
    pub prediction: Option<LabelMeta>,
    /// Whether the rows are those of a version that differ from its parent's: they lie in `changes/`
    /// and have a column `op`.
    pub are_changes: bool,
}

/// Rows of a table of embeddings.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingBatch<'a> {
    /// `[n]`.
    pub ids: &'a Ids,
    /// `[n]`: numbers of the nodes.
    pub nodes: &'a [NodeIdx],
    /// One entry for each column of vectors: `[n * width]`, row-major.
    pub vectors: &'a [Vec<f32>],
    /// `[n]`, or [`Labels::None`] where [`EmbeddingColumns::prediction`] is none.
    pub prediction: &'a Labels,
}

/// Writes one part of embeddings.
#[derive(Debug)]
pub struct EmbeddingsWriter {
    writer: TableWriter,
    name: String,
    columns: EmbeddingColumns,
    rows: u64,
}

impl EmbeddingsWriter {
    /// Starts part `index`.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn create(output: &Output, index: usize, columns: &EmbeddingColumns) -> Result<Self> {
        let folder = match columns.are_changes {
            true => format!("{CHANGES}/"),
            false => String::new(),
        };
        Self::named(output, part_name(index), folder, columns)
    }

    /// Starts part `index` of the nodes of a type.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn of_type(
        output: &Output,
        type_name: &str,
        index: usize,
        columns: &EmbeddingColumns,
    ) -> Result<Self> {
        let name = format!("{type_name}/{}", part_name(index));
        let folder = if columns.are_changes { CHANGES } else { FOLDER };
        Self::named(output, name, format!("{folder}/"), columns)
    }

    /// Starts the one table of the learnable rows of a node type, or of the nodes of an untyped graph,
    /// whose type has the empty name.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn table(output: &Output, type_name: &str, columns: &EmbeddingColumns) -> Result<Self> {
        let (name, folder) = match type_name {
            "" => (FOLDER.to_owned(), String::new()),
            _ => (type_name.to_owned(), format!("{FOLDER}/")),
        };
        Self::named(output, name, folder, columns)
    }

    /// Starts a part; its file is `{folder}{name}.parquet`.
    fn named(
        output: &Output,
        name: String,
        folder: String,
        columns: &EmbeddingColumns,
    ) -> Result<Self> {
        let mut fields = vec![Field::new("id", columns.id_type.data_type(), false)];
        let op = Field::new(OP, DataType::Utf8, false);
        fields.extend(columns.are_changes.then_some(op));
        if let Some(passed) = &columns.passed {
            fields.extend_from_slice(passed.fields());
        }
        for &(column, dim) in &columns.vectors {
            let Ok(width) = i32::try_from(dim) else {
                let problem = format!("the width is {dim}, at most 2147483647 is allowed");
                return Err(invalid(problem));
            };
            let item = Arc::new(Field::new("item", columns.precision.data_type(), false));
            fields.push(Field::new(
                column,
                DataType::FixedSizeList(item, width),
                false,
            ));
        }
        if let Some(prediction) = &columns.prediction {
            fields.push(as_given::label_field("prediction", prediction)?);
        }
        let metadata = [(SCHEMA_KEY, TABLE_SCHEMA.to_owned())];
        let file = format!("{folder}{name}.parquet");
        let schema = Schema::new(fields);
        let writer = TableWriter::create(output, &file, schema, Strings::Distinct, &metadata)?;
        Ok(Self {
            writer: writer.with_shrink(SHRINK),
            name,
            columns: columns.clone(),
            rows: 0,
        })
    }

    /// Appends nodes, as a row group of their own.
    ///
    /// # Errors
    ///
    /// If the lengths disagree, a number does not fit, or the file cannot be written.
    pub fn write(&mut self, batch: EmbeddingBatch<'_>) -> Result<()> {
        let num_rows = batch.ids.len();
        let predicted = batch.prediction.num_rows().unwrap_or(num_rows);
        let widths = self
            .columns
            .vectors
            .iter()
            .map(|(_, width)| width * num_rows);
        let fits = widths.eq(batch.vectors.iter().map(Vec::len));
        if !fits || predicted != num_rows {
            let lengths: Vec<usize> = batch.vectors.iter().map(Vec::len).collect();
            return Err(invalid(format!(
                "{num_rows} ids, {lengths:?} values of {:?} and {predicted} predictions do not agree",
                self.columns.vectors
            )));
        }
        let mut columns = vec![Column::Array(batch.ids.to_array())];
        if self.columns.are_changes {
            columns.push(version::upserts(num_rows).into());
        }
        if let Some(passed) = &self.columns.passed {
            let passed = passed.gather(NodeIdx::raw_slice(batch.nodes))?;
            columns.extend(passed.into_iter().map(Column::Array));
        }
        for ((_, width), values) in self.columns.vectors.iter().zip(batch.vectors) {
            columns.push(match self.columns.precision {
                Precision::F32 => pages(values, *width),
                Precision::F16 => Column::Array(halves(values, *width)?),
            });
        }
        if let Some(meta) = &self.columns.prediction {
            columns.push(as_given::label_array(batch.prediction, meta)?.into());
        }
        self.rows += num_rows as u64;
        self.writer.write(columns)
    }

    /// Finishes the file; the caller commits the part.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(self) -> Result<PartEntry> {
        let files = vec![self.writer.finish()?];
        Ok(PartEntry {
            name: self.name,
            files,
            rows: self.rows,
            targets: None,
        })
    }
}

impl Precision {
    fn data_type(self) -> DataType {
        match self {
            Self::F32 => DataType::Float32,
            Self::F16 => DataType::Float16,
        }
    }
}

fn pages(values: &[f32], width: usize) -> Column {
    let mut pages = FloatPages::default();
    for row in values.chunks_exact(width) {
        pages.push(std::iter::once(row));
    }
    Column::Floats(pages)
}

fn halves(values: &[f32], width: usize) -> Result<ArrayRef> {
    let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
    if let Some(at) = halves.iter().position(|half| !half.is_finite()) {
        let problem = format!(
            "{} does not fit 16 bits; set `infer.precision` = \"f32\"",
            values[at]
        );
        return Err(invalid(problem));
    }
    let num_rows = values.len() / width;
    let item = Arc::new(Field::new("item", DataType::Float16, false));
    let width = i32::try_from(width).map_err(|e| invalid(e.to_string()))?;
    let array = number_array::<Float16Type>(halves);
    let list = FixedSizeListArray::try_new_with_length(item, width, array, None, num_rows);
    Ok(Arc::new(list.map_err(|e| invalid(e.to_string()))?))
}

fn invalid(problem: String) -> SchemaError {
    SchemaError::Invalid {
        what: "embeddings",
        problem,
    }
}

/// Embeddings of some nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRows {
    /// `[n]`.
    pub ids: Ids,
    /// Width of an embedding.
    pub dim: usize,
    /// `[n * dim]`, row-major.
    pub embedding: Vec<f32>,
    /// `[n]`, or none.
    pub prediction: Labels,
}

impl EmbeddingRows {
    fn none(id_type: IdType, label: Option<&LabelMeta>) -> Self {
        Self {
            ids: Ids::new(id_type),
            dim: 0,
            embedding: Vec::new(),
            prediction: Labels::empty(label),
        }
    }

    /// Returns the rows but those at some positions, which ascend.
    fn without(&self, positions: &[u64]) -> Self {
        let mut left = Self {
            ids: Ids::new(self.ids.id_type()),
            dim: self.dim,
            embedding: Vec::new(),
            prediction: self.prediction.slice(0..0),
        };
        let mut keep = |range: std::ops::Range<usize>| {
            left.ids.extend_from(&self.ids, range.clone());
            let values = range.start * self.dim..range.end * self.dim;
            left.embedding.extend_from_slice(&self.embedding[values]);
            left.prediction.extend(&self.prediction.slice(range));
        };
        let mut start = 0;
        for &position in positions {
            let end = usize::try_from(position).expect("opening checked it");
            keep(start..end);
            start = end + 1;
        }
        keep(start..self.ids.len());
        left
    }
}

/// Reads a table of learnable rows, as [`EmbeddingsWriter::table`] starts it.
///
/// # Errors
///
/// If the file has other bytes than `entry` says, or is no table of ids of this type.
pub fn read_embedding_table(
    path: &Path,
    entry: &FileEntry,
    id_type: IdType,
) -> Result<EmbeddingRows> {
    let mut rows = EmbeddingRows::none(id_type, None);
    let reader = TableReader::open(path, entry, SCHEMA_KEY)?;
    reader.for_each(|batch| append(&mut rows, batch, None))?;
    Ok(rows)
}

/// A finished output of embeddings. The rows of a version are those of earlier outputs that it
/// keeps, and its own.
#[derive(Clone, Debug)]
pub struct EmbeddingsDataset {
    dir: PathBuf,
    manifest: Manifest,
    /// Those of earlier outputs first.
    parts: Vec<RowsPart>,
}

impl EmbeddingsDataset {
    /// Opens a finished output of inference.
    ///
    /// # Errors
    ///
    /// If it is not finished, or a file has another size than its manifest says; of a version also
    /// if an earlier output, of which it keeps rows, is gone.
    pub fn open(dir: &Path) -> Result<Self> {
        let manifest = read_manifest(dir)?;
        if manifest.stage != "infer" || manifest.graph.is_none() {
            let problem = format!(
                "it is the output of stage `{}`, not embeddings",
                manifest.stage
            );
            return Err(SchemaError::NotFinished {
                dir: dir.to_owned(),
                problem,
            });
        }
        verify_sizes(dir, &manifest.parts)?;
        Ok(Self {
            dir: dir.to_owned(),
            parts: rows_parts(dir, &manifest, SCHEMA_KEY)?,
            manifest,
        })
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the number of parts.
    pub fn num_parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of rows of a part.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn num_rows(&self, index: usize) -> u64 {
        let part = &self.parts[index];
        part.entry.rows.saturating_sub(part.replaced.len() as u64)
    }

    /// Returns the name of the node type that a part is of; it is empty if nodes have no types.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn type_of_part(&self, index: usize) -> &str {
        let name = &self.parts[index].entry.name;
        name.split_once('/').map_or("", |(type_name, _)| type_name)
    }

    /// Returns the positions of the parts of a node type, in the order of ids; those of a version
    /// follow the parts that it keeps.
    pub fn parts_of(&self, type_name: &str) -> Vec<usize> {
        let parts = 0..self.num_parts();
        parts
            .filter(|&index| self.type_of_part(index) == type_name)
            .collect()
    }

    /// Reads a part, without the rows that a version has replaced.
    ///
    /// # Errors
    ///
    /// If its file is broken, or its type is none of the graph.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn read_part(&self, index: usize) -> Result<EmbeddingRows> {
        let graph = self.manifest.graph.as_ref().expect("opening checked it");
        let name = self.type_of_part(index);
        let of_type = graph.types.iter().find(|of| of.name == name);
        let of_type = of_type.ok_or_else(|| SchemaError::Broken {
            path: self.dir.clone(),
            problem: format!("part {index} is of the node type `{name}`, which the graph lacks"),
        })?;
        let part = &self.parts[index];
        let mut rows = None;
        for file in &part.entry.files {
            let path = part.dir.join(&file.path);
            let reader = TableReader::open(&path, file, SCHEMA_KEY)?;
            let label = of_type
                .label
                .as_ref()
                .filter(|_| reader.has_column("prediction"));
            let no_rows = || EmbeddingRows::none(of_type.id_type, label);
            let rows = rows.get_or_insert_with(no_rows);
            reader.for_each(|batch| append(rows, batch, label))?;
        }
        let rows = rows.ok_or_else(|| SchemaError::Broken {
            path: self.dir.clone(),
            problem: format!("part {index} has no file"),
        })?;
        Ok(match part.replaced.is_empty() {
            true => rows,
            false => rows.without(&part.replaced),
        })
    }
}

fn append(rows: &mut EmbeddingRows, batch: &Batch<'_>, label: Option<&LabelMeta>) -> Result<()> {
    let ids = Ids::from_array(batch.column("id")?.as_ref())?;
    if ids.id_type() != rows.ids.id_type() {
        return Err(batch.broken(format!("column `id` is of type {}", ids.id_type())));
    }
    rows.ids.extend_from(&ids, 0..ids.len());
    let column = batch.column("embedding")?;
    let broken = || {
        batch.broken(format!(
            "column `embedding` is of type {}",
            column.data_type()
        ))
    };
    let list = column.as_fixed_size_list_opt().ok_or_else(broken)?;
    rows.dim = usize::try_from(list.value_length()).unwrap_or_default();
    if let Some(values) = list.values().as_primitive_opt::<Float32Type>() {
        rows.embedding.extend_from_slice(values.values());
    } else {
        let halves = list.values().as_primitive_opt::<Float16Type>();
        let halves = halves.ok_or_else(broken)?.values().iter();
        rows.embedding.extend(halves.map(|half| half.to_f32()));
    }
    label.map_or(Ok(()), |label| {
        as_given::read_labels(batch, "prediction", label, &mut rows.prediction)
    })
}

#[cfg(test)]
mod tests;
