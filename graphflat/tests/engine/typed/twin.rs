//! The slow twin of typed graphs: computes each target's neighbourhood by a walk on the tables.

use super::graph::{Relation, TypedGraph};
use crate::graph::{Edge, Graph, Id, Weights};
use crate::naive::{self, node_features};
use crate::run::Settings;
use graphflat::HopSpec;
use schemas::{FeatureEdges, FeatureNodes, GraphFeature, Split};
use std::collections::BTreeMap;

/// The in-edges of every node of a type, of one relation.
type InEdges = BTreeMap<Id, Vec<Edge>>;

/// Nodes at most some hops away from a target, by hop and type, ascending.
type Hops = Vec<Vec<Vec<Id>>>;

/// Returns how many in-edges of a relation a node at distance `hop` keeps.
fn keep(relation: &Relation, hops: &[HopSpec], hop: usize) -> usize {
    let of_hop = |spec: &HopSpec| match spec {
        HopSpec::Every(fanout) => fanout.limit(),
        HopSpec::ByRelation(named) => named.get(&relation.name).map_or(0, |f| f.0.limit()),
    };
    hops[hop..].iter().map(of_hop).max().unwrap_or(0)
}

/// Returns all neighbourhoods: sample by sample, and in each sample targets in ascending order.
pub(super) fn features(
    graph: &TypedGraph,
    hops: &[HopSpec],
    settings: &Settings,
) -> Vec<GraphFeature> {
    let relations = graph.expanded();
    let in_edges: Vec<InEdges> = relations
        .iter()
        .map(|relation| all_in_edges(graph, relation))
        .collect();
    let targets = naive::targets(&graph.types[graph.target_type].nodes, &settings.targets);
    let mut features = Vec::new();
    for sample in 0..u64::from(settings.samples) {
        let ranked = relations.iter().zip(&in_edges);
        let ranked: Vec<InEdges> = ranked
            .map(|(relation, lists)| ranked_lists(relation, lists, settings, sample))
            .collect();
        for target in &targets {
            let found = walk(graph, &relations, target, hops, &ranked);
            let twin = Twin {
                graph,
                hops,
                in_edges: &in_edges,
                ranked: &ranked,
                found: &found,
            };
            features.push(twin.feature(&relations, target));
        }
    }
    features
}

fn all_in_edges(graph: &TypedGraph, relation: &Relation) -> InEdges {
    let ids = graph.types[relation.to].nodes.ids.iter();
    let mut lists: InEdges = ids.map(|id| (id.clone(), Vec::new())).collect();
    for edge in &relation.edges {
        lists.get_mut(&edge.dst).unwrap().push(edge.clone());
    }
    lists
}

fn ranked_lists(relation: &Relation, lists: &InEdges, settings: &Settings, sample: u64) -> InEdges {
    let ranked = lists.iter().map(|(dst, list)| {
        let ends: Vec<_> = list.iter().map(|edge| (&edge.src, edge.weight)).collect();
        let order = naive::rank_of(&relation.name, &ends, dst, settings, sample);
        (
            dst.clone(),
            order.into_iter().map(|i| list[i].clone()).collect(),
        )
    });
    ranked.collect()
}

fn walk(
    graph: &TypedGraph,
    relations: &[Relation],
    target: &Id,
    hops: &[HopSpec],
    ranked: &[InEdges],
) -> Hops {
    let mut first = vec![Vec::new(); graph.types.len()];
    first[graph.target_type].push(target.clone());
    let mut found = vec![first];
    for hop in 0..hops.len() {
        let mut next: Vec<Vec<Id>> = vec![Vec::new(); graph.types.len()];
        for (relation, lists) in relations.iter().zip(ranked) {
            for node in &found[hop][relation.to] {
                for edge in lists[node].iter().take(keep(relation, hops, hop)) {
                    let mut before = found.iter().flat_map(|known| &known[relation.from]);
                    if before.all(|seen| *seen != edge.src) {
                        next[relation.from].push(edge.src.clone());
                    }
                }
            }
        }
        for nodes in &mut next {
            nodes.sort();
            nodes.dedup();
        }
        found.push(next);
    }
    found
}

/// A neighbourhood being put together.
struct Twin<'a> {
    graph: &'a TypedGraph,
    hops: &'a [HopSpec],
    in_edges: &'a [InEdges],
    ranked: &'a [InEdges],
    found: &'a Hops,
}

impl Twin<'_> {
    fn nodes(&self, type_idx: usize) -> Vec<&Id> {
        self.found.iter().flat_map(|hop| &hop[type_idx]).collect()
    }

    fn feature(&self, relations: &[Relation], target: &Id) -> GraphFeature {
        let targets = &self.graph.types[self.graph.target_type].nodes;
        let row = targets.ids.iter().position(|id| id == target).unwrap();
        let types = self.graph.types.iter().enumerate();
        let edges = relations.iter().enumerate();
        GraphFeature {
            target_type: self.graph.target_type,
            labels: naive::labels(targets, row),
            split: targets.splits.as_ref().map_or(Split::None, |all| all[row]),
            pairs: None,
            nodes: types
                .map(|(type_idx, of)| self.feature_nodes(type_idx, &of.nodes))
                .collect(),
            edges: edges
                .map(|(at, relation)| self.feature_edges(at, relation))
                .collect(),
        }
    }

    fn feature_nodes(&self, type_idx: usize, of_type: &Graph) -> FeatureNodes {
        let nodes = self.nodes(type_idx);
        let row_of = |id: &&Id| of_type.ids.iter().position(|known| known == *id).unwrap();
        let rows: Vec<usize> = nodes.iter().map(row_of).collect();
        let mut hop_offset = vec![0];
        for hop in self.found {
            let before = hop_offset[hop_offset.len() - 1];
            hop_offset.push(before + u32::try_from(hop[type_idx].len()).unwrap());
        }
        FeatureNodes {
            node_id: naive::ids(of_type, &nodes),
            hop_offset,
            features: node_features(of_type, &rows),
        }
    }

    fn feature_edges(&self, at: usize, relation: &Relation) -> FeatureEdges {
        let (dsts, sources) = (self.nodes(relation.to), self.nodes(relation.from));
        let (all, ranked) = (&self.in_edges[at], &self.ranked[at]);
        let mut kept = Vec::new();
        let mut in_offset = vec![0];
        for (hop, nodes) in self.found[..self.hops.len()].iter().enumerate() {
            for node in &nodes[relation.to] {
                kept.extend(ranked[node].iter().take(keep(relation, self.hops, hop)));
                in_offset.push(u32::try_from(kept.len()).unwrap());
            }
        }
        let is_loop = |edge: &&Edge| relation.from == relation.to && edge.src == edge.dst;
        let any_loop = relation.edges.iter().any(|edge| is_loop(&edge));
        let loops = |node: &Id| all[node].iter().filter(is_loop).collect::<Vec<_>>();
        let weighted = relation.weights != Weights::None;
        let count = |number: usize| u32::try_from(number).unwrap();
        let position = |id: &Id| count(sources.iter().position(|node| *node == id).unwrap());
        let per_node = |of: &dyn Fn(&Id) -> u32| dsts.iter().map(|node| of(node)).collect();
        let sums = |of: &dyn Fn(&Id) -> f32| dsts.iter().map(|node| of(node)).collect();
        FeatureEdges {
            from: relation.from,
            to: relation.to,
            in_degree: per_node(&|node| count(all[node].len())),
            in_weight: weighted.then(|| sums(&|node| sum(all[node].iter()))),
            self_loops: any_loop.then(|| per_node(&|node| count(loops(node).len()))),
            self_weight: (any_loop && weighted).then(|| sums(&|node| sum(loops(node).into_iter()))),
            in_offset,
            in_src: kept.iter().map(|edge| position(&edge.src)).collect(),
            edge_weight: weighted.then(|| kept.iter().map(|edge| edge.weight).collect()),
            edge_feature: (relation.edge_dim > 0)
                .then(|| kept.iter().flat_map(|edge| edge.feature.clone()).collect()),
        }
    }
}

/// Sums weights in `f64`, which is exact for the weights of the test graphs.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the sum is exact, then rounded once"
)]
fn sum<'a>(edges: impl Iterator<Item = &'a Edge>) -> f32 {
    edges.map(|edge| f64::from(edge.weight)).sum::<f64>() as f32 + 0.0
}
