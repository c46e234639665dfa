//! A sample of the in-edges of some nodes, drawn while the edge table is read.

use super::edge::Edge;
use schemas::hash_int;

/// Largest number of in-edges of all nodes kept in memory: 256 MiB. Beyond it, only in-edges of
/// nodes near targets are kept.
const SLOTS: usize = 1 << 26;

/// Start of a node without slots.
const ABSENT: usize = usize::MAX;

/// A sample of the in-edges of some nodes, in random order.
pub(crate) struct Kept {
    /// `[num_nodes]`: where a node's slots start.
    start: Vec<usize>,
    /// Source of each slot.
    src: Vec<u32>,
}

impl Kept {
    /// Makes `limit` slots for each node; none if that is more than [`SLOTS`] in all.
    pub(super) fn room(num_nodes: usize, limit: usize) -> Option<Kept> {
        let slots = num_nodes.checked_mul(limit)?;
        (slots <= SLOTS).then(|| Kept {
            start: (0..num_nodes).map(|node| node * limit).collect(),
            src: vec![0; slots],
        })
    }

    /// Makes a sample without slots.
    pub(super) fn empty(num_nodes: usize) -> Kept {
        Kept {
            start: vec![ABSENT; num_nodes],
            src: Vec::new(),
        }
    }

    /// Tells whether a node has slots.
    pub(super) fn has(&self, node: u32) -> bool {
        self.start[node as usize] != ABSENT
    }

    /// Tells whether the slots of all nodes are at most [`SLOTS`].
    pub(super) fn fits_all(in_degree: &[u32], limit: usize) -> bool {
        let slots = in_degree.iter().map(|&degree| limit.min(degree as usize));
        slots.sum::<usize>() <= SLOTS
    }

    /// Adds slots for the nodes that have none.
    pub(super) fn add_room(&mut self, nodes: &[u32], in_degree: &[u32], limit: usize) {
        for &node in nodes {
            let start = &mut self.start[node as usize];
            if *start == ABSENT {
                *start = self.src.len();
                let slots = limit.min(in_degree[node as usize] as usize);
                self.src.resize(*start + slots, 0);
            }
        }
    }

    /// Adds an in-edge to a node with `seen` in-edges so far; each in-edge is equally likely in
    /// each slot.
    pub(super) fn add(&mut self, edge: Edge, seen: u32, limit: usize) {
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

    /// Returns the first `limit` in-edges of a node; none if the node has no slots.
    pub(super) fn of(&self, in_degree: &[u32], node: u32, limit: usize) -> &[u32] {
        let start = self.start[node as usize];
        let count = limit.min(in_degree[node as usize] as usize);
        if start == ABSENT {
            &[]
        } else {
            &self.src[start..start + count]
        }
    }
}
