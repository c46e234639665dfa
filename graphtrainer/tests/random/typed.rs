//! Random typed graphs and their shards, computed by a slow and simple flatten.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use schemas::{
    Fanout, FeatureMeta, Features, FlattenMeta, GraphMeta, GraphShard, HopFanouts, IdType, Ids,
    LabelKind, LabelMeta, Labels, Layout, RelationMeta, Sampling, ShardEdges, ShardNodes, Split,
    SplitMeta, TypeMeta, keep_at_hop,
};

/// The properties of a random typed graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypedShape {
    pub(crate) num_types: usize,
    pub(crate) num_relations: usize,
    /// Mean number of nodes of a type.
    pub(crate) num_nodes: usize,
    /// Edges of a relation.
    pub(crate) num_edges: usize,
    /// Whether every relation leads from a type to itself.
    pub(crate) within: bool,
    /// Width of the edge features of every second relation.
    pub(crate) edge_dim: usize,
}

/// An in-edge: position of its source among the nodes of its type, weight, features.
pub(crate) type InEdge = (u32, f32, Vec<f32>);

/// A typed graph in a few vectors.
#[derive(Clone, Debug)]
pub(crate) struct TypedGraph {
    pub(crate) meta: GraphMeta,
    /// By type: raw id of each node, ascending. Types share their ids.
    pub(crate) ids: Vec<Vec<u64>>,
    /// By type.
    pub(crate) features: Vec<Features>,
    /// Of the target type.
    pub(crate) classes: Vec<u32>,
    pub(crate) split: Vec<Split>,
    /// By relation and node, in rank order.
    pub(crate) in_edges: Vec<Vec<Vec<InEdge>>>,
}

pub(crate) const NUM_CLASSES: u32 = 3;

impl Default for TypedShape {
    fn default() -> Self {
        Self {
            num_types: 3,
            num_relations: 5,
            num_nodes: 40,
            num_edges: 160,
            within: false,
            edge_dim: 2,
        }
    }
}

impl TypedGraph {
    /// Draws a graph with parallel edges, self-loops, a hub in one relation, and, with more than two
    /// types, a type without edges. Features are dense, sparse or absent by type, ids are strings in
    /// every second type; some relations have weights and edge features. The class of a target
    /// shifts its features.
    pub(crate) fn new(shape: TypedShape, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let joined = shape.num_types - usize::from(shape.num_types > 2);
        let target_type = rng.random_range(0..joined);
        let sizes: Vec<usize> = (0..shape.num_types)
            .map(|at| shape.num_nodes + 5 * at)
            .collect();
        let relations: Vec<RelationMeta> = (0..shape.num_relations)
            .map(|at| {
                // Relation 0 reaches the targets.
                let to = match at {
                    0 => target_type,
                    _ => rng.random_range(0..joined),
                };
                let from = match shape.within {
                    true => to,
                    false => rng.random_range(0..joined),
                };
                RelationMeta {
                    name: format!("r{at}"),
                    from,
                    to,
                    edge_weight: at % 2 == 0,
                    edge_feature_dim: (at % 2 == 1).then_some(shape.edge_dim),
                    self_loops: from == to,
                }
            })
            .collect();
        let in_edges = relations.iter().enumerate().map(|(at, relation)| {
            let hub_edges = if at == 1 { 120 } else { 0 };
            let counts = (shape.num_edges, hub_edges);
            edges_of(relation, &sizes, counts, &mut rng)
        });
        let in_edges = in_edges.collect();
        let classes: Vec<u32> = (0..sizes[target_type])
            .map(|_| rng.random_range(0..NUM_CLASSES))
            .collect();
        let features: Vec<Features> = (0..shape.num_types)
            .map(|at| {
                let is_target = at == target_type;
                let hints = is_target.then_some(&classes[..]);
                features_of(at, sizes[at], hints, &mut rng)
            })
            .collect();
        let splits = [Split::Train, Split::Train, Split::Val, Split::Test];
        Self {
            meta: meta_of(&features, relations, target_type),
            ids: sizes
                .iter()
                .map(|&len| (0..len as u64).map(|node| node * 7 + 3).collect())
                .collect(),
            split: (0..sizes[target_type]).map(|at| splits[at % 4]).collect(),
            features,
            classes,
            in_edges,
        }
    }

    /// Returns the ids of some nodes of a type.
    pub(crate) fn ids_of(&self, node_type: usize, nodes: &[u32]) -> Ids {
        let id_type = self.meta.types[node_type].id_type;
        let mut ids = Ids::new(id_type);
        for &node in nodes {
            let raw = self.ids[node_type][node as usize];
            match id_type {
                IdType::Utf8 => ids.push_str(&shown(&self.meta, node_type, raw)),
                _ => ids.push_key(raw),
            }
        }
        ids
    }

    /// Flattens the neighbourhoods of some targets: breadth first, a node at hop h keeping its
    /// first `keep_at_hop(relation, h)` in-edges of each relation into its type.
    pub(crate) fn shard(&self, targets: &[u32], fanouts: &[HopFanouts]) -> GraphShard {
        let mut by_type = vec![Vec::new(); self.meta.types.len()];
        by_type[self.meta.target_type] = targets.to_vec();
        self.shard_of(&by_type, fanouts)
    }

    /// Flattens the neighbourhoods of targets of several types, as [`shard`](Self::shard) does.
    pub(crate) fn shard_of(&self, targets: &[Vec<u32>], fanouts: &[HopFanouts]) -> GraphShard {
        let (nodes, hops) = self.walk(targets, fanouts);
        let relations = self.meta.relations.iter().enumerate();
        let edges = relations.map(|(at, relation)| {
            let ends = (&nodes[relation.from][..], &nodes[relation.to][..]);
            self.edges(at, ends, &hops[relation.to], fanouts)
        });
        let edges = edges.collect();
        let target_type = self.meta.target_type;
        let tables = nodes.iter().zip(hops).enumerate();
        let tables = tables.map(|(at, (own, hop))| ShardNodes {
            ids: self.ids_of(at, own),
            features: self.features[at].gather(own),
            labels: match at == target_type {
                true => Labels::Class(own.iter().map(|&n| self.classes[n as usize]).collect()),
                false => Labels::None,
            },
            split: match at == target_type {
                true => own.iter().map(|&n| self.split[n as usize]).collect(),
                false => vec![Split::None; own.len()],
            },
            is_target: hop.iter().map(|&hop| hop == 0).collect(),
            hop,
        });
        GraphShard {
            target_type,
            nodes: tables.collect(),
            edges,
            pairs: None,
        }
    }

    /// Returns the edges of a relation between the nodes of a shard.
    fn edges(
        &self,
        relation: usize,
        (from, to): (&[u32], &[u32]),
        hops: &[u8],
        fanouts: &[HopFanouts],
    ) -> ShardEdges {
        let meta = &self.meta.relations[relation];
        let all = |node: &u32| &self.in_edges[relation][*node as usize];
        let own = |node: &u32| {
            let node = *node;
            let is_loop = move |edge: &&InEdge| meta.from == meta.to && edge.0 == node;
            self.in_edges[relation][node as usize]
                .iter()
                .filter(is_loop)
        };
        let sum = |edges: &mut dyn Iterator<Item = &InEdge>| edges.map(|edge| edge.1).sum::<f32>();
        let (mut in_offset, mut in_src) = (vec![0], Vec::new());
        let (mut edge_weight, mut edge_feature) = (Vec::new(), Vec::new());
        for (node, &hop) in to.iter().zip(hops) {
            let keep = keep_at_hop(fanouts, relation, hop.into());
            for (src, weight, features) in all(node).iter().take(keep) {
                let position = from.iter().position(|other| other == src);
                in_src.push(narrow(position.expect("the walk met every source")));
                edge_weight.push(*weight);
                edge_feature.extend_from_slice(features);
            }
            in_offset.push(narrow(in_src.len()));
        }
        let loops = || to.iter().map(|node| narrow(own(node).count())).collect();
        let loop_weights = || to.iter().map(|node| sum(&mut own(node))).collect();
        let weights = || to.iter().map(|node| sum(&mut all(node).iter())).collect();
        ShardEdges {
            from: meta.from,
            to: meta.to,
            in_degree: to.iter().map(|node| narrow(all(node).len())).collect(),
            in_weight: meta.edge_weight.then(weights),
            self_loops: meta.self_loops.then(loops),
            self_weight: meta.self_weight().then(loop_weights),
            in_offset,
            in_src,
            edge_weight: meta.edge_weight.then_some(edge_weight),
            edge_feature: meta.edge_feature_dim.map(|_| edge_feature),
        }
    }

    /// Returns, by type, the nodes of some targets' neighbourhoods and their hops.
    fn walk(&self, targets: &[Vec<u32>], fanouts: &[HopFanouts]) -> (Vec<Vec<u32>>, Vec<Vec<u8>>) {
        let num_types = self.meta.types.len();
        let mut known = vec![BTreeSet::new(); num_types];
        let (mut nodes, mut hops) = (vec![Vec::new(); num_types], vec![Vec::new(); num_types]);
        let set = |own: &Vec<u32>| own.iter().copied().collect();
        let mut new: Vec<BTreeSet<u32>> = targets.iter().map(set).collect();
        for hop in 0..=fanouts.len() {
            let mut next = vec![BTreeSet::new(); num_types];
            for (at, relation) in self.meta.relations.iter().enumerate() {
                let keep = keep_at_hop(fanouts, at, hop);
                for &node in &new[relation.to] {
                    let kept = self.in_edges[at][node as usize].iter().take(keep);
                    next[relation.from].extend(kept.map(|edge| edge.0));
                }
            }
            for (at, own) in new.iter().enumerate() {
                nodes[at].extend(own.iter().copied());
                hops[at].extend(own.iter().map(|_| u8::try_from(hop).unwrap_or(u8::MAX)));
                known[at].extend(own.iter().copied());
                next[at].retain(|node| !known[at].contains(node));
            }
            new = next;
        }
        (nodes, hops)
    }

    /// Cuts all nodes of the target type into `num_parts` shards of targets.
    pub(crate) fn parts(&self, num_parts: usize, fanouts: &[HopFanouts]) -> Vec<GraphShard> {
        let all: Vec<u32> = (0..narrow(self.classes.len())).collect();
        all.chunks(all.len().div_ceil(num_parts))
            .map(|own| self.shard(own, fanouts))
            .collect()
    }

    /// Draws a fan-out for each hop and relation; relation 0 reaches the targets.
    pub(crate) fn fanouts(&self, hops: usize, seed: u64) -> Vec<HopFanouts> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut fanout = |relation: usize| match rng.random_range(0..6_u32) {
            0 => Fanout::All,
            1 if relation > 0 => Fanout::Count(0),
            count => Fanout::Count(count + 1),
        };
        let relations = 0..self.meta.relations.len();
        (0..hops)
            .map(|_| HopFanouts::from(relations.clone().map(&mut fanout).collect::<Vec<_>>()))
            .collect()
    }

    /// Returns fan-outs that keep every in-edge.
    pub(crate) fn all(&self, hops: usize) -> Vec<HopFanouts> {
        vec![HopFanouts::from(vec![Fanout::All; self.meta.relations.len()]); hops]
    }
}

/// Returns an id of a type as the tables have it; string ids have equal lengths.
pub(crate) fn shown(meta: &GraphMeta, node_type: usize, raw: u64) -> String {
    match meta.types[node_type].id_type {
        IdType::Utf8 => format!("node-{raw:06}"),
        _ => raw.to_string(),
    }
}

/// Returns the metadata of a sample with `fanouts`.
pub(crate) fn typed_flatten_meta(fanouts: &[HopFanouts]) -> FlattenMeta {
    FlattenMeta {
        hops: fanouts.len(),
        fanouts: fanouts.to_vec(),
        sampling: Sampling::Uniform,
        seed: 1,
        samples_per_target: 1,
        layout: Layout::Shards,
    }
}

fn meta_of(features: &[Features], relations: Vec<RelationMeta>, target_type: usize) -> GraphMeta {
    let types = features.iter().enumerate().map(|(at, features)| TypeMeta {
        name: format!("t{at}"),
        id_type: match at % 2 {
            0 => IdType::UInt64,
            _ => IdType::Utf8,
        },
        features: features.meta(),
        columns: Vec::new(),
        label: (at == target_type).then(|| LabelMeta {
            data_type: String::from("Int64"),
            kind: LabelKind::Class {
                num_classes: NUM_CLASSES,
            },
        }),
        split: (at == target_type).then(|| SplitMeta {
            data_type: String::from("Utf8"),
            values: None,
        }),
    });
    GraphMeta {
        types: types.collect(),
        relations,
        target_type,
        pairs: None,
    }
}

/// Draws the in-edges of each node; the first tenth of the nodes has none, and the last node is the
/// hub.
fn edges_of(
    meta: &RelationMeta,
    sizes: &[usize],
    (num_edges, hub_edges): (usize, usize),
    rng: &mut StdRng,
) -> Vec<Vec<InEdge>> {
    let (num_src, num_dst) = (sizes[meta.from], sizes[meta.to]);
    let mut in_edges = vec![Vec::new(); num_dst];
    let edge_dim = meta.edge_feature_dim.unwrap_or(0);
    for at in 0..num_edges + hub_edges {
        let dst = match at < num_edges {
            true => rng.random_range(num_dst / 10..num_dst),
            false => num_dst - 1,
        };
        let is_loop = meta.from == meta.to && at % 9 == 0;
        let src = match is_loop {
            true => dst,
            false => rng.random_range(0..num_src),
        };
        let weight = match meta.edge_weight {
            true => rng.random_range(0.1..2.0),
            false => 1.0,
        };
        let features = (0..edge_dim).map(|_| rng.random()).collect();
        in_edges[dst].push((narrow(src), weight, features));
    }
    in_edges
}

/// Draws the features of a type: the targets' are dense and hint at their classes.
fn features_of(at: usize, len: usize, hints: Option<&[u32]>, rng: &mut StdRng) -> Features {
    let kind = match hints {
        Some(_) => FeatureMeta::Dense { dim: 5 },
        None => match at % 3 {
            0 => FeatureMeta::Sparse { dim: 6 },
            1 => FeatureMeta::None,
            _ => FeatureMeta::Dense { dim: 2 + at },
        },
    };
    match kind {
        FeatureMeta::None => Features::None,
        FeatureMeta::Dense { dim } => {
            let mut values: Vec<f32> = (0..len * dim).map(|_| rng.random()).collect();
            for (row, &class) in values.chunks_exact_mut(dim).zip(hints.unwrap_or(&[])) {
                row[class as usize] += 0.6;
            }
            Features::Dense { dim, values }
        }
        FeatureMeta::Sparse { dim } => {
            let (mut offset, mut index, mut value) = (vec![0], Vec::new(), Vec::new());
            for _ in 0..len {
                for feature in (0..narrow(dim)).filter(|feature| feature % 2 == 0) {
                    index.push(feature);
                    value.push(rng.random_range(0.1..1.0));
                }
                offset.push(index.len() as u64);
            }
            Features::Sparse {
                dim,
                offset,
                index,
                value,
            }
        }
    }
}

fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a test graph is small")
}
