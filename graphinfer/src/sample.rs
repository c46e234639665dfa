//! A sample of nodes with what layers read for them, gathered from all processes.
//!
//! All processes draw the same nodes and follow their in-edges hop by hop. Each tells the others what
//! they need of its own nodes, so all find the same nodes, and process 0 can compute the layers alone.

use crate::InferError;
use crate::gather::{ITEMS_A_MESSAGE, send_lists};
use crate::hubs::ReadColumns;
use crate::locate::{locate, narrow};
use gnn::kernel::mix;
use gnn::typed::RelationData;
use gnn::{Dense, Input, Sampling, SparseRows};
use schemas::{LocalIdx, NodeIdx, RelationMeta};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{Partition, Store};

/// Nodes of a sample, at most.
const NODES_MAX: u64 = 64;

/// Rows in f32 that are read for a sample, at most, counted in numbers: 32 MiB.
const NUMBERS_MAX: usize = 1 << 23;

/// In-edges that are read for a sample, at most.
const EDGES_MAX: usize = 1 << 20;

/// A node may read the limits divided by this number: as many as there are nodes in a sample.
const NODES_SHARE: usize = 64;

/// Lists of in-edges that one message holds.
const LISTS_A_MESSAGE: usize = 64;

/// A relation, and a node of its `to` type.
type Place = (u32, NodeIdx);

/// What layers read of a graph.
pub(crate) struct Reads<'a> {
    pub(crate) store: &'a Store,
    /// By layer and relation: how many in-edges of a node are read.
    pub(crate) limits: Vec<Vec<usize>>,
    /// By relation.
    pub(crate) columns: Vec<ReadColumns>,
    /// Width of the widest rows.
    pub(crate) width: usize,
}

/// A sample of nodes of one type with all nodes that layers read for them.
pub(crate) struct Sample<'a> {
    reads: &'a Reads<'a>,
    neighborhood: Neighborhood,
    known: Known,
}

/// What all processes know of a sample's nodes.
#[derive(Default)]
struct Known {
    columns: BTreeMap<Place, Columns>,
    lists: BTreeMap<Place, List>,
}

/// The columns of a node that layers read beside its in-edges of a relation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Columns {
    /// Number of in-edges in the store.
    num_kept: u32,
    in_degree: u32,
    in_weight: f32,
    self_loops: u32,
    self_weight: f32,
}

/// The first in-edges of a node, in rank order.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct List {
    src: Vec<NodeIdx>,
    /// If layers read it.
    weight: Option<Vec<f32>>,
    /// `[num_edges * dim]`, if layers read it.
    feature: Option<Vec<f32>>,
}

/// Some nodes of a type, and the nodes that layers read for them.
struct Neighborhood {
    /// By type: the nodes that the hops start from, then those that each hop adds.
    types: Vec<Nodes>,
    /// By number of hops, then by type: how many nodes these hops reach.
    ends: Vec<Vec<usize>>,
    /// In-edges that the hops follow.
    num_edges: usize,
}

/// Nodes of a type, each once, with their places.
#[derive(Clone, Default)]
struct Nodes {
    nodes: Vec<NodeIdx>,
    places: BTreeMap<NodeIdx, usize>,
}

impl<'a> Reads<'a> {
    /// Draws nodes of a type by hashes and finds what layers read for them. Leaves out nodes that
    /// read more than their share of the limits; returns none if no node is left.
    ///
    /// All processes call this together.
    pub(crate) fn sample(&'a self, node_type: usize) -> Result<Option<Sample<'a>>, InferError> {
        let range = self.store.placement().type_range(node_type);
        let num_nodes = (range.end.index() - range.start.index()) as u64;
        let draws = (1..=NODES_MAX).filter_map(|at| mix(at).checked_rem(num_nodes));
        let drawn: BTreeSet<u64> = draws.collect();
        let node = |at: u64| {
            NodeIdx::from_index(range.start.index() + usize::try_from(at).expect("a node number"))
        };
        let num_types = self.store.placement().num_types();
        let around = |start| Neighborhood::of(num_types, node_type, &[start]);
        let mut alone: Vec<Neighborhood> = drawn.into_iter().map(node).map(around).collect();
        let mut known = Known::default();
        let rows_max = NUMBERS_MAX / self.width.max(1) / NODES_SHARE;
        for limits in self.limits.iter().rev() {
            self.learn_columns(&mut known, &alone)?;
            // Long lists are not even read.
            alone.retain(|one| {
                one.num_edges + self.num_edges(&known, one, limits) <= EDGES_MAX / NODES_SHARE
            });
            self.learn_lists(&mut known, (&alone, limits))?;
            for one in &mut alone {
                one.follow(self.relations(), (&known, limits));
            }
            alone.retain(|one| one.num_nodes() <= rows_max);
        }
        let nodes: Vec<NodeIdx> = alone.iter().map(|one| one.start(node_type)[0]).collect();
        if nodes.is_empty() {
            return Ok(None);
        }
        let mut neighborhood = Neighborhood::of(num_types, node_type, &nodes);
        for limits in self.limits.iter().rev() {
            neighborhood.follow(self.relations(), (&known, limits));
        }
        self.learn_columns(&mut known, std::slice::from_ref(&neighborhood))?;
        Ok(Some(Sample {
            reads: self,
            neighborhood,
            known,
        }))
    }

    fn relations(&self) -> &[RelationMeta] {
        &self.store.meta().graph.relations
    }

    /// Lists the relations with the nodes of their `to` types.
    fn places<'b>(&'b self, of: &'b Neighborhood) -> impl Iterator<Item = Place> + 'b {
        let relations = (0..).zip(self.relations());
        relations.flat_map(|(relation, meta)| {
            let nodes = of.types[meta.to].nodes.iter();
            nodes.map(move |&node| (relation, node))
        })
    }

    /// Returns the number of in-edges that the next hop follows.
    fn num_edges(&self, known: &Known, of: &Neighborhood, limits: &[usize]) -> usize {
        let read = |place: Place| {
            let num_kept = known.columns[&place].num_kept as usize;
            num_kept.min(limits[place.0 as usize])
        };
        self.places(of).map(read).sum()
    }

    /// Learns the columns of nodes that are not known yet.
    fn learn_columns(&self, known: &mut Known, of: &[Neighborhood]) -> Result<(), InferError> {
        let places = of.iter().flat_map(|one| self.places(one));
        let unknown = places.filter(|place| !known.columns.contains_key(place));
        let learnt = self.learn(
            unknown.collect(),
            ITEMS_A_MESSAGE,
            |partition, local, relation| Columns {
                num_kept: narrow(partition.in_edges(relation, 0, local, usize::MAX).src.len()),
                in_degree: partition.in_degree(relation, local),
                in_weight: partition.in_weight(relation, local).unwrap_or_default(),
                self_loops: partition.self_loops(relation, local).unwrap_or_default(),
                self_weight: partition.self_weight(relation, local).unwrap_or_default(),
            },
        )?;
        known.columns.extend(learnt);
        Ok(())
    }

    /// Learns the lists of in-edges that the next hop follows.
    fn learn_lists(
        &self,
        known: &mut Known,
        (of, limits): (&[Neighborhood], &[usize]),
    ) -> Result<(), InferError> {
        let places = of.iter().flat_map(|one| self.places(one));
        let unknown = places.filter(|place| {
            let num_read = known.columns[place]
                .num_kept
                .min(narrow_limit(limits[place.0 as usize]));
            let list = known.lists.get(place);
            list.map_or(0, |list| list.src.len()) < num_read as usize
        });
        let learnt = self.learn(
            unknown.collect(),
            LISTS_A_MESSAGE,
            |partition, local, relation| {
                let columns = self.columns[relation];
                let read = partition.in_edges(relation, 0, local, limits[relation]);
                let weight = read.weight.filter(|_| columns.edge_weight);
                let feature = read.feature.filter(|_| columns.edge_dim.is_some());
                List {
                    src: read.src.to_vec(),
                    weight: weight.map(<[f32]>::to_vec),
                    feature: feature.map(<[f32]>::to_vec),
                }
            },
        )?;
        known.lists.extend(learnt);
        Ok(())
    }

    /// Reads something of own nodes and learns the same of the nodes of other processes; a message
    /// has at most `items` nodes.
    fn learn<T>(
        &self,
        places: BTreeSet<Place>,
        items: usize,
        read: impl Fn(&Partition, LocalIdx, usize) -> T,
    ) -> Result<Vec<(Place, T)>, InferError>
    where
        T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let own = places
            .into_iter()
            .filter(|&(_, node)| is_own(self.store, node));
        let own = own.map(|(relation, node)| {
            let (partition, local) = locate(self.store, node);
            ((relation, node), read(partition, local, relation as usize))
        });
        let own: Vec<(Place, T)> = own.collect();
        let cluster = self.store.cluster();
        if cluster.num_processes() == 1 {
            return Ok(own);
        }
        let own = Arc::new(own);
        let told = send_lists(cluster, vec![own; cluster.num_processes()], items)?;
        Ok(told.into_iter().flatten().collect())
    }
}

impl Sample<'_> {
    pub(crate) fn store(&self) -> &Store {
        self.reads.store
    }

    /// Returns the drawn nodes, ascending.
    pub(crate) fn drawn(&self, node_type: usize) -> &[NodeIdx] {
        self.neighborhood.start(node_type)
    }

    /// Returns the drawn nodes of this process.
    pub(crate) fn own_drawn(&self, node_type: usize) -> Vec<NodeIdx> {
        let drawn = self.drawn(node_type).iter().copied();
        drawn
            .filter(|&node| is_own(self.reads.store, node))
            .collect()
    }

    /// Returns all nodes of a type that the layers read.
    pub(crate) fn nodes(&self, node_type: usize) -> &[NodeIdx] {
        &self.neighborhood.types[node_type].nodes
    }

    /// Returns how many nodes of each type a number of hops reach.
    pub(crate) fn ends(&self, hops: usize) -> &[usize] {
        &self.neighborhood.ends[hops]
    }

    /// Returns a relation's data in the block of a layer: of each type, the nodes that `hops` hops
    /// reach read those that one more hop reaches; without `limits` no in-edge is read.
    pub(crate) fn relation(
        &self,
        relation: usize,
        (limits, hops): (Option<&[usize]>, usize),
        sampling: Sampling,
    ) -> RelationData {
        let meta = &self.reads.relations()[relation];
        let read = self.reads.columns[relation];
        let nodes = self.nodes(meta.to);
        let num_dst = self.ends(hops)[meta.to];
        let num_src = self.ends(hops + usize::from(limits.is_some()))[meta.to];
        let place_of = |node| (narrow(relation), node);
        let limit = limits.map_or(0, |limits| limits[relation]);
        let mut data = RelationData {
            in_offset: vec![0],
            sampling,
            ..RelationData::default()
        };
        let (mut weight, mut feature) = (Vec::new(), Vec::new());
        for &node in &nodes[..num_dst] {
            if let Some(list) = self.known.lists.get(&place_of(node)) {
                let num_edges = list.src.len().min(limit);
                let srcs = list.src[..num_edges].iter();
                let places = &self.neighborhood.types[meta.from].places;
                data.in_src.extend(srcs.map(|src| narrow(places[src])));
                weight.extend(list.weight.iter().flat_map(|all| &all[..num_edges]));
                let num_values = num_edges * read.edge_dim.unwrap_or(0);
                feature.extend(list.feature.iter().flat_map(|all| &all[..num_values]));
            }
            data.in_offset.push(narrow(data.in_src.len()));
        }
        let columns: Vec<&Columns> = nodes[..num_src]
            .iter()
            .map(|&node| &self.known.columns[&place_of(node)])
            .collect();
        let has_loops = meta.self_loops && meta.from == meta.to;
        let of_loops = has_loops.then_some(&columns);
        let of_weighted_loops = of_loops.filter(|_| read.edge_weight);
        data.in_degree = columns.iter().map(|of| of.in_degree).collect();
        data.in_weight = read
            .edge_weight
            .then(|| columns.iter().map(|of| of.in_weight).collect());
        data.self_loops = of_loops.map(|all| all.iter().map(|of| of.self_loops).collect());
        data.self_weight =
            of_weighted_loops.map(|all| all.iter().map(|of| of.self_weight).collect());
        data.edge_weight = read.edge_weight.then_some(weight);
        data.edge_feature = read.edge_dim.map(|cols| Dense {
            rows: data.in_src.len(),
            cols,
            values: feature,
        });
        data
    }
}

impl Neighborhood {
    fn of(num_types: usize, node_type: usize, nodes: &[NodeIdx]) -> Self {
        let mut types = vec![Nodes::default(); num_types];
        nodes.iter().for_each(|&node| types[node_type].add(node));
        let ends = vec![types.iter().map(Nodes::len).collect()];
        Self {
            types,
            ends,
            num_edges: 0,
        }
    }

    /// Adds the sources of the first in-edges of all nodes.
    fn follow(&mut self, relations: &[RelationMeta], (known, limits): (&Known, &[usize])) {
        let until_here = self.ends.last().expect("the start is an end").clone();
        for (relation, (meta, &limit)) in (0..).zip(relations.iter().zip(limits)) {
            for at in 0..until_here[meta.to] {
                let node = self.types[meta.to].nodes[at];
                let Some(list) = known.lists.get(&(relation, node)) else {
                    continue; // none of its in-edges is read
                };
                let read = &list.src[..list.src.len().min(limit)];
                self.num_edges += read.len();
                read.iter().for_each(|&src| self.types[meta.from].add(src));
            }
        }
        self.ends.push(self.types.iter().map(Nodes::len).collect());
    }

    /// Returns the nodes that the hops start from.
    fn start(&self, node_type: usize) -> &[NodeIdx] {
        &self.types[node_type].nodes[..self.ends[0][node_type]]
    }

    fn num_nodes(&self) -> usize {
        self.types.iter().map(Nodes::len).sum()
    }
}

impl Nodes {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn add(&mut self, node: NodeIdx) {
        let place = self.nodes.len();
        if *self.places.entry(node).or_insert(place) == place {
            self.nodes.push(node);
        }
    }
}

/// A row that one process sends to process 0.
#[derive(Clone, Serialize, Deserialize)]
struct SentRow {
    node: NodeIdx,
    /// Columns of the values of a sparse row; empty for a dense one.
    index: Vec<u32>,
    value: Vec<f32>,
}

/// Gathers rows of some nodes on process 0; other processes get none. `of_own` returns the rows of
/// own nodes, of the same width and kind on all processes.
///
/// All processes call this together.
pub(crate) fn gather_rows(
    store: &Store,
    nodes: &[NodeIdx],
    of_own: impl FnOnce(&[NodeIdx]) -> Result<Input, InferError>,
) -> Result<Option<Input>, InferError> {
    let cluster = store.cluster();
    if cluster.num_processes() == 1 {
        return of_own(nodes).map(Some);
    }
    let own = nodes.iter().copied().filter(|&node| is_own(store, node));
    let own: Vec<NodeIdx> = own.collect();
    let rows = of_own(&own)?;
    let sent = own.iter().enumerate().map(|(at, &node)| match &rows {
        Input::Dense(rows) => SentRow {
            node,
            index: Vec::new(),
            value: rows.row(at).to_vec(),
        },
        Input::Sparse(rows) => {
            let values = rows.offset[at] as usize..rows.offset[at + 1] as usize;
            SentRow {
                node,
                index: rows.index[values.clone()].to_vec(),
                value: rows.value[values].to_vec(),
            }
        }
    });
    let none = Arc::new(Vec::new());
    let mut lists = vec![none; cluster.num_processes()];
    lists[0] = Arc::new(sent.collect());
    let told = send_lists(cluster, lists, LISTS_A_MESSAGE)?;
    if cluster.process() > 0 {
        return Ok(None);
    }
    let told = told.into_iter().flatten().map(|row| (row.node, row));
    let told: BTreeMap<NodeIdx, SentRow> = told.collect();
    let in_order = nodes.iter().map(|node| &told[node]);
    Ok(Some(match rows {
        Input::Dense(_) => {
            let values: Vec<f32> = in_order.flat_map(|row| &row.value).copied().collect();
            Input::Dense(Dense {
                rows: nodes.len(),
                cols: values.len() / nodes.len().max(1),
                values,
            })
        }
        Input::Sparse(SparseRows { cols, .. }) => {
            let mut all = SparseRows {
                rows: nodes.len(),
                cols,
                offset: vec![0],
                ..SparseRows::default()
            };
            for row in in_order {
                all.index.extend_from_slice(&row.index);
                all.value.extend_from_slice(&row.value);
                all.offset.push(narrow(all.index.len()));
            }
            Input::Sparse(all)
        }
    }))
}

/// Tells whether this process owns a node.
fn is_own(store: &Store, node: NodeIdx) -> bool {
    let cluster = store.cluster();
    store.placement().owner(node) / cluster.num_threads() == cluster.process()
}

/// Converts a limit of in-edges to 32 bits, which the number of a node's in-edges has.
fn narrow_limit(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}
