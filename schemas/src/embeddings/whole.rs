//! All rows of a version as one table, type by type and in the order of ids.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{Float32Type, Schema, SchemaRef};

use super::{EmbeddingsDataset, FOLDER, SCHEMA_KEY, pages};
use crate::config::OP;
use crate::dataset::{FileEntry, Output, PartEntry, broken, part_name};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;
use crate::parquet_file::{TABLE_SCHEMA, TableReader};
use crate::table_writer::{Column, Strings, TableWriter};

/// Sizes of the parts that are written.
#[derive(Clone, Copy, Debug)]
pub struct PartSizes {
    /// Rows of a part.
    pub rows: usize,
    /// Bytes of the vectors of a row group.
    pub group_bytes: usize,
}

/// Index of an output of a version, oldest first, and of a row within that output.
pub type RowPosition = (usize, usize);

/// Rows of a batch that no version has replaced, with their positions in the output.
type LeftRows = (RecordBatch, Vec<usize>);

/// A file of an output.
struct RowsFile<'a> {
    path: PathBuf,
    entry: &'a FileEntry,
    /// Rows of the output before the file.
    rows_before: usize,
    /// Rows that a version has replaced, ascending.
    replaced: &'a [u64],
}

/// A file from which row groups are read.
struct OpenFile<'a> {
    file: &'a RowsFile<'a>,
    reader: TableReader<'a>,
    next_group: usize,
    /// Rows of the groups before.
    rows: usize,
}

/// The next rows of one output.
struct Cursor<'a> {
    output: usize,
    /// Files to come.
    files: std::slice::Iter<'a, RowsFile<'a>>,
    open: Option<OpenFile<'a>>,
    /// Batches to come of the row group that was read, the next one last.
    batches: Vec<LeftRows>,
    /// Ids of the next batch.
    ids: Ids,
    /// Rows of the next batch that were taken.
    taken: usize,
}

impl Cursor<'_> {
    /// Reads on if all rows of the batch were taken; false after the last row.
    fn fill(&mut self) -> Result<bool> {
        let is_taken = |of: &Self| {
            of.batches
                .last()
                .is_none_or(|(_, rows)| of.taken == rows.len())
        };
        while is_taken(self) {
            self.taken = 0;
            self.batches.pop();
            if self.batches.is_empty() && !self.read_group()? {
                return Ok(false);
            }
            if let Some((batch, _)) = self.batches.last() {
                let ids = batch.column_by_name("id").ok_or_else(|| no_column("id"))?;
                self.ids = Ids::from_array(ids.as_ref())?;
            }
        }
        Ok(true)
    }

    /// Reads the next row group; false after the last one.
    fn read_group(&mut self) -> Result<bool> {
        loop {
            if let Some(open) = &mut self.open
                && let Some(batches) = open.next_group()?
            {
                self.batches = batches;
                return Ok(true);
            }
            let Some(file) = self.files.next() else {
                return Ok(false);
            };
            self.open = Some(OpenFile {
                file,
                reader: TableReader::open(&file.path, file.entry, SCHEMA_KEY)?,
                next_group: 0,
                rows: 0,
            });
        }
    }

    /// Returns the number of next rows whose ids are less than the next one of another cursor.
    fn num_before(&self, other: Option<&Self>) -> usize {
        let Some(other) = other else {
            return self.ids.len() - self.taken;
        };
        let is_less = |at: usize| self.ids.cmp(at, &other.ids, other.taken).is_lt();
        // Rows of different outputs alternate often, so the steps start small.
        let (mut low, mut step) = (self.taken, 1);
        while low + step <= self.ids.len() && is_less(low + step - 1) {
            low += step;
            step *= 2;
        }
        let mut high = (low + step).min(self.ids.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match is_less(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low - self.taken
    }
}

impl OpenFile<'_> {
    /// Reads the rows of the next row group that no version has replaced, the next batch last; none
    /// after the last group.
    fn next_group(&mut self) -> Result<Option<Vec<LeftRows>>> {
        let Some(group) = self.reader.row_group(self.next_group)? else {
            return Ok(None);
        };
        self.next_group += 1;
        let mut batches = Vec::with_capacity(group.len());
        for mut rows in group {
            if let Ok(op) = rows.schema().index_of(OP) {
                rows.remove_column(op);
            }
            let first = self.rows;
            self.rows += rows.num_rows();
            let start = self.file.replaced.partition_point(|&of| of < first as u64);
            let mut replaced = self.file.replaced[start..].iter().peekable();
            let is_left = |row: &usize| replaced.next_if(|&&of| of == *row as u64).is_none();
            let left: Vec<usize> = (first..self.rows).filter(is_left).collect();
            if left.len() < rows.num_rows() {
                let places = left.iter().map(|&row| row - first);
                let places = places.map(|at| u32::try_from(at).expect("a batch is small"));
                let places = UInt32Array::from_iter_values(places);
                let taken = take_record_batch(&rows, &places);
                rows = taken.map_err(|e| super::invalid(e.to_string()))?;
            }
            let positions = left.iter().map(|row| self.file.rows_before + row);
            batches.push((rows, positions.collect()));
        }
        batches.reverse();
        Ok(Some(batches))
    }
}

fn no_column(name: &str) -> SchemaError {
    super::invalid(format!("a part has no column `{name}`"))
}

impl EmbeddingsDataset {
    /// Returns the files of a type in each output, oldest first.
    fn files_by_output(&self, type_name: &str) -> Vec<Vec<RowsFile<'_>>> {
        let version = self.manifest.version.iter();
        let kept = version.flat_map(|version| &version.kept);
        let mut sizes: Vec<usize> = kept.map(|of| of.parts.len()).collect();
        sizes.push(self.manifest.row_parts().count());
        let mut parts = self.parts.iter().enumerate();
        let files = sizes.into_iter().map(|size| {
            let (mut files, mut rows_before) = (Vec::new(), 0);
            for (at, part) in parts.by_ref().take(size) {
                // A part has one file.
                let is_of_type = self.type_of_part(at) == type_name;
                let of_type = part.entry.files.iter().filter(|_| is_of_type);
                files.extend(of_type.map(|entry| RowsFile {
                    path: part.dir.join(&entry.path),
                    entry,
                    rows_before,
                    replaced: &part.replaced,
                }));
                rows_before += usize::try_from(part.entry.rows).unwrap_or(usize::MAX);
            }
            files
        });
        files.collect()
    }

    /// Returns the columns of the rows that some files have.
    fn schema(&self, files: &[Vec<RowsFile<'_>>]) -> Result<SchemaRef> {
        let file = files.iter().flatten().next();
        let file = file.ok_or_else(|| no_column("id"))?;
        let schema = TableReader::open(&file.path, file.entry, SCHEMA_KEY)?.schema();
        let fields = schema.fields().iter().filter(|field| field.name() != OP);
        Ok(Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>())))
    }

    /// Writes all rows to another output, type by type and in the order of ids, and commits its parts.
    /// Calls `visit` with the position of each row here, in the order of the new rows. Of each output,
    /// one row group is in memory.
    ///
    /// # Errors
    ///
    /// If a file is broken or cannot be written, or two rows have one id.
    pub fn write_whole(
        &self,
        output: &Output,
        sizes: PartSizes,
        mut visit: impl FnMut(&mut dyn Iterator<Item = RowPosition>),
    ) -> Result<()> {
        let graph = self.manifest.graph.as_ref().expect("opening checked it");
        let names = graph.types.iter().map(|of| &of.name[..]);
        let mut index = 0;
        for name in names.filter(|name| !self.parts_of(name).is_empty()) {
            index = self.write_type((output, sizes), (name, index), &mut visit)?;
        }
        Ok(())
    }

    /// Writes the rows of a type; its first part is `index`. Returns the number of the next part.
    fn write_type(
        &self,
        (output, sizes): (&Output, PartSizes),
        (type_name, index): (&str, usize),
        visit: &mut dyn FnMut(&mut dyn Iterator<Item = RowPosition>),
    ) -> Result<usize> {
        let files = self.files_by_output(type_name);
        let cursors = files.iter().enumerate().map(|(at, of_output)| Cursor {
            output: at,
            files: of_output.iter(),
            open: None,
            batches: Vec::new(),
            ids: Ids::new(crate::IdType::Int64),
            taken: 0,
        });
        let mut cursors: Vec<Cursor<'_>> = cursors.collect();
        let mut written = WholeWriter {
            output,
            sizes,
            type_name,
            first: index,
            index,
            of_part: None,
            rows: 0,
            group_rows: 0,
            pending: Vec::new(),
            num_pending: 0,
        };
        loop {
            let mut filled = Vec::with_capacity(cursors.len());
            for mut cursor in cursors {
                if cursor.fill()? {
                    filled.push(cursor);
                }
            }
            cursors = filled;
            // The two cursors with the least ids.
            let less = |a: usize, b: usize| {
                let (a, b): (&Cursor<'_>, &Cursor<'_>) = (&cursors[a], &cursors[b]);
                a.ids.cmp(a.taken, &b.ids, b.taken).is_lt()
            };
            let (mut least, mut second) = (None, None);
            for at in 0..cursors.len() {
                match least {
                    Some(before) if !less(at, before) => {
                        if second.is_none_or(|of| less(at, of)) {
                            second = Some(at);
                        }
                    }
                    _ => (least, second) = (Some(at), least),
                }
            }
            let Some(least) = least else {
                return written.finish(self.schema(&files)?);
            };
            let count = cursors[least].num_before(second.map(|at| &cursors[at]));
            if count == 0 {
                let id = cursors[least].ids.display(cursors[least].taken);
                let problem = format!("two of its outputs have a row of node {id}");
                return Err(broken(&self.dir, problem));
            }
            let cursor = &mut cursors[least];
            let (batch, rows) = cursor.batches.last().expect("it was filled");
            let count = count.min(written.room(batch));
            let taken = cursor.taken..cursor.taken + count;
            let of_output = cursor.output;
            visit(&mut rows[taken.clone()].iter().map(|&row| (of_output, row)));
            written.push(batch.slice(taken.start, count))?;
            cursor.taken = taken.end;
        }
    }
}

/// Writes rows as parts of one size.
struct WholeWriter<'a> {
    output: &'a Output,
    sizes: PartSizes,
    /// Empty if nodes have no types.
    type_name: &'a str,
    /// The first part of the type.
    first: usize,
    index: usize,
    /// The part that is written; none if it was committed before.
    of_part: Option<TableWriter>,
    /// Rows of the part so far, pending ones included.
    rows: usize,
    /// Rows of a row group; 0 before the first row.
    group_rows: usize,
    pending: Vec<RecordBatch>,
    num_pending: usize,
}

impl WholeWriter<'_> {
    /// Returns how many rows of a batch can be pushed at once.
    fn room(&mut self, batch: &RecordBatch) -> usize {
        if self.group_rows == 0 {
            let columns = batch.columns().iter();
            let widths = columns.filter_map(|of| of.as_fixed_size_list_opt());
            let widths = widths.map(|of| usize::try_from(of.value_length()).unwrap_or_default());
            let bytes = 4 * widths.sum::<usize>();
            self.group_rows = (self.sizes.group_bytes / bytes.max(1)).max(1);
        }
        (self.group_rows - self.num_pending).min(self.sizes.rows - self.rows)
    }

    fn push(&mut self, rows: RecordBatch) -> Result<()> {
        self.rows += rows.num_rows();
        self.num_pending += rows.num_rows();
        self.pending.push(rows);
        if self.num_pending == self.group_rows {
            self.write_group()?;
        }
        match self.rows == self.sizes.rows {
            true => self.finish_part(),
            false => Ok(()),
        }
    }

    fn write_group(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.num_pending = 0;
        let Some(first) = pending.first() else {
            return Ok(());
        };
        if self.output.committed(self.index).is_some() {
            return Ok(());
        }
        let schema = first.schema();
        let group = concat_batches(&schema, &pending).map_err(|e| super::invalid(e.to_string()))?;
        if self.of_part.is_none() {
            self.of_part = Some(self.create(&schema)?);
        }
        let fields = schema.fields().iter();
        let columns = fields.zip(group.columns()).map(|(field, column)| {
            // Predictions of several labels are lists too.
            let is_vector = field.name() != "prediction";
            let list = column.as_fixed_size_list_opt().filter(|_| is_vector);
            let floats = list.and_then(|list| {
                let width = usize::try_from(list.value_length()).ok()?;
                Some((list.values().as_primitive_opt::<Float32Type>()?, width))
            });
            match floats {
                Some((values, width)) => pages(values.values(), width),
                None => Column::Array(Arc::clone(column)),
            }
        });
        let writer = self.of_part.as_mut().expect("it was created");
        writer.write(columns.collect())
    }

    fn create(&self, schema: &SchemaRef) -> Result<TableWriter> {
        let name = self.part_name();
        let file = match self.type_name {
            "" => format!("{name}.parquet"),
            _ => format!("{FOLDER}/{name}.parquet"),
        };
        let schema = Schema::new(schema.fields().clone());
        let metadata = [(SCHEMA_KEY, TABLE_SCHEMA.to_owned())];
        let writer = TableWriter::create(self.output, &file, schema, Strings::Distinct, &metadata)?;
        Ok(writer.with_shrink(super::SHRINK))
    }

    /// Returns the name of the part that is written.
    fn part_name(&self) -> String {
        let in_type = part_name(self.index - self.first);
        match self.type_name {
            "" => in_type,
            name => format!("{name}/{in_type}"),
        }
    }

    fn finish_part(&mut self) -> Result<()> {
        self.write_group()?;
        let rows = std::mem::take(&mut self.rows) as u64;
        let index = self.index;
        if let Some(writer) = self.of_part.take() {
            let entry = PartEntry {
                name: self.part_name(),
                files: vec![writer.finish()?],
                rows,
                targets: None,
            };
            self.output.commit_part(index, entry)?;
        }
        self.index += 1;
        Ok(())
    }

    /// Writes the rows that are left. A type without rows has a part too, with the columns of
    /// `schema`. Returns the number of the next part.
    fn finish(mut self, schema: SchemaRef) -> Result<usize> {
        let is_empty = self.rows == 0 && self.index == self.first;
        if is_empty {
            self.pending.push(RecordBatch::new_empty(schema));
        }
        // The rows of an open part may all be in row groups that are written.
        if is_empty || self.rows > 0 {
            self.finish_part()?;
        }
        Ok(self.index)
    }
}
