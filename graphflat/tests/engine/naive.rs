//! The slow twin: computes each target's neighbourhood by a walk on the graph in memory.
//!
//! It implements the contract of sampling and of the GraphFeature again, and shares only the hash
//! with the engine.

use crate::graph::{Graph, Id, LabelColumn, NodeFeatures};
use crate::run::{Choice, Settings};
use schemas::{
    FeatureEdges, FeatureNodes, Features, GraphFeature, Ids, Labels, Layout, NO_CLASS, Split,
};
use std::collections::BTreeMap;
use store::sample::{edge_hash, priority, relation_salt};

/// An in-edge of a node.
#[derive(Clone, Debug, PartialEq)]
struct InEdge {
    src: Id,
    weight: f32,
    feature: Vec<f32>,
}

/// Returns the in-edges of every node in the order of the rows, each row before its reverse.
fn all_in_edges(graph: &Graph) -> BTreeMap<Id, Vec<InEdge>> {
    let mut lists: BTreeMap<Id, Vec<InEdge>> = graph
        .ids
        .iter()
        .map(|id| (id.clone(), Vec::new()))
        .collect();
    for edge in &graph.edges {
        let mut push = |src: &Id, dst: &Id| {
            lists.get_mut(dst).unwrap().push(InEdge {
                src: src.clone(),
                weight: edge.weight,
                feature: edge.feature.clone(),
            });
        };
        push(&edge.src, &edge.dst);
        if graph.undirected {
            push(&edge.dst, &edge.src);
        }
    }
    lists
}

/// Returns each node's place in the order of targets: by smallest source, nodes without in-edges
/// last, then by id.
pub(crate) fn part_order(graph: &Graph) -> BTreeMap<String, usize> {
    let lists = all_in_edges(graph);
    let mut order: Vec<(bool, Option<&Id>, &Id)> = lists
        .iter()
        .map(|(id, list)| (list.is_empty(), list.iter().map(|edge| &edge.src).min(), id))
        .collect();
    order.sort();
    let places = order.into_iter().enumerate();
    let named = places.map(|(place, (_, _, id))| match id {
        Id::Int(number) => (number.to_string(), place),
        Id::Text(text) => (text.clone(), place),
    });
    named.collect()
}

/// Returns the targets of each part, by their place in the order. In `shards`, a part is a range of
/// the order. In `rows`, parts of equal size are dealt in about 256 stretches, forth and back.
pub(crate) fn parts(num_targets: usize, settings: &Settings) -> Vec<Vec<usize>> {
    let places: Vec<usize> = (0..num_targets).collect();
    let most = settings.targets_per_part;
    if settings.layout == Layout::Shards {
        return places.chunks(most).map(<[usize]>::to_vec).collect();
    }
    let size = num_targets.div_ceil(num_targets.div_ceil(most));
    let sizes: Vec<usize> = places.chunks(size).map(<[usize]>::len).collect();
    let rounds = (256 / sizes.len()).max(1);
    let mut parts = vec![Vec::new(); sizes.len()];
    let mut next = 0;
    for round in 1..=rounds {
        let mut turns: Vec<usize> = (0..sizes.len()).collect();
        if round % 2 == 0 {
            turns.reverse();
        }
        for part in turns {
            while parts[part].len() < sizes[part] * round / rounds {
                parts[part].push(next);
                next += 1;
            }
        }
    }
    parts
}

/// Ranks the in-edges of `dst`, given as sources and weights; returns their positions.
pub(crate) fn rank(
    in_edges: &[(&Id, f32)],
    dst: &Id,
    settings: &Settings,
    sample: u64,
) -> Vec<usize> {
    rank_of("", in_edges, dst, settings, sample)
}

/// Ranks the in-edges of `dst` of a relation, as [`rank`].
pub(crate) fn rank_of(
    relation: &str,
    in_edges: &[(&Id, f32)],
    dst: &Id,
    settings: &Settings,
    sample: u64,
) -> Vec<usize> {
    let salt = relation_salt(relation);
    let mut ranked: Vec<_> = in_edges
        .iter()
        .enumerate()
        .map(|(i, &(src, weight))| {
            let earlier = in_edges[..i].iter().filter(|e| e.0 == src).count();
            let ordinal = u32::try_from(earlier).unwrap();
            let hash = edge_hash(salt, hash(src), hash(dst));
            let seed = settings.seed + sample;
            let least_first = priority(settings.sampling, seed, hash, ordinal, weight);
            (least_first, src, ordinal, i)
        })
        .collect();
    ranked.sort();
    ranked.into_iter().map(|(_, _, _, i)| i).collect()
}

fn ranked_list(list: &[InEdge], dst: &Id, settings: &Settings, sample: u64) -> Vec<InEdge> {
    let ends: Vec<_> = list.iter().map(|edge| (&edge.src, edge.weight)).collect();
    let order = rank(&ends, dst, settings, sample);
    order.into_iter().map(|i| list[i].clone()).collect()
}

fn hash(id: &Id) -> u64 {
    match id {
        // The low 64 bits of the two's complement, for any width of the id.
        Id::Int(id) => schemas::hash_int(u64::try_from(id & i128::from(u64::MAX)).unwrap()),
        Id::Text(text) => schemas::xxh::hash_bytes(text.as_bytes()),
    }
}

/// Returns how many in-edges a node at distance `hop` keeps.
pub(crate) fn keep(settings: &Settings, hop: usize) -> usize {
    let later = settings.fanouts[hop..].iter().map(|fanout| fanout.limit());
    later.max().unwrap_or(0)
}

/// Returns the targets in ascending order.
pub(crate) fn targets(graph: &Graph, choice: &Choice) -> Vec<Id> {
    let with_split = |wanted: fn(Split) -> bool| {
        let splits = graph.splits.as_ref().unwrap();
        let nodes = graph.ids.iter().zip(splits);
        nodes
            .filter(|(_, split)| wanted(**split))
            .map(|(id, _)| id.clone())
            .collect()
    };
    let mut targets: Vec<Id> = match choice {
        Choice::All => graph.ids.clone(),
        Choice::Labelled => with_split(|split| split != Split::None),
        Choice::Train => with_split(|split| split == Split::Train),
        Choice::Listed(ids) => ids.clone(),
    };
    targets.sort();
    targets.dedup();
    targets
}

/// Returns all neighbourhoods: sample by sample, and in each sample targets in ascending order.
pub(crate) fn features(graph: &Graph, settings: &Settings) -> Vec<GraphFeature> {
    let in_edges = all_in_edges(graph);
    let row_of: BTreeMap<Id, usize> = graph.ids.iter().cloned().zip(0..).collect();
    let targets = targets(graph, &settings.targets);
    let mut features = Vec::new();
    for sample in 0..u64::from(settings.samples) {
        let ranked: BTreeMap<Id, Vec<InEdge>> = in_edges
            .iter()
            .map(|(dst, edges)| (dst.clone(), ranked_list(edges, dst, settings, sample)))
            .collect();
        for target in &targets {
            let hops = walk(target, settings, &ranked);
            features.push(put_together(
                graph, &hops, settings, &in_edges, &ranked, &row_of,
            ));
        }
    }
    features
}

/// Returns the nodes of each distance, ascending.
fn walk(target: &Id, settings: &Settings, ranked: &BTreeMap<Id, Vec<InEdge>>) -> Vec<Vec<Id>> {
    let mut hops = vec![vec![target.clone()]];
    for hop in 0..settings.fanouts.len() {
        let mut next = Vec::new();
        for node in &hops[hop] {
            for edge in ranked[node].iter().take(keep(settings, hop)) {
                if !hops.iter().flatten().any(|seen| *seen == edge.src) {
                    next.push(edge.src.clone());
                }
            }
        }
        next.sort();
        next.dedup();
        hops.push(next);
    }
    hops
}

fn put_together(
    graph: &Graph,
    hops: &[Vec<Id>],
    settings: &Settings,
    in_edges: &BTreeMap<Id, Vec<InEdge>>,
    ranked: &BTreeMap<Id, Vec<InEdge>>,
    row_of: &BTreeMap<Id, usize>,
) -> GraphFeature {
    let nodes: Vec<&Id> = hops.iter().flatten().collect();
    let rows: Vec<usize> = nodes.iter().map(|id| row_of[*id]).collect();
    let mut kept = Vec::new();
    let mut in_offset = vec![0];
    for (hop, inner) in hops[..hops.len() - 1].iter().enumerate() {
        for node in inner {
            kept.extend(ranked[node].iter().take(keep(settings, hop)));
            in_offset.push(u32::try_from(kept.len()).unwrap());
        }
    }
    let position = |id: &Id| nodes.iter().position(|node| *node == id).unwrap();
    let in_src = kept
        .iter()
        .map(|edge| u32::try_from(position(&edge.src)).unwrap());
    let mut hop_offset = vec![0];
    for hop in hops {
        hop_offset.push(hop_offset.last().unwrap() + u32::try_from(hop.len()).unwrap());
    }
    let edges_of = |node: &&Id| in_edges[*node].iter();
    let has_loop = |(dst, list): (&Id, &Vec<InEdge>)| list.iter().any(|edge| edge.src == *dst);
    let any_loop = in_edges.iter().any(has_loop);
    let loops_of = |node: &Id| -> Vec<&InEdge> {
        let in_edges = in_edges[node].iter();
        in_edges.filter(|edge| edge.src == *node).collect()
    };
    let edges = FeatureEdges {
        from: 0,
        to: 0,
        in_degree: nodes
            .iter()
            .map(|node| u32::try_from(edges_of(node).count()).unwrap())
            .collect(),
        in_weight: graph
            .weighted
            .then(|| nodes.iter().map(|node| sum(edges_of(node))).collect()),
        self_loops: any_loop.then(|| {
            let counts = nodes.iter().map(|node| loops_of(node).len());
            counts.map(|count| u32::try_from(count).unwrap()).collect()
        }),
        self_weight: (any_loop && graph.weighted).then(|| {
            nodes
                .iter()
                .map(|node| sum(loops_of(node).into_iter()))
                .collect()
        }),
        in_offset,
        in_src: in_src.collect(),
        edge_weight: graph
            .weighted
            .then(|| kept.iter().map(|edge| edge.weight).collect()),
        edge_feature: (graph.edge_dim > 0)
            .then(|| kept.iter().flat_map(|edge| edge.feature.clone()).collect()),
    };
    GraphFeature {
        target_type: 0,
        labels: labels(graph, rows[0]),
        split: graph.splits.as_ref().map_or(Split::None, |s| s[rows[0]]),
        pairs: None,
        nodes: vec![FeatureNodes {
            node_id: ids(graph, &nodes),
            hop_offset,
            features: node_features(graph, &rows),
        }],
        edges: vec![edges],
    }
}

/// Sums weights in `f64`, which is exact for the weights of the test graphs.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the sum is exact, then rounded once"
)]
fn sum<'a>(edges: impl Iterator<Item = &'a InEdge>) -> f32 {
    edges.map(|edge| f64::from(edge.weight)).sum::<f64>() as f32 + 0.0
}

pub(crate) fn ids(graph: &Graph, nodes: &[&Id]) -> Ids {
    let mut ids = Ids::new(graph.id_type);
    for node in nodes {
        match node {
            Id::Text(text) => ids.push_str(text),
            Id::Int(id) => ids.push_key(if graph.id_type == schemas::IdType::UInt64 {
                u64::try_from(*id).unwrap()
            } else {
                // The keys of signed ids, which keep the order, count from the smallest integer.
                u64::try_from(id - i128::from(i64::MIN)).unwrap()
            }),
        }
    }
    ids
}

pub(crate) fn labels(graph: &Graph, row: usize) -> Labels {
    match &graph.labels {
        LabelColumn::None => Labels::None,
        LabelColumn::Class(all) => Labels::Class(vec![all[row].unwrap_or(NO_CLASS)]),
        LabelColumn::Name(all) => {
            let mut names: Vec<&str> = all.iter().copied().flatten().collect();
            names.sort_unstable();
            names.dedup();
            let class = |name| names.iter().position(|known| *known == name).unwrap();
            let class = all[row].map_or(NO_CLASS, |name| u32::try_from(class(name)).unwrap());
            Labels::Class(vec![class])
        }
        LabelColumn::Multi(all) => {
            let width = all.iter().flatten().next().unwrap().len();
            let classes = all[row].clone().unwrap_or(vec![false; width]);
            Labels::Multi {
                width,
                values: classes.iter().map(|&is| f32::from(u8::from(is))).collect(),
                present: vec![all[row].is_some()],
            }
        }
        LabelColumn::Number(all) => Labels::Number(vec![all[row].unwrap_or(f32::NAN)]),
    }
}

pub(crate) fn node_features(graph: &Graph, rows: &[usize]) -> Features {
    match &graph.features {
        NodeFeatures::None => Features::None,
        NodeFeatures::Dense(all) => Features::Dense {
            dim: all[0].len(),
            values: rows.iter().flat_map(|&row| all[row].clone()).collect(),
        },
        NodeFeatures::Sparse { width, rows: all } => {
            let entries = || rows.iter().flat_map(|&row| &all[row]);
            let mut offset = vec![0];
            for &row in rows {
                offset.push(offset.last().unwrap() + u64::try_from(all[row].len()).unwrap());
            }
            Features::Sparse {
                dim: usize::try_from(*width).unwrap(),
                offset,
                index: entries().map(|entry| entry.0).collect(),
                value: entries().map(|entry| entry.1).collect(),
            }
        }
    }
}
