//! Keeps in-edges of the edge table in memory, and walks along them from targets.

use super::kept::Kept;
use super::read::Survey;
use crate::FlattenError;
use schemas::{EdgesPlan, HopFanouts, keep_at_hop};

/// Returns in-edges of all nodes or, if these are too many, of the nodes near `targets`.
///
/// Reads the edge table once for all nodes, or once for each hop from the targets.
pub(super) fn gather(
    survey: &Survey,
    edges: &EdgesPlan,
    fanouts: &[HopFanouts],
    targets: &[u32],
) -> Result<Kept, FlattenError> {
    let (in_degree, limit) = (&survey.in_degree, keep_at_hop(fanouts, 0, 0));
    let mut kept = Kept::empty(survey.num_nodes());
    if Kept::fits_all(in_degree, limit) {
        kept.add_room(&survey.order, in_degree, limit);
        fill(&mut kept, survey, edges, &survey.order, limit)?;
        return Ok(kept);
    }
    let mut frontier = targets.to_vec();
    for hop in 0..fanouts.len() {
        let here = keep_at_hop(fanouts, 0, hop);
        frontier.retain(|&node| !kept.has(node));
        kept.add_room(&frontier, in_degree, here);
        fill(&mut kept, survey, edges, &frontier, here)?;
        let mut next = Vec::new();
        for &node in &frontier {
            next.extend_from_slice(kept.of(in_degree, node, here));
        }
        next.sort_unstable();
        next.dedup();
        frontier = next;
    }
    Ok(kept)
}

/// Reads the edge table, and keeps up to `limit` in-edges of each of `nodes`.
fn fill(
    kept: &mut Kept,
    survey: &Survey,
    edges: &EdgesPlan,
    nodes: &[u32],
    limit: usize,
) -> Result<(), FlattenError> {
    let mut seen = vec![None; survey.num_nodes()];
    nodes
        .iter()
        .for_each(|&node| seen[node as usize] = Some(0_u32));
    survey.each_edge(edges, |edge| {
        if let Some(count) = &mut seen[edge.dst as usize] {
            kept.add(edge, *count, limit);
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
    kept: &'a Kept,
    /// For each node, whether the current walk has reached it; all false between walks.
    reached: Vec<bool>,
}

impl<'a> Nearby<'a> {
    pub(super) fn new(survey: &'a Survey, fanouts: &'a [HopFanouts], kept: &'a Kept) -> Nearby<'a> {
        Nearby {
            survey,
            fanouts,
            kept,
            reached: vec![false; survey.num_nodes()],
        }
    }

    /// Returns the sources of the in-edges that a neighbourhood keeps for `node`, `hop` hops from
    /// the target.
    pub(super) fn in_edges(&self, node: u32, hop: u8) -> &'a [u32] {
        let limit = keep_at_hop(self.fanouts, 0, usize::from(hop));
        self.kept.of(&self.survey.in_degree, node, limit)
    }

    /// Returns the nodes of the neighbourhoods of some targets with their distances in hops,
    /// nearest first.
    pub(super) fn hops(&mut self, targets: &[u32]) -> Vec<(u32, u8)> {
        let mut nodes: Vec<(u32, u8)> = targets.iter().map(|&target| (target, 0)).collect();
        for &target in targets {
            self.reached[target as usize] = true;
        }
        let mut first = 0;
        for hop in 0..self.fanouts.len() {
            let hop = u8::try_from(hop).expect("hops fit in 8 bits");
            let last = nodes.len();
            for at in first..last {
                for &src in self.in_edges(nodes[at].0, hop) {
                    if !std::mem::replace(&mut self.reached[src as usize], true) {
                        nodes.push((src, hop + 1));
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
            .map(|&(node, hop)| self.in_edges(node, hop).len());
        Size {
            edges: edges.sum(),
            nodes: nodes.len(),
        }
    }
}
