//! The state of a group of targets between rounds, on the worker that writes its part.

use crate::memory::GROUP_NODE_BYTES;
use crate::pair_parts::{DrawnPairs, OnePart};
use crate::round::{ColumnAnswer, ColumnAsk, InEdgeAnswer, InEdgeAsk, append_columns, narrow};
use hashbrown::HashMap;
use schemas::{
    DenseRows, Features, GraphMeta, GraphShard, HopFanouts, NodeIdx, RelationMeta, Row, ShardEdges,
    keep_at_hop,
};
use store::{Placement, Store};

/// The union of some targets' neighbourhoods, up to the current round.
pub(crate) struct Group {
    /// Number of the part.
    pub(crate) index: usize,
    sample: usize,
    /// The pairs whose ends are the targets, if the targets are ends.
    pub(crate) pairs: Option<DrawnPairs>,
    /// Number of finished rounds.
    hop: usize,
    /// By node type.
    nodes: Vec<GroupNodes>,
    /// By relation.
    edges: Vec<GroupEdges>,
    /// Number of each node; nodes are numbered in the order of discovery.
    number: HashMap<NodeIdx, u32>,
    /// By a node's number, its row in the part, which is its position among the nodes of its type.
    rows_by_number: Vec<Row>,
}

/// The nodes of one type.
#[derive(Default)]
struct GroupNodes {
    /// All nodes, sorted by distance, then by node.
    nodes: Vec<NodeIdx>,
    /// Where the nodes of each distance end.
    hop_ends: Vec<usize>,
    columns: Vec<ColumnAnswer>,
}

/// The in-edges of one relation.
struct GroupEdges {
    /// Type of the nodes that edges lead to.
    to: usize,
    /// By row of a node of type `to`, the range of its in-edges in `src`; empty at the last hop.
    lists: Vec<(usize, usize)>,
    /// Sources of in-edges: a [`NodeIdx`] each until their round ends, then a node's number.
    src: Vec<u32>,
    /// How many of `src` are numbers.
    num_numbered: usize,
    weight: Vec<f32>,
    feature: Vec<f32>,
}

/// Dense features of the nodes of a part and a type, read from the store's map or from messages.
#[derive(Debug)]
pub struct GroupFeatures {
    dim: usize,
    columns: Vec<ColumnAnswer>,
    /// By row, the message with a node's columns, and the node's position in it.
    place: Vec<(u32, u32)>,
}

impl DenseRows for GroupFeatures {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        let (message, row) = self.place[node];
        self.columns[message as usize].dense(row as usize)
    }
}

impl GroupNodes {
    /// Returns the nodes of a distance.
    fn hop(&self, hop: usize) -> &[NodeIdx] {
        let start = hop.checked_sub(1).map_or(0, |before| self.hop_ends[before]);
        &self.nodes[start..self.hop_ends[hop]]
    }
}

impl GroupEdges {
    fn new(meta: &RelationMeta) -> Self {
        Self {
            to: meta.to,
            lists: Vec::new(),
            src: Vec::new(),
            num_numbered: 0,
            weight: Vec::new(),
            feature: Vec::new(),
        }
    }
}

impl Group {
    /// Makes a group of targets before the first round.
    pub(crate) fn new(index: usize, sample: usize, targets: OnePart, store: &Store) -> Self {
        let graph = &store.meta().graph;
        let mut group = Self {
            index,
            sample,
            pairs: targets.pairs,
            hop: 0,
            nodes: graph.types.iter().map(|_| GroupNodes::default()).collect(),
            edges: graph.relations.iter().map(GroupEdges::new).collect(),
            number: HashMap::new(),
            rows_by_number: Vec::new(),
        };
        let nodes = targets.nodes;
        group.number.extend(nodes.iter().copied().zip(0..));
        group.push_hop(&nodes, store.placement());
        group
    }

    fn num_nodes(&self) -> usize {
        self.rows_by_number.len()
    }

    /// Adds newly found nodes, in order of their numbers, as the outermost nodes.
    fn push_hop(&mut self, nodes: &[NodeIdx], placement: &Placement) {
        let first = narrow(self.num_nodes());
        // Node and number in one integer, which sorts faster than a pair.
        let numbered = nodes.iter().zip(u64::from(first)..);
        let mut ascending: Vec<u64> = numbered
            .map(|(&node, number)| u64::from(node.raw()) << 32 | number)
            .collect();
        ascending.sort_unstable();
        let end = self.num_nodes() + nodes.len();
        self.rows_by_number.resize(end, Row::MAX);
        let mut left = &ascending[..];
        for (type_idx, of_type) in self.nodes.iter_mut().enumerate() {
            // The nodes of a type have consecutive numbers.
            let after = u64::from(placement.type_range(type_idx).end.raw()) << 32;
            let (own, later) = left.split_at(left.partition_point(|&pair| pair < after));
            for (row, &pair) in (narrow(of_type.nodes.len())..).zip(own) {
                let [node, number] = [pair >> 32, pair & u64::from(u32::MAX)].map(low);
                of_type.nodes.push(NodeIdx::from_raw(node));
                self.rows_by_number[number as usize] = Row::from_raw(row);
            }
            of_type.hop_ends.push(of_type.nodes.len());
            left = later;
        }
        for edges in &mut self.edges {
            edges.lists.resize(self.nodes[edges.to].nodes.len(), (0, 0));
        }
    }

    /// Returns the row of a node in the part.
    pub(crate) fn row(&self, node: NodeIdx) -> Row {
        self.rows_by_number[self.number[&node] as usize]
    }

    /// Makes requests to the owners of the outermost nodes for their first in-edges of each
    /// relation.
    ///
    /// If there is nothing to ask for, worker `from` asks itself for the in-edges of no node, because
    /// an answer ends the round.
    pub(crate) fn ask_lists(
        &self,
        from: usize,
        fanouts: &[HopFanouts],
        placement: &Placement,
    ) -> Vec<InEdgeAsk> {
        let mut asks = Vec::new();
        for (relation, edges) in self.edges.iter().enumerate() {
            let limit = keep_at_hop(fanouts, relation, self.hop);
            let nodes: &[NodeIdx] = match limit {
                0 => &[],
                _ => self.nodes[edges.to].hop(self.hop),
            };
            let of_owners = split_by_owner(nodes, placement);
            asks.extend(of_owners.map(|(to, own)| InEdgeAsk {
                to,
                from,
                sample: self.sample,
                relation,
                limit,
                nodes: own,
            }));
        }
        if asks.is_empty() {
            asks.push(InEdgeAsk::of_no_node(from));
        }
        asks
    }

    /// Merges one owner's answer.
    pub(crate) fn merge(&mut self, answer: InEdgeAnswer) {
        let (number, rows_by_number) = (&self.number, &self.rows_by_number);
        let edges = &mut self.edges[answer.relation];
        let mut start = edges.src.len();
        edges.src.extend_from_slice(NodeIdx::raw_slice(&answer.src));
        edges.weight.extend_from_slice(&answer.weight);
        edges.feature.extend_from_slice(&answer.feature);
        for (node, &length) in answer.nodes.iter().zip(&answer.lengths) {
            let end = start + length as usize;
            let row = rows_by_number[number[node] as usize];
            edges.lists[row.index()] = (start, end);
            start = end;
        }
    }

    /// Ends a round: newly found sources become the outermost nodes.
    pub(crate) fn propagate(&mut self, placement: &Placement) {
        let mut next = Vec::new();
        let first = self.num_nodes();
        for edges in &mut self.edges {
            for src in &mut edges.src[edges.num_numbered..] {
                let node = NodeIdx::from_raw(*src);
                let number = self.number.entry(node).or_insert_with(|| {
                    next.push(node);
                    narrow(first + next.len() - 1)
                });
                *src = *number;
            }
            edges.num_numbered = edges.src.len();
        }
        self.hop += 1;
        self.push_hop(&next, placement);
    }

    /// Makes requests to the owners of all nodes for their columns.
    pub(crate) fn ask_columns(&self, from: usize, placement: &Placement) -> Vec<ColumnAsk> {
        let mut asks = Vec::new();
        for (type_idx, of_type) in self.nodes.iter().enumerate() {
            let of_owners = split_by_owner(&of_type.nodes, placement);
            asks.extend(of_owners.map(|(to, nodes)| ColumnAsk {
                to,
                from,
                type_idx,
                nodes,
            }));
        }
        asks
    }

    /// Keeps one owner's columns.
    pub(crate) fn keep_columns(&mut self, columns: ColumnAnswer) {
        self.nodes[columns.type_idx].columns.push(columns);
    }

    /// Returns the bytes of the group in memory, before it is assembled.
    pub(crate) fn size_bytes(&self) -> usize {
        let of_relation = |edges: &GroupEdges| {
            let words = edges.src.len() + edges.weight.len() + edges.feature.len();
            16 * edges.lists.len() + 4 * words
        };
        let of_edges: usize = self.edges.iter().map(of_relation).sum();
        let columns = self.nodes.iter().flat_map(|of_type| &of_type.columns);
        let columns: usize = columns.map(ColumnAnswer::copied_bytes).sum();
        (GROUP_NODE_BYTES - 16) * self.num_nodes() + of_edges + columns
    }

    /// Assembles the neighbourhoods into a shard whose nodes are sorted by (hop, id) in each type.
    ///
    /// Dense features are not copied: the shard has none, and [`GroupFeatures`], by type, reads
    /// them in place.
    pub(crate) fn assemble(self, meta: &GraphMeta) -> (GraphShard, Vec<Option<GroupFeatures>>) {
        let mut shard = GraphShard::empty(meta);
        let places = (0..self.nodes.len()).map(|type_idx| self.places(type_idx));
        let places: Vec<Vec<(u32, u32)>> = places.collect();
        for (type_idx, place) in places.iter().enumerate() {
            let of_type = &self.nodes[type_idx];
            append_columns(&of_type.columns, place, type_idx, &mut shard);
            let nodes = &mut shard.nodes[type_idx];
            for (distance, &end) in (0..=u8::MAX).zip(&of_type.hop_ends) {
                nodes.hop.resize(end, distance);
            }
            nodes.is_target.resize(of_type.hop_ends[0], true);
            nodes.is_target.resize(of_type.nodes.len(), false);
        }
        for (relation, edges) in self.edges.iter().enumerate() {
            let edge_dim = meta.relations[relation].edge_feature_dim.unwrap_or(0);
            edges.append(&self.rows_by_number, edge_dim, &mut shard.edges[relation]);
        }
        let of_types = self.nodes.into_iter().zip(places).zip(&mut shard.nodes);
        let lent = of_types.map(|((of_type, place), nodes)| match nodes.features {
            Features::Dense { dim, .. } => {
                nodes.features = Features::None;
                let columns = of_type.columns;
                Some(GroupFeatures {
                    dim,
                    columns,
                    place,
                })
            }
            Features::None | Features::Sparse { .. } => None,
        });
        let lent = lent.collect();
        (shard, lent)
    }

    /// By row of a type's node, the message with its columns and its position in it.
    fn places(&self, type_idx: usize) -> Vec<(u32, u32)> {
        let of_type = &self.nodes[type_idx];
        let mut places = vec![(0, 0); of_type.nodes.len()];
        for (message, columns) in of_type.columns.iter().enumerate() {
            for (row, &node) in columns.nodes.iter().enumerate() {
                places[self.row(node).index()] = (narrow(message), narrow(row));
            }
        }
        places
    }
}

impl GroupEdges {
    /// Appends the in-edges in the order of their destinations' rows.
    fn append(&self, rows_by_number: &[Row], edge_dim: usize, edges: &mut ShardEdges) {
        edges.in_src.reserve_exact(self.src.len());
        edges.in_offset.reserve_exact(self.lists.len());
        for &(start, end) in &self.lists {
            let sources = self.src[start..end].iter();
            let rows = sources.map(|&number| rows_by_number[number as usize].raw());
            edges.in_src.extend(rows);
            if let Some(weight) = &mut edges.edge_weight {
                weight.extend_from_slice(&self.weight[start..end]);
            }
            if let Some(feature) = &mut edges.edge_feature {
                feature.extend_from_slice(&self.feature[start * edge_dim..end * edge_dim]);
            }
            let num_edges = edges.in_src.len();
            let num_edges = u32::try_from(num_edges).expect("a part holds below 2^32 edges");
            edges.in_offset.push(num_edges);
        }
    }
}

fn low(half: u64) -> u32 {
    u32::try_from(half).expect("half of a number of 64 bits")
}

/// Groups nodes by owner, each list in the order of the owner's files; owners of no node have no
/// list.
fn split_by_owner(
    nodes: &[NodeIdx],
    placement: &Placement,
) -> impl Iterator<Item = (usize, Vec<NodeIdx>)> + use<> {
    let mut lists = vec![Vec::new(); placement.workers()];
    for &node in nodes {
        let (owner, local) = placement.owner_and_local(node);
        // Position and node in one integer, which sorts faster than a pair.
        lists[owner].push(u64::from(local.raw()) << 32 | u64::from(node.raw()));
    }
    let lists = lists.into_iter().enumerate();
    let lists = lists.filter(|(_, list)| !list.is_empty());
    lists.map(|(owner, mut list)| {
        list.sort_unstable();
        let node = |pair: u64| NodeIdx::from_raw(low(pair & u64::from(u32::MAX)));
        (owner, list.into_iter().map(node).collect())
    })
}
