//! Hashes of edges, computed where they are needed instead of kept.

use crate::sample::edge_hash;
use schemas::{NodeIdx, hash_int};

/// Integer ids without gaps: the id of a node follows from its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdRun {
    /// Number of the first node.
    pub(crate) first: NodeIdx,
    /// The 64 bits of the first node's id.
    pub(crate) first_value: u64,
}

/// Hashes the edges of a relation whose ends have ids without gaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeHasher {
    /// [`crate::sample::relation_salt`] of the relation.
    pub(crate) salt: u64,
    pub(crate) src: IdRun,
    pub(crate) dst: IdRun,
}

impl IdRun {
    fn hash(self, node: NodeIdx) -> u64 {
        let place = u64::from(node.raw().wrapping_sub(self.first.raw()));
        hash_int(self.first_value.wrapping_add(place))
    }
}

impl EdgeHasher {
    /// Returns the hash of the edges from `src` to `dst`, as [`edge_hash`] of their ids gives it.
    pub(crate) fn hash(&self, src: NodeIdx, dst: NodeIdx) -> u64 {
        self.hash_into(src, self.dst_hash(dst))
    }

    /// Returns the hash of a destination's id, for [`EdgeHasher::hash_into`].
    pub(crate) fn dst_hash(&self, dst: NodeIdx) -> u64 {
        self.dst.hash(dst)
    }

    /// Returns the hash of the edges from `src`, given the hash of the id of their `dst`.
    #[inline]
    pub(crate) fn hash_into(&self, src: NodeIdx, dst_hash: u64) -> u64 {
        edge_hash(self.salt, self.src.hash(src), dst_hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::{IdType, Ids};

    #[test]
    fn hashes_are_those_of_the_ids() {
        let run = |first: u32, id_type: IdType, first_key: u64| {
            let ids = Ids::from_keys(id_type, (first_key..first_key + 9).collect());
            let first_value = ids.value_bits(first_key);
            let first = NodeIdx::from_raw(first);
            (ids, IdRun { first, first_value })
        };
        // The keys of -4 and of 2^64 - 9.
        let (src_ids, src) = run(5, IdType::Int64, (1 << 63) - 4);
        let (dst_ids, dst) = run(14, IdType::UInt64, u64::MAX - 9);
        for salt in [0, 77] {
            let hasher = EdgeHasher { salt, src, dst };
            for (i, j) in [(0, 0), (3, 8), (4, 1), (8, 5)] {
                let [from, to] = [5 + i, 14 + j].map(NodeIdx::from_index);
                let expected = edge_hash(salt, src_ids.hash(i), dst_ids.hash(j));
                assert_eq!(hasher.hash(from, to), expected, "{salt} {i} {j}");
            }
        }
    }
}
