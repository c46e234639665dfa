//! Scores on disk: the best items of queries, and the scores of listed pairs.

use std::path::{Path, PathBuf};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Float32Type, Schema};

use crate::dataset::{
    FileEntry, Manifest, Output, PartEntry, part_name, read_manifest, verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::ids::{IdType, Ids};
use crate::parquet_file::{TABLE_SCHEMA, TableReader, list_array, list_field, number_array};
use crate::table_writer::{Column, Strings, TableWriter};

/// Metadata key of the tables' schema version.
const SCHEMA_KEY: &str = "graphscore.schema";

/// Folders, in an output, of the two tables.
const ITEMS: &str = "items";
const PAIRS: &str = "pairs";

/// The best items of some queries, the best first.
#[derive(Clone, Debug, PartialEq)]
pub struct BestItemRows {
    /// `[n]`: the queries.
    pub ids: Ids,
    /// `[n]`: the end of each query's items.
    pub ends: Vec<usize>,
    /// The items of all queries, one after the other.
    pub items: Ids,
    /// A score for each item.
    pub scores: Vec<f32>,
}

/// Scores of some pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct PairScoreRows {
    /// `[n]`.
    pub src: Ids,
    /// `[n]`.
    pub dst: Ids,
    /// `[n]`.
    pub scores: Vec<f32>,
}

/// Writes one part of either table.
#[derive(Debug)]
pub struct ScoresWriter {
    writer: TableWriter,
    name: String,
    rows: u64,
}

impl ScoresWriter {
    /// Starts part `index` of the best items; given are the types of the ids of queries and items.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn items(output: &Output, index: usize, [query, item]: [IdType; 2]) -> Result<Self> {
        let fields = vec![
            Field::new("id", query.data_type(), false),
            list_field("item", item.data_type()),
            list_field("score", DataType::Float32),
        ];
        Self::create(output, format!("{ITEMS}/{}", part_name(index)), fields)
    }

    /// Starts part `index` of the listed pairs; given are the types of the ids of their ends.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn pairs(output: &Output, index: usize, [src, dst]: [IdType; 2]) -> Result<Self> {
        let fields = vec![
            Field::new("src", src.data_type(), false),
            Field::new("dst", dst.data_type(), false),
            Field::new("score", DataType::Float32, false),
        ];
        Self::create(output, format!("{PAIRS}/{}", part_name(index)), fields)
    }

    fn create(output: &Output, name: String, fields: Vec<Field>) -> Result<Self> {
        let metadata = [(SCHEMA_KEY, TABLE_SCHEMA.to_owned())];
        let (file, schema) = (format!("{name}.parquet"), Schema::new(fields));
        // The same items are in the lists of many queries.
        let writer = TableWriter::create(output, &file, schema, Strings::Repeated, &metadata)?;
        let rows = 0;
        Ok(Self { writer, name, rows })
    }

    /// Appends queries to a part of the best items.
    ///
    /// # Errors
    ///
    /// If the lengths disagree, or the file cannot be written.
    pub fn write_items(&mut self, rows: &BestItemRows) -> Result<()> {
        let items = list_array(&rows.ends, rows.items.to_array())?;
        let scores = list_array(&rows.ends, floats(&rows.scores))?;
        self.rows += rows.ids.len() as u64;
        self.write(vec![rows.ids.to_array(), items, scores])
    }

    /// Appends pairs to a part of the listed pairs.
    ///
    /// # Errors
    ///
    /// If the lengths disagree, or the file cannot be written.
    pub fn write_pairs(&mut self, rows: &PairScoreRows) -> Result<()> {
        self.rows += rows.scores.len() as u64;
        let (src, dst) = (rows.src.to_array(), rows.dst.to_array());
        self.write(vec![src, dst, floats(&rows.scores)])
    }

    fn write(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        self.writer
            .write(columns.into_iter().map(Column::Array).collect())
    }

    /// Finishes the file; the caller commits the part.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(self) -> Result<PartEntry> {
        Ok(PartEntry {
            name: self.name,
            files: vec![self.writer.finish()?],
            rows: self.rows,
            targets: None,
        })
    }
}

fn floats(values: &[f32]) -> ArrayRef {
    number_array::<Float32Type>(values.to_vec())
}

/// A finished output of scores.
#[derive(Clone, Debug)]
pub struct ScoresDataset {
    dir: PathBuf,
    manifest: Manifest,
}

impl ScoresDataset {
    /// Opens a finished output of scores.
    ///
    /// # Errors
    ///
    /// If it is not finished, or a file has another size than its manifest says.
    pub fn open(dir: &Path) -> Result<Self> {
        let manifest = read_manifest(dir)?;
        if manifest.stage != "score" {
            let problem = format!("it is the output of stage `{}`, not scores", manifest.stage);
            return Err(SchemaError::NotFinished {
                dir: dir.to_owned(),
                problem,
            });
        }
        verify_sizes(dir, &manifest.parts)?;
        let dir = dir.to_owned();
        Ok(Self { dir, manifest })
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the parts of the best items.
    pub fn item_parts(&self) -> Vec<&PartEntry> {
        self.parts_of(ITEMS)
    }

    /// Returns the parts of the listed pairs.
    pub fn pair_parts(&self) -> Vec<&PartEntry> {
        self.parts_of(PAIRS)
    }

    fn parts_of(&self, folder: &str) -> Vec<&PartEntry> {
        let parts = self.manifest.parts.iter();
        let is_own = |part: &&PartEntry| part.name.split('/').next() == Some(folder);
        parts.filter(is_own).collect()
    }

    /// Reads a part of the best items.
    ///
    /// # Errors
    ///
    /// If its file is broken.
    pub fn read_items(&self, part: &PartEntry) -> Result<BestItemRows> {
        let mut all: Option<BestItemRows> = None;
        self.for_each(part, |file, path| {
            TableReader::open(path, file, SCHEMA_KEY)?.for_each(|batch| {
                let ids = Ids::from_array(batch.column("id")?.as_ref())?;
                let (offsets, items) = batch.list("item")?;
                let (first, last) = (offsets[0], offsets[ids.len()]);
                let items = Ids::from_array(items.slice(first, last - first).as_ref())?;
                let scores = batch.number_list::<Float32Type>("score")?;
                let lens = offsets.windows(2).map(|pair| pair[1] - pair[0]);
                if !lens.eq(scores.lens()) {
                    let problem = "the lists of `item` and `score` differ in length".to_owned();
                    return Err(batch.broken(problem));
                }
                let rows = all.get_or_insert_with(|| BestItemRows {
                    ids: Ids::new(ids.id_type()),
                    ends: Vec::new(),
                    items: Ids::new(items.id_type()),
                    scores: Vec::new(),
                });
                let before = rows.scores.len();
                rows.ids.extend_from(&ids, 0..ids.len());
                let ends = offsets[1..].iter().map(|end| before + end - first);
                rows.ends.extend(ends);
                rows.items.extend_from(&items, 0..items.len());
                rows.scores.extend_from_slice(scores.all());
                Ok(())
            })
        })?;
        all.ok_or_else(|| self.empty(part))
    }

    /// Reads a part of the listed pairs.
    ///
    /// # Errors
    ///
    /// If its file is broken.
    pub fn read_pairs(&self, part: &PartEntry) -> Result<PairScoreRows> {
        let mut all: Option<PairScoreRows> = None;
        self.for_each(part, |file, path| {
            TableReader::open(path, file, SCHEMA_KEY)?.for_each(|batch| {
                let src = Ids::from_array(batch.column("src")?.as_ref())?;
                let dst = Ids::from_array(batch.column("dst")?.as_ref())?;
                let rows = all.get_or_insert_with(|| PairScoreRows {
                    src: Ids::new(src.id_type()),
                    dst: Ids::new(dst.id_type()),
                    scores: Vec::new(),
                });
                rows.src.extend_from(&src, 0..src.len());
                rows.dst.extend_from(&dst, 0..dst.len());
                rows.scores
                    .extend_from_slice(batch.numbers::<Float32Type>("score")?);
                Ok(())
            })
        })?;
        all.ok_or_else(|| self.empty(part))
    }

    fn for_each(
        &self,
        part: &PartEntry,
        mut read: impl FnMut(&FileEntry, &Path) -> Result<()>,
    ) -> Result<()> {
        let mut files = part.files.iter();
        files.try_for_each(|file| read(file, &self.dir.join(&file.path)))
    }

    /// The error of a part whose rows are missing.
    fn empty(&self, part: &PartEntry) -> SchemaError {
        SchemaError::Broken {
            path: self.dir.join(&part.name),
            problem: "has no rows".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
