//! A part of the output on its way: its rows, its blocks, and what they came to.

use schemas::{Labels, Row};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One block of the last round.
pub(crate) struct Piece {
    /// Place among the parts.
    pub(crate) part: usize,
    /// Place among the blocks of the part.
    pub(crate) block: usize,
    /// The own rows that are computed.
    pub(crate) rows: Range<usize>,
    /// Those of them that are written; none: all.
    pub(crate) picked: Option<Vec<usize>>,
}

/// A part on its way.
pub(crate) struct Part {
    pub(crate) index: usize,
    /// The own rows that are written.
    pub(crate) rows: Vec<Row>,
    /// Blocks that are computed; taken when all are.
    blocks: Mutex<Vec<Option<Computed>>>,
}

/// What one block came to.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Computed {
    /// A column of vectors each.
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) predicted: Labels,
}

impl Part {
    /// Creates a part of some own rows, none of which is computed.
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

    /// Keeps what a block came to; returns all of the part when it is the last one.
    pub(crate) fn add(&self, block: usize, computed: Computed) -> Option<Vec<Computed>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks[block] = Some(computed);
        if blocks.iter().any(Option::is_none) {
            return None;
        }
        Some(std::mem::take(&mut *blocks).into_iter().flatten().collect())
    }
}

/// The numbers of a column of blocks that are still to be written.
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
