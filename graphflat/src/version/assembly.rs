//! Assembles the neighbourhoods of listed targets from a store and its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use graphdelta::After;
use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSlice;
use schemas::{
    DenseRows, FeatureMeta, GraphMeta, GraphShard, HopFanouts, NodeIdx, ShardEdges, ShardNodes,
    keep_at_hop,
};

use crate::round::narrow;

/// Nodes of which a thread reads the in-edges at once.
const NODES: usize = 1 << 11;

/// Position of a node that is in no list.
const NOWHERE: u32 = u32::MAX;

/// Nodes of a graph after changes, of which the neighbourhoods of targets are made.
pub(super) struct Assembly<'a> {
    after: &'a After,
    meta: &'a GraphMeta,
    fanouts: &'a [HopFanouts],
    /// Sums of the weights of the in-edges and self-loops of edited nodes, by relation and node.
    weights: BTreeMap<(usize, NodeIdx), [f32; 2]>,
    /// [`PartNodes::places`] of no node, for the next parts.
    places: Mutex<Vec<Vec<u32>>>,
}

/// The nodes of a part.
struct PartNodes {
    /// By type, sorted by distance, then by id.
    nodes: Vec<Vec<NodeIdx>>,
    /// By type, where the nodes of each distance end.
    hop_ends: Vec<Vec<usize>>,
    /// By number of the node, its position among those of its type, or [`NOWHERE`].
    places: Vec<u32>,
}

/// The in-edges of some nodes of a relation; weights and features where the graph has them.
#[derive(Default)]
struct InEdgeLists {
    lengths: Vec<u32>,
    src: Vec<u32>,
    weight: Vec<f32>,
    feature: Vec<f32>,
}

/// Dense features of the nodes of a part and a type, where they are.
pub(super) struct AfterRows<'a> {
    after: &'a After,
    dim: usize,
    nodes: Vec<NodeIdx>,
}

impl DenseRows for AfterRows<'_> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        self.after.dense(self.nodes[node])
    }
}

impl PartNodes {
    /// Returns the nodes of a type at a distance.
    fn hop(&self, type_idx: usize, hop: usize) -> &[NodeIdx] {
        let ends = &self.hop_ends[type_idx];
        let start = hop.checked_sub(1).map_or(0, |before| ends[before]);
        &self.nodes[type_idx][start..ends[hop]]
    }

    /// Adds nodes that are sorted by type and id, as the outermost ones.
    fn push_hop(&mut self, after: &After, nodes: &[NodeIdx]) {
        for &node in nodes {
            let of_type = &mut self.nodes[after.type_of(node)];
            self.places[node.index()] = narrow(of_type.len());
            of_type.push(node);
        }
        for (ends, of_type) in self.hop_ends.iter_mut().zip(&self.nodes) {
            ends.push(of_type.len());
        }
    }
}

impl<'a> Assembly<'a> {
    pub(super) fn new(after: &'a After, meta: &'a GraphMeta, fanouts: &'a [HopFanouts]) -> Self {
        let weighs = |relation: usize| meta.relations[relation].edge_weight;
        let edited = after.edited().filter(|&(relation, _)| weighs(relation));
        let weights = edited.map(|key| (key, after.weights(key.0, key.1)));
        Self {
            weights: weights.collect(),
            places: Mutex::default(),
            after,
            meta,
            fanouts,
        }
    }

    /// Returns the neighbourhoods of some targets, sorted by id, as one shard, and dense features
    /// by type beside it.
    pub(super) fn shard(&self, targets: &[NodeIdx]) -> (GraphShard, Vec<Option<AfterRows<'a>>>) {
        let mut found = self.walk(targets);
        let mut shard = GraphShard::empty(self.meta);
        let GraphShard { nodes, edges, .. } = &mut shard;
        let of_nodes = || {
            for (type_idx, of_type) in nodes.iter_mut().enumerate() {
                self.append_nodes(&found, type_idx, of_type);
            }
        };
        let of_edges = || {
            for (relation, of_relation) in edges.iter_mut().enumerate() {
                for &node in &found.nodes[of_relation.to] {
                    self.append_degrees((relation, node), of_relation);
                }
                for hop in 0..found.hop_ends[of_relation.to].len() {
                    self.append_edges(&found, (relation, hop), of_relation);
                }
            }
        };
        rayon::join(of_nodes, of_edges);
        self.give_back(&mut found);
        let types = found.nodes.into_iter().zip(&self.meta.types);
        let dense = types.map(|(own, of)| match of.features {
            FeatureMeta::Dense { dim } => Some(AfterRows {
                after: self.after,
                dim,
                nodes: own,
            }),
            FeatureMeta::None | FeatureMeta::Sparse { .. } => None,
        });
        (shard, dense.collect())
    }

    /// Returns the degrees of all nodes whose in-edges were ever edited.
    pub(super) fn degrees(&self) -> GraphShard {
        let edited = self.after.ever_edited().map(|(_, node)| node);
        let edited: BTreeSet<NodeIdx> = edited.collect();
        let living = edited.into_iter();
        let mut living: Vec<NodeIdx> = living
            .filter(|node| !self.after.is_removed(*node))
            .collect();
        self.after.sort(&mut living);
        let mut shard = GraphShard::empty(self.meta);
        for node in living {
            let type_idx = self.after.type_of(node);
            let (ids, row) = self.after.id(node);
            shard.nodes[type_idx].ids.push_from(ids, row);
            for relation in self.meta.relations_to(type_idx) {
                self.append_degrees((relation, node), &mut shard.edges[relation]);
            }
        }
        shard
    }

    /// Returns the bytes of the places of a part at work.
    pub(super) fn place_bytes(&self) -> usize {
        size_of::<u32>() * self.after.end()
    }

    /// Returns the places of no node. A thread at work on a part has one list.
    fn take_places(&self) -> Vec<u32> {
        let free = self
            .places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        free.unwrap_or_else(|| vec![NOWHERE; self.after.end()])
    }

    /// Clears the places of a part's nodes, and keeps the list for the next one.
    fn give_back(&self, found: &mut PartNodes) {
        let mut places = std::mem::take(&mut found.places);
        for node in found.nodes.iter().flatten() {
            places[node.index()] = NOWHERE;
        }
        let free = &mut *self.places.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(places);
    }

    /// Finds the nodes up to the last hop, and their distances.
    fn walk(&self, targets: &[NodeIdx]) -> PartNodes {
        let num_types = self.meta.types.len();
        let mut found = PartNodes {
            nodes: vec![Vec::new(); num_types],
            hop_ends: vec![Vec::new(); num_types],
            places: self.take_places(),
        };
        found.push_hop(self.after, targets);
        for hop in 0..self.fanouts.len() {
            let mut next = Vec::new();
            for (relation, of) in self.meta.relations.iter().enumerate() {
                let limit = keep_at_hop(self.fanouts, relation, hop);
                if limit == 0 {
                    continue;
                }
                let is_new = |src: &&NodeIdx| found.places[src.index()] == NOWHERE;
                let lists = found.hop(of.to, hop).par_chunks(NODES).map(|nodes| {
                    let mut new = Vec::new();
                    for &node in nodes {
                        let sources = self.after.in_edges(relation, node, limit).src;
                        new.extend(sources.iter().filter(is_new).copied());
                    }
                    new
                });
                for src in lists.collect::<Vec<_>>().into_iter().flatten() {
                    let place = &mut found.places[src.index()];
                    if *place == NOWHERE {
                        // Its position follows when all are known.
                        *place = 0;
                        next.push(src);
                    }
                }
            }
            self.after.sort(&mut next);
            found.push_hop(self.after, &next);
        }
        found
    }

    /// Appends the columns of the nodes of a type, without degrees and dense features.
    fn append_nodes(&self, found: &PartNodes, type_idx: usize, nodes: &mut ShardNodes) {
        let own = &found.nodes[type_idx];
        let is_sparse = matches!(
            self.meta.types[type_idx].features,
            FeatureMeta::Sparse { .. }
        );
        if !is_sparse {
            nodes.features = schemas::Features::None;
        }
        nodes
            .ids
            .extend_each(own.iter().map(|&node| self.after.id(node)));
        for (distance, &end) in (0..=u8::MAX).zip(&found.hop_ends[type_idx]) {
            nodes.hop.resize(end, distance);
        }
        for &node in own {
            if is_sparse {
                self.after.features_into(node, &mut nodes.features);
            }
            self.after.label_into(node, &mut nodes.labels);
            nodes.split.push(self.after.split(node));
        }
        nodes.is_target.resize(found.hop_ends[type_idx][0], true);
        nodes.is_target.resize(own.len(), false);
    }

    /// Appends the degrees of a node of a relation.
    fn append_degrees(&self, (relation, node): (usize, NodeIdx), edges: &mut ShardEdges) {
        let degree = |count: u64| u32::try_from(count).expect("in-degrees fit 32 bits");
        edges
            .in_degree
            .push(degree(self.after.in_degree(relation, node)));
        if let Some(self_loops) = &mut edges.self_loops {
            self_loops.push(degree(self.after.self_loops(relation, node)));
        }
        if let Some(in_weight) = &mut edges.in_weight {
            let known = self.weights.get(&(relation, node)).copied();
            let [all, loops] = known.unwrap_or_else(|| self.after.weights(relation, node));
            in_weight.push(all);
            edges.self_weight.iter_mut().for_each(|of| of.push(loops));
        }
    }

    /// Appends the in-edges of a relation and of the nodes of a hop, in the order of their
    /// destinations.
    fn append_edges(
        &self,
        found: &PartNodes,
        (relation, hop): (usize, usize),
        edges: &mut ShardEdges,
    ) {
        let limit = keep_at_hop(self.fanouts, relation, hop);
        let nodes = found.hop(edges.to, hop);
        let pieces = nodes.par_chunks(NODES).map(|of| {
            let mut lists = InEdgeLists::default();
            for &node in of {
                if limit == 0 {
                    lists.lengths.push(0);
                    continue;
                }
                let kept = self.after.in_edges(relation, node, limit);
                let rows = kept.src.iter().map(|src| found.places[src.index()]);
                lists.src.extend(rows);
                lists.lengths.push(narrow(kept.src.len()));
                if edges.edge_weight.is_some() {
                    lists
                        .weight
                        .extend_from_slice(kept.weight.unwrap_or_default());
                }
                if edges.edge_feature.is_some() {
                    lists
                        .feature
                        .extend_from_slice(kept.feature.unwrap_or_default());
                }
            }
            lists
        });
        for lists in pieces.collect::<Vec<_>>() {
            let mut end = narrow(edges.in_src.len());
            for length in lists.lengths {
                end += length;
                edges.in_offset.push(end);
            }
            edges.in_src.extend_from_slice(&lists.src);
            if let Some(weight) = &mut edges.edge_weight {
                weight.extend_from_slice(&lists.weight);
            }
            if let Some(feature) = &mut edges.edge_feature {
                feature.extend_from_slice(&lists.feature);
            }
        }
    }
}
