//! Rows of a round that a group of blocks reads, copied in the order of the file.
//!
//! Blocks read rows in the order of their in-edges. If the page cache cannot hold the file, each
//! such row may cost a read of the disk. So consecutive blocks form groups: the rows of a group
//! are copied to memory, each row once, and the blocks read the copies; the bits stay the same. One
//! pass over the file copies the rows of several groups to the disk, in the order in which the
//! groups read them ([`crate::spooled`]).

use crate::InferError;
use crate::layer::LayerInput;
use crate::locate::narrow;
use crate::spool::Spool;
use crate::spooled::SpooledRows;
use bytes::Bytes;
use gnn::{NodeColumns, Projected, ReadyInput, SharedRows, SrcRows};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Rows that one task copies.
const ROWS_PER_TASK: usize = 1 << 12;

/// Bytes between two rows that are read with them; a larger gap is left out.
const GAP_BYTES: usize = 1 << 16;

/// Rows in one word of bits.
const WORD: usize = u64::BITS as usize;

/// A set of rows; the place of a row is its position among the rows of the set, ascending.
///
/// Takes a bit for each row of the graph, 1.5 bits once it is numbered.
#[derive(Clone)]
pub(crate) struct RowSet {
    bits: Vec<u64>,
    /// For each word, the number of rows in the words before; set by [`RowSet::number`].
    before: Vec<u32>,
    len: usize,
}

/// Copies of some rows with their attention scores and node columns.
pub(crate) struct Gathered {
    set: RowSet,
    /// Consecutive own nodes that have a place behind the rows of the set, with zeros as rows.
    own: Option<Range<usize>>,
    rows: SharedRows,
    scores: Option<SharedRows>,
    columns: Arc<NodeColumns>,
}

impl RowSet {
    /// Makes an empty set of rows below `num_rows`.
    pub(crate) fn new(num_rows: usize) -> Self {
        Self {
            bits: vec![0; num_rows.div_ceil(WORD)],
            before: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn insert(&mut self, row: u32) {
        let (word, bit) = (row as usize / WORD, row as usize % WORD);
        self.len += usize::from(self.bits[word] & (1 << bit) == 0);
        self.bits[word] |= 1 << bit;
    }

    /// Inserts some rows if the set then has at most `most`; tells whether it did.
    pub(crate) fn insert_up_to(&mut self, rows: impl Iterator<Item = u32>, most: usize) -> bool {
        let mut inserted = Vec::new();
        for row in rows {
            let before = self.len;
            self.insert(row);
            if self.len > before {
                inserted.push(row);
            }
            if self.len > most {
                self.len -= inserted.len();
                for at in inserted.into_iter().map(|inserted| inserted as usize) {
                    self.bits[at / WORD] &= !(1 << (at % WORD));
                }
                return false;
            }
        }
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Numbers the rows; no row is inserted after this.
    fn number(&mut self) {
        let mut before = 0;
        self.before = Vec::with_capacity(self.bits.len());
        for word in &self.bits {
            self.before.push(before);
            before += word.count_ones();
        }
    }

    /// Returns the place of a row of the set.
    fn place(&self, row: u32) -> u32 {
        let (word, bit) = (row as usize / WORD, row as usize % WORD);
        let below = self.bits[word] & ((1 << bit) - 1);
        self.before[word] + below.count_ones()
    }

    /// Returns the bytes of the set while it is not numbered.
    pub(crate) fn num_bytes(&self) -> usize {
        self.bits.len() * size_of::<u64>()
    }

    /// Lists the rows, ascending.
    fn rows(&self) -> Vec<u32> {
        let mut rows = Vec::with_capacity(self.len);
        rows.extend(self.rows_in(0..self.bits.len() * WORD));
        rows
    }

    /// Lists the rows in a range, ascending.
    pub(crate) fn rows_in(&self, range: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let words = range.start / WORD..range.end.div_ceil(WORD);
        words.flat_map(move |at| {
            let before = range.start.saturating_sub(at * WORD);
            let after = ((at + 1) * WORD).saturating_sub(range.end);
            let mut left = self.bits[at] >> before << before << after >> after;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(narrow(at * WORD) + bit)
            })
        })
    }
}

impl Gathered {
    /// Copies the rows in `set` that a layer aggregates, from a bucket of `spooled` if they were
    /// copied there. The own nodes `own` get columns but no rows, for a layer that reads no row of
    /// an own node here.
    pub(crate) fn new(
        mut set: RowSet,
        own: Option<Range<usize>>,
        (input, spooled): (&LayerInput, Option<(&SpooledRows, usize)>),
        columns: &NodeColumns,
    ) -> Result<Self, InferError> {
        set.number();
        let mut rows = set.rows();
        rows.extend(own.iter().flat_map(Range::clone).map(narrow));
        let copied = |from: &SharedRows, of: Option<&Spool>| {
            let bucket = of.zip(spooled.map(|(_, bucket)| bucket));
            copy(from, (&rows, set.len()), bucket)
        };
        let of_rows = spooled.map(|(of, _)| of.rows());
        let of_scores = spooled.and_then(|(of, _)| of.scores());
        let scores = input.scores().map(|scores| copied(scores, of_scores));
        Ok(Self {
            own,
            rows: copied(input.aggregated(), of_rows)?,
            scores: scores.transpose()?,
            columns: Arc::new(columns.pick(&rows)),
            set,
        })
    }

    /// Returns the place of the copy of a row.
    pub(crate) fn place(&self, row: u32) -> u32 {
        self.set.place(row)
    }

    /// Returns the place of an own node.
    pub(crate) fn own_place(&self, row: usize) -> usize {
        match &self.own {
            Some(own) => self.set.len() + row - own.start,
            None => self.place(narrow(row)) as usize,
        }
    }

    /// Returns the node columns of the rows.
    pub(crate) fn columns(&self) -> &Arc<NodeColumns> {
        &self.columns
    }

    /// Returns the copies as a conv reads them.
    pub(crate) fn ready(&self) -> Projected<ReadyInput> {
        Projected {
            rows: ReadyInput::shared(&self.rows),
            scores: self.scores.as_ref().map(ReadyInput::shared),
        }
    }

    /// Returns the copies as the aggregation of hubs reads them.
    pub(crate) fn src(&self) -> SrcRows<'_> {
        SrcRows {
            rows: self.rows.values(),
            scores: self.scores.as_ref().map(SharedRows::values),
            nodes: &self.columns,
        }
    }
}

/// Copies the first `num_copied` of some rows on all threads, or reads their copies from a bucket;
/// the others are zeros.
fn copy(
    from: &SharedRows,
    (rows, num_copied): (&[u32], usize),
    bucket: Option<(&Spool, usize)>,
) -> Result<SharedRows, InferError> {
    let row_bytes = from.format().num_bytes() * from.cols();
    let num_bytes = rows.len() * row_bytes;
    // Its pages take no memory before they are written.
    let map = memmap2::MmapMut::map_anon(num_bytes.max(1));
    let mut copied = map.map_err(InferError::Memory)?;
    if let Some((spool, at)) = bucket {
        spool.read(at, &mut copied[..num_copied * row_bytes])?;
        let read = Bytes::from_owner(copied).slice(..num_bytes);
        return Ok(SharedRows::new(read, from.cols(), from.format())?);
    }
    let all = from.bytes();
    let tasks = copied[..num_bytes].par_chunks_mut((ROWS_PER_TASK * row_bytes).max(1));
    tasks
        .zip(rows[..num_copied].par_chunks(ROWS_PER_TASK))
        .for_each(|(to, some)| {
            for near in some.chunk_by(|&a, &b| b > a && (b - a) as usize * row_bytes < GAP_BYTES) {
                let (first, last) = (near[0] as usize, near[near.len() - 1] as usize);
                store::will_need(&all[first * row_bytes..(last + 1) * row_bytes]);
            }
            for (to_row, &row) in to.chunks_exact_mut(row_bytes).zip(some) {
                to_row.copy_from_slice(&all[row as usize * row_bytes..][..row_bytes]);
            }
        });
    let copied = Bytes::from_owner(copied).slice(..num_bytes);
    Ok(SharedRows::new(copied, from.cols(), from.format())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_the_rows_before() {
        let mut set = RowSet::new(200);
        let rows = [199, 0, 63, 64, 130, 64, 1];
        rows.iter().for_each(|&row| set.insert(row));
        set.number();
        let ascending = [0, 1, 63, 64, 130, 199];
        assert_eq!((set.len(), &set.rows()[..]), (6, &ascending[..]));
        assert_eq!(ascending.map(|row| set.place(row)), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn rows_that_are_too_many_leave_the_set_as_it_was() {
        let mut set = RowSet::new(200);
        assert!(set.insert_up_to([5, 70, 5].into_iter(), 2));
        assert!(!set.insert_up_to([70, 71, 5, 199].into_iter(), 3));
        assert_eq!((set.len(), set.rows()), (2, vec![5, 70]));
        assert!(set.insert_up_to([70, 71, 5].into_iter(), 3));
        assert_eq!(set.rows(), [5, 70, 71]);
    }

    #[test]
    fn rows_of_a_range_are_those_between_its_ends() {
        let mut set = RowSet::new(200);
        let rows = [0, 1, 5, 62, 63, 64, 65, 100, 127, 128, 191, 192, 199];
        rows.iter().for_each(|&row| set.insert(row));
        for start in 0..200 {
            for end in start..=200 {
                let expected = rows.iter().copied();
                let expected = expected.filter(|&row| (start..end).contains(&(row as usize)));
                let found: Vec<u32> = set.rows_in(start..end).collect();
                assert_eq!(found, expected.collect::<Vec<u32>>(), "{start}..{end}");
            }
        }
    }
}
