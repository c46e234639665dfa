//! The rows of layers of a version, from which the next version is computed.

use crate::InferError;
use crate::locate::narrow;
use crate::rows::{RowRecord, RowWriter};
use arrow::array::{ArrayRef, AsArray, Float32Array, RecordBatch, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{Float32Type, UInt32Type};
use gnn::{Dense, RowFormat, SharedRows};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;
use schemas::xxh::file_checksum;
use schemas::{FileEntry, NodeIdx};
use std::path::Path;
use std::sync::Arc;
use store::arrow_file::{self, append, bounds, map_batches};
use store::{MappedFile, StoreCause, StoreError};

/// What is wrong with a file that differs from its record.
const CHANGED: &str = "it was changed since it was written";

/// Rows of a batch of changed rows.
const ROWS: usize = 1 << 13;

/// Pieces of [`ROWS`] that are copied before their pages leave the memory.
const RELEASED_PIECES: usize = 16;

/// Rows of layers, by the numbers that nodes keep from version to version, until one writes a
/// store. Rows of earlier versions are mapped.
#[derive(Clone, Debug, Default)]
pub struct KeptRows {
    /// From layer 1.
    layers: Vec<LayerRows>,
}

#[derive(Clone, Debug)]
struct LayerRows {
    cols: usize,
    /// Rows of all nodes of the store, by number, and their file.
    stored: Option<(SharedRows, MappedFile)>,
    /// Rows that earlier versions have changed; each batch but the last of a version has [`ROWS`].
    changed: Vec<ScalarBuffer<f32>>,
    /// Rows of this version, and their nodes.
    new: (Vec<f32>, Vec<NodeIdx>),
    /// By number of a node.
    place: Vec<Place>,
}

/// Where the row of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The node has no row.
    None,
    /// In the rows of the store.
    Stored,
    /// At a position of the changed rows.
    Changed(u32),
    /// At a position of the new rows.
    New(u32),
}

impl KeptRows {
    /// Returns the rows that a full run has left, by number of a node: a file for each layer.
    pub(crate) fn of_files(dir: &Path, records: &[RowRecord]) -> Result<Self, InferError> {
        let layer = |record: &RowRecord| {
            let (rows, file) = record.map_file(dir)?;
            let path = dir.join(&record.name);
            if !record.is_as_written(&rows, &path)? {
                return Err(damaged(&path, CHANGED));
            }
            Ok(LayerRows {
                place: vec![Place::Stored; rows.rows()],
                stored: Some((rows, file)),
                ..LayerRows::new(record.cols)
            })
        };
        let layers = records.iter().map(layer);
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the row of a node after a layer, from 1; none if the layer's rows are not kept or
    /// the node has none.
    pub fn get(&self, layer: usize, node: NodeIdx) -> Option<&[f32]> {
        self.layers.get(layer - 1)?.get(node)
    }

    /// Returns the row of a node after a layer, from 1.
    ///
    /// # Panics
    ///
    /// If the version has no such row.
    pub fn row(&self, layer: usize, node: NodeIdx) -> &[f32] {
        self.get(layer, node).expect("the row is kept")
    }

    /// Copies the rows of some nodes after a layer, from 1, which are `cols` wide.
    ///
    /// # Panics
    ///
    /// If the version lacks one of the rows.
    pub(crate) fn gather(&self, layer: usize, nodes: &[NodeIdx], cols: usize) -> Dense {
        let mut values = Vec::with_capacity(nodes.len() * cols);
        let rows = nodes.iter().map(|&node| self.row(layer, node));
        rows.for_each(|row| values.extend_from_slice(row));
        Dense {
            rows: nodes.len(),
            cols,
            values,
        }
    }

    /// Returns the nodes whose rows after a layer, from 1, this version has changed.
    pub fn changed(&self, layer: usize) -> &[NodeIdx] {
        &self.layers[layer - 1].new.1
    }

    /// Makes room for `num_rows` rows of layers that are `widths` wide.
    pub(crate) fn grow(&mut self, widths: &[usize], num_rows: usize) {
        for &cols in &widths[self.layers.len()..] {
            self.layers.push(LayerRows::new(cols));
        }
        for layer in &mut self.layers {
            layer.place.resize(num_rows, Place::None);
        }
    }

    /// Tells of some nodes whose rows after a layer differ in their bits from the kept ones.
    pub(crate) fn differing(&self, layer: usize, nodes: &[NodeIdx], rows: &Dense) -> Vec<bool> {
        let differs = |(at, &node): (usize, &NodeIdx)| {
            let same = |before: &[f32]| {
                let mut both = before.iter().zip(rows.row(at));
                both.all(|(old, new)| old.to_bits() == new.to_bits())
            };
            !self.get(layer, node).is_some_and(same)
        };
        nodes.iter().enumerate().map(differs).collect()
    }

    /// Makes room for some more rows of a layer that this version sets.
    pub(crate) fn reserve(&mut self, layer: usize, num_rows: usize) {
        let layer = &mut self.layers[layer - 1];
        layer.new.0.reserve_exact(num_rows * layer.cols);
        layer.new.1.reserve_exact(num_rows);
    }

    /// Sets a row.
    pub(crate) fn set(&mut self, layer: usize, node: NodeIdx, row: &[f32]) {
        let layer = &mut self.layers[layer - 1];
        let (values, nodes) = &mut layer.new;
        layer.place[node.index()] = Place::New(narrow(nodes.len()));
        values.extend_from_slice(row);
        nodes.push(node);
    }

    /// Empties the rows of a removed node.
    pub(crate) fn clear(&mut self, node: NodeIdx) {
        for layer in &mut self.layers {
            layer.place[node.index()] = Place::None;
        }
    }

    /// Writes the rows of the first `num_layers` layers that this version has changed: a file for
    /// each layer.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path, num_layers: usize) -> Result<Vec<FileEntry>, InferError> {
        let layers = self.layers.iter().take(num_layers).enumerate();
        let write = |(at, of): (usize, &LayerRows)| write_rows(dir, (at, of.cols), &of.new);
        layers.map(write).collect()
    }

    /// Writes all rows of the first `num_layers` layers that versions have changed: a file for each
    /// layer, as [`Self::write`] does.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub(crate) fn write_all(
        &self,
        dir: &Path,
        num_layers: usize,
    ) -> Result<Vec<FileEntry>, InferError> {
        let write = |(at, layer): (usize, &LayerRows)| {
            let mut all = (Vec::new(), Vec::new());
            for node in (0..layer.place.len()).map(NodeIdx::from_index) {
                let is_changed = matches!(layer.place[node.index()], Place::Changed(_));
                if let Some(row) = layer.get(node).filter(|_| is_changed) {
                    all.0.extend_from_slice(row);
                    all.1.push(node);
                }
            }
            write_rows(dir, (at, layer.cols), &all)
        };
        let layers = self.layers.iter().take(num_layers).enumerate();
        layers.map(write).collect()
    }

    /// Removes the rows of the store from the memory of this process; they come back when they are
    /// read.
    pub(crate) fn release(&self) {
        let files = self.layers.iter().filter_map(|layer| layer.stored.as_ref());
        files.for_each(|(_, file)| file.release());
    }

    /// Writes the rows of some nodes after each of the first `num_layers` layers, in this order, as
    /// a full run leaves them: a file for each layer. Nodes without a row get zeros.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub(crate) fn write_stored(
        &self,
        dir: &Path,
        (num_layers, nodes): (usize, &[NodeIdx]),
    ) -> Result<Vec<RowRecord>, InferError> {
        let write = |(at, layer): (usize, &LayerRows)| {
            let path = dir.join(format!("layer-{}.rows", at + 1));
            let writer = RowWriter::create(path, (nodes.len(), layer.cols), RowFormat::F32)?;
            let pieces = nodes.par_chunks(ROWS).enumerate();
            pieces.try_for_each(|(piece, of_piece)| {
                if let Some((_, file)) = &layer.stored
                    && piece.is_multiple_of(RELEASED_PIECES)
                {
                    file.release();
                }
                let mut values = vec![0.0; of_piece.len() * layer.cols];
                let rows = values.chunks_exact_mut(layer.cols.max(1));
                for (own, &node) in rows.zip(of_piece) {
                    if let Some(row) = layer.get(node) {
                        own.copy_from_slice(row);
                    }
                }
                writer.write(piece * ROWS, &values)
            })?;
            writer.finish()
        };
        let layers = self.layers.iter().take(num_layers).enumerate();
        layers.map(write).collect()
    }

    /// Adds the rows that a later version has changed, which [`Self::write`] has written to a
    /// directory.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or was changed.
    pub fn add(&mut self, dir: &Path, files: &[FileEntry]) -> Result<(), InferError> {
        for (at, entry) in files.iter().enumerate() {
            let path = dir.join(&entry.path);
            for batch in map_checked(&path, entry)? {
                let columns = || {
                    let nodes = batch.column_by_name("node")?;
                    let nodes = arrow_file::column::<UInt32Type>(nodes)?;
                    let lists = batch.column_by_name("row")?.as_list_opt::<i64>()?;
                    let values = arrow_file::column::<Float32Type>(lists.values())?;
                    let first = (!nodes.is_empty()).then(|| bounds(lists.offsets(), 0).len());
                    Some((nodes, values, first))
                };
                let (nodes, values, cols) =
                    columns().ok_or_else(|| damaged(&path, "a column is missing"))?;
                let Some(cols) = cols else { continue };
                if self.layers.len() == at {
                    self.layers.push(LayerRows::new(cols));
                }
                self.layers[at].add(NodeIdx::slice(&nodes), values);
            }
        }
        Ok(())
    }
}

/// Writes changed rows of a layer, counted from 0.
fn write_rows(
    dir: &Path,
    (layer, cols): (usize, usize),
    (values, nodes): &(Vec<f32>, Vec<NodeIdx>),
) -> Result<FileEntry, InferError> {
    let path = dir.join(format!("changed-{}.arrow", layer + 1));
    let mut file = None;
    for start in (0..nodes.len().max(1)).step_by(ROWS) {
        let end = (start + ROWS).min(nodes.len());
        let offset: Vec<u64> = (0..=end - start).map(|row| (row * cols) as u64).collect();
        let rows = values[start * cols..end * cols].to_vec();
        let rows: ArrayRef = Arc::new(Float32Array::from(rows));
        let of_rows = nodes[start..end].iter().map(|node| node.raw());
        let of_rows: ArrayRef = Arc::new(UInt32Array::from_iter_values(of_rows));
        let rows = arrow_file::list(&offset, rows);
        let batch = arrow_file::batch(vec![("node", of_rows), ("row", rows)]);
        append(&mut file, &path, &batch)?;
    }
    Ok(file.expect("a batch was written").finish()?)
}

impl LayerRows {
    fn new(cols: usize) -> Self {
        Self {
            cols,
            stored: None,
            changed: Vec::new(),
            new: (Vec::new(), Vec::new()),
            place: Vec::new(),
        }
    }

    fn get(&self, node: NodeIdx) -> Option<&[f32]> {
        let of = |values, row: usize| -> &[f32] {
            let values: &[f32] = values;
            &values[row * self.cols..(row + 1) * self.cols]
        };
        let wide = |at: u32| at as usize;
        match *self.place.get(node.index())? {
            Place::None => None,
            Place::Stored => {
                let (stored, _) = self.stored.as_ref()?;
                Some(of(stored.values().f32(), node.index()))
            }
            Place::Changed(at) => Some(of(&self.changed[wide(at) / ROWS], wide(at) % ROWS)),
            Place::New(at) => Some(of(&self.new.0, wide(at))),
        }
    }

    /// Adds a batch of changed rows.
    fn add(&mut self, nodes: &[NodeIdx], values: ScalarBuffer<f32>) {
        let first = self.changed.len() * ROWS;
        for (row, node) in nodes.iter().enumerate() {
            if self.place.len() <= node.index() {
                self.place.resize(node.index() + 1, Place::None);
            }
            self.place[node.index()] = Place::Changed(narrow(first + row));
        }
        self.changed.push(values);
    }
}

/// Maps a file that a version has kept, if it is as it was written.
pub(crate) fn map_checked(path: &Path, entry: &FileEntry) -> Result<Vec<RecordBatch>, InferError> {
    match file_checksum(path)? == entry.checksum {
        true => Ok(map_batches(path)?),
        false => Err(damaged(path, CHANGED)),
    }
}

pub(crate) fn damaged(path: &Path, what: &str) -> InferError {
    InferError::Store(StoreError::File {
        verb: "read",
        path: path.to_owned(),
        source: StoreCause::Damaged(what.to_owned()),
    })
}
