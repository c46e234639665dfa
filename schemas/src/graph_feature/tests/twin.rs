//! Random graphs, and the slow twins of extraction and union.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::columns::{
    FeatureMeta, Features, GraphMeta, LabelKind, LabelMeta, Labels, RelationMeta, Split, SplitMeta,
    TypeMeta,
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
    /// By node type.
    types: Vec<Nodes>,
    /// By relation.
    relations: Vec<Edges>,
}

/// The nodes of one type.
struct Nodes {
    ids: Ids,
    features: Features,
    labels: Labels,
    split: Vec<Split>,
}

/// The edges of one relation, by destination.
struct Edges {
    in_src: Vec<Vec<usize>>,
    weight: Vec<Vec<f32>>,
    edge_feature: Vec<Vec<f32>>,
}

/// Nodes of a neighbourhood or a union, by type and in their order, with their distances.
struct Region(Vec<Vec<(usize, usize)>>);

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

fn random_label(rng: &mut StdRng) -> Option<LabelMeta> {
    let kinds = [
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
    pick(rng, &kinds).map(|(data_type, kind)| LabelMeta {
        data_type: data_type.to_owned(),
        kind,
    })
}

fn random_split(rng: &mut StdRng) -> Option<SplitMeta> {
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
    pick(rng, &splits).map(|(data_type, numbers)| SplitMeta {
        data_type: data_type.to_owned(),
        values: numbers,
    })
}

/// Describes a graph of the given types and relations, which are sorted; targets are of one type.
fn random_meta(rng: &mut StdRng, types: &[&str], relations: &[&str]) -> GraphMeta {
    let target_type = rng.random_range(0..types.len());
    let shapes = [
        FeatureMeta::None,
        FeatureMeta::Dense { dim: 3 },
        FeatureMeta::Sparse { dim: 9 },
    ];
    let types = types.iter().enumerate().map(|(type_idx, name)| {
        let is_target = type_idx == target_type;
        TypeMeta {
            name: (*name).to_owned(),
            id_type: pick(rng, &ID_TYPES),
            features: pick(rng, &shapes),
            columns: Vec::new(),
            label: random_label(rng).filter(|_| is_target),
            split: random_split(rng).filter(|_| is_target),
        }
    });
    let types: Vec<TypeMeta> = types.collect();
    let relations = relations.iter().map(|name| {
        let (from, to) = (
            rng.random_range(0..types.len()),
            rng.random_range(0..types.len()),
        );
        RelationMeta {
            name: (*name).to_owned(),
            from,
            to,
            edge_weight: rng.random(),
            edge_feature_dim: pick(rng, &[None, Some(1), Some(2)]),
            self_loops: from == to && rng.random(),
        }
    });
    GraphMeta {
        relations: relations.collect(),
        types,
        target_type,
        pairs: None,
    }
}

/// Some of the names, in order.
fn some_of<'a>(rng: &mut StdRng, names: &[&'a str], num: usize) -> Vec<&'a str> {
    let mut chosen = names.to_vec();
    while chosen.len() > num {
        chosen.remove(rng.random_range(0..chosen.len()));
    }
    chosen
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
                let value: i64 = rng.random_range(0..100);
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

/// A relation may have the name of a type. Capitals come before small letters.
const TYPE_NAMES: [&str; 6] = ["Author", "a-b", "a0", "cites", "paper", "venue"];
const RELATION_NAMES: [&str; 9] = [
    "Author", "a", "a_b", "cites", "paper", "t", "writes", "writes2", "z-9",
];

impl Graph {
    /// An untyped graph for even seeds, else one of 2 to 5 types and 1 to 8 relations.
    pub(super) fn random(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        if seed.is_multiple_of(2) {
            let meta = random_meta(rng, &[""], &[""]);
            return Self::random_of(rng, meta);
        }
        let (num_types, num_relations) = (rng.random_range(2..6), rng.random_range(1..9));
        let types = some_of(rng, &TYPE_NAMES, num_types);
        let relations = some_of(rng, &RELATION_NAMES, num_relations);
        let meta = random_meta(rng, &types, &relations);
        Self::random_of(rng, meta)
    }

    fn random_of(rng: &mut StdRng, meta: GraphMeta) -> Self {
        let types = meta.types.iter().enumerate().map(|(type_idx, of_type)| {
            // There may be a type without nodes, but not without targets.
            let least = usize::from(type_idx == meta.target_type);
            let n = rng.random_range(least..40);
            random_nodes(rng, of_type, n)
        });
        let types: Vec<Nodes> = types.collect();
        let relations = meta.relations.iter();
        Self {
            relations: relations
                .map(|relation| random_edges(rng, relation, &types))
                .collect(),
            types,
            meta,
        }
    }

    /// The nodes that are at most some hops away from the nearest target, with their distances.
    fn region(&self, targets: &[usize], fanouts: &[HopFanouts]) -> Region {
        let of_targets = targets
            .iter()
            .map(|&target| (self.meta.target_type, target));
        let mut distance: BTreeMap<(usize, usize), usize> =
            of_targets.map(|target| (target, 0)).collect();
        for hop in 0..fanouts.len() {
            let outermost: Vec<(usize, usize)> = distance
                .iter()
                .filter(|(_, of_node)| **of_node == hop)
                .map(|(node, _)| *node)
                .collect();
            for (type_idx, node) in outermost {
                for relation in self.meta.relations_to(type_idx) {
                    let (from, limit) = (
                        self.meta.relations[relation].from,
                        keep_at_hop(fanouts, relation, hop),
                    );
                    let sources = &self.relations[relation].in_src[node];
                    for &src in sources.iter().take(limit) {
                        distance.entry((from, src)).or_insert(hop + 1);
                    }
                }
            }
        }
        let mut nodes = vec![Vec::new(); self.types.len()];
        for ((type_idx, node), hop) in distance {
            nodes[type_idx].push((node, hop));
        }
        for (own, Nodes { ids, .. }) in nodes.iter_mut().zip(&self.types) {
            own.sort_by(|a, b| a.1.cmp(&b.1).then(ids.cmp(a.0, ids, b.0)));
        }
        Region(nodes)
    }

    /// The in-edges that a region keeps of a relation. `in_offset` ends with the last node that is
    /// nearer than `hops`.
    fn edges(&self, relation: usize, region: &Region, fanouts: &[HopFanouts]) -> FeatureEdges {
        let (meta, all) = (&self.meta.relations[relation], &self.relations[relation]);
        let (dsts, sources) = (&region.0[meta.to], &region.0[meta.from]);
        let at = |src: &usize| index(sources.iter().position(|(node, _)| node == src).unwrap());
        let mut in_offset = vec![0];
        let (mut in_src, mut weight, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let dim = meta.edge_feature_dim.unwrap_or(0);
        for &(node, hop) in dsts.iter().filter(|(_, hop)| *hop < fanouts.len()) {
            let kept = keep_at_hop(fanouts, relation, hop).min(all.in_src[node].len());
            in_src.extend(all.in_src[node][..kept].iter().map(at));
            weight.extend_from_slice(&all.weight[node][..kept]);
            values.extend_from_slice(&all.edge_feature[node][..kept * dim]);
            in_offset.push(index(in_src.len()));
        }
        let dsts = || dsts.iter().map(|(node, _)| *node);
        let loops = |node: usize| all.in_src[node].iter().filter(move |src| **src == node);
        let loop_weight = |node: usize| {
            let edges = all.in_src[node].iter().zip(&all.weight[node]);
            edges.filter(|(src, _)| **src == node).map(|(_, w)| w).sum()
        };
        FeatureEdges {
            from: meta.from,
            to: meta.to,
            in_degree: dsts().map(|node| index(all.in_src[node].len())).collect(),
            in_weight: meta
                .edge_weight
                .then(|| dsts().map(|node| all.weight[node].iter().sum()).collect()),
            self_loops: meta
                .self_loops
                .then(|| dsts().map(|node| index(loops(node).count())).collect()),
            self_weight: meta
                .self_weight()
                .then(|| dsts().map(loop_weight).collect()),
            in_offset,
            in_src,
            edge_weight: meta.edge_weight.then_some(weight),
            edge_feature: meta.edge_feature_dim.map(|_| values),
        }
    }

    fn targets(&self) -> &Nodes {
        &self.types[self.meta.target_type]
    }

    /// The neighbourhood of a target, straight from its definition.
    pub(super) fn feature(&self, target: usize, fanouts: &[HopFanouts]) -> GraphFeature {
        let region = self.region(&[target], fanouts);
        let nodes = region.0.iter().zip(&self.types).map(|(own, of_type)| {
            let positions: Vec<u32> = own.iter().map(|(node, _)| index(*node)).collect();
            let before = |hop| index(own.iter().filter(|(_, of_node)| *of_node < hop).count());
            FeatureNodes {
                node_id: of_type.ids.gather(&positions),
                hop_offset: (0..fanouts.len() + 2).map(before).collect(),
                features: of_type.features.gather(&positions),
            }
        });
        let relations = 0..self.relations.len();
        GraphFeature {
            target_type: self.meta.target_type,
            labels: self.targets().labels.gather(&[index(target)]),
            split: self.targets().split[target],
            pairs: None,
            nodes: nodes.collect(),
            edges: relations
                .map(|relation| self.edges(relation, &region, fanouts))
                .collect(),
        }
    }

    /// The union of some targets' neighbourhoods, straight from its definition.
    pub(super) fn shard(&self, targets: &[usize], fanouts: &[HopFanouts]) -> GraphShard {
        let region = self.region(targets, fanouts);
        let nodes = (0..self.types.len()).map(|type_idx| {
            let (nodes, region) = (&self.types[type_idx], &region.0[type_idx]);
            let positions: Vec<u32> = region.iter().map(|(node, _)| index(*node)).collect();
            let (mut labels, mut split) = (nodes.labels.empty_like(), Vec::new());
            for &(node, hop) in region {
                if hop == 0 {
                    labels.push_from(&nodes.labels, index(node));
                    split.push(nodes.split[node]);
                } else {
                    labels.push_none();
                    split.push(Split::None);
                }
            }
            let hop = region.iter().map(|(_, hop)| u8::try_from(*hop).unwrap());
            ShardNodes {
                ids: nodes.ids.gather(&positions),
                hop: hop.collect(),
                features: nodes.features.gather(&positions),
                labels,
                split,
                is_target: region.iter().map(|(_, at)| *at == 0).collect(),
            }
        });
        let edges = (0..self.relations.len()).map(|relation| {
            let mut edges = self.edges(relation, &region, fanouts);
            // Nodes of the last hop have empty lists.
            let num_nodes = region.0[edges.to].len();
            edges
                .in_offset
                .resize(num_nodes + 1, index(edges.in_src.len()));
            ShardEdges {
                from: edges.from,
                to: edges.to,
                in_degree: edges.in_degree,
                in_weight: edges.in_weight,
                self_loops: edges.self_loops,
                self_weight: edges.self_weight,
                in_offset: edges.in_offset,
                in_src: edges.in_src,
                edge_weight: edges.edge_weight,
                edge_feature: edges.edge_feature,
            }
        });
        GraphShard {
            target_type: self.meta.target_type,
            nodes: nodes.collect(),
            edges: edges.collect(),
            pairs: None,
        }
    }

    /// Some targets, in the order of their ids.
    pub(super) fn some_targets(&self, seed: u64) -> Vec<usize> {
        let rng = &mut StdRng::seed_from_u64(seed);
        let share: f64 = rng.random();
        let order = self.targets().ids.sort_permutation();
        let order = order.into_iter().map(|node| node as usize);
        let mut targets: Vec<usize> = order.filter(|_| rng.random_bool(share)).collect();
        if targets.is_empty() {
            targets.push(0);
        }
        targets
    }

    /// Settings for this graph.
    pub(super) fn flatten(&self, seed: u64, layout: Layout) -> FlattenMeta {
        let rng = &mut StdRng::seed_from_u64(seed);
        let choices = [
            Fanout::Count(1),
            Fanout::Count(2),
            Fanout::Count(5),
            Fanout::All,
            Fanout::Count(0),
        ];
        let choices = &choices[..if self.meta.is_typed() { 5 } else { 4 }];
        let hops = rng.random_range(1..4);
        let of_hop = |_| {
            let fanouts = self.relations.iter().map(|_| pick(rng, choices));
            HopFanouts::from(fanouts.collect::<Vec<_>>())
        };
        FlattenMeta {
            hops,
            fanouts: (0..hops).map(of_hop).collect(),
            sampling: Sampling::Uniform,
            seed,
            samples_per_target: 1,
            layout,
        }
    }
}

fn random_nodes(rng: &mut StdRng, meta: &TypeMeta, n: usize) -> Nodes {
    let splits = [Split::None, Split::Train, Split::Val, Split::Test];
    let splits = &splits[..if meta.split.is_some() { 4 } else { 1 }];
    Nodes {
        ids: random_ids(rng, meta.id_type, n),
        features: random_features(rng, meta.features, n),
        labels: random_labels(rng, meta.label.as_ref(), n),
        split: (0..n).map(|_| pick(rng, splits)).collect(),
    }
}

fn random_edges(rng: &mut StdRng, meta: &RelationMeta, types: &[Nodes]) -> Edges {
    let [num_sources, num_nodes] = [meta.from, meta.to].map(|end| types[end].ids.len());
    let mut in_src = Vec::new();
    for dst in 0..num_nodes {
        // Isolated nodes, nodes with parallel edges and self-loops, and hubs.
        let degree = if num_sources == 0 {
            0
        } else {
            pick(rng, &[0, 1, 2, 3, 20])
        };
        let mut sources: Vec<usize> = (0..degree)
            .map(|_| rng.random_range(0..num_sources))
            .collect();
        if meta.from == meta.to && !meta.self_loops {
            sources.retain(|&src| src != dst);
        }
        in_src.push(sources);
    }
    let lens: Vec<usize> = in_src.iter().map(Vec::len).collect();
    let dim = meta.edge_feature_dim.unwrap_or(0);
    let mut floats = |width: usize| -> Vec<Vec<f32>> {
        lens.iter()
            .map(|len| (0..len * width).map(|_| rng.random()).collect())
            .collect()
    };
    Edges {
        weight: floats(1),
        edge_feature: floats(dim),
        in_src,
    }
}

fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap()
}
