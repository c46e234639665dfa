//! A part of the output while it is computed: its rows and its blocks.

use crate::InferError;
use crate::embedding::GROUP_BYTES;
use gnn::Dense;
use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, Ids, Labels, NodeIdx, PartEntry, Row,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One block of a part in the last round.
pub(crate) struct Piece {
    /// Position of its part in the list of parts.
    pub(crate) part: usize,
    /// Position among the blocks of its part.
    pub(crate) block: usize,
    /// Position of the first row to write among the rows of its part.
    pub(crate) first: usize,
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
    filling: Mutex<Filling>,
}

/// What is computed of a part so far.
#[derive(Default)]
struct Filling {
    /// The numbers of each column of vectors, with room for all rows once a block is computed.
    vectors: Vec<Vec<f32>>,
    /// The predictions of each block.
    predicted: Vec<Option<Labels>>,
}

/// Memory for the vectors of a part, used again for a later part.
#[derive(Default)]
pub(crate) struct PartBuffers(Mutex<Vec<Vec<Vec<f32>>>>);

/// The computed numbers of one block, or of a whole part.
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
                first: there(range.start),
                picked: (picked.len() < range.len()).then(|| places.collect()),
                rows: range,
            });
        }
        part.expect_blocks(pieces.len() - first);
    }
    pieces
}

/// Returns the order in which blocks are computed: those of two parts in turn. So two parts are
/// complete at about the same time, and at the end two threads write, not one.
pub(crate) fn in_turn(pieces: &[Piece]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&at| (pieces[at].part / 2, pieces[at].block, pieces[at].part));
    order
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
    rows: &Computed,
) -> Result<PartEntry, InferError> {
    let widths = widths(of_output);
    let row_bytes = 4 * widths.iter().sum::<usize>();
    let mut start = 0;
    for chunk in nodes.chunks((GROUP_BYTES / row_bytes).max(1)) {
        let end = start + chunk.len();
        let of_group: Vec<Vec<f32>>;
        let vectors = match chunk.len() == nodes.len() {
            true => &rows.vectors,
            false => {
                let pairs = rows.vectors.iter().zip(&widths);
                let group =
                    pairs.map(|(column, width)| column[start * width..end * width].to_vec());
                of_group = group.collect();
                &of_group
            }
        };
        writer.write(EmbeddingBatch {
            ids: &ids(start..end),
            nodes: chunk,
            vectors,
            prediction: &rows.predicted.slice(start..end),
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
            filling: Mutex::default(),
        }
    }

    /// Sets how many blocks the part has.
    pub(crate) fn expect_blocks(&self, count: usize) {
        self.filling().predicted = (0..count).map(|_| None).collect();
    }

    /// Copies a computed block to its place; returns all rows of the part if this is the last block.
    pub(crate) fn add(
        &self,
        piece: &Piece,
        computed: Computed,
        (columns, buffers): (&EmbeddingColumns, &PartBuffers),
    ) -> Option<Computed> {
        let widths = widths(columns);
        let mut filling = self.filling();
        if filling.vectors.is_empty() {
            filling.vectors = buffers.take(&widths, self.rows.len());
        }
        let pairs = filling.vectors.iter_mut().zip(&computed.vectors);
        for ((column, of_block), width) in pairs.zip(&widths) {
            column[piece.first * width..][..of_block.len()].copy_from_slice(of_block);
        }
        filling.predicted[piece.block] = Some(computed.predicted);
        if filling.predicted.iter().any(Option::is_none) {
            return None;
        }
        let mut predicted = Labels::empty(columns.prediction.as_ref());
        let of_blocks = std::mem::take(&mut filling.predicted).into_iter().flatten();
        of_blocks.for_each(|of_block| predicted.extend(&of_block));
        Some(Computed {
            vectors: std::mem::take(&mut filling.vectors),
            predicted,
        })
    }

    fn filling(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartBuffers {
    /// Returns a vector for each column, with any numbers, for a part of `num_rows` rows.
    fn take(&self, widths: &[usize], num_rows: usize) -> Vec<Vec<f32>> {
        let spare = self.spare().pop();
        let mut vectors = spare.unwrap_or_else(|| vec![Vec::new(); widths.len()]);
        for (column, width) in vectors.iter_mut().zip(widths) {
            match column.capacity() {
                0 => *column = vec![0.0; width * num_rows],
                _ => column.resize(width * num_rows, 0.0),
            }
        }
        vectors
    }

    /// Keeps the vectors of a written part for a later part with the same columns.
    pub(crate) fn put(&self, vectors: Vec<Vec<f32>>) {
        self.spare().push(vectors);
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Vec<Vec<f32>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
