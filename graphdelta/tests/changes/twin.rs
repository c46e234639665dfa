//! Slow twins: samples by sorting all in-edges, and reached nodes by a walk over bitmaps.

use std::collections::{BTreeMap, BTreeSet};

use graphdelta::{Degrees, ReachPlan, Work};
use schemas::Sampling;
use store::sample::{edge_hash, priority, relation_salt};

use crate::case::{Shape, Snapshot};

/// Type and id.
pub(crate) type Node = (usize, i64);

/// The first in-edges of each node of one relation, sources with weights, and how many in-edges
/// and self-loops it has.
pub(crate) type Lists = BTreeMap<Node, (Vec<(Node, f32)>, (u64, u64))>;

/// Ranks the in-edges of all nodes; one entry for each relation.
pub(crate) fn lists(
    shape: &Shape,
    snapshot: &Snapshot,
    (sampling, keep): (Sampling, &[usize]),
) -> Vec<Lists> {
    let relations = shape.relations();
    let ranked = relations
        .iter()
        .zip(keep)
        .map(|(&(name, from, to), &keep)| {
            let mut lists = Lists::new();
            for (dst, edges) in in_edges(shape, snapshot, name) {
                let mut ordinals = BTreeMap::new();
                let mut ranked = Vec::new();
                for (src, weight) in edges {
                    let ordinal = ordinals.entry(src).or_insert(0u32);
                    let hash = edge_hash(
                        relation_salt(name),
                        shape.hash(from, src),
                        shape.hash(to, dst),
                    );
                    let drawn = priority(sampling, 11, hash, *ordinal, weight);
                    ranked.push((drawn, shape.id_order(from, src), *ordinal, src, weight));
                    *ordinal += 1;
                }
                ranked.sort_by(|a, b| (a.0, &a.1, a.2).cmp(&(b.0, &b.1, b.2)));
                let in_degree = ranked.len() as u64;
                let loops = ranked.iter().filter(|edge| (from, edge.3) == (to, dst));
                let degree = (in_degree, loops.count() as u64);
                let kept = ranked.iter().take(keep);
                let kept = kept
                    .map(|&(.., src, weight)| ((from, src), weight))
                    .collect();
                lists.insert((to, dst), (kept, degree));
            }
            lists
        });
    ranked.collect()
}

/// Returns the in-edges of a relation by destination, in the order of the table.
fn in_edges(shape: &Shape, snapshot: &Snapshot, name: &str) -> BTreeMap<i64, Vec<(i64, f32)>> {
    let mut all: BTreeMap<i64, Vec<(i64, f32)>> = BTreeMap::new();
    for (of, edges) in shape.tables.iter().zip(&snapshot.edges) {
        for edge in edges {
            if of.name == name {
                all.entry(edge.dst)
                    .or_default()
                    .push((edge.src, edge.weight));
            }
            if of.reverse == Some(name) || (of.name == name && of.undirected) {
                all.entry(edge.src)
                    .or_default()
                    .push((edge.dst, edge.weight));
            }
        }
    }
    all
}

impl Shape {
    /// A key by which ids of a type compare.
    fn id_order(&self, type_idx: usize, id: i64) -> (i64, String) {
        match type_idx % 2 {
            0 => (id, String::new()),
            _ => (0, self.id(type_idx, id)),
        }
    }
}

/// The nodes of each step of the walks over hops and over layers.
pub(crate) fn reach(
    (before, after): (&Snapshot, &Snapshot),
    (old, new): (&[Lists], &[Lists]),
    plan: &ReachPlan,
) -> [Vec<BTreeSet<Node>>; 2] {
    let nodes: BTreeSet<Node> = all_nodes(after).collect();
    let feature = |of: &Snapshot, node: &Node| of.nodes[node.0].get(&node.1).copied();
    let inputs = nodes
        .iter()
        .filter(|node| feature(before, node) != feature(after, node));
    let inputs: BTreeSet<Node> = inputs.copied().collect();
    let list = |of: &Lists, node: &Node| of.get(node).cloned().unwrap_or_default();
    let degrees = nodes.iter().filter(|node| {
        let mut both = old.iter().zip(new);
        both.any(|(a, b)| list(a, node).1 != list(b, node).1)
    });
    let degrees: BTreeSet<Node> = degrees.copied().collect();
    // A layer aggregates all in-edges of a hub in another way.
    let is_hub = |of: &Lists, node: &Node, limit: usize| {
        let (in_degree, _) = list(of, node).1;
        in_degree > plan.hub_edges as u64 && in_degree <= limit as u64
    };
    let turns = |relation: usize, node: &Node| {
        let limits = plan.layers.iter().map(|limits| limits[relation]);
        let [a, b] = [&old[relation], &new[relation]];
        let mut both = limits.map(|limit| [a, b].map(|of| is_hub(of, node, limit)));
        both.any(|[in_old, in_new]| in_old != in_new)
    };
    let walk = |steps: Vec<&Vec<usize>>, reads: Degrees| {
        let mut first = inputs.clone();
        if reads == Degrees::Sources {
            first.extend(&degrees);
        }
        let mut reached = vec![first];
        for limits in steps {
            let last = reached.last().unwrap();
            let mut next = last.clone();
            if reads != Degrees::None {
                next.extend(&degrees);
            }
            for (relation, ((a, b), &limit)) in old.iter().zip(new).zip(limits).enumerate() {
                for node in &nodes {
                    let [in_old, in_new] = [a, b].map(|of| list(of, node).0);
                    let cut = |of: &[(Node, f32)]| of[..of.len().min(limit)].to_vec();
                    let sources = cut(&in_new);
                    let differs = cut(&in_old) != sources || limit > 0 && turns(relation, node);
                    if differs || sources.iter().any(|(src, _)| last.contains(src)) {
                        next.insert(*node);
                    }
                }
            }
            reached.push(next);
        }
        reached
    };
    [
        walk(plan.hops.iter().rev().collect(), Degrees::None),
        walk(plan.layers.iter().collect(), plan.degrees),
    ]
}

fn all_nodes(snapshot: &Snapshot) -> impl Iterator<Item = Node> {
    let types = snapshot.nodes.iter().enumerate();
    types.flat_map(|(at, of)| of.keys().map(move |&id| (at, id)))
}

/// Counts some nodes and the in-edges that they read.
pub(crate) fn work(nodes: &BTreeSet<Node>, lists: &[Lists], limits: &[usize]) -> Work {
    let in_edges = lists.iter().zip(limits).flat_map(|(of, &limit)| {
        let read = nodes.iter().filter_map(|node| of.get(node));
        read.map(move |(_, (in_degree, _))| (*in_degree).min(limit as u64))
    });
    Work {
        rows: nodes.len() as u64,
        in_edges: in_edges.sum(),
    }
}
