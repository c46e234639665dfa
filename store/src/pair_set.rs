//! The pairs whose edges the stored graph leaves out.

use hashbrown::HashTable;
use schemas::{NodeIdx, hash_int};

/// A set of pairs of nodes in either direction.
#[derive(Debug, Default)]
pub(crate) struct PairSet(HashTable<u64>);

/// Returns a number of a pair that its reverse has too.
pub(crate) fn pair_key(src: NodeIdx, dst: NodeIdx) -> u64 {
    let (least, most) = (src.min(dst), src.max(dst));
    u64::from(least.raw()) << 32 | u64::from(most.raw())
}

impl PairSet {
    /// Makes the set of some keys of [`pair_key`], which may repeat.
    pub(crate) fn of(keys: impl IntoIterator<Item = u64>) -> Self {
        let keys = keys.into_iter();
        let mut table = HashTable::with_capacity(keys.size_hint().0);
        for key in keys {
            let is_same = |&known: &u64| known == key;
            let entry = table.entry(hash_int(key), is_same, |&known| hash_int(known));
            entry.or_insert(key);
        }
        Self(table)
    }

    /// Tells whether a pair or its reverse is in the set.
    pub(crate) fn contains(&self, src: NodeIdx, dst: NodeIdx) -> bool {
        let key = pair_key(src, dst);
        self.0.find(hash_int(key), |&known| known == key).is_some()
    }
}
