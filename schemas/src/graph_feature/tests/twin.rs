//! Random graphs, and the slow twins of extraction and union.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::columns::{
    FeatureMeta, Features, GraphMeta, LabelKind, LabelMeta, Labels, Split, SplitMeta, UntypedMeta,
};
use crate::config::SplitValues;
use crate::fanout::{Fanout, FlattenMeta, HopFanouts, Layout, Sampling, keep_at_hop};
use crate::graph_feature::{
    FeatureEdges, FeatureNodes, GraphFeature, GraphShard, ShardEdges, ShardNodes,
};
use crate::ids::{IdType, Ids};

/// A whole graph whose in-edges are in rank order.
pub(super) struct Graph {
    pub(super) meta: GraphMeta,
    pub(super) ids: Ids,
    features: Features,
    labels: Labels,
    split: Vec<Split>,
    in_src: Vec<Vec<usize>>,
    weight: Vec<Vec<f32>>,
    edge_feature: Vec<Vec<f32>>,
}

const ID_TYPES: [IdType; 4] = [IdType::Int32, IdType::Int64, IdType::UInt64, IdType::Utf8];
const CLASS_TYPES: [&str; 4] = ["Int32", "UInt8", "Int64", "Dictionary(Int8, Int32)"];
const NAME_TYPES: [&str; 4] = ["Utf8", "LargeUtf8", "Utf8View", "Dictionary(Int8, Utf8)"];
const MULTI_TYPES: [&str; 4] = [
    "FixedSizeList(3 x UInt8)",
    "List(Float64)",
    "LargeList(non-null Boolean, field: 'element')",
    "List(Int64)",
];

fn pick<T: Clone>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())].clone()
}

fn random_meta(rng: &mut StdRng) -> GraphMeta {
    let label_kinds = [
        None,
        Some((
            pick(rng, &CLASS_TYPES[..3]),
            LabelKind::Class { num_classes: 4 },
        )),
        Some((
            pick(rng, &NAME_TYPES),
            LabelKind::ClassName {
                names: ["", "admin", "ü"].map(str::to_owned).to_vec(),
            },
        )),
        Some((pick(rng, &MULTI_TYPES), LabelKind::MultiLabel { width: 3 })),
        Some((pick(rng, &["Float32", "Float64"]), LabelKind::Number)),
    ];
    let label = pick(rng, &label_kinds).map(|(data_type, kind)| LabelMeta {
        data_type: data_type.to_owned(),
        kind,
    });
    let values = SplitValues {
        train: 2,
        val: 0,
        test: 1,
        none: None,
    };
    let splits = [
        None,
        Some((pick(rng, &NAME_TYPES), None)),
        Some(("Int8", Some(values))),
    ];
    let split = pick(rng, &splits).map(|(data_type, numbers)| SplitMeta {
        data_type: data_type.to_owned(),
        values: numbers,
    });
    GraphMeta::from(UntypedMeta {
        id_type: pick(rng, &ID_TYPES),
        features: pick(
            rng,
            &[
                FeatureMeta::None,
                FeatureMeta::Dense { dim: 3 },
                FeatureMeta::Sparse { dim: 9 },
            ],
        ),
        label,
        split,
        edge_weight: rng.random(),
        edge_feature_dim: pick(rng, &[None, Some(1), Some(2)]),
        self_loops: rng.random(),
    })
}

fn random_ids(rng: &mut StdRng, id_type: IdType, n: usize) -> Ids {
    let mut ids = Ids::new(id_type);
    let mut seen = BTreeSet::new();
    while ids.len() < n {
        match id_type {
            IdType::Utf8 => {
                let letters = ["a", "ä", "z", "0"];
                let len = rng.random_range(0..6);
                let text: String = (0..len).map(|_| pick(rng, &letters)).collect();
                if seen.insert(text.clone()) {
                    ids.push_str(&text);
                }
            }
            _ => {
                let value: i64 = rng.random_range(0..1000);
                if seen.insert(value.to_string()) {
                    let signed = if id_type == IdType::UInt64 {
                        value
                    } else {
                        value - 500
                    };
                    let flip = if id_type == IdType::UInt64 {
                        0
                    } else {
                        1 << 63
                    };
                    ids.push_key(signed.cast_unsigned() ^ flip);
                }
            }
        }
    }
    ids
}

fn random_features(rng: &mut StdRng, meta: FeatureMeta, n: usize) -> Features {
    match meta {
        FeatureMeta::None => Features::None,
        FeatureMeta::Dense { dim } => Features::Dense {
            dim,
            values: (0..n * dim).map(|_| rng.random()).collect(),
        },
        FeatureMeta::Sparse { dim } => {
            let (mut offset, mut index, mut value) = (vec![0], Vec::new(), Vec::new());
            for _ in 0..n {
                for _ in 0..rng.random_range(0..4) {
                    index.push(rng.random_range(0..9));
                    value.push(rng.random());
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

fn random_labels(rng: &mut StdRng, meta: Option<&LabelMeta>, n: usize) -> Labels {
    let mut labels = Labels::empty(meta);
    let width = meta.map_or(0, |meta| meta.kind.width());
    for _ in 0..n {
        if rng.random_bool(0.2) {
            labels.push_none();
            continue;
        }
        match &mut labels {
            Labels::None => {}
            Labels::Class(classes) => {
                classes.push(rng.random_range(0..u32::try_from(width).unwrap()));
            }
            Labels::Multi {
                values, present, ..
            } => {
                values.extend((0..width).map(|_| f32::from(rng.random::<bool>())));
                present.push(true);
            }
            Labels::Number(numbers) => numbers.push(rng.random()),
        }
    }
    labels
}

impl Graph {
    pub(super) fn random(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let meta = random_meta(rng);
        let n = rng.random_range(1..40);
        let mut in_src = vec![Vec::new(); n];
        for (dst, list) in in_src.iter_mut().enumerate() {
            // Isolated nodes, nodes with parallel edges and self-loops, and hubs.
            let degree = pick(rng, &[0, 1, 2, 3, 20]);
            let mut sources: Vec<usize> = (0..degree).map(|_| rng.random_range(0..n)).collect();
            if !meta.relations[0].self_loops {
                sources.retain(|&src| src != dst);
            }
            *list = sources;
        }
        let lens: Vec<usize> = in_src.iter().map(Vec::len).collect();
        let dim = meta.relations[0].edge_feature_dim.unwrap_or(0);
        let mut floats = |width: usize| -> Vec<Vec<f32>> {
            lens.iter()
                .map(|len| (0..len * width).map(|_| rng.random()).collect())
                .collect()
        };
        let (weight, edge_feature) = (floats(1), floats(dim));
        let has_split = meta.target().split.is_some();
        let splits = [Split::None, Split::Train, Split::Val, Split::Test];
        Self {
            ids: random_ids(rng, meta.target().id_type, n),
            features: random_features(rng, meta.target().features, n),
            labels: random_labels(rng, meta.target().label.as_ref(), n),
            split: (0..n)
                .map(|_| {
                    if has_split {
                        pick(rng, &splits)
                    } else {
                        Split::None
                    }
                })
                .collect(),
            in_src,
            weight,
            edge_feature,
            meta,
        }
    }

    fn self_weight(&self, node: usize) -> f32 {
        let loops = self.in_src[node].iter().zip(&self.weight[node]);
        loops.filter(|(src, _)| **src == node).map(|(_, w)| w).sum()
    }

    /// The neighbourhood of a target, straight from its definition.
    pub(super) fn feature(&self, target: usize, fanouts: &[HopFanouts]) -> GraphFeature {
        let mut distance = BTreeMap::from([(target, 0)]);
        for hop in 0..fanouts.len() {
            let outermost: Vec<usize> = of_hop(&distance, hop);
            for node in outermost {
                for &src in self.in_src[node].iter().take(keep_at_hop(fanouts, 0, hop)) {
                    distance.entry(src).or_insert(hop + 1);
                }
            }
        }
        let mut nodes = Vec::new();
        let mut hop_offset = vec![0];
        for hop in 0..=fanouts.len() {
            let mut ring = of_hop(&distance, hop);
            ring.sort_by(|&a, &b| self.ids.cmp(a, &self.ids, b));
            nodes.extend(ring);
            hop_offset.push(index(nodes.len()));
        }
        let inner = nodes.iter().filter(|node| distance[node] < fanouts.len());
        let lists = inner.map(|&node| {
            let kept = keep_at_hop(fanouts, 0, distance[&node]).min(self.in_src[node].len());
            (node, kept)
        });
        self.assemble(&nodes, &lists.collect::<Vec<_>>(), hop_offset, target)
    }

    fn assemble(
        &self,
        nodes: &[usize],
        lists: &[(usize, usize)],
        hop_offset: Vec<u32>,
        target: usize,
    ) -> GraphFeature {
        let at = |node: &usize| index(nodes.iter().position(|other| other == node).unwrap());
        let mut in_offset = vec![0];
        let (mut in_src, mut weight, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let dim = self.meta.relations[0].edge_feature_dim.unwrap_or(0);
        for &(node, kept) in lists {
            in_src.extend(self.in_src[node][..kept].iter().map(at));
            weight.extend_from_slice(&self.weight[node][..kept]);
            values.extend_from_slice(&self.edge_feature[node][..kept * dim]);
            in_offset.push(index(in_src.len()));
        }
        let positions: Vec<u32> = nodes.iter().map(|&node| index(node)).collect();
        let sums = nodes.iter().map(|&node| self.weight[node].iter().sum());
        let count_loops =
            |&node: &usize| index(self.in_src[node].iter().filter(|src| **src == node).count());
        let loop_weights = nodes.iter().map(|&node| self.self_weight(node));
        let meta = &self.meta.relations[0];
        let edges = FeatureEdges {
            from: 0,
            to: 0,
            in_degree: nodes
                .iter()
                .map(|&node| index(self.in_src[node].len()))
                .collect(),
            in_weight: meta.edge_weight.then(|| sums.collect()),
            self_loops: meta
                .self_loops
                .then(|| nodes.iter().map(count_loops).collect()),
            self_weight: meta.self_weight().then(|| loop_weights.collect()),
            in_offset,
            in_src,
            edge_weight: meta.edge_weight.then_some(weight),
            edge_feature: meta.edge_feature_dim.map(|_| values),
        };
        GraphFeature {
            target_type: 0,
            labels: self.labels.gather(&[index(target)]),
            split: self.split[target],
            nodes: vec![FeatureNodes {
                node_id: self.ids.gather(&positions),
                hop_offset,
                features: self.features.gather(&positions),
            }],
            edges: vec![edges],
        }
    }

    /// The union of some targets' neighbourhoods, straight from its definition.
    pub(super) fn shard(&self, targets: &[usize], fanouts: &[HopFanouts]) -> GraphShard {
        let mut distance: BTreeMap<usize, usize> = targets.iter().map(|&t| (t, 0)).collect();
        for hop in 0..fanouts.len() {
            for node in of_hop(&distance, hop) {
                for &src in self.in_src[node].iter().take(keep_at_hop(fanouts, 0, hop)) {
                    distance.entry(src).or_insert(hop + 1);
                }
            }
        }
        let mut nodes: Vec<usize> = distance.keys().copied().collect();
        nodes.sort_by(|&a, &b| {
            distance[&a]
                .cmp(&distance[&b])
                .then(self.ids.cmp(a, &self.ids, b))
        });
        let lists = nodes.iter().map(|&node| {
            (
                node,
                keep_at_hop(fanouts, 0, distance[&node]).min(self.in_src[node].len()),
            )
        });
        let mut union = self.assemble(&nodes, &lists.collect::<Vec<_>>(), Vec::new(), nodes[0]);
        let is_target: Vec<bool> = nodes.iter().map(|node| targets.contains(node)).collect();
        let (mut labels, mut split) = (self.labels.empty_like(), Vec::new());
        for (&node, &has_label) in nodes.iter().zip(&is_target) {
            if has_label {
                labels.push_from(&self.labels, index(node));
            } else {
                labels.push_none();
            }
            split.push(if has_label {
                self.split[node]
            } else {
                Split::None
            });
        }
        let (
            FeatureNodes {
                node_id, features, ..
            },
            edges,
        ) = (union.nodes.swap_remove(0), union.edges.swap_remove(0));
        GraphShard {
            target_type: 0,
            nodes: vec![ShardNodes {
                ids: node_id,
                hop: nodes
                    .iter()
                    .map(|node| u8::try_from(distance[node]).unwrap())
                    .collect(),
                features,
                labels,
                split,
                is_target,
            }],
            edges: vec![ShardEdges {
                from: 0,
                to: 0,
                in_degree: edges.in_degree,
                in_weight: edges.in_weight,
                self_loops: edges.self_loops,
                self_weight: edges.self_weight,
                in_offset: edges.in_offset,
                in_src: edges.in_src,
                edge_weight: edges.edge_weight,
                edge_feature: edges.edge_feature,
            }],
        }
    }

    /// Some targets, in the order of their ids.
    pub(super) fn some_targets(&self, seed: u64) -> Vec<usize> {
        let rng = &mut StdRng::seed_from_u64(seed);
        let share: f64 = rng.random();
        let order = self
            .ids
            .sort_permutation()
            .into_iter()
            .map(|node| node as usize);
        let mut targets: Vec<usize> = order.filter(|_| rng.random_bool(share)).collect();
        if targets.is_empty() {
            targets.push(0);
        }
        targets
    }
}

/// Settings for one random graph.
pub(super) fn random_flatten(seed: u64, layout: Layout) -> FlattenMeta {
    let rng = &mut StdRng::seed_from_u64(seed);
    let choices = [
        Fanout::Count(1),
        Fanout::Count(2),
        Fanout::Count(5),
        Fanout::All,
    ];
    let hops = rng.random_range(1..4);
    FlattenMeta {
        hops,
        fanouts: (0..hops).map(|_| pick(rng, &choices).into()).collect(),
        sampling: Sampling::Uniform,
        seed,
        samples_per_target: 1,
        layout,
    }
}

fn of_hop(distance: &BTreeMap<usize, usize>, hop: usize) -> Vec<usize> {
    distance
        .iter()
        .filter(|(_, h)| **h == hop)
        .map(|(node, _)| *node)
        .collect()
}

fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap()
}
