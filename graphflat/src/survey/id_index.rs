//! Finds nodes by id: in an array if integer ids are dense, else by hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use schemas::{Ids, NodesPlan, RowNumbers};
use store::StoreError;

/// Largest number of array entries per node; the other entries are ids without a node.
const SPREAD: u64 = 16;

/// Entry of an id without a node.
const NO_NODE: u32 = u32::MAX;

/// The position of every id.
pub(super) enum IdIndex {
    /// By the distance from the smallest id.
    Dense { least: u64, at: Vec<u32> },
    /// By the id's hash.
    Hashed(HashMap<u64, u32, BuildHasherDefault<AsIs>>),
}

/// Hasher of keys that are hashes: returns the key.
#[derive(Default)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are 64-bit hashes")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl IdIndex {
    /// Indexes the ids of a node table; `rows` has the numbers of their rows, unit by unit.
    ///
    /// # Errors
    ///
    /// If two nodes have the same id.
    pub(super) fn new(
        ids: &Ids,
        nodes: &NodesPlan,
        rows: &[RowNumbers],
    ) -> Result<IdIndex, StoreError> {
        let mut places = IdIndex::empty(ids);
        for (place, at) in (0u32..).zip(0..ids.len()) {
            if let Some(first) = places.insert(ids, at, place)
                && ids.equal(first as usize, ids, at)
            {
                return Err(twin(ids, nodes, rows, (first as usize, at)));
            }
        }
        Ok(places)
    }

    fn empty(ids: &Ids) -> IdIndex {
        let by_hash =
            || IdIndex::Hashed(HashMap::with_capacity_and_hasher(ids.len(), <_>::default()));
        let keys = ids.keys().unwrap_or_default();
        let ends = (0..keys.len())
            .min_by_key(|&at| keys[at])
            .zip(keys.iter().max());
        let Some((first, last)) = ends else {
            return by_hash();
        };
        let most = (ids.len() as u64).saturating_mul(SPREAD);
        match (usize::try_from(last - keys[first]), ids.as_int(first)) {
            (Ok(width), Some(least)) if (width as u64) < most => IdIndex::Dense {
                least,
                at: vec![NO_NODE; width + 1],
            },
            _ => by_hash(),
        }
    }

    /// Sets the position of an id; returns the position that it had before.
    fn insert(&mut self, ids: &Ids, at: usize, place: u32) -> Option<u32> {
        match self {
            IdIndex::Dense { least, at: places } => {
                let distance = distance(ids, at, *least).expect("integers index integers");
                let before = std::mem::replace(&mut places[distance], place);
                (before != NO_NODE).then_some(before)
            }
            IdIndex::Hashed(places) => places.insert(ids.hash(at), place),
        }
    }

    /// Returns the position in `own`, the indexed ids, of an id of another column.
    pub(super) fn find(&self, own: &Ids, ids: &Ids, at: usize) -> Option<u32> {
        let (place, is_certain) = match self {
            IdIndex::Dense { least, at: places } => {
                let place = *places.get(distance(ids, at, *least)?)?;
                (place, own.id_type() == ids.id_type())
            }
            IdIndex::Hashed(places) => (*places.get(&ids.hash(at))?, false),
        };
        (place != NO_NODE && (is_certain || own.equal(place as usize, ids, at))).then_some(place)
    }
}

fn distance(ids: &Ids, at: usize, least: u64) -> Option<usize> {
    usize::try_from(ids.as_int(at)?.wrapping_sub(least)).ok()
}

fn twin(
    ids: &Ids,
    nodes: &NodesPlan,
    rows: &[RowNumbers],
    (first, second): (usize, usize),
) -> StoreError {
    let row = |at| rows.iter().flat_map(RowNumbers::iter).nth(at);
    let locate = |at| nodes.locate(row(at).expect("each id is of a row"));
    let (first_file, first_row) = locate(first);
    let (second_file, second_row) = locate(second);
    StoreError::DuplicateNode {
        id: ids.display(second),
        first_file,
        first_row,
        second_file,
        second_row,
    }
}
