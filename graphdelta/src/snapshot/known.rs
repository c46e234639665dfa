//! Finds nodes by their ids, and marks those that a snapshot has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::Cluster;
use hashbrown::HashTable;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::{Ids, NodeIdx};
use store::{End, FindNodes, MISSING};

use super::shares::tell_all;
use crate::DeltaError;
use crate::numbers::{Numbers, Run, id_key};

/// Bits of a word.
const BITS: usize = 64;

/// The nodes of a parent and those that are new in a snapshot.
pub(super) struct Known<'a> {
    numbers: &'a Numbers,
    /// By type.
    types: Vec<OfType>,
    /// A bit for each node of the parent: whether the snapshot has it.
    there: Vec<AtomicU64>,
    /// Number of the first new node.
    end: usize,
    /// Ids of new nodes, by number minus `end`.
    new: Vec<Ids>,
}

/// Finds the nodes of one type.
struct OfType {
    stored: Stored,
    new: BTreeMap<Vec<u8>, NodeIdx>,
}

/// Finds the nodes of one type in the store.
enum Stored {
    /// Integer ids without gaps.
    Run(Run),
    /// Any other ids: numbers by the hash of the id.
    Table(HashTable<NodeIdx>),
}

impl Stored {
    fn new(numbers: &Numbers, type_idx: usize) -> Self {
        if let Some(run) = numbers.run(type_idx) {
            return Self::Run(*run);
        }
        let range = numbers.stored_of_type(type_idx);
        let range = range.start.index()..range.end.index();
        let mut table = HashTable::with_capacity(range.len());
        for node in range.map(NodeIdx::from_index) {
            table.insert_unique(numbers.hash(node), node, |&node| numbers.hash(node));
        }
        Self::Table(table)
    }

    fn find(&self, numbers: &Numbers, ids: &Ids, at: usize) -> Option<NodeIdx> {
        match self {
            Self::Run(run) => run.find(ids, at),
            Self::Table(table) => {
                let is_same = |&node: &NodeIdx| {
                    let (own, row) = numbers.id(node);
                    own.equal(row, ids, at)
                };
                table.find(ids.hash(at), is_same).copied()
            }
        }
    }
}

impl FindNodes for Known<'_> {
    fn look_up(&self, type_idx: usize, ids: &Ids, out: &mut End) {
        let find = |at: usize| self.find_present(type_idx, ids, at).unwrap_or(MISSING);
        out.numbers = (0..ids.len()).into_par_iter().map(find).collect();
        out.hashes.clear();
        ids.hashes_into(&mut out.hashes);
    }
}

impl<'a> Known<'a> {
    pub(super) fn new(numbers: &'a Numbers) -> Self {
        let num_types = numbers.store().meta().graph.types.len();
        let end = numbers.end();
        let types = (0..num_types).map(|type_idx| OfType {
            stored: Stored::new(numbers, type_idx),
            new: BTreeMap::new(),
        });
        let words = || AtomicU64::new(0);
        Self {
            numbers,
            types: types.collect(),
            there: std::iter::repeat_with(words)
                .take(end.div_ceil(BITS))
                .collect(),
            end,
            new: Vec::new(),
        }
    }

    pub(super) fn numbers(&self) -> &'a Numbers {
        self.numbers
    }

    /// Returns the end of the numbers of nodes.
    pub(super) fn end(&self) -> usize {
        self.end + self.new.len()
    }

    /// Returns ids and the row in them that holds a node's.
    pub(super) fn id(&self, node: NodeIdx) -> (&Ids, usize) {
        match node.index().checked_sub(self.end) {
            None => self.numbers.id(node),
            Some(at) => (&self.new[at], 0),
        }
    }

    /// Returns where a node lies among all: those of the store as they lie there, then all others.
    pub(super) fn place(&self, node: NodeIdx) -> usize {
        match self.numbers.is_stored(node) {
            true => self.numbers.placement().position(node),
            false => node.index(),
        }
    }

    /// Returns the node at a [`Self::place`].
    pub(super) fn at_place(&self, place: usize) -> NodeIdx {
        match place < self.numbers.num_stored() {
            true => self.numbers.placement().at_position(place),
            false => NodeIdx::from_index(place),
        }
    }

    /// Finds a node of the parent, removed or not.
    pub(super) fn find(&self, type_idx: usize, ids: &Ids, at: usize) -> Option<NodeIdx> {
        let stored = &self.types[type_idx].stored;
        let found = stored.find(self.numbers, ids, at);
        found.or_else(|| self.numbers.find_added(type_idx, ids, at))
    }

    /// Finds nodes of the snapshot; all of its nodes are marked or added.
    ///
    /// # Errors
    ///
    /// Returns the position of the first id that no node has.
    pub(super) fn find_all(&self, type_idx: usize, ids: &Ids) -> Result<Vec<NodeIdx>, usize> {
        let find = |at: usize| self.find_present(type_idx, ids, at).ok_or(at);
        let (Stored::Run(run), Some(keys)) = (&self.types[type_idx].stored, ids.keys()) else {
            return (0..ids.len()).map(find).collect();
        };
        let found = keys.iter().enumerate().map(|(at, key)| {
            let stored = run.find_key(ids, *key);
            match stored.filter(|&node| self.is_present(node)) {
                Some(node) => Ok(node),
                None => find(at),
            }
        });
        found.collect()
    }

    /// Finds a node of the snapshot; all of its nodes are marked or added.
    fn find_present(&self, type_idx: usize, ids: &Ids, at: usize) -> Option<NodeIdx> {
        match self.find(type_idx, ids, at) {
            Some(node) => self.is_present(node).then_some(node),
            None => self.types[type_idx].new.get(&id_key(ids, at)).copied(),
        }
    }

    fn is_present(&self, node: NodeIdx) -> bool {
        let word = self.there[node.index() / BITS].load(Ordering::Relaxed);
        word >> (node.index() % BITS) & 1 == 1
    }

    /// Marks a node of the parent as one of the snapshot; false if it was marked before.
    pub(super) fn mark_present(&self, node: NodeIdx) -> bool {
        let bit = 1 << (node.index() % BITS);
        let before = self.there[node.index() / BITS].fetch_or(bit, Ordering::Relaxed);
        before & bit == 0
    }

    /// Marks all nodes of a type that the parent has. Of several processes, the first one does: the
    /// others learn it as that of any other node.
    pub(super) fn mark_all_present(&self, type_idx: usize) {
        if self.numbers.store().cluster().leads() {
            self.of_parent(type_idx).for_each(|node| {
                self.mark_present(node);
            });
        }
    }

    /// Marks the nodes that other processes have marked. Returns a node of the parent that this
    /// process and one before it have both marked, if there is one.
    ///
    /// # Errors
    ///
    /// If another process fails.
    pub(super) fn join_present(&self, cluster: &Cluster) -> Result<Option<NodeIdx>, DeltaError> {
        if cluster.num_processes() == 1 {
            return Ok(None);
        }
        let own = self.there.iter().map(|word| word.load(Ordering::Relaxed));
        let own: Vec<u64> = own.collect();
        let all = tell_all(cluster, vec![(cluster.process(), own.clone())])?;
        let mut twice = None;
        for (process, theirs) in all.iter().enumerate() {
            for (at, (word, mine)) in theirs.iter().zip(&own).enumerate() {
                self.there[at].fetch_or(*word, Ordering::Relaxed);
                let both = word & mine;
                if both != 0 && process < cluster.process() {
                    let bit = usize::try_from(both.trailing_zeros()).expect("below 64");
                    twice = twice.or(Some(NodeIdx::from_index(at * BITS + bit)));
                }
            }
        }
        Ok(twice)
    }

    /// Adds a node that the parent does not have; false if it was added before. It gets the number
    /// that [`Numbers::apply`] gives it later, because both add nodes in the same order.
    pub(super) fn add_new(&mut self, type_idx: usize, ids: &Ids, at: usize) -> bool {
        if self.find(type_idx, ids, at).is_some() {
            return true;
        }
        let node = NodeIdx::from_index(self.end());
        let of_type = &mut self.types[type_idx];
        let is_new = of_type.new.insert(id_key(ids, at), node).is_none();
        let place = u32::try_from(at).expect("rows are fewer than nodes");
        self.new.push(ids.gather(&[place]));
        is_new
    }

    /// Lists the nodes of a type that the parent has and the snapshot has not.
    pub(super) fn gone(&self, type_idx: usize) -> impl Iterator<Item = NodeIdx> + '_ {
        self.of_parent(type_idx)
            .filter(|&node| !self.is_present(node))
    }

    /// Lists the nodes of a type that the parent has.
    fn of_parent(&self, type_idx: usize) -> impl Iterator<Item = NodeIdx> + '_ {
        let stored = self.numbers.stored_of_type(type_idx);
        let stored = (stored.start.index()..stored.end.index()).map(NodeIdx::from_index);
        let added = (self.numbers.num_stored()..self.end).map(NodeIdx::from_index);
        let all = stored.chain(added.filter(move |&node| self.numbers.type_of(node) == type_idx));
        all.filter(|&node| !self.numbers.is_removed(node))
    }
}
