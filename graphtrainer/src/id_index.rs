//! Distinct ids of one type, each with a position, found by their hashes.

use schemas::{IdType, Ids};

/// Distinct ids in the order in which they were inserted.
///
/// A hash table with open addressing holds positions only; ids are compared where hashes meet.
#[derive(Clone, Debug)]
pub(crate) struct IdIndex {
    ids: Ids,
    /// A power of two of positions or [`FREE`].
    buckets: Vec<u32>,
}

/// A bucket without a position.
const FREE: u32 = u32::MAX;

/// Smallest number of buckets.
const BUCKETS_MIN: usize = 16;

impl IdIndex {
    pub(crate) fn new(id_type: IdType) -> Self {
        Self {
            ids: Ids::new(id_type),
            buckets: vec![FREE; BUCKETS_MIN],
        }
    }

    pub(crate) fn ids(&self) -> &Ids {
        &self.ids
    }

    pub(crate) fn into_ids(self) -> Ids {
        self.ids
    }

    /// Returns the position of id `at` of a column; none if it was not inserted.
    pub(crate) fn find(&self, ids: &Ids, at: usize) -> Option<usize> {
        let found = self.buckets[self.bucket(ids, at)];
        (found != FREE).then_some(found as usize)
    }

    /// Returns the position of id `at` of a column, which is inserted unless it is there; and whether
    /// it was inserted.
    ///
    /// # Panics
    ///
    /// If there are 2^32 - 1 ids.
    pub(crate) fn insert(&mut self, ids: &Ids, at: usize) -> (usize, bool) {
        let bucket = self.bucket(ids, at);
        let found = self.buckets[bucket];
        if found != FREE {
            return (found as usize, false);
        }
        let position = self.ids.len();
        let narrow = u32::try_from(position).ok().filter(|&known| known != FREE);
        self.buckets[bucket] = narrow.expect("a graph has fewer than 2^32 - 1 nodes");
        self.ids.push_from(ids, at);
        if 2 * self.ids.len() > self.buckets.len() {
            self.grow();
        }
        (position, true)
    }

    /// Returns the bucket that holds an id, or the free one where it belongs.
    fn bucket(&self, ids: &Ids, at: usize) -> usize {
        let mask = self.buckets.len() - 1;
        let mut bucket = low_bits(ids.hash(at)) & mask;
        loop {
            let found = self.buckets[bucket];
            if found == FREE || self.ids.equal(found as usize, ids, at) {
                return bucket;
            }
            bucket = (bucket + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let num_buckets = 2 * self.buckets.len();
        let mut buckets = vec![FREE; num_buckets];
        let mask = num_buckets - 1;
        for (position, id) in (0..).zip(0..self.ids.len()) {
            let mut bucket = low_bits(self.ids.hash(id)) & mask;
            while buckets[bucket] != FREE {
                bucket = (bucket + 1) & mask;
            }
            buckets[bucket] = position;
        }
        self.buckets = buckets;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low bits of a hash choose a bucket"
)]
fn low_bits(hash: u64) -> usize {
    hash as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn column(id_type: IdType, len: u64) -> Ids {
        let mut ids = Ids::new(id_type);
        for at in 0..len {
            let raw = schemas::hash_int(at) % (len / 2);
            match id_type {
                IdType::Utf8 => ids.push_str(&raw.to_string()),
                _ => ids.push_key(raw),
            }
        }
        ids
    }

    #[test]
    fn every_id_has_the_position_of_its_first_appearance() {
        for id_type in [IdType::Int64, IdType::Utf8] {
            let ids = column(id_type, 5000);
            let (mut index, mut twin) = (IdIndex::new(id_type), BTreeMap::new());
            for at in 0..ids.len() {
                assert_eq!(index.find(&ids, at), twin.get(&ids.display(at)).copied());
                let next = twin.len();
                let wanted = *twin.entry(ids.display(at)).or_insert(next);
                assert_eq!(index.insert(&ids, at), (wanted, wanted == next));
            }
            assert_eq!(index.ids().len(), twin.len());
            assert!(twin.len() > 1000);
            for at in 0..ids.len() {
                let position = index.find(&ids, at).unwrap();
                assert!(index.ids().equal(position, &ids, at));
            }
        }
    }
}
