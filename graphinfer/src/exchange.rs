//! Sends the rows of own nodes to the processes that read them, each at most once a round.

use crate::InferError;
use crate::gather::{ITEMS_A_MESSAGE, send_lists};
use crate::local::Sources;
use cluster::{Cluster, run_workers};
use schemas::{NodeIdx, Row};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// Numbers of 32 bits in a block of rows that is read and sent at once.
const BLOCK_WORDS: usize = 1 << 18;

/// The rows that this process exchanges with each other process, for one limit of in-edges a node.
#[derive(Debug)]
pub(crate) struct Exchange {
    cluster: Cluster,
    /// The ranges of own rows, ascending.
    own: Vec<Range<usize>>,
    /// By process: the own rows that it reads, ascending.
    given: Vec<Vec<Row>>,
    /// By process: the halo rows of this process whose nodes it owns, in ascending order.
    taken: Vec<Vec<Row>>,
    /// By process: how many aggregates it would send in place of rows, one for each reading node.
    partial: Vec<u64>,
}

/// Some rows that one process sends to another.
#[derive(Clone, Serialize, Deserialize)]
struct RowBlock {
    /// Position of the first row among all rows that are sent between the two processes.
    first: u64,
    words: Vec<u32>,
}

/// Bytes that a process sends and receives in a round: rows, and states and queries of hubs. The
/// overhead of messages is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Crossing {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Bytes received if each other process sent either its rows or one aggregate for each node
    /// that reads any of them, whichever are fewer. An aggregate counts as a row, and of a hub's
    /// states one is counted. This is not a lower bound: a mix of rows and aggregates could be
    /// smaller.
    pub(crate) bytes_least: u64,
}

impl Exchange {
    /// Tells the other processes which of their nodes this process reads. `own_rows` has the
    /// ranges of own rows, ascending; `row` returns the row of a node of this process or its halo.
    pub(crate) fn agree(
        cluster: &Cluster,
        (own_rows, row): (Vec<Range<usize>>, &dyn Fn(NodeIdx) -> Row),
        sources: Sources,
    ) -> Result<Self, InferError> {
        let rows = |nodes: &Vec<NodeIdx>| nodes.iter().map(|&node| row(node)).collect();
        let taken = sources.nodes.iter().map(rows).collect();
        let asked = sources.nodes.into_iter().map(Arc::new).collect();
        let told = send_lists(cluster, asked, ITEMS_A_MESSAGE)?.into_iter();
        let asked_of = |nodes: Vec<NodeIdx>| nodes.into_iter().map(row).collect();
        let given = told.map(asked_of).collect();
        Ok(Self {
            cluster: cluster.clone(),
            own: own_rows,
            given,
            taken,
            partial: sources.partial,
        })
    }

    /// Sends the own rows that other processes read, and receives the rows of the halo.
    ///
    /// A row has `cols` words. `read` returns the words of some own rows, of ranges in which another
    /// process reads a row; `take` gets a row of the halo and its words.
    /// All processes call this for the same rows.
    pub(crate) fn run(
        self: &Arc<Self>,
        cols: usize,
        read: impl Fn(Range<usize>) -> Result<Vec<u32>, InferError> + Send + Sync + 'static,
        take: impl Fn(Row, &[u32]) -> Result<(), InferError> + Send + Sync + 'static,
    ) -> Result<(), InferError> {
        let (this, take) = (Arc::clone(self), Arc::new(take));
        let threads = self.cluster.num_threads();
        let ended = run_workers(&self.cluster, move |peer| {
            let thread = peer.index() % threads;
            let block = (BLOCK_WORDS / cols.max(1)).max(1);
            let blocks = this.own.iter().flat_map(|own| {
                let firsts = own.clone().step_by(block);
                firsts.map(move |first| first..(first + block).min(own.end))
            });
            let mine = blocks.skip(thread).step_by(threads);
            let outgoing = mine.flat_map(|rows| this.messages(rows, cols, &read, thread));
            let (taken, take) = (Arc::clone(&this), Arc::clone(&take));
            peer.shuffle_each(outgoing, move |from, _, rows: RowBlock| {
                let first = usize::try_from(rows.first).expect("a place in a list");
                let places = &taken.taken[from / threads][first..];
                let pairs = places.iter().zip(rows.words.chunks_exact(cols));
                pairs
                    .into_iter()
                    .try_for_each(|(row, words)| take(*row, words))
            })
        });
        ended.map(drop)
    }

    /// Returns for each process the rows of a block that it reads.
    fn messages(
        &self,
        rows: Range<usize>,
        cols: usize,
        read: &impl Fn(Range<usize>) -> Result<Vec<u32>, InferError>,
        thread: usize,
    ) -> Vec<Result<(usize, RowBlock), InferError>> {
        let threads = self.cluster.num_threads();
        let asked = self
            .given
            .iter()
            .enumerate()
            .filter_map(|(process, given)| {
                let there = |end: usize| given.partition_point(|&row| row.index() < end);
                let places = there(rows.start)..there(rows.end);
                (!places.is_empty()).then_some((process, places))
            });
        let asked: Vec<(usize, Range<usize>)> = asked.collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let words = match read(rows.clone()) {
            Ok(words) => words,
            Err(error) => return vec![Err(error)],
        };
        let message = |(process, places): (usize, Range<usize>)| {
            let first = places.start as u64;
            let given = self.given[process][places].iter();
            let in_block = given.map(|&row| row.index() - rows.start);
            let of_rows = in_block.flat_map(|place| &words[place * cols..(place + 1) * cols]);
            let block = RowBlock {
                first,
                words: of_rows.copied().collect(),
            };
            Ok((process * threads + thread, block))
        };
        asked.into_iter().map(message).collect()
    }

    /// Returns the bytes that are exchanged in a round whose rows have `words` words of 32 bits.
    pub(crate) fn crossing(&self, words: usize) -> Crossing {
        let row_bytes = 4 * words as u64;
        let sum = |lists: &[Vec<Row>]| lists.iter().map(|rows| rows.len() as u64).sum::<u64>();
        let pairs = self.taken.iter().zip(&self.partial);
        let least: u64 = pairs
            .map(|(rows, &partial)| partial.min(rows.len() as u64))
            .sum();
        Crossing {
            bytes_sent: row_bytes * sum(&self.given),
            bytes_received: row_bytes * sum(&self.taken),
            bytes_least: row_bytes * least,
        }
    }
}

impl Crossing {
    /// Adds the bytes of another exchange.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.bytes_least += other.bytes_least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_the_fewer_of_rows_and_aggregates_by_process() {
        let rows = |of: &[&[u32]]| of.iter().map(|of| Row::slice(of).to_vec()).collect();
        let exchange = Exchange {
            cluster: Cluster::of_threads(1),
            own: std::iter::once(0..4).collect(),
            given: rows(&[&[], &[0, 2], &[1, 2, 3]]),
            taken: rows(&[&[], &[4, 5, 6, 7], &[8, 9]]),
            partial: vec![0, 3, 5],
        };
        let crossing = exchange.crossing(2);
        let expected = Crossing {
            bytes_sent: 8 * (2 + 3),
            bytes_received: 8 * (4 + 2),
            bytes_least: 8 * (3 + 2),
        };
        assert_eq!(crossing, expected);
    }
}
