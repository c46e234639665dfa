//! The graph as inference reads it: nodes in the order of ids, in blocks that share all rows.

use crate::InferError;
use crate::exchange::{Exchange, gather_found};
use crate::hubs::{Hubs, SegmentProcesses, Segmented, is_hub};
use crate::local::{Local, own_nodes, sources};
use cluster::Cluster;
use gnn::{Architecture, Block, Dense, Input, NodeColumns, RangeData, SparseRows, Transform};
use rayon::prelude::*;
use schemas::{FeatureMeta, Features, Ids, LocalIdx, NodeIdx, Row, Sampling};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use store::{InEdges, Partition, Store};

/// Nodes in a block at most: their rows lie in the cache from one step of a layer to the next.
pub(crate) const NODES_MAX: usize = 1 << 10;

/// In-edges in a block, and at most one node's beyond.
const EDGES_MAX: usize = 1 << 16;

/// A store with what all blocks share.
///
/// Every node has a row where one process computes all; among several, each has rows of its own nodes
/// and of those that they read.
pub(crate) struct Graph {
    store: Store,
    columns: Arc<NodeColumns>,
    hubs: Hubs,
    segment_processes: SegmentProcesses,
    /// None where this process is alone.
    shared: Option<Shared>,
}

/// The rows of one process among several.
struct Shared {
    local: Local,
    /// By the number of in-edges of a node that a round reads; the largest reads all that any does.
    exchanges: BTreeMap<usize, Arc<Exchange>>,
}

impl Graph {
    /// Collects the columns of all nodes that a model reads; rounds will read the first so many
    /// in-edges of a node that `limits` has.
    pub(crate) fn new(
        store: &Store,
        arch: &Architecture,
        limits: &BTreeSet<usize>,
    ) -> Result<Self, InferError> {
        let is_alone = store.cluster().num_processes() == 1;
        let most = limits.last().copied().unwrap_or(0);
        let segment_processes = SegmentProcesses::new(store);
        let own = (!is_alone).then(|| own_nodes(store));
        let share = |nodes| Hubs::share(store, nodes, arch, &segment_processes);
        let is_hub = |&node: &NodeIdx| {
            let (partition, local) = place(store, node);
            is_hub(partition.in_degree(local), most)
        };
        let mut hubs = share(match &own {
            Some(own) => own.par_iter().copied().filter(is_hub).collect(),
            None => {
                let all = (0..store.placement().num_nodes()).into_par_iter();
                all.map(NodeIdx::from_index).filter(is_hub).collect()
            }
        })?;
        let shared = own
            .map(|own| Shared::new(store, own, limits, (&mut hubs, &segment_processes)))
            .transpose()?;
        let columns = |value: Column| column(store, shared.as_ref(), value);
        let weights = |value: fn(&Partition, LocalIdx) -> Option<f32>| {
            let bits = columns(Box::new(move |partition, local| {
                value(partition, local).unwrap_or_default().to_bits()
            }))?;
            Ok::<_, InferError>(bits.into_iter().map(f32::from_bits).collect::<Vec<f32>>())
        };
        let has_loops = store.meta().graph.self_loops;
        let loops = Box::new(|p: &Partition, local| p.self_loops(local).unwrap_or_default());
        let columns = NodeColumns::new(
            columns(Box::new(Partition::in_degree))?,
            arch.edge_weight
                .then(|| weights(Partition::in_weight))
                .transpose()?,
            has_loops.then(|| columns(loops)).transpose()?,
            (has_loops && arch.edge_weight)
                .then(|| weights(Partition::self_weight))
                .transpose()?,
        )?;
        Ok(Self {
            store: store.clone(),
            columns: Arc::new(columns),
            hubs,
            segment_processes,
            shared,
        })
    }

    /// Returns the nodes that are aggregated by segments.
    pub(crate) fn hubs(&self) -> &Hubs {
        &self.hubs
    }

    /// Returns what is known of the nodes that have a row.
    pub(crate) fn columns(&self) -> &NodeColumns {
        &self.columns
    }

    /// Tells whether an own node is a hub for a layer that reads the first `limit` in-edges.
    pub(crate) fn is_hub(&self, node: NodeIdx, limit: usize) -> bool {
        let (partition, local) = place(&self.store, node);
        is_hub(partition.in_degree(local), limit)
    }

    /// Returns the segments of an own hub that this process aggregates.
    pub(crate) fn own_segments(&self, node: NodeIdx) -> impl Iterator<Item = usize> {
        let own = self.cluster().process();
        let (partition, local) = place(&self.store, node);
        let processes = self.segment_processes.of_hub(partition.in_degree(local));
        let segments = processes.iter().enumerate();
        let is_own = move |process: &Option<usize>| process.is_none_or(|process| process == own);
        segments.filter_map(move |(segment, process)| is_own(process).then_some(segment))
    }

    /// Returns the in-edges of an own node by segment.
    pub(crate) fn segmented(&self, node: NodeIdx, arch: &Architecture) -> Segmented<'_> {
        Segmented::new(&self.store, node, arch)
    }

    /// Returns the row of a node that has one.
    pub(crate) fn row(&self, node: NodeIdx) -> Row {
        let shared = self.shared.as_ref();
        shared.map_or(row_alone(node), |shared| shared.local.row(node))
    }

    /// Returns the number of nodes of the whole graph.
    pub(crate) fn num_nodes(&self) -> usize {
        self.store.placement().num_nodes()
    }

    /// Returns the number of nodes whose rows this process computes: its first rows.
    pub(crate) fn num_own(&self) -> usize {
        let shared = self.shared.as_ref();
        shared.map_or(self.num_nodes(), |shared| shared.local.own().len())
    }

    /// Returns the number of nodes that have a row.
    pub(crate) fn num_rows(&self) -> usize {
        let halo = self.shared.as_ref().map(|shared| shared.local.halo().len());
        self.num_own() + halo.unwrap_or_default()
    }

    /// Returns how rows cross between processes for a round that reads the first `limit` in-edges of
    /// a node; none where this one is alone.
    pub(crate) fn exchange(&self, limit: usize) -> Option<&Arc<Exchange>> {
        let shared = self.shared.as_ref();
        shared.map(|shared| &shared.exchanges[&limit])
    }

    /// Returns the processes that compute.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.store.cluster()
    }

    /// Returns the own rows of nodes `nodes` of the whole graph.
    pub(crate) fn own_rows(&self, nodes: Range<usize>) -> Range<usize> {
        let Some(shared) = &self.shared else {
            return nodes;
        };
        let there = |end: usize| {
            let own = shared.local.own();
            own.partition_point(|&node| node.index() < end)
        };
        there(nodes.start)..there(nodes.end)
    }

    /// Returns the own row of a node of the whole graph, if it has one.
    pub(crate) fn own_row(&self, node: NodeIdx) -> Option<Row> {
        let Some(shared) = &self.shared else {
            return Some(row_alone(node));
        };
        let found = shared.local.own().binary_search(&node);
        found.ok().map(Row::from_index)
    }

    /// Returns the node of an own row.
    pub(crate) fn node(&self, row: Row) -> NodeIdx {
        match &self.shared {
            None => NodeIdx::from_raw(row.raw()),
            Some(shared) => shared.local.own()[row.index()],
        }
    }

    /// Returns the number of in-edges that a layer reads of some rows, the first `limit` of each.
    pub(crate) fn num_in_edges(&self, rows: Range<usize>, limit: usize) -> u64 {
        let degrees = self.columns.in_degree()[rows].iter();
        degrees
            .map(|&degree| u64::from(degree).min(limit as u64))
            .sum()
    }

    /// Cuts some rows into blocks of bounded size, a function of the graph alone.
    pub(crate) fn ranges(&self, rows: Range<usize>, limit: usize) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let (mut start, mut edges) = (rows.start, 0);
        for row in rows.clone() {
            edges += (self.columns.in_degree()[row] as usize).min(limit);
            let end = row + 1;
            if end - start == NODES_MAX || edges >= EDGES_MAX || end == rows.end {
                ranges.push(start..end);
                (start, edges) = (end, 0);
            }
        }
        ranges
    }

    /// Builds the block of some own rows; the first `limit` in-edges of each stand in rank order, none
    /// of a hub's.
    pub(crate) fn block(
        &self,
        rows: Range<usize>,
        limit: usize,
        arch: &Architecture,
    ) -> Result<Block, InferError> {
        // Lists first, so that they are on their way from memory side by side.
        let in_degrees = &self.columns.in_degree()[rows.clone()];
        let lists: Vec<InEdges<'_>> = self
            .places(rows.clone())
            .zip(in_degrees)
            .map(|((partition, local), &in_degree)| {
                let is_hub = is_hub(in_degree, limit);
                partition.in_edges(0, local, if is_hub { 0 } else { limit })
            })
            .collect();
        let num_edges = lists.iter().map(|list| list.src.len()).sum();
        let mut in_offset = Vec::with_capacity(lists.len() + 1);
        let mut in_src = Vec::with_capacity(num_edges);
        in_offset.push(0);
        for list in &lists {
            match &self.shared {
                None => in_src.extend_from_slice(NodeIdx::raw_slice(list.src)),
                Some(shared) => {
                    let src = list.src.iter();
                    in_src.extend(src.map(|&node| shared.local.row(node).raw()));
                }
            }
            in_offset.push(narrow(in_src.len()));
        }
        let checked = "checked against the store";
        let weights = || lists.iter().flat_map(|list| list.weight.expect(checked));
        let features = || lists.iter().flat_map(|list| list.feature.expect(checked));
        let data = RangeData {
            first: rows.start,
            in_offset,
            in_src,
            edge_weight: arch.edge_weight.then(|| weights().copied().collect()),
            edge_feature: arch.edge_dim.map(|cols| Dense {
                rows: num_edges,
                cols,
                values: features().copied().collect(),
            }),
            sampling: match self.store.meta().sampling {
                Sampling::Uniform => gnn::Sampling::Uniform,
                Sampling::Weighted => gnn::Sampling::Weighted,
                Sampling::Top => gnn::Sampling::Top,
            },
        };
        Ok(Block::of_range(data, &self.columns)?)
    }

    /// Tells whether raw features are sparse.
    pub(crate) fn is_sparse(&self) -> bool {
        matches!(self.store.meta().graph.features, FeatureMeta::Sparse { .. })
    }

    /// Gathers the raw features of some own rows, as a model reads them.
    pub(crate) fn input(
        &self,
        rows: Range<usize>,
        transform: &Transform,
    ) -> Result<Input, InferError> {
        let num_rows = rows.len();
        let mut features = Features::with_capacity(self.store.meta().graph.features, num_rows);
        for (partition, local) in self.places(rows) {
            partition.features_into(local, &mut features);
        }
        let mut input = match features {
            Features::Dense { dim, values } => Input::Dense(Dense {
                rows: num_rows,
                cols: dim,
                values,
            }),
            Features::Sparse {
                dim,
                offset,
                index,
                value,
            } => Input::Sparse(SparseRows {
                rows: num_rows,
                cols: dim,
                offset: offset.into_iter().map(narrow_u64).collect(),
                index,
                value,
            }),
            Features::None => unreachable!("a model reads features, which the check asked for"),
        };
        transform.apply(&mut input)?;
        Ok(input)
    }

    /// Returns the ids of some own rows.
    pub(crate) fn ids(&self, rows: &[Row]) -> Ids {
        let mut ids = Ids::with_capacity(self.store.meta().graph.id_type, rows.len());
        for &row in rows {
            let (partition, local) = self.place(row);
            ids.push_from(partition.ids(), local.index());
        }
        ids
    }

    /// Finds the nodes of some ids, in ascending order and each once; the row of one that is no
    /// node's is the inner error.
    pub(crate) fn find(&self, ids: &Ids) -> Result<Result<Vec<NodeIdx>, usize>, InferError> {
        let find = |row: usize| {
            let compare = |own: Row| {
                let (partition, local) = self.place(own);
                partition.ids().cmp(local.index(), ids, row)
            };
            let (mut low, mut high) = (0, self.num_own());
            while low < high {
                let middle = low + (high - low) / 2;
                match compare(Row::from_index(middle)) {
                    std::cmp::Ordering::Less => low = middle + 1,
                    std::cmp::Ordering::Equal => {
                        return Some(self.node(Row::from_index(middle)));
                    }
                    std::cmp::Ordering::Greater => high = middle,
                }
            }
            None
        };
        let own: Vec<Option<NodeIdx>> = (0..ids.len()).into_par_iter().map(find).collect();
        let nodes = gather_found(self.cluster(), own)?;
        Ok(nodes.map(|mut found| {
            found.sort_unstable();
            found.dedup();
            found
        }))
    }

    fn places(&self, rows: Range<usize>) -> impl Iterator<Item = (&Partition, LocalIdx)> {
        rows.map(|row| self.place(Row::from_index(row)))
    }

    /// The partition of an own row and its position there.
    fn place(&self, row: Row) -> (&Partition, LocalIdx) {
        place(&self.store, self.node(row))
    }
}

impl Shared {
    fn new(
        store: &Store,
        own: Vec<NodeIdx>,
        limits: &BTreeSet<usize>,
        (hubs, processes): (&mut Hubs, &SegmentProcesses),
    ) -> Result<Self, InferError> {
        let mut found: BTreeMap<_, _> = limits
            .iter()
            .map(|&limit| (limit, sources(store, &own, (limit, limits), processes)))
            .collect();
        let largest = found.last_entry().expect("a model has a layer");
        let local = Local::new(own, &largest.get().nodes, store.placement().num_nodes());
        hubs.number(|node| local.row(node));
        let agree = |(limit, of)| {
            let exchange = Exchange::agree(store.cluster(), &local, of)?;
            Ok((limit, Arc::new(exchange)))
        };
        let exchanges = found.into_iter().map(agree);
        let exchanges = exchanges.collect::<Result<_, InferError>>()?;
        Ok(Self { local, exchanges })
    }
}

/// The row of a node where this process is alone, which has a row for each in the order of ids.
fn row_alone(node: NodeIdx) -> Row {
    Row::from_raw(node.raw())
}

/// The partition of a node of this process and its position there.
fn place(store: &Store, node: NodeIdx) -> (&Partition, LocalIdx) {
    let (owner, local) = store.placement().owner_and_local(node);
    (store.partition(owner), local)
}

/// A number of a node, from its partition and its position there.
type Column = Box<dyn Fn(&Partition, LocalIdx) -> u32 + Send + Sync>;

/// Collects a number of every node that has a row, in the order of rows.
fn column(store: &Store, shared: Option<&Shared>, value: Column) -> Result<Vec<u32>, InferError> {
    let of_node = |node: NodeIdx| {
        let (partition, local) = place(store, node);
        value(partition, local)
    };
    let Some(Shared { local, exchanges }) = shared else {
        let nodes = (0..store.placement().num_nodes()).into_par_iter();
        let nodes = nodes.with_min_len(NODES_MAX).map(NodeIdx::from_index);
        return Ok(nodes.map(of_node).collect());
    };
    let own: Arc<Vec<u32>> = Arc::new(local.own().par_iter().map(|&node| of_node(node)).collect());
    let halo: Vec<AtomicU32> = local.halo().iter().map(|_| AtomicU32::new(0)).collect();
    let (read, taken) = (Arc::clone(&own), Arc::new(halo));
    let (take, num_own) = (Arc::clone(&taken), own.len());
    let (_, exchange) = exchanges.last_key_value().expect("a model has a layer");
    exchange.run(
        1,
        move |rows| Ok(read[rows].to_vec()),
        move |row, words| {
            take[row.index() - num_own].store(words[0], Ordering::Relaxed);
            Ok(())
        },
    )?;
    let behind = taken.iter().map(|word| word.load(Ordering::Relaxed));
    Ok(own.iter().copied().chain(behind).collect())
}

/// Nodes fit 32 bits, and so does what a block holds.
pub(crate) fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("there are fewer than 2^32 nodes, and edges of a block")
}

fn narrow_u64(position: u64) -> u32 {
    u32::try_from(position).expect("a block stores below 2^32 values")
}
