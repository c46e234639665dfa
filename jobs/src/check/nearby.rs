//! The kept in-edges of nodes, and walks from targets along them.

use schemas::{Fanout, hash_int, keep_at_hop};

use super::survey::{Edge, Survey};
use crate::error::JobError;
use crate::job::Job;

/// In-edges kept in memory at most, where nodes can be left out: 256 MiB.
const SLOTS: usize = 1 << 26;

/// No slots.
const ABSENT: usize = usize::MAX;

/// A sample of the in-edges of some nodes, in a random order of its own.
pub(crate) struct Kept {
    /// `[num_nodes]`: where a node's slots start.
    start: Vec<usize>,
    /// A source a slot.
    src: Vec<u32>,
}

impl Kept {
    /// Room for as many in-edges of each node, where that is not too much.
    pub(crate) fn room(num_nodes: usize, limit: usize) -> Option<Kept> {
        let slots = num_nodes.checked_mul(limit)?;
        (slots <= SLOTS).then(|| Kept {
            start: (0..num_nodes).map(|node| node * limit).collect(),
            src: vec![0; slots],
        })
    }

    /// Adds slots for those nodes that have none.
    fn add_room(&mut self, nodes: &[u32], in_degree: &[u32], limit: usize) {
        for &node in nodes {
            let start = &mut self.start[node as usize];
            if *start == ABSENT {
                *start = self.src.len();
                let slots = limit.min(in_degree[node as usize] as usize);
                self.src.resize(*start + slots, 0);
            }
        }
    }

    /// Takes an in-edge of a node of which some were seen; each is as likely to be in each slot.
    pub(crate) fn add(&mut self, edge: Edge, seen: u32, limit: usize) {
        let start = self.start[edge.dst as usize];
        let seen_before = seen as usize;
        let draw = hash_int(edge.row ^ (u64::from(edge.src) << 32)) >> 32;
        let at = u32::try_from((draw * (u64::from(seen) + 1)) >> 32).expect("at most `seen`");
        let at = at as usize;
        if seen_before < limit {
            self.src[start + seen_before] = self.src[start + at];
            self.src[start + at] = edge.src;
        } else if at < limit {
            self.src[start + at] = edge.src;
        }
    }

    /// Keeps in-edges of all nodes or, where they are too many, of those near some targets.
    ///
    /// Reads the edge table once, or once a hop.
    pub(crate) fn gather(
        job: &Job,
        survey: &Survey,
        fanouts: &[Fanout],
        targets: &[u32],
    ) -> Result<Kept, JobError> {
        let (degrees, limit) = (&survey.in_degree, keep_at_hop(fanouts, 0));
        let slots = |degree: &u32| limit.min(*degree as usize);
        let mut kept = Kept {
            start: vec![ABSENT; survey.num_nodes()],
            src: Vec::new(),
        };
        if degrees.iter().map(slots).sum::<usize>() <= SLOTS {
            kept.add_room(&survey.order, degrees, limit);
            kept.fill(job, survey, &survey.order, limit)?;
            return Ok(kept);
        }
        let mut frontier = targets.to_vec();
        for hop in 0..fanouts.len() {
            let here = keep_at_hop(fanouts, hop);
            frontier.retain(|&node| kept.start[node as usize] == ABSENT);
            kept.add_room(&frontier, degrees, here);
            kept.fill(job, survey, &frontier, here)?;
            let mut next = Vec::new();
            for &node in &frontier {
                next.extend_from_slice(kept.of(survey, node, here));
            }
            next.sort_unstable();
            next.dedup();
            frontier = next;
        }
        Ok(kept)
    }

    /// Fills the slots of some nodes from the edge table.
    fn fill(
        &mut self,
        job: &Job,
        survey: &Survey,
        nodes: &[u32],
        limit: usize,
    ) -> Result<(), JobError> {
        let mut seen = vec![None; survey.num_nodes()];
        nodes
            .iter()
            .for_each(|&node| seen[node as usize] = Some(0_u32));
        survey.each_edge(&job.edges, |edge| {
            if let Some(count) = &mut seen[edge.dst as usize] {
                self.add(edge, *count, limit);
                *count += 1;
            }
        })
    }

    /// The first so many in-edges of a node.
    fn of(&self, survey: &Survey, node: u32, limit: usize) -> &[u32] {
        let start = self.start[node as usize];
        let count = limit.min(survey.in_degree[node as usize] as usize);
        if start == ABSENT {
            &[]
        } else {
            &self.src[start..start + count]
        }
    }
}

/// Nodes and edges of a union of neighbourhoods.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) edges: usize,
}

/// Walks from targets along kept in-edges.
pub(crate) struct Nearby<'a> {
    survey: &'a Survey,
    fanouts: &'a [Fanout],
    kept: &'a Kept,
    /// Nodes of the walk at hand; none between walks.
    reached: Vec<bool>,
}

impl<'a> Nearby<'a> {
    pub(crate) fn new(survey: &'a Survey, fanouts: &'a [Fanout], kept: &'a Kept) -> Nearby<'a> {
        Nearby {
            survey,
            fanouts,
            kept,
            reached: vec![false; survey.num_nodes()],
        }
    }

    /// A node's in-edges at a distance from its target.
    pub(crate) fn in_edges(&self, node: u32, hop: u8) -> &'a [u32] {
        let limit = keep_at_hop(self.fanouts, usize::from(hop));
        self.kept.of(self.survey, node, limit)
    }

    /// Walks from some targets to the last hop: the nodes, nearest first, and their distances.
    pub(crate) fn hops(&mut self, targets: &[u32]) -> Vec<(u32, u8)> {
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

    /// The size of the union of some targets' neighbourhoods.
    pub(crate) fn size(&mut self, targets: &[u32]) -> Size {
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
