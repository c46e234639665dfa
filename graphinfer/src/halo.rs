//! The halo: nodes of other workers that a worker's in-edges read, asked for once.

use crate::InferError;
use crate::slice::Slice;
use graphflat::{NodeIdx, Partition, Peer, Store};
use serde::{Deserialize, Serialize};

/// Rows sent at a time. A receiver keeps portions as they come and finds a row by division.
pub(crate) const PORTION_ROWS: usize = 1024;

/// No in-edge of the worker reads the node.
const UNREAD: u8 = u8::MAX;

/// What a worker holds besides its own nodes, and what it owes to its peers.
///
/// The rows that a worker holds are numbered: its own nodes first, then each peer's nodes that its
/// in-edges read. A peer's nodes stand in order of the least limit under which they are read, so
/// that a layer with a lower limit needs a prefix of them.
#[derive(Debug)]
pub(crate) struct Halo {
    /// `[num_nodes of the graph]`: row of each node; [`NO_ROW`] of a node that is not held.
    row: Vec<u32>,
    num_own: usize,
    /// By owner: its nodes that are read here.
    needed: Vec<Wanted>,
    /// By peer: own nodes that are read there.
    owed: Vec<Wanted>,
    /// Of all rows; those between the last node of an owner and the next portion are zero.
    pub(crate) columns: NodeColumns,
}

/// The row of a node that is not held.
const NO_ROW: u32 = u32::MAX;

/// One worker's nodes that another one reads.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Positions among the owner's nodes.
    local: Vec<u32>,
    /// By class: how many nodes are of it or a lower one.
    through_class: Vec<usize>,
}

/// Columns of nodes that a block needs; those that the graph has not are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeColumns {
    pub(crate) in_degree: Vec<u32>,
    pub(crate) in_weight: Vec<f32>,
    pub(crate) self_loops: Vec<u32>,
    pub(crate) self_weight: Vec<f32>,
}

/// The distinct limits of some slices, ascending: a node's class is the first one above its rank.
#[derive(Clone, Debug)]
struct Classes {
    limits: Vec<usize>,
}

impl Classes {
    fn of(slices: &[Slice]) -> Self {
        let mut limits: Vec<usize> = slices.iter().map(|slice| slice.limit).collect();
        limits.sort_unstable();
        limits.dedup();
        Self { limits }
    }

    fn of_limit(&self, limit: usize) -> usize {
        self.limits.partition_point(|&other| other < limit)
    }

    /// The class of each node that own in-edges read, [`UNREAD`] of others.
    fn of_sources(&self, partition: &Partition, num_nodes: usize) -> Vec<u8> {
        let greatest = self.limits.last().copied().unwrap_or(0);
        let mut classes = vec![UNREAD; num_nodes];
        for local in 0..partition.num_nodes() {
            for (rank, &src) in partition
                .in_edges(0, local, greatest)
                .src
                .iter()
                .enumerate()
            {
                let class = self.limits.partition_point(|&limit| limit <= rank);
                let class = u8::try_from(class).expect("at most 255 hops");
                let known = &mut classes[src as usize];
                *known = class.min(*known);
            }
        }
        classes
    }
}

impl Halo {
    /// Finds the nodes that own in-edges read and asks their owners for what stays the same in all
    /// rounds.
    pub(crate) fn exchange(
        peer: &mut Peer<'_>,
        store: &Store,
        slices: &[Slice],
    ) -> Result<Self, InferError> {
        let (me, peers) = (peer.index(), peer.peers());
        let (partition, placement) = (store.partition(me), store.placement());
        let classes = Classes::of(slices);
        let num_own = partition.num_nodes();
        let mut row = vec![NO_ROW; placement.num_nodes()];
        for local in 0..num_own {
            row[placement.node(me, local) as usize] = narrow(local);
        }
        let needed = find_needed(store, me, &classes);
        let mut first = num_own;
        for (owner, wanted) in needed.iter().enumerate() {
            for (i, &local) in wanted.local.iter().enumerate() {
                row[placement.node(owner, local as usize) as usize] = narrow(first + i);
            }
            first += wanted.local.len().next_multiple_of(PORTION_ROWS);
        }
        let asks = asks_of(&needed);
        let received = peer.shuffle(asks.into_iter().map(Ok::<_, InferError>))?;
        let mut owed = vec![Wanted::default(); peers];
        for (from, (class, local)) in received {
            owed[from].add(usize::from(class), &local);
        }
        owed.iter_mut()
            .for_each(|wanted| wanted.complete(classes.limits.len()));
        let mut halo = Self {
            row,
            num_own,
            needed,
            owed,
            columns: NodeColumns::default(),
        };
        halo.columns = halo.exchange_columns(peer, partition)?;
        Ok(halo)
    }

    /// Sends each peer the columns of the nodes it reads; returns those of all rows held.
    fn exchange_columns(
        &self,
        peer: &mut Peer<'_>,
        partition: &Partition,
    ) -> Result<NodeColumns, InferError> {
        let portions = self.owed_portions(usize::MAX).map(|(to, local)| {
            let mut columns = NodeColumns::default();
            local
                .iter()
                .for_each(|&local| columns.push(partition, local as usize));
            Ok::<_, InferError>((to, columns))
        });
        let received = peer.shuffle(portions)?;
        let mut columns = NodeColumns::default();
        (0..self.num_own).for_each(|local| columns.push(partition, local));
        let mut rows = self.num_own;
        for portion in self.arrange(received, usize::MAX) {
            rows += PORTION_ROWS;
            columns.extend(portion.unwrap_or_default(), rows);
        }
        Ok(columns)
    }

    /// Returns the row of a node that is held.
    pub(crate) fn row(&self, node: NodeIdx) -> u32 {
        let row = self.row[node as usize];
        debug_assert_ne!(row, NO_ROW, "every source of an own in-edge is held");
        row
    }

    /// Returns how many of the rows are own nodes.
    pub(crate) fn num_own(&self) -> usize {
        self.num_own
    }

    /// Returns the number of rows.
    pub(crate) fn num_rows(&self) -> usize {
        self.columns.in_degree.len()
    }

    /// Returns own nodes that peers read in a round, portion by portion: peer and positions.
    pub(crate) fn owed_portions(&self, class: usize) -> impl Iterator<Item = (usize, &[u32])> {
        self.owed.iter().enumerate().flat_map(move |(to, wanted)| {
            let local = &wanted.local[..wanted.count(class)];
            local.chunks(PORTION_ROWS).map(move |portion| (to, portion))
        })
    }

    /// Returns how many rows of peers a round reads.
    pub(crate) fn num_needed(&self, class: usize) -> usize {
        self.needed.iter().map(|wanted| wanted.count(class)).sum()
    }

    /// Puts the portions that came in a round in order of rows, `PORTION_ROWS` apiece; those that
    /// the round does not need are none.
    pub(crate) fn arrange<T>(&self, received: Vec<(usize, T)>, class: usize) -> Vec<Option<T>> {
        let mut received = received.into_iter().peekable();
        let mut portions = Vec::new();
        for (owner, wanted) in self.needed.iter().enumerate() {
            let sent = wanted.count(class).div_ceil(PORTION_ROWS);
            for ordinal in 0..wanted.local.len().div_ceil(PORTION_ROWS) {
                let next = received.next_if(|(from, _)| ordinal < sent && *from == owner);
                assert_eq!(
                    next.is_some(),
                    ordinal < sent,
                    "owners send all that they are asked"
                );
                portions.push(next.map(|(_, portion)| portion));
            }
        }
        assert!(received.next().is_none(), "owners send nothing else");
        portions
    }
}

/// The class of a slice among all that a halo was made for.
pub(crate) fn class_of(slices: &[Slice], slice: Slice) -> usize {
    Classes::of(slices).of_limit(slice.limit)
}

/// By owner: its nodes that own in-edges read, by class and then by position there.
fn find_needed(store: &Store, me: usize, classes: &Classes) -> Vec<Wanted> {
    let placement = store.placement();
    let class_of = classes.of_sources(store.partition(me), placement.num_nodes());
    let mut needed = vec![Vec::<(u8, u32)>::new(); placement.workers()];
    for (node, &class) in class_of.iter().enumerate() {
        let node = narrow(node);
        let owner = if class == UNREAD {
            me
        } else {
            placement.owner(node)
        };
        if owner != me {
            needed[owner].push((class, narrow(placement.local(node))));
        }
    }
    let by_class = |mut nodes: Vec<(u8, u32)>| {
        nodes.sort_unstable();
        let mut wanted = Wanted::default();
        for run in nodes.chunk_by(|a, b| a.0 == b.0) {
            let local: Vec<u32> = run.iter().map(|&(_, local)| local).collect();
            wanted.add(usize::from(run[0].0), &local);
        }
        wanted.complete(classes.limits.len());
        wanted
    };
    needed.into_iter().map(by_class).collect()
}

/// What to ask each owner for: a class and positions, in portions.
fn asks_of(needed: &[Wanted]) -> Vec<(usize, (u8, Vec<u32>))> {
    let mut asks = Vec::new();
    for (owner, wanted) in needed.iter().enumerate() {
        let mut start = 0;
        for (class, &end) in (0u8..).zip(&wanted.through_class) {
            let portions = wanted.local[start..end].chunks(PORTION_ROWS);
            asks.extend(portions.map(|portion| (owner, (class, portion.to_vec()))));
            start = end;
        }
    }
    asks
}

impl Wanted {
    /// Appends nodes of a class; classes ascend.
    fn add(&mut self, class: usize, local: &[u32]) {
        self.through_class
            .resize(class.max(self.through_class.len()), self.local.len());
        self.local.extend_from_slice(local);
        self.through_class.truncate(class);
        self.through_class.push(self.local.len());
    }

    fn complete(&mut self, num_classes: usize) {
        self.through_class.resize(num_classes, self.local.len());
    }

    /// How many nodes are of a class or a lower one; all for a class that none has.
    fn count(&self, class: usize) -> usize {
        self.through_class
            .get(class)
            .copied()
            .unwrap_or(self.local.len())
    }
}

impl NodeColumns {
    fn push(&mut self, partition: &Partition, local: usize) {
        self.in_degree.push(partition.in_degree(local));
        self.in_weight.extend(partition.in_weight(local));
        self.self_loops.extend(partition.self_loops(local));
        self.self_weight.extend(partition.self_weight(local));
    }

    /// Appends a portion and fills up to `rows` nodes.
    fn extend(&mut self, portion: NodeColumns, rows: usize) {
        extend(&mut self.in_degree, portion.in_degree, rows);
        extend(&mut self.in_weight, portion.in_weight, rows);
        extend(&mut self.self_loops, portion.self_loops, rows);
        extend(&mut self.self_weight, portion.self_weight, rows);
    }
}

/// Appends values and fills up to `rows`; a column that the graph has not stays empty.
fn extend<T: Clone + Default>(column: &mut Vec<T>, more: Vec<T>, rows: usize) {
    if !more.is_empty() || !column.is_empty() {
        column.extend(more);
        column.resize(rows, T::default());
    }
}

/// Rows are at most nodes plus one portion a peer, which a store keeps below 2^32.
fn narrow(row: usize) -> u32 {
    u32::try_from(row).expect("rows of a worker fit 32 bits")
}
