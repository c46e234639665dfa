//! A part of the output while it is computed: its rows and its blocks.

use crate::InferError;
use crate::embedding::GROUP_BYTES;
use gnn::Dense;
use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, Ids, Labels, NodeIdx, PartEntry, Row,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One block of a part in the last round.
pub(crate) struct Piece {
    /// Position of its part in the list of parts.
    pub(crate) part: usize,
    /// Position among the blocks of its part.
    pub(crate) block: usize,
    /// The own rows to compute.
    pub(crate) rows: Range<usize>,
    /// Positions of the rows to write among the computed rows; none: all rows.
    pub(crate) picked: Option<Vec<usize>>,
}

/// A part that is computed block by block.
pub(crate) struct Part {
    pub(crate) index: usize,
    /// The own rows to write.
    pub(crate) rows: Vec<Row>,
    /// The computed blocks; taken when the last one is computed.
    blocks: Mutex<Vec<Option<Computed>>>,
}

/// The computed numbers of one block.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Computed {
    /// The numbers of each column of vectors.
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) predicted: Labels,
}

impl Piece {
    /// Picks the rows to write among the computed rows.
    pub(crate) fn pick(&self, rows: Dense) -> Dense {
        let Some(picked) = &self.picked else {
            return rows;
        };
        let values = picked.iter().flat_map(|&row| rows.row(row).to_vec());
        Dense {
            rows: picked.len(),
            cols: rows.cols,
            values: values.collect(),
        }
    }
}

/// Cuts parts into blocks; `ranges` cuts the rows of a part, given by its position.
pub(crate) fn pieces(
    parts: &[Part],
    ranges: impl Fn(usize, Range<usize>) -> Vec<Range<usize>>,
) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let (Some(&from), Some(&to)) = (part.rows.first(), part.rows.last()) else {
            continue;
        };
        let first = pieces.len();
        for range in ranges(at, from.index()..to.index() + 1) {
            let there = |end: usize| part.rows.partition_point(|&row| row.index() < end);
            let picked = &part.rows[there(range.start)..there(range.end)];
            if picked.is_empty() {
                continue;
            }
            let places = picked.iter().map(|&row| row.index() - range.start);
            pieces.push(Piece {
                part: at,
                block: pieces.len() - first,
                picked: (picked.len() < range.len()).then(|| places.collect()),
                rows: range,
            });
        }
        part.expect_blocks(pieces.len() - first);
    }
    pieces
}

/// Returns the widths of the columns of vectors.
pub(crate) fn widths(columns: &EmbeddingColumns) -> Vec<usize> {
    let widths = columns.vectors.iter().map(|(_, width)| *width);
    widths.collect()
}

/// Writes the rows of a part, whose nodes are numbered as its table is; `ids` returns the ids of a
/// range of them.
pub(crate) fn write_part(
    mut writer: EmbeddingsWriter,
    of_output: &EmbeddingColumns,
    (nodes, ids): (&[NodeIdx], &dyn Fn(Range<usize>) -> Ids),
    blocks: &[Computed],
) -> Result<PartEntry, InferError> {
    let mut predicted = Labels::empty(of_output.prediction.as_ref());
    blocks
        .iter()
        .for_each(|block| predicted.extend(&block.predicted));
    let widths = widths(of_output);
    let mut columns: Vec<Unwritten<'_>> = (0..widths.len())
        .map(|column| Unwritten::new(blocks, column))
        .collect();
    let row_bytes = 4 * widths.iter().sum::<usize>();
    let mut start = 0;
    for chunk in nodes.chunks((GROUP_BYTES / row_bytes).max(1)) {
        let end = start + chunk.len();
        let pairs = columns.iter_mut().zip(&widths);
        let vectors: Vec<Vec<f32>> = pairs
            .map(|(left, width)| left.take(chunk.len() * width))
            .collect();
        writer.write(EmbeddingBatch {
            ids: &ids(start..end),
            nodes: chunk,
            vectors: &vectors,
            prediction: &predicted.slice(start..end),
        })?;
        start = end;
    }
    Ok(writer.finish()?)
}

impl Part {
    /// Creates a part of some own rows without computed blocks.
    pub(crate) fn new(index: usize, rows: Vec<Row>) -> Self {
        Self {
            index,
            rows,
            blocks: Mutex::default(),
        }
    }

    /// Sets how many blocks the part has.
    pub(crate) fn expect_blocks(&self, count: usize) {
        let blocks = (0..count).map(|_| None).collect();
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = blocks;
    }

    /// Stores a computed block; returns all blocks of the part if this is the last one.
    pub(crate) fn add(&self, block: usize, computed: Computed) -> Option<Vec<Computed>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks[block] = Some(computed);
        if blocks.iter().any(Option::is_none) {
            return None;
        }
        Some(std::mem::take(&mut *blocks).into_iter().flatten().collect())
    }
}

/// The numbers of one column of vectors that are not written yet.
struct Unwritten<'a> {
    blocks: std::slice::Iter<'a, Computed>,
    column: usize,
    values: &'a [f32],
}

impl<'a> Unwritten<'a> {
    fn new(blocks: &'a [Computed], column: usize) -> Self {
        Self {
            blocks: blocks.iter(),
            column,
            values: &[],
        }
    }

    /// Takes the next `len` numbers.
    fn take(&mut self, len: usize) -> Vec<f32> {
        let mut taken = Vec::with_capacity(len);
        while taken.len() < len {
            if self.values.is_empty() {
                let block = self.blocks.next();
                self.values = &block.expect("blocks cover the part").vectors[self.column];
            }
            let (now, later) = self
                .values
                .split_at(self.values.len().min(len - taken.len()));
            taken.extend_from_slice(now);
            self.values = later;
        }
        taken
    }
}
