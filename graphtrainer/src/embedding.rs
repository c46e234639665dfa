//! Trained embedding tables: the rows of the nodes of a type, and their mean for all other nodes.

use std::path::Path;
use std::sync::Arc;

use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, FileEntry, IdType, Ids, Labels, Output,
    Precision, read_embedding_table,
};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::server::{TableRows, TableSpec};

/// The trained rows of a node type.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeEmbeddings {
    name: String,
    dim: usize,
    rows: Arc<TableRows>,
    mean: Vec<f32>,
}

/// What `model.json` says about the embedding table of a node type, under `extra.embeddings`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableFile {
    /// Path of the table below the directory of the model.
    pub file: String,
    /// Type of the ids.
    pub id_type: IdType,
    /// Width of a row.
    pub dim: usize,
    /// Number of rows.
    pub rows: usize,
    /// Mean of the rows: the embedding of a node without a row. Zeros if there is no row.
    pub mean: Vec<f32>,
}

/// Values of a row group of a table.
const GROUP_VALUES: usize = 4 << 20;

impl NodeEmbeddings {
    /// Makes the embeddings of a type, and computes their mean in the order of ids.
    ///
    /// # Panics
    ///
    /// If the rows are not `dim` wide.
    pub(crate) fn new(name: &str, dim: usize, rows: Arc<TableRows>) -> Self {
        assert_eq!(rows.values.len(), rows.ids.len() * dim, "rows are dim wide");
        let mut sums = vec![0.0_f64; dim];
        for row in rows.values.chunks_exact(dim) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += f64::from(value);
            }
        }
        let count = rows.ids.len().max(1) as f64;
        #[expect(clippy::cast_possible_truncation, reason = "rows are f32")]
        let mean = sums.into_iter().map(|sum| (sum / count) as f32).collect();
        Self {
            name: name.to_owned(),
            dim,
            rows,
            mean,
        }
    }

    /// Returns the rows of a state for evaluation; types without touched rows have none.
    pub(crate) fn of_state(specs: &[&TableSpec], tables: &[Arc<TableRows>]) -> Vec<Arc<Self>> {
        let of_table = |(at, spec): (usize, &&TableSpec)| {
            let rows = match tables.get(at) {
                Some(rows) => Arc::clone(rows),
                None => Arc::new(TableRows::empty(spec.id_type)),
            };
            Arc::new(Self::new(&spec.name, spec.dim, rows))
        };
        specs.iter().enumerate().map(of_table).collect()
    }

    /// Returns the name of the type; empty in an untyped graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the width of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the ids of the nodes that have a row, ascending.
    pub fn ids(&self) -> &Ids {
        &self.rows.ids
    }

    /// Returns the mean of all rows; zeros if there is none.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Returns the row of id `at` of a column; the mean if the node has no row.
    ///
    /// # Panics
    ///
    /// If one of the columns holds integers and the other strings.
    pub fn row(&self, ids: &Ids, at: usize) -> &[f32] {
        let own = &self.rows.ids;
        let (mut low, mut high) = (0, own.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match own.cmp(middle, ids, at) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => {
                    return &self.rows.values[middle * self.dim..(middle + 1) * self.dim];
                }
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        &self.mean
    }

    /// Writes the table, and returns its file with its description.
    pub(crate) fn write(&self, output: &Output) -> Result<(FileEntry, TableFile), TrainError> {
        let columns = EmbeddingColumns {
            are_changes: false,
            id_type: self.rows.ids.id_type(),
            passed: None,
            vectors: vec![("embedding", self.dim)],
            precision: Precision::F32,
            prediction: None,
        };
        let mut writer = EmbeddingsWriter::table(output, &self.name, &columns)?;
        let (num_rows, group_rows) = (self.rows.ids.len(), (GROUP_VALUES / self.dim).max(1));
        for start in (0..num_rows).step_by(group_rows) {
            let end = num_rows.min(start + group_rows);
            let mut ids = Ids::new(self.rows.ids.id_type());
            ids.extend_from(&self.rows.ids, start..end);
            let values = self.rows.values[start * self.dim..end * self.dim].to_vec();
            writer.write(EmbeddingBatch {
                ids: &ids,
                nodes: &[],
                vectors: &[values],
                prediction: &Labels::None,
            })?;
        }
        let mut files = writer.finish()?.files;
        let entry = files.pop().expect("a table is one file");
        let file = TableFile {
            file: entry.path.clone(),
            id_type: self.rows.ids.id_type(),
            dim: self.dim,
            rows: num_rows,
            mean: self.mean.clone(),
        };
        Ok((entry, file))
    }

    /// Reads the table of a type from the directory of a model.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is not what `model.json` says.
    pub fn read(
        dir: &Path,
        name: &str,
        of: &TableFile,
        entry: &FileEntry,
    ) -> Result<Self, TrainError> {
        let path = dir.join(&of.file);
        let read = read_embedding_table(&path, entry, of.id_type)?;
        let broken = |problem: String| TrainError::Table {
            path: path.clone(),
            problem,
        };
        let num_rows = read.ids.len();
        let width = if num_rows == 0 { of.dim } else { read.dim };
        if (num_rows, width) != (of.rows, of.dim) {
            let problem = format!(
                "it has {num_rows} rows of {width} numbers, model.json says {} of {}",
                of.rows, of.dim
            );
            return Err(broken(problem));
        }
        let mut pairs = 1..num_rows;
        if let Some(at) = pairs.find(|&at| read.ids.cmp(at - 1, &read.ids, at).is_ge()) {
            let id = read.ids.display(at);
            return Err(broken(format!(
                "row {at}: id {id} does not come after the one before"
            )));
        }
        if let Some(at) = read.embedding.iter().position(|value| !value.is_finite()) {
            let id = read.ids.display(at / width);
            return Err(broken(format!(
                "the row of {id} holds {}",
                read.embedding[at]
            )));
        }
        let rows = TableRows {
            ids: read.ids,
            values: read.embedding,
            moments: Vec::new(),
        };
        Ok(Self::new(name, of.dim, Arc::new(rows)))
    }
}
