//! A sample of the in-edges of some nodes, drawn while the edge table is read.

use super::edge::Edge;
use schemas::hash_int;

/// Largest number of in-edges of all nodes kept in memory: 256 MiB. Beyond it, only in-edges of
/// nodes near targets are kept.
const SLOTS: usize = 1 << 26;

/// Start of a node without slots.
const ABSENT: usize = usize::MAX;

/// A sample of the in-edges that some nodes have in a relation, in random order. Nodes are counted
/// by their rows in the type that the relation leads to.
pub(crate) struct Kept {
    /// `[nodes of the type]`: where a node's slots start.
    start: Vec<usize>,
    /// Source of each slot.
    src: Vec<u32>,
}

impl Kept {
    /// Makes slots for each node of several relations, whose nodes and in-edges a node are given;
    /// none if that is more than [`SLOTS`] in all.
    pub(super) fn rooms(relations: impl Iterator<Item = (usize, usize)>) -> Option<Vec<Kept>> {
        let mut left = SLOTS;
        relations
            .map(|(num_nodes, limit)| {
                let slots = num_nodes.checked_mul(limit)?;
                left = left.checked_sub(slots)?;
                Some(Kept {
                    start: (0..num_nodes).map(|node| node * limit).collect(),
                    src: vec![0; slots],
                })
            })
            .collect()
    }

    /// Makes a sample without slots.
    pub(super) fn empty(num_nodes: usize) -> Kept {
        Kept {
            start: vec![ABSENT; num_nodes],
            src: Vec::new(),
        }
    }

    /// Tells whether a node has slots.
    pub(super) fn has(&self, row: usize) -> bool {
        self.start[row] != ABSENT
    }

    /// Tells whether the slots of all nodes of several relations, whose degrees and in-edges a node
    /// are given, are at most [`SLOTS`].
    pub(super) fn fits_all<'a>(relations: impl Iterator<Item = (&'a [u32], usize)>) -> bool {
        let slots = relations.map(|(in_degree, limit)| {
            let slots = in_degree.iter().map(|&degree| limit.min(degree as usize));
            slots.sum::<usize>()
        });
        slots.sum::<usize>() <= SLOTS
    }

    /// Adds slots for a node that has none.
    pub(super) fn add_room(&mut self, row: usize, in_degree: &[u32], limit: usize) {
        let start = &mut self.start[row];
        if *start == ABSENT {
            *start = self.src.len();
            let slots = limit.min(in_degree[row] as usize);
            self.src.resize(*start + slots, 0);
        }
    }

    /// Adds an in-edge to a node with `seen` in-edges so far; each in-edge is equally likely in
    /// each slot.
    pub(super) fn add(&mut self, row: usize, edge: Edge, (seen, limit): (u32, usize)) {
        let start = self.start[row];
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
    pub(super) fn of(&self, row: usize, in_degree: &[u32], limit: usize) -> &[u32] {
        let start = self.start[row];
        let count = limit.min(in_degree[row] as usize);
        if start == ABSENT {
            &[]
        } else {
            &self.src[start..start + count]
        }
    }
}
