//! Merges the neighbourhoods of several targets into their union.

use hashbrown::HashTable;

use super::extract::{gather, gather_opt, gather_rows};
use super::{
    FeatureEdges, FeatureNodes, GraphFeature, GraphShard, PartPairs, ShardEdges, ShardNodes,
};
use crate::columns::{Features, GraphMeta, Labels, PairsMeta, RelationMeta, Split, TypeMeta};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;
use crate::idx::Row;

/// Row of a node that is no target, and so has no label and no split.
const NO_ROW: u32 = u32::MAX;

/// Collects graph features of one sample into a shard.
#[derive(Debug)]
pub struct ShardBuilder {
    target_type: usize,
    /// By node type.
    nodes: Vec<NodesBuilder>,
    /// By relation.
    edges: Vec<EdgesBuilder>,
    /// Row in `labels` and `split` of a node of the targets' type, else [`NO_ROW`].
    target_row: Vec<u32>,
    labels: Labels,
    split: Vec<Split>,
    /// The pairs, where graph features are of pairs, by positions in order of arrival.
    pairs: Option<(PairsMeta, PartPairs)>,
}

/// The nodes of one type, in order of arrival.
#[derive(Debug)]
struct NodesBuilder {
    ids: Ids,
    hop: Vec<u8>,
    features: Features,
    /// Nodes by the hash of their id.
    index: HashTable<u32>,
    /// Position in the union of each node of the graph feature being added.
    local: Vec<u32>,
}

/// The edges of one relation, with the degrees of the nodes of type `to` in order of arrival.
#[derive(Debug)]
struct EdgesBuilder {
    from: usize,
    to: usize,
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
    /// Start and length of each node's in-edges in the edge columns, which keep replaced lists too.
    lists: Vec<(usize, usize)>,
    in_src: Vec<u32>,
    edge_weight: Option<Vec<f32>>,
    edge_feature: Option<Vec<f32>>,
    edge_dim: usize,
}

/// The final order of the nodes of one type.
struct NodeOrder {
    /// Nodes in the final order.
    order: Vec<u32>,
    /// Final position of each node.
    position: Vec<u32>,
}

impl ShardBuilder {
    /// Starts an empty union.
    pub fn new(meta: &GraphMeta) -> Self {
        Self {
            target_type: meta.target_type,
            nodes: meta.types.iter().map(NodesBuilder::new).collect(),
            edges: meta.relations.iter().map(EdgesBuilder::new).collect(),
            target_row: Vec::new(),
            labels: Labels::empty(meta.target().label.as_ref()),
            split: Vec::new(),
            pairs: meta.pairs.clone().map(|of| {
                let empty = PartPairs::empty(&of);
                (of, empty)
            }),
        }
    }

    /// Adds a neighbourhood.
    ///
    /// # Errors
    ///
    /// If it was drawn with other settings than the ones before: of two in-edge lists of a node the
    /// shorter must be a prefix of the longer.
    ///
    /// # Panics
    ///
    /// If its columns are not the ones of the graph.
    pub fn push(&mut self, feature: &GraphFeature) -> Result<()> {
        for (type_idx, (nodes, added)) in self.nodes.iter_mut().zip(&feature.nodes).enumerate() {
            nodes.local.clear();
            for (hop, ends) in (0..=u8::MAX).zip(added.hop_offset.windows(2)) {
                for node in ends[0]..ends[1] {
                    let known = nodes.ids.len();
                    let local = nodes.add(added, node, hop);
                    nodes.local.push(local);
                    if nodes.ids.len() > known {
                        let relations = self.edges.iter_mut().zip(&feature.edges);
                        let leading_here = relations.filter(|(edges, _)| edges.to == type_idx);
                        leading_here.for_each(|(edges, own)| edges.add_node(own, node));
                    }
                }
            }
        }
        match (&mut self.pairs, &feature.pairs) {
            (Some((of, pairs)), Some(own)) => {
                let mut own = own.clone();
                let local = |type_idx: usize, row: Row| self.nodes[type_idx].local[row.index()];
                own.relabel(of, |type_idx, row| Row::from_raw(local(type_idx, row)));
                pairs.extend(&own);
            }
            _ => self.push_target(feature),
        }
        for (edges, added) in self.edges.iter_mut().zip(&feature.edges) {
            let (dsts, sources) = (&self.nodes[edges.to], &self.nodes[edges.from].local);
            for node in 0..added.in_offset.len() - 1 {
                let dst = dsts.local[node] as usize;
                if !edges.add_list(added, node, dst, sources) {
                    let id = dsts.ids.display(dst);
                    return Err(SchemaError::Invalid {
                        what: "union of graph features",
                        problem: format!("two of them keep different in-edges of node {id}"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Adds label and split of the target.
    fn push_target(&mut self, feature: &GraphFeature) {
        let targets = &self.nodes[self.target_type];
        self.target_row.resize(targets.ids.len(), NO_ROW);
        let row = &mut self.target_row[targets.local[0] as usize];
        if *row == NO_ROW {
            *row = position(self.split.len());
            self.labels.extend(&feature.labels);
            self.split.push(feature.split);
        }
    }

    /// Returns the union.
    pub fn finish(mut self) -> GraphShard {
        let orders: Vec<NodeOrder> = self.nodes.iter().map(NodesBuilder::order).collect();
        if let Some((of, mut pairs)) = self.pairs.take() {
            pairs.relabel(&of, |type_idx, row| {
                Row::from_raw(orders[type_idx].position[row.index()])
            });
            let mut shard = self.unite(&orders);
            for nodes in &mut shard.nodes {
                nodes.is_target = nodes.hop.iter().map(|&hop| hop == 0).collect();
            }
            shard.pairs = Some(pairs);
            return shard;
        }
        let mut labels = self.labels.empty_like();
        let (mut split, mut is_target) = (Vec::new(), Vec::new());
        for &node in &orders[self.target_type].order {
            let row = self.target_row[node as usize];
            is_target.push(row != NO_ROW);
            if row == NO_ROW {
                labels.push_none();
                split.push(Split::None);
            } else {
                labels.push_from(&self.labels, row);
                split.push(self.split[row as usize]);
            }
        }
        let target_type = self.target_type;
        let mut shard = self.unite(&orders);
        let targets = &mut shard.nodes[target_type];
        (targets.labels, targets.split, targets.is_target) = (labels, split, is_target);
        shard
    }

    /// Returns the union without targets.
    fn unite(self, orders: &[NodeOrder]) -> GraphShard {
        let nodes = self.nodes.into_iter().zip(orders);
        let edges = self.edges.into_iter();
        GraphShard {
            target_type: self.target_type,
            nodes: nodes.map(|(own, order)| own.finish(order)).collect(),
            edges: edges.map(|own| own.finish(orders)).collect(),
            pairs: None,
        }
    }
}

impl NodesBuilder {
    fn new(meta: &TypeMeta) -> Self {
        Self {
            ids: Ids::new(meta.id_type),
            hop: Vec::new(),
            features: Features::empty(meta.features),
            index: HashTable::new(),
            local: Vec::new(),
        }
    }

    /// Adds a node unless it is known; returns its position.
    fn add(&mut self, added: &FeatureNodes, node: u32, hop: u8) -> u32 {
        let i = node as usize;
        let found = self.index.find(added.node_id.hash(i), |&known| {
            self.ids.equal(known as usize, &added.node_id, i)
        });
        if let Some(&known) = found {
            let least = &mut self.hop[known as usize];
            *least = hop.min(*least);
            return known;
        }
        let new = position(self.ids.len());
        self.ids.push_from(&added.node_id, i);
        let ids = &self.ids;
        self.index
            .insert_unique(ids.hash(new as usize), new, |&known| {
                ids.hash(known as usize)
            });
        self.hop.push(hop);
        self.features.push_from(&added.features, node);
        new
    }

    fn order(&self) -> NodeOrder {
        let mut order = self.ids.sort_permutation();
        order.sort_by_key(|&node| self.hop[node as usize]);
        let mut position = vec![0; order.len()];
        for (new, &old) in (0..).zip(&order) {
            position[old as usize] = new;
        }
        NodeOrder { order, position }
    }

    /// Returns the columns as of a type without targets.
    fn finish(self, NodeOrder { order, .. }: &NodeOrder) -> ShardNodes {
        ShardNodes {
            ids: self.ids.gather(order),
            hop: gather(&self.hop, order).collect(),
            features: self.features.gather(order),
            labels: Labels::None,
            split: vec![Split::None; order.len()],
            is_target: vec![false; order.len()],
        }
    }
}

impl EdgesBuilder {
    fn new(meta: &RelationMeta) -> Self {
        Self {
            from: meta.from,
            to: meta.to,
            in_degree: Vec::new(),
            in_weight: meta.edge_weight.then(Vec::new),
            self_loops: meta.self_loops.then(Vec::new),
            self_weight: meta.self_weight().then(Vec::new),
            lists: Vec::new(),
            in_src: Vec::new(),
            edge_weight: meta.edge_weight.then(Vec::new),
            edge_feature: meta.edge_feature_dim.map(|_| Vec::new()),
            edge_dim: meta.edge_feature_dim.unwrap_or(0),
        }
    }

    /// Adds the degrees of a new node of type `to`.
    fn add_node(&mut self, added: &FeatureEdges, node: u32) {
        let i = node as usize;
        self.in_degree.push(added.in_degree[i]);
        push_value(&mut self.in_weight, added.in_weight.as_deref(), i);
        push_value(&mut self.self_loops, added.self_loops.as_deref(), i);
        push_value(&mut self.self_weight, added.self_weight.as_deref(), i);
        self.lists.push((0, 0));
    }

    /// Keeps the in-edges of a node that is `dst` in the union; tells whether they agree with those
    /// known. `sources` has the positions in the union of the nodes of type `from`.
    fn add_list(&mut self, added: &FeatureEdges, node: usize, dst: usize, sources: &[u32]) -> bool {
        let edges = added.in_edges(node);
        let (start, len) = self.lists[dst];
        let to_local = |&src: &u32| sources[src as usize];
        let in_src = &added.in_src[edges.clone()];
        let known = &self.in_src[start..start + len];
        let mut both = in_src.iter().map(to_local).zip(known);
        if !both.all(|(src, &known_src)| src == known_src) {
            return false;
        }
        if edges.len() <= len {
            return true;
        }
        self.lists[dst] = (self.in_src.len(), edges.len());
        self.in_src.extend(in_src.iter().map(to_local));
        if let (Some(all), Some(weight)) = (&mut self.edge_weight, &added.edge_weight) {
            all.extend_from_slice(&weight[edges.clone()]);
        }
        if let (Some(all), Some(values)) = (&mut self.edge_feature, &added.edge_feature) {
            all.extend_from_slice(&values[edges.start * self.edge_dim..edges.end * self.edge_dim]);
        }
        true
    }

    fn finish(self, orders: &[NodeOrder]) -> ShardEdges {
        let (order, sources) = (&orders[self.to].order, &orders[self.from].position);
        let mut in_offset = Vec::with_capacity(order.len() + 1);
        in_offset.push(0);
        let mut edges = Vec::new();
        for &node in order {
            let (start, len) = self.lists[node as usize];
            edges.extend((start..start + len).map(position));
            in_offset.push(position(edges.len()));
        }
        ShardEdges {
            from: self.from,
            to: self.to,
            in_degree: gather(&self.in_degree, order).collect(),
            in_weight: gather_opt(&self.in_weight, order),
            self_loops: gather_opt(&self.self_loops, order),
            self_weight: gather_opt(&self.self_weight, order),
            in_offset,
            in_src: gather(&self.in_src, &edges)
                .map(|src| sources[src as usize])
                .collect(),
            edge_weight: gather_opt(&self.edge_weight, &edges),
            edge_feature: self.edge_feature.map(|values| {
                let mut gathered = Vec::with_capacity(edges.len() * self.edge_dim);
                gather_rows(&mut gathered, &values, self.edge_dim, &edges);
                gathered
            }),
        }
    }
}

fn position(i: usize) -> u32 {
    u32::try_from(i).expect("a part holds fewer than 2^32 nodes and edges")
}

fn push_value<T: Copy>(all: &mut Option<Vec<T>>, values: Option<&[T]>, i: usize) {
    if let Some(all) = all {
        all.push(values.expect("the graph has this column")[i]);
    }
}

impl GraphShard {
    /// Unites neighbourhoods: a node keeps its longest in-edge list and its least hop.
    ///
    /// # Errors
    ///
    /// As [`ShardBuilder::push`].
    pub fn from_features<'a>(
        features: impl IntoIterator<Item = &'a GraphFeature>,
        meta: &GraphMeta,
    ) -> Result<Self> {
        let mut builder = ShardBuilder::new(meta);
        for feature in features {
            builder.push(feature)?;
        }
        Ok(builder.finish())
    }
}
