//! The state of a group of targets between rounds, on the worker that writes its part.

use crate::memory::GROUP_NODE_BYTES;
use crate::round::{ColumnAnswer, ColumnAsk, InEdgeAnswer, InEdgeAsk, append_columns, narrow};
use hashbrown::HashMap;
use schemas::{DenseRows, FeatureMeta, Features, GraphMeta, GraphShard, NodeIdx, Row};
use store::Placement;

/// The union of some targets' neighbourhoods, up to the current round.
pub(crate) struct Group {
    /// Number of the part.
    pub(crate) index: usize,
    sample: usize,
    /// All nodes, sorted by distance, then by node.
    nodes: Vec<NodeIdx>,
    /// Where the nodes of each distance end.
    hop_ends: Vec<usize>,
    /// Number of each node; nodes are numbered in the order of discovery.
    number: HashMap<NodeIdx, u32>,
    /// By a node's number, its row in the part, which is its position in `nodes`.
    rows_by_number: Vec<Row>,
    /// By row, the range of a node's in-edges in `src`; empty at the last hop.
    lists: Vec<(usize, usize)>,
    /// Sources of in-edges: a [`NodeIdx`] each until their round ends, then a node's number.
    src: Vec<u32>,
    /// How many of `src` are numbers.
    num_numbered: usize,
    weight: Vec<f32>,
    feature: Vec<f32>,
    rows: Vec<ColumnAnswer>,
}

/// Dense features of the nodes of a part, read from the store's map or from messages.
#[derive(Debug)]
pub struct GroupFeatures {
    dim: usize,
    rows: Vec<ColumnAnswer>,
    /// By row, the message with a node's columns, and the node's position in it.
    place: Vec<(u32, u32)>,
}

impl DenseRows for GroupFeatures {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        let (message, row) = self.place[node];
        self.rows[message as usize].dense(row as usize)
    }
}

impl Group {
    /// Makes a group of targets before the first round.
    pub(crate) fn new(index: usize, sample: usize, targets: &[NodeIdx]) -> Self {
        let mut group = Self {
            index,
            sample,
            nodes: Vec::new(),
            hop_ends: Vec::new(),
            number: HashMap::new(),
            rows_by_number: Vec::new(),
            lists: Vec::new(),
            src: Vec::new(),
            num_numbered: 0,
            weight: Vec::new(),
            feature: Vec::new(),
            rows: Vec::new(),
        };
        group.number.extend(targets.iter().copied().zip(0..));
        group.push_hop(targets);
        group
    }

    /// Adds newly found nodes, in order of their numbers, as the outermost nodes.
    fn push_hop(&mut self, nodes: &[NodeIdx]) {
        let first = narrow(self.nodes.len());
        let end = self.nodes.len() + nodes.len();
        // Node and number in one integer, which sorts faster than a pair.
        let numbered = nodes.iter().zip(u64::from(first)..);
        let mut ascending: Vec<u64> = numbered
            .map(|(&node, number)| u64::from(node.raw()) << 32 | number)
            .collect();
        ascending.sort_unstable();
        self.rows_by_number.resize(end, Row::MAX);
        for (row, pair) in (first..).zip(ascending) {
            let [node, number] = [pair >> 32, pair & u64::from(u32::MAX)].map(low);
            self.nodes.push(NodeIdx::from_raw(node));
            self.rows_by_number[number as usize] = Row::from_raw(row);
        }
        self.lists.resize(end, (0, 0));
        self.hop_ends.push(end);
    }

    /// Returns the row of a node in the part.
    fn row(&self, node: NodeIdx) -> Row {
        self.rows_by_number[self.number[&node] as usize]
    }

    /// Returns the nodes of a distance.
    fn hop(&self, hop: usize) -> &[NodeIdx] {
        let start = hop.checked_sub(1).map_or(0, |before| self.hop_ends[before]);
        &self.nodes[start..self.hop_ends[hop]]
    }

    fn outermost(&self) -> &[NodeIdx] {
        self.hop(self.hop_ends.len() - 1)
    }

    /// Makes requests to the owners of the outermost nodes for their first `limit` in-edges.
    pub(crate) fn ask_lists(
        &self,
        from: usize,
        limit: usize,
        placement: &Placement,
    ) -> Vec<InEdgeAsk> {
        let ask = |(to, nodes)| InEdgeAsk {
            to,
            from,
            sample: self.sample,
            limit,
            nodes,
        };
        split_by_owner(self.outermost(), from, placement)
            .map(ask)
            .collect()
    }

    /// Merges one owner's answer.
    pub(crate) fn merge(&mut self, answer: InEdgeAnswer) {
        let mut start = self.src.len();
        self.src.extend_from_slice(NodeIdx::raw_slice(&answer.src));
        self.weight.extend_from_slice(&answer.weight);
        self.feature.extend_from_slice(&answer.feature);
        for (&node, &length) in answer.nodes.iter().zip(&answer.lengths) {
            let end = start + length as usize;
            let row = self.row(node);
            self.lists[row.index()] = (start, end);
            start = end;
        }
    }

    /// Ends a round: newly found sources become the outermost nodes.
    pub(crate) fn propagate(&mut self) {
        let mut next = Vec::new();
        let first = self.nodes.len();
        for src in &mut self.src[self.num_numbered..] {
            let node = NodeIdx::from_raw(*src);
            let number = self.number.entry(node).or_insert_with(|| {
                next.push(node);
                narrow(first + next.len() - 1)
            });
            *src = *number;
        }
        self.num_numbered = self.src.len();
        self.push_hop(&next);
    }

    /// Makes requests to the owners of all nodes for their columns.
    pub(crate) fn ask_rows(&self, from: usize, placement: &Placement) -> Vec<ColumnAsk> {
        split_by_owner(&self.nodes, from, placement)
            .map(|(to, nodes)| ColumnAsk { to, from, nodes })
            .collect()
    }

    /// Keeps one owner's columns.
    pub(crate) fn keep_rows(&mut self, rows: ColumnAnswer) {
        self.rows.push(rows);
    }

    /// Returns the bytes of the group in memory, before it is assembled.
    pub(crate) fn size_bytes(&self) -> usize {
        let of_edges = self.src.len() + self.weight.len() + self.feature.len();
        GROUP_NODE_BYTES * self.nodes.len() + 4 * of_edges
    }

    /// Assembles the neighbourhoods into a shard whose nodes are sorted by (hop, id).
    ///
    /// Dense features are not copied: the shard has none, and [`GroupFeatures`] reads them in
    /// place.
    pub(crate) fn assemble(self, meta: &GraphMeta) -> (GraphShard, Option<GroupFeatures>) {
        let mut place = vec![(0, 0); self.nodes.len()];
        for (message, rows) in self.rows.iter().enumerate() {
            for (row, &node) in rows.nodes.iter().enumerate() {
                place[self.row(node).index()] = (narrow(message), narrow(row));
            }
        }
        let mut shard = GraphShard::empty(meta);
        append_columns(&self.rows, &place, &mut shard);
        let (nodes, edges) = (&mut shard.nodes[0], &mut shard.edges[0]);
        for hop in 0..self.hop_ends.len() {
            let distance = u8::try_from(hop).expect("hops are at most 255");
            nodes.hop.resize(self.hop_ends[hop], distance);
        }
        nodes.is_target.resize(self.hop_ends[0], true);
        nodes.is_target.resize(self.nodes.len(), false);
        let edge_dim = meta.relations[0].edge_feature_dim.unwrap_or(0);
        edges.in_src.reserve_exact(self.src.len());
        edges.in_offset.reserve_exact(self.nodes.len());
        for &(start, end) in &self.lists {
            let sources = self.src[start..end].iter();
            let rows = sources.map(|&number| self.rows_by_number[number as usize].raw());
            edges.in_src.extend(rows);
            if let Some(weight) = &mut edges.edge_weight {
                weight.extend_from_slice(&self.weight[start..end]);
            }
            if let Some(feature) = &mut edges.edge_feature {
                feature.extend_from_slice(&self.feature[start * edge_dim..end * edge_dim]);
            }
            let end = u32::try_from(edges.in_src.len()).expect("a part holds below 2^32 edges");
            edges.in_offset.push(end);
        }
        let lent = match meta.types[0].features {
            FeatureMeta::Dense { dim } => {
                nodes.features = Features::None;
                let rows = self.rows;
                Some(GroupFeatures { dim, rows, place })
            }
            FeatureMeta::None | FeatureMeta::Sparse { .. } => None,
        };
        (shard, lent)
    }
}

fn low(half: u64) -> u32 {
    u32::try_from(half).expect("half of a number of 64 bits")
}

/// Groups nodes by owner. `always` gets a list even if it is empty, because its answer ends a round
/// in which no other worker is asked.
fn split_by_owner(
    nodes: &[NodeIdx],
    always: usize,
    placement: &Placement,
) -> impl Iterator<Item = (usize, Vec<NodeIdx>)> + use<> {
    let mut lists = vec![Vec::new(); placement.workers()];
    nodes
        .iter()
        .for_each(|&node| lists[placement.owner(node)].push(node));
    lists
        .into_iter()
        .enumerate()
        .filter(move |(to, list)| *to == always || !list.is_empty())
}
