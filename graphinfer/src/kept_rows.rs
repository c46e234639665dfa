//! The rows of every layer of a version, from which the next version is computed.

use crate::InferError;
use crate::rows::{RowRecord, RowWriter};
use gnn::{RowFormat, RowValues};
use schemas::NodeIdx;
use serde::{Deserialize, Serialize};
use std::path::Path;

const RECORD: &str = "rows.json";

/// Rows of every layer, by the numbers that nodes keep from version to version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptRows {
    /// From layer 1.
    layers: Vec<LayerRows>,
}

#[derive(Clone, Debug, PartialEq)]
struct LayerRows {
    cols: usize,
    /// Not a number where no node is.
    values: Vec<f32>,
}

/// The content of `rows.json`, which is written last.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Names the version.
    fingerprint: String,
    layers: Vec<RowRecord>,
}

impl KeptRows {
    /// Returns the number of layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns how many numbers of nodes have room for a row.
    pub fn num_rows(&self) -> usize {
        let first = self.layers.first();
        first.map_or(0, |of| of.values.len() / of.cols)
    }

    /// Returns the row of a node after a layer, from 1.
    ///
    /// # Panics
    ///
    /// If the version has no such layer or node.
    pub fn row(&self, layer: usize, node: NodeIdx) -> &[f32] {
        let LayerRows { cols, values } = &self.layers[layer - 1];
        &values[node.index() * cols..][..*cols]
    }

    /// Makes room for `num_rows` rows of layers that are `widths` wide.
    pub(crate) fn grow(&mut self, widths: &[usize], num_rows: usize) {
        let new = |&cols: &usize| LayerRows {
            cols,
            values: Vec::new(),
        };
        if self.layers.is_empty() {
            self.layers = widths.iter().map(new).collect();
        }
        for layer in &mut self.layers {
            layer.values.resize(num_rows * layer.cols, f32::NAN);
        }
    }

    /// Sets a row; tells whether its bits differ from those before.
    pub(crate) fn set(&mut self, layer: usize, node: NodeIdx, row: &[f32]) -> bool {
        let LayerRows { cols, values } = &mut self.layers[layer - 1];
        let own = &mut values[node.index() * *cols..][..*cols];
        let mut both = own.iter().zip(row);
        let differs = both.any(|(old, new)| old.to_bits() != new.to_bits());
        own.copy_from_slice(row);
        differs
    }

    /// Empties the rows of a removed node.
    pub(crate) fn clear(&mut self, node: NodeIdx) {
        for LayerRows { cols, values } in &mut self.layers {
            values[node.index() * *cols..][..*cols].fill(f32::NAN);
        }
    }

    /// Writes the rows to a directory. `fingerprint` names the version.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn write(&self, dir: &Path, fingerprint: &str) -> Result<(), InferError> {
        std::fs::create_dir_all(dir).map_err(InferError::io("create", dir))?;
        let write = |(at, of): (usize, &LayerRows)| {
            let path = dir.join(format!("layer-{}.f32", at + 1));
            let num_rows = of.values.len() / of.cols;
            let writer = RowWriter::create(path, (num_rows, of.cols), RowFormat::F32)?;
            writer.write(0, &of.values)?;
            writer.finish()
        };
        let layers = self.layers.iter().enumerate().map(write);
        let record = Record {
            fingerprint: fingerprint.to_owned(),
            layers: layers.collect::<Result<_, InferError>>()?,
        };
        let (path, tmp) = (dir.join(RECORD), dir.join("rows.tmp"));
        let text = serde_json::to_vec_pretty(&record).expect("a record is plain data");
        std::fs::write(&tmp, text)
            .and_then(|()| std::fs::rename(&tmp, &path))
            .map_err(InferError::io("write", &path))
    }

    /// Reads the rows of a directory; none if it does not hold those of the version, or a file was
    /// changed.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn read(dir: &Path, fingerprint: &str) -> Result<Option<Self>, InferError> {
        let text = std::fs::read(dir.join(RECORD)).ok();
        let record = text.and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let Some(record) = record.filter(|record| record.fingerprint == fingerprint) else {
            return Ok(None);
        };
        let mut layers = Vec::new();
        for of in &record.layers {
            let rows = of.map(dir)?;
            let RowValues::F32(values) = rows.values() else {
                return Ok(None);
            };
            if !of.is_intact(&rows) {
                return Ok(None);
            }
            layers.push(LayerRows {
                cols: of.cols,
                values: values.to_vec(),
            });
        }
        Ok(Some(Self { layers }))
    }
}
