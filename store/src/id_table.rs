//! Distinct ids with a hash table of their positions.
//!
//! A look-up of an id that may lie anywhere misses the cache at its slot, at the id that the slot
//! names and, for strings, at its bytes. So ids are looked up many at a time, and what a later one
//! needs is prefetched.

use prefetch_index::prefetch_index;
use schemas::Ids;
use std::cmp::Ordering;

/// Ids ahead at which slots are prefetched, then the ids that they name, then the bytes of these.
const SLOTS_AHEAD: usize = 32;
const IDS_AHEAD: usize = 20;
const BYTES_AHEAD: usize = 10;

/// A slot without an id. No id has the greatest position.
const EMPTY: u64 = u64::MAX;

/// Least number of slots.
const SLOTS_MIN: usize = 16;

/// Distinct ids in order of arrival. An id's position is found by its hash, with linear probing.
pub(crate) struct IdTable {
    ids: Ids,
    /// The upper half of an id's hash and its position. Their number is a power of two.
    slots: Vec<u64>,
    /// Hashes of the ids that are added.
    hashes: Vec<u64>,
}

impl IdTable {
    /// Makes a table without ids, of the type of `like`.
    pub(crate) fn new(like: &Ids) -> Self {
        Self::of_distinct(Ids::new(like.id_type()))
    }

    /// Makes a table of distinct ids.
    pub(crate) fn of_distinct(ids: Ids) -> Self {
        let mut table = Self {
            ids,
            slots: Vec::new(),
            hashes: Vec::new(),
        };
        table.make_slots();
        table
    }

    /// Returns the distinct ids, by position.
    pub(crate) fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Adds those of some ids that the table does not have.
    pub(crate) fn add(&mut self, ids: &Ids) {
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        ids.hashes_into(&mut hashes);
        for (i, &hash) in hashes.iter().enumerate() {
            self.prefetch::<u32>(&hashes, i, &[]);
            if let Err(slot) = self.search(hash, ids, i) {
                self.slots[slot] = entry(hash, self.ids.len());
                self.ids.push_from(ids, i);
                if self.ids.len() > self.slots.len() / 4 * 3 {
                    self.make_slots();
                }
            }
        }
        self.hashes = hashes;
    }

    /// Appends to `out` the value of each of some ids, which `values` holds by position, or `missing`
    /// if the table does not have the id; and to `hashes` the hash of each.
    pub(crate) fn look_up<T: Copy>(
        &self,
        ids: &Ids,
        (values, missing): (&[T], T),
        (out, hashes): (&mut Vec<T>, &mut Vec<u64>),
    ) {
        let first = hashes.len();
        ids.hashes_into(hashes);
        let of_ids = &hashes[first..];
        out.extend(of_ids.iter().enumerate().map(|(i, &hash)| {
            self.prefetch(of_ids, i, values);
            let found = self.search(hash, ids, i);
            found.map_or(missing, |position| values[position])
        }));
    }

    /// Returns the position of an id, or the slot where it belongs.
    #[inline]
    fn search(&self, hash: u64, ids: &Ids, i: usize) -> Result<usize, usize> {
        let mut from = self.start(hash);
        loop {
            let (slot, position) = self.probe(hash, from);
            match position {
                Some(at) if self.ids.cmp(at, ids, i) == Ordering::Equal => return Ok(at),
                Some(_) => from = self.after(slot),
                None => return Err(slot),
            }
        }
    }

    /// Returns the next slot from `from` on with the same half of a hash, and its position; or the
    /// next one without an id.
    #[inline]
    fn probe(&self, hash: u64, from: usize) -> (usize, Option<usize>) {
        let mut slot = from;
        loop {
            let found = self.slots[slot];
            if found == EMPTY {
                return (slot, None);
            }
            if found >> 32 == hash >> 32 {
                return (slot, Some(position(found)));
            }
            slot = self.after(slot);
        }
    }

    /// Prefetches what the search for ids after the `i`-th one reads, given the hashes of all, and
    /// their values.
    #[inline]
    fn prefetch<T>(&self, hashes: &[u64], i: usize, values: &[T]) {
        if let Some(&hash) = hashes.get(i + SLOTS_AHEAD) {
            prefetch_index(&self.slots, self.start(hash));
        }
        let likely = |ahead: usize| {
            let hash = *hashes.get(i + ahead)?;
            self.probe(hash, self.start(hash)).1
        };
        if let Some(at) = likely(IDS_AHEAD) {
            if !values.is_empty() {
                prefetch_index(values, at);
            }
            match (self.ids.keys(), self.ids.text()) {
                (Some(keys), _) => prefetch_index(keys, at),
                (_, Some((offsets, _))) => prefetch_index(offsets, at),
                _ => {}
            }
        }
        if let Some((offsets, bytes)) = self.ids.text()
            && let Some(at) = likely(BYTES_AHEAD)
            && let Ok(start) = usize::try_from(offsets[at])
        {
            prefetch_index(bytes, start);
        }
    }

    /// Makes slots of which the ids take up to three quarters.
    fn make_slots(&mut self) {
        let least = self.ids.len() / 3 * 4 + 4;
        let num_slots = least.next_power_of_two().max(SLOTS_MIN);
        // The memory of the old slots is free before that of the new ones is taken.
        self.slots = Vec::new();
        self.slots.resize(num_slots, EMPTY);
        for at in 0..self.ids.len() {
            let hash = self.ids.hash(at);
            let mut slot = self.start(hash);
            while self.slots[slot] != EMPTY {
                slot = self.after(slot);
            }
            self.slots[slot] = entry(hash, at);
        }
    }

    /// Returns the slot where the search for a hash starts.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        // Only low bits are used.
        #[expect(clippy::cast_possible_truncation, reason = "the mask takes low bits")]
        let low = hash as usize;
        low & (self.slots.len() - 1)
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }
}

/// Returns the content of the slot of an id.
fn entry(hash: u64, position: usize) -> u64 {
    let position = u32::try_from(position).expect("fewer distinct ids than nodes fit");
    (hash >> 32 << 32) | u64::from(position)
}

/// Returns the position that a slot names.
#[inline]
fn position(slot: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let position = slot as u32;
    position as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::IdType;
    use std::collections::BTreeMap;

    fn text(numbers: impl Iterator<Item = u64>) -> Ids {
        let mut ids = Ids::new(IdType::Utf8);
        numbers.for_each(|number| ids.push_str(&format!("id-{number}")));
        ids
    }

    fn integers(numbers: impl Iterator<Item = u64>) -> Ids {
        Ids::from_keys(IdType::UInt64, numbers.collect())
    }

    /// The ids that hold these numbers.
    type Make = fn(&mut dyn Iterator<Item = u64>) -> Ids;

    #[test]
    fn positions_are_those_of_a_map() {
        let makes: [Make; 2] = [|numbers| text(numbers), |numbers| integers(numbers)];
        for make in makes {
            for num_distinct in [1, 10, 12, 13, 1000, 30_000] {
                let mut table = IdTable::new(&make(&mut std::iter::empty()));
                let mut known = BTreeMap::new();
                // Batches with ids of earlier ones, and with duplicates.
                for batch in 0..5 {
                    let numbers = (0..num_distinct).map(|at| at * (batch + 7) % (2 * num_distinct));
                    let numbers: Vec<u64> = numbers.collect();
                    table.add(&make(&mut numbers.iter().copied()));
                    for number in numbers {
                        let next = known.len();
                        known.entry(number).or_insert(next);
                    }
                }
                assert_eq!(table.ids().len(), known.len());
                let asked = make(&mut (0..3 * num_distinct));
                let values: Vec<usize> = (0..known.len()).collect();
                let (mut found, mut hashes) = (vec![9], vec![9]);
                table.look_up(&asked, (&values, usize::MAX), (&mut found, &mut hashes));
                let expected = |number| known.get(&number).copied().unwrap_or(usize::MAX);
                let expected: Vec<usize> = (0..3 * num_distinct).map(expected).collect();
                assert_eq!(found[1..], expected);
                let of_ids: Vec<u64> = (0..asked.len()).map(|i| asked.hash(i)).collect();
                assert_eq!(hashes[1..], of_ids);
                let again = IdTable::of_distinct(table.ids().clone());
                let mut of_again = Vec::new();
                again.look_up(&asked, (&values, usize::MAX), (&mut of_again, &mut hashes));
                assert_eq!(of_again, expected);
            }
        }
    }

    #[test]
    fn ids_whose_hashes_share_a_half_are_told_apart() {
        let ids = integers(0..40);
        let mut table = IdTable::of_distinct(integers(0..20));
        // All in one run of slots, with the same half.
        table.slots = vec![EMPTY; 64];
        for at in 0..20 {
            table.slots[(60 + at) % 64] = entry(7 << 32, at);
        }
        for i in 0..20 {
            assert_eq!(table.search(7 << 32 | 60, &ids, i), Ok(i));
        }
        assert_eq!(table.search(7 << 32 | 60, &ids, 20), Err(16));
        assert_eq!(table.search(8 << 32 | 60, &ids, 3), Err(16));
    }
}
