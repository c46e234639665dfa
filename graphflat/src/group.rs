//! A group of targets on its way through the rounds, on the worker that writes its part.

use crate::round::{AskLists, AskRows, Lists, Rows};
use crate::{NodeIdx, Placement};
use hashbrown::HashMap;
use schemas::{Features, GraphMeta, GraphShard, Ids, Labels};

/// The union of some targets' neighbourhoods, as far as the rounds have come.
pub(crate) struct Group {
    /// Number of the part.
    pub(crate) index: usize,
    sample: usize,
    /// Nodes by distance, each list ascending.
    hops: Vec<Vec<NodeIdx>>,
    /// Where each known node's in-edges stand in `src`; none are fetched at the last hop.
    lists: HashMap<NodeIdx, (usize, usize)>,
    src: Vec<NodeIdx>,
    weight: Vec<f32>,
    feature: Vec<f32>,
    rows: Vec<Rows>,
}

impl Group {
    /// Starts with the targets.
    pub(crate) fn new(index: usize, sample: usize, targets: &[NodeIdx]) -> Self {
        let mut ascending = targets.to_vec();
        ascending.sort_unstable();
        Self {
            index,
            sample,
            hops: vec![ascending],
            lists: targets.iter().map(|&target| (target, (0, 0))).collect(),
            src: Vec::new(),
            weight: Vec::new(),
            feature: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Asks the owners of the outermost nodes for their first `limit` in-edges.
    pub(crate) fn ask_lists(
        &self,
        from: usize,
        limit: usize,
        placement: &Placement,
    ) -> Vec<AskLists> {
        let outermost = self.hops.last().map(Vec::as_slice).unwrap_or_default();
        let by_owner = split_by_owner(outermost.iter().copied(), from, placement);
        let ask = |(to, nodes)| AskLists {
            to,
            from,
            sample: self.sample,
            limit,
            nodes,
        };
        by_owner.map(ask).collect()
    }

    /// Merges one owner's answer.
    pub(crate) fn merge(&mut self, answer: Lists) {
        let mut start = self.src.len();
        self.src.extend_from_slice(&answer.src);
        self.weight.extend_from_slice(&answer.weight);
        self.feature.extend_from_slice(&answer.feature);
        for (&node, &length) in answer.nodes.iter().zip(&answer.lengths) {
            let end = start + length as usize;
            self.lists.insert(node, (start, end));
            start = end;
        }
    }

    /// Ends a round: sources not met before become the outermost nodes.
    pub(crate) fn propagate(&mut self) {
        let outermost = self.hops.last().map(Vec::as_slice).unwrap_or_default();
        let sources = outermost.iter().flat_map(|node| {
            let (start, end) = self.lists[node];
            self.src[start..end].iter().copied()
        });
        let mut next: Vec<NodeIdx> = sources
            .filter(|src| !self.lists.contains_key(src))
            .collect();
        next.sort_unstable();
        next.dedup();
        for &node in &next {
            self.lists.insert(node, (0, 0));
        }
        self.hops.push(next);
    }

    /// Asks the owners of all nodes for their columns.
    pub(crate) fn ask_rows(&self, from: usize, placement: &Placement) -> Vec<AskRows> {
        let nodes = self.hops.iter().flatten().copied();
        split_by_owner(nodes, from, placement)
            .map(|(to, nodes)| AskRows { to, from, nodes })
            .collect()
    }

    /// Keeps one owner's columns.
    pub(crate) fn keep_rows(&mut self, rows: Rows) {
        self.rows.push(rows);
    }

    /// Bytes that it takes to put together: its columns twice, and its edges.
    pub(crate) fn size_bytes(&self) -> usize {
        let columns = |rows: &Rows| rows.ids.size_bytes() + rows.features.size_bytes();
        let columns: usize = self.rows.iter().map(columns).sum();
        let edges = 4 * (2 * self.src.len() + self.weight.len() + self.feature.len());
        2 * (columns + edges) + 32 * self.lists.len()
    }

    /// Puts the neighbourhoods together, nodes by (hop, id).
    pub(crate) fn assemble(self, meta: &GraphMeta) -> GraphShard {
        let order: Vec<NodeIdx> = self.hops.iter().flatten().copied().collect();
        let position: HashMap<NodeIdx, u32> = order.iter().copied().zip(0..).collect();
        let mut place = vec![(0, 0); order.len()];
        for (batch, rows) in self.rows.iter().enumerate() {
            for (row, node) in rows.nodes.iter().enumerate() {
                place[position[node] as usize] = (batch, row);
            }
        }
        let mut shard = empty_shard(meta, order.len());
        for &(batch, row) in &place {
            push_node(&mut shard, &self.rows[batch], row);
        }
        for (hop, nodes) in (0u8..).zip(&self.hops) {
            shard.hop.resize(shard.hop.len() + nodes.len(), hop);
        }
        for (i, target) in shard.is_target.iter_mut().enumerate() {
            *target = i < self.hops[0].len();
        }
        let dim = meta.edge_feature_dim.unwrap_or(0);
        for node in &order {
            let (start, end) = self.lists[node];
            shard
                .in_src
                .extend(self.src[start..end].iter().map(|src| position[src]));
            if let Some(weight) = &mut shard.edge_weight {
                weight.extend_from_slice(&self.weight[start..end]);
            }
            if let Some(feature) = &mut shard.edge_feature {
                feature.extend_from_slice(&self.feature[start * dim..end * dim]);
            }
            let edges = u32::try_from(shard.in_src.len()).expect("a part holds below 2^32 edges");
            shard.in_offset.push(edges);
        }
        shard
    }
}

fn empty_shard(meta: &GraphMeta, num_nodes: usize) -> GraphShard {
    GraphShard {
        ids: Ids::with_capacity(meta.id_type, num_nodes),
        hop: Vec::with_capacity(num_nodes),
        in_degree: Vec::with_capacity(num_nodes),
        in_weight: meta.edge_weight.then(Vec::new),
        self_loops: meta.self_loops.then(Vec::new),
        self_weight: meta.self_weight().then(Vec::new),
        features: Features::empty(meta.features),
        labels: Labels::empty(meta.label.as_ref()),
        split: Vec::with_capacity(num_nodes),
        is_target: vec![false; num_nodes],
        in_offset: vec![0],
        in_src: Vec::new(),
        edge_weight: meta.edge_weight.then(Vec::new),
        edge_feature: meta.edge_feature_dim.map(|_| Vec::new()),
    }
}

fn push_node(shard: &mut GraphShard, rows: &Rows, row: usize) {
    let at = u32::try_from(row).expect("a part holds below 2^32 nodes");
    shard.ids.push_from(&rows.ids, row);
    shard.in_degree.push(rows.in_degree[row]);
    if let Some(in_weight) = &mut shard.in_weight {
        in_weight.push(rows.in_weight[row]);
    }
    if let Some(self_loops) = &mut shard.self_loops {
        self_loops.push(rows.self_loops[row]);
    }
    if let Some(self_weight) = &mut shard.self_weight {
        self_weight.push(rows.self_weight[row]);
    }
    shard.features.push_from(&rows.features, at);
    shard.labels.push_from(&rows.labels, at);
    shard.split.push(rows.split[row]);
}

/// Groups nodes by the worker that owns them. `always` gets a list even if it is empty: its
/// answer is what tells the group that a round without nodes is over.
fn split_by_owner(
    nodes: impl Iterator<Item = NodeIdx>,
    always: usize,
    placement: &Placement,
) -> impl Iterator<Item = (usize, Vec<NodeIdx>)> {
    let mut lists = vec![Vec::new(); placement.workers()];
    nodes.for_each(|node| lists[placement.owner(node)].push(node));
    lists
        .into_iter()
        .enumerate()
        .filter(move |(to, list)| *to == always || !list.is_empty())
}
