//! Hubs: nodes with so many in-edges of a relation that processes aggregate them in segments. These
//! are not the hubs of `hub_threshold`, which balances the store's shuffle and changes no output.
//!
//! A segment holds the in-edges whose sources lie in one range of the placement, which depends on
//! neither workers nor processes. Each segment is aggregated to a state, and the states are merged
//! in the order of segments: so the bits are the same for any number of processes. If one process
//! owns all nodes of a segment, it aggregates the segment and sends the state instead of rows. The
//! few segments with nodes of several processes are aggregated by the hub's process, which gets
//! the rows.

use crate::InferError;
use crate::gather::send_lists;
use crate::local::places;
use crate::locate::{locate, narrow};
use cluster::gather_processes;
use gnn::kernel::{Csr, Float};
use gnn::typed::RelationInput;
use gnn::{Architecture, Dense, SomeInEdges};
use rayon::prelude::*;
use schemas::NodeIdx;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use store::{InEdges, Store};

/// A node with more in-edges of a relation is a hub of a layer that reads all of them. Decides the
/// bits of its row.
pub(crate) const HUB_EDGES: usize = 1 << 13;

/// Segments of a hub's in-edges. Larger hubs have 2, 4, 8 or 16 times as many, of at least
/// `SEGMENT_EDGES` in-edges on average. Most small numbers of processes divide 240; for another
/// number P, at most P - 1 segments have nodes of two processes. Decides the bits of a hub's row.
const SEGMENTS: usize = 240;
const DOUBLINGS: u32 = 4;
const SEGMENT_EDGES: usize = 32;

/// Most hubs that a process aggregates at once, and about how many words of in-edges they have.
const BATCH_HUBS: usize = 64;
const BATCH_WORDS: usize = 1 << 22;

/// Segments, with their in-edges, that one message holds.
const SEGMENTS_A_MESSAGE: usize = 64;

/// The in-edges of one relation of a node. An untyped graph has one relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HubId {
    pub(crate) node: NodeIdx,
    pub(crate) relation: usize,
}

/// The columns of a relation's in-edges that a model reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadColumns {
    pub(crate) edge_dim: Option<usize>,
    pub(crate) edge_weight: bool,
}

impl ReadColumns {
    /// Returns the columns that a model of an untyped graph reads.
    pub(crate) fn of(arch: &Architecture) -> Self {
        Self {
            edge_dim: arch.edge_dim,
            edge_weight: arch.edge_weight,
        }
    }

    /// Returns the columns that a typed model reads of a relation.
    pub(crate) fn of_relation(relation: &RelationInput) -> Self {
        Self {
            edge_dim: relation.edge_dim,
            edge_weight: relation.edge_weight,
        }
    }
}

/// How inference reads the in-edges of a relation.
#[derive(Clone, Debug)]
pub(crate) struct RelationUse {
    pub(crate) columns: ReadColumns,
    /// How many in-edges of a node the rounds read, without duplicates; none if no round reads any.
    pub(crate) limits: BTreeSet<usize>,
}

/// The hubs of a process, and the segments of other processes' hubs that it aggregates.
#[derive(Debug)]
pub(crate) struct Hubs {
    store: Store,
    /// By relation.
    relations: Vec<RelationUse>,
    processes: SegmentProcesses,
    shared: SharedHubs,
}

/// The hubs and segments that processes have agreed on.
#[derive(Debug)]
struct SharedHubs {
    /// The hubs among the nodes of this process, ascending: those of a node next to each other.
    own: Vec<HubId>,
    /// By process: the ends of its batches among its hubs.
    batch_ends: Vec<Vec<u32>>,
    /// By process: the segments of its hubs that this process aggregates, by the hub's position.
    held: Vec<Vec<Held>>,
}

/// A segment of another process's hub that this process aggregates.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// Position of the hub among the hubs of its process.
    pub(crate) place: u32,
    pub(crate) relation: usize,
    pub(crate) in_degree: u32,
    pub(crate) segment: u32,
    pub(crate) edges: SomeInEdges,
}

/// A segment that the hub's process sends to the process that aggregates it.
#[derive(Clone, Serialize, Deserialize)]
struct Sent {
    place: u32,
    relation: u32,
    in_degree: u32,
    segment: u32,
    /// The source nodes of the in-edges.
    src: Vec<u32>,
    weight: Option<Vec<f32>>,
    /// The features of all in-edges, one after the other.
    feature: Option<Vec<f32>>,
}

/// The in-edges of a hub, divided into segments.
pub(crate) struct Segmented<'a> {
    edges: InEdges<'a>,
    /// One row of in-edges, whose columns are the segments.
    segments: Csr,
    columns: ReadColumns,
}

/// Which process owns all nodes of a segment.
#[derive(Debug)]
struct SegmentProcesses {
    /// By relation: the type of its sources.
    from: Vec<usize>,
    /// By type of the sources, number of doublings, and segment; none if no process owns all nodes.
    processes: Vec<Vec<Vec<Option<usize>>>>,
}

impl SegmentProcesses {
    fn new(store: &Store) -> Self {
        let (placement, threads) = (store.placement(), store.cluster().num_threads());
        let of_type = |node_type| {
            let of_count = |doublings| {
                let count = SEGMENTS << doublings;
                let process = |segment| {
                    let (first, last) = placement.segment_owners(node_type, segment, count)?;
                    (first / threads == last / threads).then_some(first / threads)
                };
                (0..count).map(process).collect()
            };
            (0..=DOUBLINGS).map(of_count).collect()
        };
        let graph = &store.meta().graph;
        Self {
            from: graph.relations.iter().map(|of| of.from).collect(),
            processes: (0..graph.types.len()).map(of_type).collect(),
        }
    }

    /// Returns the owner of each segment of a hub.
    fn of_hub(&self, relation: usize, in_degree: u32) -> &[Option<usize>] {
        &self.processes[self.from[relation]][doublings(in_degree) as usize]
    }
}

/// Returns how often the number of segments is doubled for a hub.
fn doublings(in_degree: u32) -> u32 {
    let times = in_degree as usize / (SEGMENTS * SEGMENT_EDGES);
    times.checked_ilog2().unwrap_or(0).min(DOUBLINGS)
}

/// Returns the number of segments of a hub, which only its in-degree decides.
pub(crate) fn num_segments(in_degree: u32) -> usize {
    SEGMENTS << doublings(in_degree)
}

/// Tells whether a node is a hub of a layer that reads at most `limit` in-edges a node.
pub(crate) fn is_hub(in_degree: u32, limit: usize) -> bool {
    (HUB_EDGES + 1..=limit).contains(&(in_degree as usize))
}

impl Hubs {
    /// Finds the hubs among the nodes of this process, sends their segments to the processes that
    /// aggregate them, and receives the segments that this process aggregates. `own` has the nodes
    /// of this process, ascending; none if these are all nodes.
    pub(crate) fn find(
        store: &Store,
        relations: Vec<RelationUse>,
        own: Option<&[NodeIdx]>,
    ) -> Result<Self, InferError> {
        let cluster = store.cluster();
        let mut found = own_hubs(store, &relations, own);
        found.par_sort_unstable();
        let batch_ends = batch_ends(store, &found, &relations);
        let shared = SharedHubs {
            own: found,
            batch_ends: gather_processes(cluster, batch_ends)?,
            held: vec![Vec::new(); cluster.num_processes()],
        };
        let mut hubs = Self {
            store: store.clone(),
            relations,
            processes: SegmentProcesses::new(store),
            shared,
        };
        if cluster.num_processes() > 1 {
            hubs.give()?;
        }
        Ok(hubs)
    }

    fn give(&mut self) -> Result<(), InferError> {
        let cluster = self.store.cluster();
        for batch in 0..self.num_batches() {
            let mut lists = vec![Vec::new(); cluster.num_processes()];
            for place in self.batch(batch, cluster.process()) {
                let hub = self.own(place);
                let in_degree = in_degree(&self.store, hub);
                let segmented = self.segmented(hub);
                let owners = self.processes.of_hub(hub.relation, in_degree);
                for (segment, owner) in owners.iter().enumerate() {
                    let elsewhere = owner.filter(|&process| process != cluster.process());
                    let Some(process) = elsewhere else { continue };
                    let edges = segmented.pick(segment, None, NodeIdx::raw);
                    if !edges.src.is_empty() {
                        lists[process].push(Sent {
                            place: narrow(place),
                            relation: narrow(hub.relation),
                            in_degree,
                            segment: narrow(segment),
                            src: edges.src,
                            weight: edges.weight,
                            feature: edges.feature.map(|feature| feature.values),
                        });
                    }
                }
            }
            let lists = lists.into_iter().map(Arc::new).collect();
            let told = send_lists(cluster, lists, SEGMENTS_A_MESSAGE)?;
            for (held, sent) in self.shared.held.iter_mut().zip(told) {
                held.extend(sent.into_iter().map(|sent| sent.take(&self.relations)));
            }
        }
        Ok(())
    }

    /// Replaces the source nodes of other processes' segments by their rows; `row` gets the
    /// relation and the node.
    pub(crate) fn number(&mut self, row: impl Fn(usize, NodeIdx) -> u32) {
        for held in self.shared.held.iter_mut().flatten() {
            let relation = held.relation;
            let srcs = held.edges.src.iter_mut();
            srcs.for_each(|src| *src = row(relation, NodeIdx::from_raw(*src)));
        }
    }

    pub(crate) fn num_relations(&self) -> usize {
        self.relations.len()
    }

    /// Returns an own hub by its position.
    pub(crate) fn own(&self, place: usize) -> HubId {
        self.shared.own[place]
    }

    /// Tells whether these are in-edges of a hub for a layer that reads at most `limit` of them.
    pub(crate) fn is_hub(&self, hub: HubId, limit: usize) -> bool {
        is_hub(in_degree(&self.store, hub), limit)
    }

    /// Returns the segments of an own hub whose in-edges this process aggregates, and which lie in
    /// the piece at `at` if all are divided into `num_pieces` consecutive pieces.
    pub(crate) fn own_segments(
        &self,
        hub: HubId,
        (at, num_pieces): (usize, usize),
    ) -> impl Iterator<Item = usize> {
        let own = self.store.cluster().process();
        let in_degree = in_degree(&self.store, hub);
        let processes = self.processes.of_hub(hub.relation, in_degree);
        let in_piece = processes.len() / num_pieces;
        let segments = at * in_piece..(at + 1) * in_piece;
        segments.filter(move |&segment| processes[segment].is_none_or(|process| process == own))
    }

    /// Returns in which of `num_pieces` pieces the segment of a source lies, for every number of
    /// segments that they divide: a segment of `k * num_pieces` is one `k`-th of a piece.
    pub(crate) fn piece(&self, src: NodeIdx, num_pieces: usize) -> usize {
        self.store.placement().segment(src, num_pieces)
    }

    /// Returns the in-edges of an own hub, divided into segments.
    pub(crate) fn segmented(&self, hub: HubId) -> Segmented<'_> {
        Segmented::new(&self.store, hub, self.relations[hub.relation].columns)
    }

    /// Returns the sources of all in-edges of an own hub.
    pub(crate) fn srcs(&self, hub: HubId) -> &[NodeIdx] {
        in_edges(&self.store, hub).src
    }

    /// Returns the first in-edges of a relation that are read as rows wherever their sources are,
    /// given the node's in-degree and the limit of a layer.
    pub(crate) fn read_as_rows(&self, relation: usize, in_degree: u32, limit: usize) -> usize {
        if !is_hub(in_degree, limit) {
            return usize::MAX;
        }
        // A limit below the in-degree reads only some in-edges: then the node is no hub, and these
        // are read as rows.
        let limits = &self.relations[relation].limits;
        let as_rows = limits.range(..in_degree as usize).next_back();
        as_rows.copied().unwrap_or(0)
    }

    /// Tells of each segment of a hub whether one process owns all its nodes, and aggregates it.
    pub(crate) fn whole_segments(&self, relation: usize, in_degree: u32) -> &[Option<usize>] {
        self.processes.of_hub(relation, in_degree)
    }

    /// Returns how often processes exchange states in a layer; 0 if no process has a hub.
    pub(crate) fn num_batches(&self) -> usize {
        self.shared.num_batches()
    }

    /// Returns the positions of a batch among the hubs of a process.
    pub(crate) fn batch(&self, batch: usize, process: usize) -> Range<usize> {
        self.shared.batch(batch, process)
    }

    /// Returns the segments that this process aggregates for a batch of another process's hubs.
    pub(crate) fn held(&self, batch: usize, process: usize) -> &[Held] {
        self.shared.held(batch, process)
    }
}

impl SharedHubs {
    fn num_batches(&self) -> usize {
        self.batch_ends.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn batch(&self, batch: usize, process: usize) -> Range<usize> {
        let ends = &self.batch_ends[process];
        let end = |at: usize| ends.get(at).or(ends.last()).map_or(0, |&end| end as usize);
        let start = batch.checked_sub(1).map_or(0, end);
        start..end(batch)
    }

    fn held(&self, batch: usize, process: usize) -> &[Held] {
        let places = self.batch(batch, process);
        let held = &self.held[process];
        let there = |end: usize| held.partition_point(|held| (held.place as usize) < end);
        &held[there(places.start)..there(places.end)]
    }
}

impl Sent {
    fn take(self, relations: &[RelationUse]) -> Held {
        let relation = self.relation as usize;
        let features = relations[relation].columns.edge_dim.zip(self.feature);
        let feature = features.map(|(cols, values)| Dense {
            rows: self.src.len(),
            cols,
            values,
        });
        Held {
            place: self.place,
            relation,
            in_degree: self.in_degree,
            segment: self.segment,
            edges: SomeInEdges {
                src: self.src,
                weight: self.weight,
                feature,
            },
        }
    }
}

impl<'a> Segmented<'a> {
    /// Divides in-edges of a node of this process into segments.
    fn new(store: &'a Store, hub: HubId, columns: ReadColumns) -> Self {
        let placement = store.placement();
        let count = num_segments(in_degree(store, hub));
        let segment = |src| placement.segment(src, count);
        Self::of(in_edges(store, hub), count, columns, segment)
    }

    /// Divides in-edges into `count` segments; `segment` returns that of a source.
    pub(crate) fn of(
        edges: InEdges<'a>,
        count: usize,
        columns: ReadColumns,
        segment: impl Fn(NodeIdx) -> usize,
    ) -> Self {
        let segments = edges.src.iter().map(|&src| narrow(segment(src)));
        let segments: Vec<u32> = segments.collect();
        let segments = Csr::new(vec![0, narrow(segments.len())], segments, count);
        segments.transposed(); // cached here, where threads make many at once
        Self {
            edges,
            segments,
            columns,
        }
    }

    /// Returns the in-edges of a segment in rank order, except those from `without`. `number` turns
    /// a source node into the number to store.
    pub(crate) fn pick(
        &self,
        segment: usize,
        without: Option<NodeIdx>,
        number: impl Fn(NodeIdx) -> u32,
    ) -> SomeInEdges {
        let by_segment = self.segments.transposed();
        let of_segment = by_segment.edge[by_segment.col(segment)].iter();
        let of_segment = of_segment.map(|&edge| edge as usize);
        let picked = of_segment.filter(|&edge| Some(self.edges.src[edge]) != without);
        let picked: Vec<usize> = picked.collect();
        let checked = "checked against the store";
        let weights = self.columns.edge_weight;
        let weights = weights.then(|| self.edges.weight.expect(checked));
        let feature = self.columns.edge_dim.map(|cols| {
            let values = self.edges.feature.expect(checked);
            let of_edge = |&edge: &usize| &values[edge * cols..(edge + 1) * cols];
            Dense {
                rows: picked.len(),
                cols,
                values: picked.iter().flat_map(of_edge).copied().collect(),
            }
        });
        let src = picked.iter().map(|&edge| number(self.edges.src[edge]));
        SomeInEdges {
            src: src.collect(),
            weight: weights.map(|weights| picked.iter().map(|&edge| weights[edge]).collect()),
            feature,
        }
    }

    /// Returns the mean feature of the in-edges, except those from `without`; none if the model
    /// reads no edge features.
    pub(crate) fn mean_feature(&self, without: NodeIdx) -> Option<Dense> {
        let cols = self.columns.edge_dim?;
        let rows = self.edges.feature?.chunks_exact(cols);
        let (mut sum, mut count) = (vec![0.0; cols], 0.0);
        for (row, _) in rows.zip(self.edges.src).filter(|(_, src)| **src != without) {
            sum.iter_mut()
                .zip(row)
                .for_each(|(sum, &x)| *sum += f64::from(x));
            count += 1.0;
        }
        let count = f64::max(count, 1.0);
        let mean = sum.into_iter().map(|x| Float::from_f64(x / count));
        Some(Dense {
            rows: 1,
            cols,
            values: mean.collect(),
        })
    }
}

/// Returns the number of a node's in-edges of a relation; the node belongs to this process.
fn in_degree(store: &Store, hub: HubId) -> u32 {
    let (partition, local) = locate(store, hub.node);
    partition.in_degree(hub.relation, local)
}

/// Returns all in-edges of a relation of a node; the node belongs to this process.
fn in_edges(store: &Store, hub: HubId) -> InEdges<'_> {
    let (partition, local) = locate(store, hub.node);
    partition.in_edges(hub.relation, 0, local, usize::MAX)
}

/// Lists the hubs among the nodes of this process.
fn own_hubs(store: &Store, relations: &[RelationUse], own: Option<&[NodeIdx]>) -> Vec<HubId> {
    let mut found = Vec::new();
    for (relation, of) in relations.iter().enumerate() {
        let Some(&most) = of.limits.last() else {
            continue;
        };
        let hub = |node: NodeIdx| {
            let hub = HubId { node, relation };
            is_hub(in_degree(store, hub), most).then_some(hub)
        };
        let to = store.meta().graph.relations[relation].to;
        let range = store.placement().type_range(to);
        let of_relation: Vec<HubId> = match own {
            Some(own) => own[places(own, &range)]
                .par_iter()
                .filter_map(|&node| hub(node))
                .collect(),
            None => in_order_of_store(store, relation, most),
        };
        found.extend(of_relation);
    }
    found
}

/// Lists the hubs of a relation among all nodes of a single process, ascending. Degrees are read in
/// the order in which the store holds them.
fn in_order_of_store(store: &Store, relation: usize, most: usize) -> Vec<HubId> {
    let (placement, workers) = (store.placement(), 0..store.placement().workers());
    let of_worker = |worker: usize| {
        let partition = store.partition(worker);
        let locals = partition.locals(partition.relation_to(relation));
        let hubs = locals.filter(move |&local| is_hub(partition.in_degree(relation, local), most));
        hubs.map(move |local| HubId {
            node: placement.node(worker, local),
            relation,
        })
    };
    let hubs = workers.into_par_iter().flat_map_iter(of_worker);
    let mut hubs: Vec<HubId> = hubs.collect();
    hubs.sort_unstable();
    hubs
}

/// Cuts hubs into batches of bounded size. The hubs of a node are in one batch.
fn batch_ends(store: &Store, hubs: &[HubId], relations: &[RelationUse]) -> Vec<u32> {
    let (mut ends, mut start, mut words) = (Vec::new(), 0, 0);
    for (place, &hub) in hubs.iter().enumerate() {
        let ReadColumns {
            edge_dim,
            edge_weight,
        } = relations[hub.relation].columns;
        let edge_words = 1 + usize::from(edge_weight) + edge_dim.unwrap_or(0);
        words += in_degree(store, hub) as usize * edge_words;
        let end = place + 1;
        if hubs.get(end).is_some_and(|next| next.node == hub.node) {
            continue;
        }
        if end - start >= BATCH_HUBS || words >= BATCH_WORDS || end == hubs.len() {
            ends.push(narrow(end));
            (start, words) = (end, 0);
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_has_more_in_edges_than_so_many_and_all_of_them_are_read() {
        for (in_degree, limit, expected) in [
            (8192, usize::MAX, false),
            (8193, usize::MAX, true),
            (8193, 8192, false),
            (9000, 8999, false),
            (9000, 9000, true),
        ] {
            assert_eq!(is_hub(in_degree, limit), expected, "{in_degree}, {limit}");
        }
    }

    #[test]
    fn larger_hubs_have_more_segments_up_to_a_limit() {
        let counts = [8193, 15_359, 15_360, 30_720, 1_000_000, u32::MAX].map(num_segments);
        assert_eq!(counts, [240, 240, 480, 960, 3840, 3840]);
    }

    #[test]
    fn a_process_with_fewer_batches_has_empty_ones_behind() {
        let held = |place| Held {
            place,
            relation: 0,
            in_degree: 9000,
            segment: 0,
            edges: SomeInEdges::default(),
        };
        let hubs = SharedHubs {
            own: Vec::new(),
            batch_ends: vec![vec![2], vec![1, 3, 4], Vec::new()],
            held: vec![Vec::new(), [0, 1, 1, 2, 3].map(held).to_vec(), Vec::new()],
        };
        assert_eq!(hubs.num_batches(), 3);
        let own: Vec<_> = (0..3).map(|batch| hubs.batch(batch, 0)).collect();
        assert_eq!(own, [0..2, 2..2, 2..2]);
        let places = |batch| -> Vec<u32> {
            let of_batch = hubs.held(batch, 1).iter();
            of_batch.map(|of| of.place).collect()
        };
        assert_eq!(
            [places(0), places(1), places(2)],
            [vec![0], vec![1, 1, 2], vec![3]]
        );
        assert!(hubs.held(1, 2).is_empty());
    }
}
