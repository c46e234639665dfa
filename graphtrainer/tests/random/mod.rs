//! Random graphs and their shards, computed by a slow and simple flatten.

#![allow(dead_code, reason = "every test uses another part of it")]

pub(crate) mod processes;
pub(crate) mod typed;

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use schemas::{
    Fanout, FeatureMeta, Features, FlattenMeta, GraphMeta, GraphShard, HopFanouts, IdType, Ids,
    LabelKind, LabelMeta, Labels, Layout, Sampling, ShardEdges, ShardNodes, Split, SplitMeta,
    UntypedMeta, keep_at_hop,
};

/// The properties of a random graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) num_nodes: u32,
    pub(crate) num_edges: u32,
    pub(crate) dim: usize,
    pub(crate) num_classes: u32,
    /// Added to one of a node's features by its class; the features are random in 0..1.
    pub(crate) hint: f32,
    pub(crate) sparse: bool,
    pub(crate) weights: bool,
    pub(crate) edge_dim: Option<usize>,
    /// Whether ids are strings.
    pub(crate) strings: bool,
    /// Number of extra in-edges of the last node, from any other node.
    pub(crate) hub_edges: u32,
}

/// A graph in a few vectors.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) shape: Shape,
    /// Raw id of each node, ascending.
    pub(crate) ids: Vec<u64>,
    pub(crate) features: Features,
    pub(crate) labels: Labels,
    pub(crate) split: Vec<Split>,
    /// In-edges of each node in rank order: source, weight, features.
    pub(crate) in_edges: Vec<Vec<(u32, f32, Vec<f32>)>>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            num_nodes: 60,
            num_edges: 240,
            dim: 6,
            num_classes: 3,
            hint: 0.6,
            sparse: false,
            weights: false,
            edge_dim: None,
            strings: false,
            hub_edges: 0,
        }
    }
}

impl Graph {
    /// Draws a graph with parallel edges, self-loops and isolated nodes. A node's class shifts its
    /// features, and most edges lead to a node of the same class, so that a model can learn it.
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let classes: Vec<u32> = (0..shape.num_nodes)
            .map(|_| rng.random_range(0..shape.num_classes))
            .collect();
        let mut in_edges = vec![Vec::new(); shape.num_nodes as usize];
        let isolated = shape.num_nodes / 10;
        for _ in 0..shape.num_edges {
            let dst = rng.random_range(isolated..shape.num_nodes);
            let src = loop {
                let src = rng.random_range(0..shape.num_nodes);
                let alike = classes[src as usize] == classes[dst as usize];
                if alike || rng.random_range(0..4) == 0 {
                    break src;
                }
            };
            let weight = if shape.weights {
                rng.random_range(0.1..2.0)
            } else {
                1.0
            };
            let features = (0..shape.edge_dim.unwrap_or(0))
                .map(|_| rng.random())
                .collect();
            in_edges[dst as usize].push((src, weight, features));
            if rng.random_range(0..10) == 0 {
                in_edges[dst as usize].push((dst, weight, vec![0.5; shape.edge_dim.unwrap_or(0)]));
            }
        }
        for _ in 0..shape.hub_edges {
            let edge_dim = shape.edge_dim.unwrap_or(0);
            let edge = (
                rng.random_range(0..shape.num_nodes - 1),
                rng.random_range(0.1..2.0),
                (0..edge_dim).map(|_| rng.random()).collect(),
            );
            in_edges[shape.num_nodes as usize - 1].push(edge);
        }
        let splits = [Split::Train, Split::Train, Split::Val, Split::Test];
        Self {
            shape,
            ids: (0..u64::from(shape.num_nodes))
                .map(|node| node * 7 + 3)
                .collect(),
            features: features(shape, &classes, &mut rng),
            labels: Labels::Class(classes),
            split: (0..shape.num_nodes as usize)
                .map(|node| splits[node % 4])
                .collect(),
            in_edges,
        }
    }

    /// Returns the metadata of the graph's tables.
    pub(crate) fn meta(&self) -> GraphMeta {
        let num_classes = self.shape.num_classes;
        let (data_type, kind) = match &self.labels {
            Labels::Multi { width, .. } => {
                ("List(Float32)", LabelKind::MultiLabel { width: *width })
            }
            Labels::Number(_) => ("Float32", LabelKind::Number),
            _ => ("Int64", LabelKind::Class { num_classes }),
        };
        let dim = self.shape.dim;
        GraphMeta::from(UntypedMeta {
            id_type: self.id_type(),
            features: match self.features {
                Features::None => FeatureMeta::None,
                Features::Dense { .. } => FeatureMeta::Dense { dim },
                Features::Sparse { .. } => FeatureMeta::Sparse { dim },
            },
            columns: Vec::new(),
            label: Some(LabelMeta {
                data_type: data_type.to_owned(),
                kind,
            }),
            split: Some(SplitMeta {
                data_type: String::from("Utf8"),
                values: None,
            }),
            edge_weight: self.shape.weights,
            edge_feature_dim: self.shape.edge_dim,
            self_loops: true,
        })
    }

    fn id_type(&self) -> IdType {
        if self.shape.strings {
            IdType::Utf8
        } else {
            IdType::UInt64
        }
    }

    /// Returns the ids of some nodes; string ids have equal lengths.
    fn ids_of(&self, nodes: &[u32]) -> Ids {
        let mut ids = Ids::new(self.id_type());
        for &node in nodes {
            let raw = self.ids[node as usize];
            if self.shape.strings {
                ids.push_str(&format!("node-{raw:06}"));
            } else {
                ids.push_key(raw);
            }
        }
        ids
    }

    /// Flattens the neighbourhoods of some targets: breadth first, a node at hop h keeping its
    /// first `keep_at_hop(h)` in-edges.
    pub(crate) fn shard(&self, targets: &[u32], fanouts: &[impl AsRef<[Fanout]>]) -> GraphShard {
        let (nodes, hop) = self.walk(targets, fanouts);
        let position = |node: u32| {
            let position = nodes.iter().position(|&other| other == node);
            narrow(position.expect("the walk met every source"))
        };
        let (mut in_offset, mut in_src) = (vec![0], Vec::new());
        let (mut edge_weight, mut edge_feature) = (Vec::new(), Vec::new());
        for (&node, &at) in nodes.iter().zip(&hop) {
            for (src, weight, features) in self.kept(node, keep_at_hop(fanouts, 0, at.into())) {
                in_src.push(position(*src));
                edge_weight.push(*weight);
                edge_feature.extend_from_slice(features);
            }
            in_offset.push(narrow(in_src.len()));
        }
        let loops = |node: u32| {
            self.in_edges[node as usize]
                .iter()
                .filter(move |e| e.0 == node)
        };
        let all = |node: &u32| &self.in_edges[*node as usize];
        let weights = self.shape.weights;
        let edges = ShardEdges {
            from: 0,
            to: 0,
            in_degree: nodes.iter().map(|node| narrow(all(node).len())).collect(),
            in_weight: weights.then(|| {
                nodes
                    .iter()
                    .map(|n| all(n).iter().map(|edge| edge.1).sum())
                    .collect()
            }),
            self_loops: Some(nodes.iter().map(|&n| narrow(loops(n).count())).collect()),
            self_weight: weights.then(|| {
                nodes
                    .iter()
                    .map(|&n| loops(n).map(|edge| edge.1).sum())
                    .collect()
            }),
            in_offset,
            in_src,
            edge_weight: weights.then_some(edge_weight),
            edge_feature: self.shape.edge_dim.map(|_| edge_feature),
        };
        let nodes = ShardNodes {
            ids: self.ids_of(&nodes),
            features: self.features.gather(&nodes),
            labels: self.labels.gather(&nodes),
            split: nodes
                .iter()
                .map(|&node| self.split[node as usize])
                .collect(),
            is_target: hop.iter().map(|&at| at == 0).collect(),
            hop,
        };
        GraphShard {
            target_type: 0,
            nodes: vec![nodes],
            edges: vec![edges],
            pairs: None,
        }
    }

    /// Returns the nodes of some targets' neighbourhoods and their hops.
    fn walk(&self, targets: &[u32], fanouts: &[impl AsRef<[Fanout]>]) -> (Vec<u32>, Vec<u8>) {
        let mut hops: Vec<Vec<u32>> = vec![sorted(targets.iter().copied())];
        let mut known: BTreeSet<u32> = targets.iter().copied().collect();
        for hop in 0..fanouts.len() {
            let keep = keep_at_hop(fanouts, 0, hop);
            let sources = hops[hop].iter().flat_map(|&node| self.kept(node, keep));
            let new = sorted(
                sources
                    .map(|(src, ..)| *src)
                    .filter(|src| !known.contains(src)),
            );
            known.extend(new.iter().copied());
            hops.push(new);
        }
        let of_hop = hops
            .iter()
            .zip(0_u8..)
            .flat_map(|(own, hop)| vec![hop; own.len()]);
        (hops.iter().flatten().copied().collect(), of_hop.collect())
    }

    fn kept(&self, node: u32, keep: usize) -> impl Iterator<Item = &(u32, f32, Vec<f32>)> {
        self.in_edges[node as usize].iter().take(keep)
    }

    /// Cuts all nodes into `num_parts` shards of targets.
    pub(crate) fn parts(
        &self,
        num_parts: usize,
        fanouts: &[impl AsRef<[Fanout]>],
    ) -> Vec<GraphShard> {
        let all: Vec<u32> = (0..self.shape.num_nodes).collect();
        all.chunks(all.len().div_ceil(num_parts))
            .map(|own| self.shard(own, fanouts))
            .collect()
    }
}

/// Returns the metadata of a sample with `fanouts`.
pub(crate) fn flatten_meta(fanouts: &[Fanout], sampling: Sampling) -> FlattenMeta {
    FlattenMeta {
        hops: fanouts.len(),
        fanouts: HopFanouts::untyped(fanouts),
        sampling,
        seed: 1,
        samples_per_target: 1,
        layout: Layout::Shards,
    }
}

fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a test graph is small")
}

fn sorted(nodes: impl Iterator<Item = u32>) -> Vec<u32> {
    nodes.collect::<BTreeSet<_>>().into_iter().collect()
}

fn features(shape: Shape, classes: &[u32], rng: &mut StdRng) -> Features {
    let mut dense = Vec::new();
    for &class in classes {
        for feature in 0..shape.dim {
            let hint = if feature == class as usize {
                shape.hint
            } else {
                0.0
            };
            let value: f32 = rng.random_range(0.0..1.0);
            let is_stored = !shape.sparse || rng.random_range(0..2) == 0;
            dense.push(if is_stored { value + hint } else { 0.0 });
        }
    }
    if !shape.sparse {
        return Features::Dense {
            dim: shape.dim,
            values: dense,
        };
    }
    let (mut offset, mut index, mut value) = (vec![0], Vec::new(), Vec::new());
    for row in dense.chunks_exact(shape.dim) {
        for (at, &stored) in (0..).zip(row).filter(|(_, stored)| **stored != 0.0) {
            index.push(at);
            value.push(stored);
        }
        offset.push(index.len() as u64);
    }
    Features::Sparse {
        dim: shape.dim,
        offset,
        index,
        value,
    }
}
