//! A part of the output while it is computed: its rows and its blocks.

use schemas::{Labels, Row};
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
pub(crate) struct Unwritten<'a> {
    blocks: std::slice::Iter<'a, Computed>,
    column: usize,
    values: &'a [f32],
}

impl<'a> Unwritten<'a> {
    pub(crate) fn new(blocks: &'a [Computed], column: usize) -> Self {
        Self {
            blocks: blocks.iter(),
            column,
            values: &[],
        }
    }

    /// Takes the next `len` numbers.
    pub(crate) fn take(&mut self, len: usize) -> Vec<f32> {
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
