//! Keeps in-edges of the edge table in memory, and walks along them from targets.

use super::kept::Kept;
use super::read::Survey;
use crate::FlattenError;
use schemas::{GraphPlan, HopFanouts, keep_at_hop};

/// Returns in-edges, by relation, of all nodes or, if these are too many, of the nodes near
/// `targets`.
///
/// Reads the edge tables once for all nodes, or once for each hop from the targets.
pub(super) fn gather(
    survey: &Survey,
    graph: &GraphPlan,
    fanouts: &[HopFanouts],
    targets: &[u32],
) -> Result<Vec<Kept>, FlattenError> {
    let relations = &survey.relations;
    let limit = |relation, hop| keep_at_hop(fanouts, relation, hop);
    let sizes = (relations.iter().enumerate()).map(|(idx, of)| (&of.in_degree[..], limit(idx, 0)));
    let mut kept: Vec<Kept> = relations
        .iter()
        .map(|of| Kept::empty(of.num_nodes()))
        .collect();
    if Kept::fits_all(sizes) {
        add_room(&mut kept, survey, &survey.order, |relation| {
            limit(relation, 0)
        });
        fill(&mut kept, survey, graph, &survey.order, |relation| {
            limit(relation, 0)
        })?;
        return Ok(kept);
    }
    let mut frontier = targets.to_vec();
    for hop in 0..fanouts.len() {
        frontier.retain(|&node| !has_room(&kept, survey, node));
        let here = |relation| limit(relation, hop);
        add_room(&mut kept, survey, &frontier, here);
        fill(&mut kept, survey, graph, &frontier, here)?;
        let mut next = Vec::new();
        for &node in &frontier {
            for relation in survey.relations_to(node) {
                let of = &relations[relation];
                let in_edges = kept[relation].of(of.row(node), &of.in_degree, here(relation));
                next.extend_from_slice(in_edges);
            }
        }
        next.sort_unstable();
        next.dedup();
        frontier = next;
    }
    Ok(kept)
}

/// Tells whether a node has slots; one to which no relation leads needs none.
fn has_room(kept: &[Kept], survey: &Survey, node: u32) -> bool {
    let mut relations = survey.relations_to(node);
    relations.all(|relation| kept[relation].has(survey.relations[relation].row(node)))
}

fn add_room(kept: &mut [Kept], survey: &Survey, nodes: &[u32], limit: impl Fn(usize) -> usize) {
    for &node in nodes {
        for relation in survey.relations_to(node) {
            let of = &survey.relations[relation];
            kept[relation].add_room(of.row(node), &of.in_degree, limit(relation));
        }
    }
}

/// Reads the edge tables, and keeps up to `limit` in-edges a relation of each of `nodes`.
fn fill(
    kept: &mut [Kept],
    survey: &Survey,
    graph: &GraphPlan,
    nodes: &[u32],
    limit: impl Fn(usize) -> usize,
) -> Result<(), FlattenError> {
    let relations = survey.relations.iter();
    let mut seen: Vec<Vec<Option<u32>>> = relations.map(|of| vec![None; of.num_nodes()]).collect();
    for &node in nodes {
        for relation in survey.relations_to(node) {
            seen[relation][survey.relations[relation].row(node)] = Some(0);
        }
    }
    survey.each_edge(graph, |relation, edge| {
        let row = survey.relations[relation].row(edge.dst);
        if let Some(count) = &mut seen[relation][row] {
            kept[relation].add(row, edge, (*count, limit(relation)));
            *count += 1;
        }
    })
}

/// Numbers of nodes and edges of a union of neighbourhoods.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) nodes: usize,
    pub(super) edges: usize,
}

/// Walks from targets along the in-edges of [`Kept`], any number of times.
pub(super) struct Nearby<'a> {
    survey: &'a Survey,
    fanouts: &'a [HopFanouts],
    kept: &'a [Kept],
    /// For each node, whether the current walk has reached it; all false between walks.
    reached: Vec<bool>,
}

impl<'a> Nearby<'a> {
    pub(super) fn new(
        survey: &'a Survey,
        fanouts: &'a [HopFanouts],
        kept: &'a [Kept],
    ) -> Nearby<'a> {
        Nearby {
            survey,
            fanouts,
            kept,
            reached: vec![false; survey.num_nodes()],
        }
    }

    /// Returns the number of hops of a neighbourhood.
    pub(super) fn num_hops(&self) -> u8 {
        u8::try_from(self.fanouts.len()).expect("hops fit in 8 bits")
    }

    /// Returns the sources of the in-edges of a relation that a neighbourhood keeps for `node`, `hop`
    /// hops from the target.
    pub(super) fn in_edges(&self, relation: usize, node: u32, hop: u8) -> &'a [u32] {
        let of = &self.survey.relations[relation];
        let limit = keep_at_hop(self.fanouts, relation, usize::from(hop));
        self.kept[relation].of(of.row(node), &of.in_degree, limit)
    }

    /// Returns the number of in-edges of all relations that a neighbourhood keeps for `node`, `hop`
    /// hops from the target.
    pub(super) fn num_in_edges(&self, node: u32, hop: u8) -> usize {
        let relations = self.survey.relations_to(node);
        relations
            .map(|relation| self.in_edges(relation, node, hop).len())
            .sum()
    }

    /// Returns the nodes of the neighbourhoods of some targets with their distances in hops,
    /// nearest first.
    pub(super) fn hops(&mut self, targets: &[u32]) -> Vec<(u32, u8)> {
        let mut nodes: Vec<(u32, u8)> = targets.iter().map(|&target| (target, 0)).collect();
        for &target in targets {
            self.reached[target as usize] = true;
        }
        let mut first = 0;
        for hop in 0..self.num_hops() {
            let last = nodes.len();
            for at in first..last {
                let node = nodes[at].0;
                for relation in self.survey.relations_to(node) {
                    for &src in self.in_edges(relation, node, hop) {
                        if !std::mem::replace(&mut self.reached[src as usize], true) {
                            nodes.push((src, hop + 1));
                        }
                    }
                }
            }
            first = last;
        }
        for &(node, _) in &nodes {
            self.reached[node as usize] = false;
        }
        nodes
    }

    /// Returns the size of the union of some targets' neighbourhoods.
    pub(super) fn size(&mut self, targets: &[u32]) -> Size {
        let nodes = self.hops(targets);
        let edges = nodes
            .iter()
            .map(|&(node, hop)| self.num_in_edges(node, hop));
        Size {
            edges: edges.sum(),
            nodes: nodes.len(),
        }
    }
}
