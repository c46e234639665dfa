//! Numbers the rows of a process: which nodes have a row, and which row.

use crate::hubs::{Hubs, num_segments};
use crate::locate::locate;
use rayon::prelude::*;
use schemas::{NodeIdx, Row};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use store::Store;

/// Nodes that a thread looks through at once.
const NODES_PER_TASK: usize = 1 << 12;

/// Nodes in one word of bits.
const WORD: usize = u64::BITS as usize;

/// The rows of one of several processes: first the rows of its own nodes, in the order of ids, then
/// the rows of its halo, process by process.
///
/// The halo holds the sources of own nodes' in-edges that other processes own. It leaves out
/// sources that only occur in segments of hubs that other processes aggregate.
///
/// So the rows that one process sends lie next to each other here. Takes 3 bits for each node of
/// the graph, 4 bytes for each own node and 8 bytes for each node of the halo.
#[derive(Debug)]
pub(crate) struct Local {
    own: Vec<NodeIdx>,
    halo: Vec<NodeIdx>,
    words: Vec<Word>,
    /// The rows of the halo's nodes, in the order of ids.
    halo_rows: Vec<Row>,
}

/// 64 nodes with consecutive ids in the graph's order of ids.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    own: u64,
    halo: u64,
    /// Number of own nodes, and of nodes of the halo, in earlier words.
    own_before: u32,
    halo_before: u32,
}

/// A relation, and how many of its in-edges a layer reads of each node.
pub(crate) type Read = (usize, usize);

/// The nodes of other processes that a process reads in a round.
pub(crate) struct Sources {
    /// By process: the nodes that it owns, ascending.
    pub(crate) nodes: Vec<Vec<NodeIdx>>,
    /// By process: the number of own nodes that read any of its nodes. It would send as many rows
    /// if it aggregated its part of each node's in-edges.
    pub(crate) partial: Vec<u64>,
}

impl Local {
    /// Numbers the rows. The own nodes ascend, and so do the halo's nodes of each process.
    pub(crate) fn new(own: Vec<NodeIdx>, halo: &[Vec<NodeIdx>], num_nodes: usize) -> Self {
        let halo: Vec<NodeIdx> = halo.iter().flatten().copied().collect();
        let mut words = vec![Word::default(); num_nodes.div_ceil(WORD)];
        for &node in &own {
            words[node.index() / WORD].own |= bit(node);
        }
        for &node in &halo {
            words[node.index() / WORD].halo |= bit(node);
        }
        let (mut own_before, mut halo_before) = (0, 0);
        for word in &mut words {
            (word.own_before, word.halo_before) = (own_before, halo_before);
            own_before += word.own.count_ones();
            halo_before += word.halo.count_ones();
        }
        let mut halo_rows = vec![Row::MAX; halo.len()];
        for (row, &node) in (own_before..).zip(&halo) {
            halo_rows[words[node.index() / WORD].halo_rank(node)] = Row::from_raw(row);
        }
        Self {
            own,
            halo,
            words,
            halo_rows,
        }
    }

    /// Returns the nodes of the first rows.
    pub(crate) fn own(&self) -> &[NodeIdx] {
        &self.own
    }

    /// Returns the nodes of the rows after the own rows.
    pub(crate) fn halo(&self) -> &[NodeIdx] {
        &self.halo
    }

    /// Returns the row of a node that has one.
    pub(crate) fn row(&self, node: NodeIdx) -> Row {
        let word = &self.words[node.index() / WORD];
        if word.own & bit(node) != 0 {
            Row::from_raw(word.own_before + rank(word.own, node))
        } else {
            assert_ne!(word.halo & bit(node), 0, "node {node} has no row here");
            self.halo_rows[word.halo_rank(node)]
        }
    }
}

impl Word {
    /// Returns the position of a node among the halo's nodes in the order of ids.
    fn halo_rank(&self, node: NodeIdx) -> usize {
        (self.halo_before + rank(self.halo, node)) as usize
    }
}

/// Returns the number of set bits before the bit of a node.
fn rank(bits: u64, node: NodeIdx) -> u32 {
    (bits & (bit(node) - 1)).count_ones()
}

fn bit(node: NodeIdx) -> u64 {
    1 << (node.index() % WORD)
}

/// Lists the nodes of this process, ascending.
pub(crate) fn own_nodes(store: &Store) -> Vec<NodeIdx> {
    let (placement, cluster) = (store.placement(), store.cluster());
    let first = cluster.first_worker();
    let of_worker = |worker: usize| {
        placement
            .locals(worker)
            .map(move |local| placement.node(worker, local))
    };
    let mut own: Vec<NodeIdx> = (first..first + cluster.num_threads())
        .flat_map(of_worker)
        .collect();
    own.par_sort_unstable();
    own
}

/// Returns the positions of a range of nodes in an ascending list.
pub(crate) fn places(nodes: &[NodeIdx], range: &Range<NodeIdx>) -> Range<usize> {
    let there = |end: NodeIdx| nodes.partition_point(|&node| node < end);
    there(range.start)..there(range.end)
}

/// Finds the sources of own nodes' in-edges that other processes own. `own` ascends.
///
/// Leaves out a source in a segment of a hub that its owner aggregates, unless a smaller limit of
/// the relation reads the source as a row. So the sources of a relation's largest limit contain the
/// sources of all its limits.
pub(crate) fn sources(store: &Store, own: &[NodeIdx], reads: &[Read], hubs: &Hubs) -> Sources {
    let (placement, cluster) = (store.placement(), store.cluster());
    let (process, threads) = (cluster.process(), cluster.num_threads());
    let found = Found::new(store);
    let none = || vec![0; cluster.num_processes()];
    let mut partial = none();
    for &(relation, limit) in reads {
        let scan = |nodes: &[NodeIdx]| {
            let mut readers = Readers::new(cluster.num_processes());
            for (place, &node) in nodes.iter().enumerate() {
                let (partition, local) = locate(store, node);
                let in_degree = partition.in_degree(relation, local);
                let as_rows = hubs.read_as_rows(relation, in_degree, limit);
                let whole = hubs.whole_segments(relation, in_degree);
                let count = num_segments(in_degree);
                let is_elsewhere = |src| whole[placement.segment(src, count)].is_some();
                let in_edges = partition.in_edges(relation, 0, local, limit).src;
                for (rank, &src) in in_edges.iter().enumerate() {
                    let owner = placement.owner(src) / threads;
                    if owner == process || (rank >= as_rows && is_elsewhere(src)) {
                        continue;
                    }
                    found.add(src);
                    readers.add(owner, place);
                }
            }
            readers.partial
        };
        let to = placement.type_range(store.meta().graph.relations[relation].to);
        let readers = own[places(own, &to)].par_chunks(NODES_PER_TASK);
        partial = sum(partial, readers.map(scan).reduce(none, sum));
    }
    found.into_sources(store, partial)
}

/// Adds numbers position by position.
fn sum(mut sum: Vec<u64>, other: Vec<u64>) -> Vec<u64> {
    sum.iter_mut().zip(other).for_each(|(sum, of)| *sum += of);
    sum
}

/// A set of nodes to which threads add.
struct Found {
    /// One bit for each node of the graph.
    words: Vec<AtomicU64>,
}

impl Found {
    fn new(store: &Store) -> Self {
        let num_words = store.placement().num_nodes().div_ceil(WORD);
        Self {
            words: (0..num_words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn add(&self, node: NodeIdx) {
        self.words[node.index() / WORD].fetch_or(bit(node), Ordering::Relaxed);
    }

    /// Lists the nodes by process.
    fn into_sources(self, store: &Store, partial: Vec<u64>) -> Sources {
        let (placement, cluster) = (store.placement(), store.cluster());
        let mut nodes = vec![Vec::new(); cluster.num_processes()];
        for (word, bits) in self.words.into_iter().enumerate() {
            let mut bits = bits.into_inner();
            while bits != 0 {
                let node = word * WORD + bits.trailing_zeros() as usize;
                let node = NodeIdx::from_index(node);
                nodes[placement.owner(node) / cluster.num_threads()].push(node);
                bits &= bits - 1;
            }
        }
        Sources { nodes, partial }
    }
}

/// Counts the nodes that read any node of each process.
struct Readers {
    /// By process: 1 + the position of the last node that read one of its nodes; 0: no node.
    last: Vec<usize>,
    /// By process: the number of such nodes.
    partial: Vec<u64>,
}

impl Readers {
    fn new(num_processes: usize) -> Self {
        Self {
            last: vec![0; num_processes],
            partial: vec![0; num_processes],
        }
    }

    /// Notes that the node at `place` reads a node of a process. Places ascend.
    fn add(&mut self, process: usize, place: usize) {
        if self.last[process] != place + 1 {
            self.last[process] = place + 1;
            self.partial[process] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_nodes_have_the_first_rows_and_the_halo_those_behind() {
        let nodes = || (0..1000).map(NodeIdx::from_raw);
        let own: Vec<NodeIdx> = nodes().filter(|node| node.raw() % 3 == 1).collect();
        let of =
            |rest: u32| nodes().filter(move |node| node.raw() % 3 != 1 && node.raw() % 7 == rest);
        let halo = [of(2).collect(), Vec::new(), of(0).collect()];
        let local = Local::new(own.clone(), &halo, 1000);
        let rows = own.iter().chain(halo.iter().flatten());
        let rows: Vec<u32> = rows.map(|&node| local.row(node).raw()).collect();
        let expected: Vec<u32> = (0..u32::try_from(rows.len()).unwrap()).collect();
        assert_eq!(rows, expected);
    }
}
