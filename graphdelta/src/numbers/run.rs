//! Integer ids without gaps: node and id follow from each other, without a look at the store.

use schemas::{Ids, NodeIdx, hash_int};
use store::Store;

/// The nodes of a type whose ids are integers without gaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    first: NodeIdx,
    count: u64,
    /// [`Ids::value_bits`] of the first id; those of the others follow, one by one.
    bits: u64,
    is_signed: bool,
}

impl Run {
    /// Returns the nodes of a type in the store; none if it has none, or their ids have gaps.
    pub(crate) fn of(store: &Store, type_idx: usize) -> Option<Self> {
        let nodes = store.placement().type_range(type_idx);
        let bits = |node: NodeIdx| {
            let (owner, local) = store.placement().owner_and_local(node);
            let (ids, row) = store.partition(owner).id(local);
            let bits = ids.value_bits(ids.as_int(row)?);
            Some((bits, ids.id_type().is_signed()))
        };
        let count = nodes.end.index() - nodes.start.index();
        let last = NodeIdx::from_index(nodes.start.index() + count.checked_sub(1)?);
        let ((first_bits, is_signed), (last_bits, _)) = (bits(nodes.start)?, bits(last)?);
        // Numbers ascend as ids do.
        (last_bits.wrapping_sub(first_bits) == count as u64 - 1).then_some(Self {
            first: nodes.start,
            count: count as u64,
            bits: first_bits,
            is_signed,
        })
    }

    /// Finds the node with the id in a row.
    pub(crate) fn find(&self, ids: &Ids, row: usize) -> Option<NodeIdx> {
        self.find_key(ids, ids.as_int(row)?)
    }

    /// Finds the node with the id that a key of `ids` stands for.
    pub(crate) fn find_key(&self, ids: &Ids, key: u64) -> Option<NodeIdx> {
        let bits = ids.value_bits(key);
        // Negative ids and those from 2^63 on have the same bits.
        if ids.id_type().is_signed() != self.is_signed && bits >> 63 == 1 {
            return None;
        }
        let step = bits.wrapping_sub(self.bits);
        let place = u32::try_from(step).ok().filter(|_| step < self.count)?;
        Some(self.first.after(place))
    }

    /// Returns the hash of the id of one of the nodes.
    pub(crate) fn hash(&self, node: NodeIdx) -> u64 {
        let step = u64::from(node.raw() - self.first.raw());
        hash_int(self.bits.wrapping_add(step))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, Int64Array, UInt64Array};

    use super::*;

    #[test]
    fn nodes_and_hashes_follow_from_ids() {
        let first = NodeIdx::from_raw(7);
        let ids = |array: ArrayRef| Ids::from_array(&array).unwrap();
        let half = u64::MAX / 2;
        let cases = [
            ids(Arc::new(Int64Array::from_iter_values(-3..3))),
            ids(Arc::new(Int32Array::from_iter_values(-3..3))),
            ids(Arc::new(UInt64Array::from_iter_values(0..6))),
            ids(Arc::new(UInt64Array::from_iter_values(half - 2..half + 4))),
        ];
        for own in &cases {
            let run = Run {
                first,
                count: 6,
                bits: own.value_bits(own.as_int(0).unwrap()),
                is_signed: own.id_type().is_signed(),
            };
            for row in 0..6 {
                let node = first.after(u32::try_from(row).unwrap());
                assert_eq!(run.hash(node), own.hash(row));
            }
            for other in &cases {
                for row in 0..6 {
                    let place = (0..6u32).find(|&at| own.equal(at as usize, other, row));
                    let expected = place.map(|at| first.after(at));
                    assert_eq!(run.find(other, row), expected, "{own:?} {other:?} {row}");
                }
            }
        }
    }
}
