//! Turns the ids of edge ends into node numbers.

use crate::StoreError;
use crate::number::{Dictionary, IdTable, MISSING};
use crate::units::OwnUnits;
use cluster::Peer;
use schemas::{EdgesPlan, Ids, NodeIdx};
use serde::{Deserialize, Serialize};

/// Looks up ends of edges on one worker.
pub(crate) enum Ends {
    /// Integer ids that lie close together: every worker has a bitmap of all ids.
    Dense(DenseIds),
    /// Any other ids: the distinct ones that this worker read. Each was looked up once, at the
    /// worker of its range.
    Distinct {
        /// The ids, each with its position.
        table: IdTable,
        /// The node number of each position.
        numbers: Vec<NodeIdx>,
    },
}

/// All ids of the node table as a bitmap in which the bits are counted.
pub(crate) struct DenseIds {
    first_key: u64,
    /// 64 ids a word, and the number of the first node in the word.
    words: Vec<(u64, u32)>,
}

/// The keys of one worker's range of ids.
#[derive(Clone, Serialize, Deserialize)]
struct KeyRange {
    /// Least and greatest key; `None` if the range has no node.
    bounds: Option<(u64, u64)>,
    count: u64,
}

impl DenseIds {
    /// Makes the bitmap of all workers' ids; none if they are strings or it would take more than 16
    /// bytes a node.
    ///
    /// # Errors
    ///
    /// If a peer fails.
    pub(crate) fn gather(
        peer: &mut Peer<'_>,
        dictionary: &Dictionary,
    ) -> Result<Option<Self>, StoreError> {
        let ids = dictionary.ids();
        let Some(keys) = ids.keys() else {
            return Ok(None);
        };
        let bounds = keys.first().copied().zip(keys.last().copied());
        let count = keys.len() as u64;
        let ranges = peer.gather_all::<_, StoreError>(Ok(KeyRange { bounds, count }))?;
        let num_nodes: u64 = ranges.iter().map(|r| r.count).sum();
        let least = ranges.iter().filter_map(|r| Some(r.bounds?.0)).min();
        let greatest = ranges.iter().filter_map(|r| Some(r.bounds?.1)).max();
        let Some((first_key, last_key)) = least.zip(greatest) else {
            return Ok(None);
        };
        let num_words = (last_key - first_key) / 64 + 1;
        if num_words > num_nodes.max(64) {
            return Ok(None);
        }
        let mut mine: Vec<(u64, u64)> = Vec::new();
        for key in keys {
            let (word, bit) = ((key - first_key) / 64, 1 << ((key - first_key) % 64));
            match mine.last_mut() {
                Some((last, bits)) if *last == word => *bits |= bit,
                _ => mine.push((word, bit)),
            }
        }
        let num_words = usize::try_from(num_words).expect("no more than nodes");
        let mut words = vec![(0u64, 0); num_words];
        for (word, bits) in peer.gather_all::<_, StoreError>(Ok(mine))?.concat() {
            words[usize::try_from(word).expect("below num_words")].0 |= bits;
        }
        let mut number = 0;
        for (bits, before) in &mut words {
            *before = number;
            number += bits.count_ones();
        }
        Ok(Some(Self { first_key, words }))
    }

    fn number(&self, key: u64) -> NodeIdx {
        let at = key.wrapping_sub(self.first_key);
        let Some((bits, before)) = usize::try_from(at / 64)
            .ok()
            .and_then(|word| self.words.get(word))
        else {
            return MISSING;
        };
        let bit = 1u64 << (at % 64);
        if bits & bit == 0 {
            return MISSING;
        }
        NodeIdx::from_raw(before + (bits & (bit - 1)).count_ones())
    }
}

impl Ends {
    /// Prepares the lookup of the ends in the rows that this worker reads.
    ///
    /// # Errors
    ///
    /// If a table cannot be read, or a peer fails.
    pub(crate) fn gather(
        peer: &mut Peer<'_>,
        edges: &EdgesPlan,
        work: OwnUnits,
        dictionary: Dictionary,
    ) -> Result<Self, StoreError> {
        if let Some(dense) = DenseIds::gather(peer, &dictionary)? {
            return Ok(Self::Dense(dense));
        }
        let table = peer.agree(gather_distinct(edges, work, &dictionary))?;
        let numbers = dictionary.resolve(peer, table.ids())?;
        Ok(Self::Distinct { table, numbers })
    }

    /// Looks up ids. `numbers` gets their numbers, [`MISSING`] where no node has the id; `hashes`
    /// gets their hashes.
    pub(crate) fn resolve(&self, ids: &Ids, numbers: &mut Vec<NodeIdx>, hashes: &mut Vec<u64>) {
        numbers.clear();
        hashes.clear();
        match self {
            Self::Dense(dense) => {
                let keys = ids.keys().expect("edges have ids of the nodes' type");
                numbers.extend(keys.iter().map(|&key| dense.number(key)));
                ids.hashes_into(hashes);
            }
            Self::Distinct {
                table,
                numbers: known,
            } => {
                for i in 0..ids.len() {
                    let (place, hash) = table.find(ids, i);
                    numbers.push(place.map_or(MISSING, |place| known[place as usize]));
                    hashes.push(hash);
                }
            }
        }
    }
}

fn gather_distinct(
    edges: &EdgesPlan,
    work: OwnUnits,
    dictionary: &Dictionary,
) -> Result<IdTable, StoreError> {
    let mut table = IdTable::new(dictionary.ids());
    for unit in work.of(edges.units()) {
        for rows in edges.end_batches(unit)? {
            let ends = rows?;
            for ids in [&ends.dst, &ends.src] {
                for i in 0..ids.len() {
                    table.place(ids, i);
                }
            }
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_numbers_ids_in_order_and_knows_what_is_missing() {
        let mut words = vec![(0u64, 0); 4];
        let present: [u64; 6] = [0, 1, 63, 64, 130, 255];
        present
            .iter()
            .for_each(|p| words[usize::try_from(p / 64).unwrap()].0 |= 1 << (p % 64));
        let mut number = 0;
        for (bits, before) in &mut words {
            *before = number;
            number += bits.count_ones();
        }
        let dense = DenseIds {
            first_key: 1000,
            words,
        };
        for key in 900..1400 {
            let expected = present.iter().position(|p| 1000 + p == key);
            let expected = expected.map_or(MISSING, NodeIdx::from_index);
            assert_eq!(dense.number(key), expected, "{key}");
        }
        assert_eq!(dense.number(u64::MAX), MISSING);
    }
}
