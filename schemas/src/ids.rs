//! Columns of node ids of one type, ordered and hashed the same on every machine.

mod array;
mod cast;
mod gather;
mod id_type;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub use id_type::IdType;

use crate::error::{Result, SchemaError};

/// Flipped in the keys of signed ids, so that keys have the same order as ids.
const SIGN_BIT: u64 = 1 << 63;

/// A column of node ids of one type.
///
/// Integers are kept as *keys*, 64-bit numbers in the same order as the ids; strings are kept as
/// offsets and bytes. Ids stay in the order in which they were added, with their duplicates.
///
/// # Examples
///
/// ```
/// use schemas::{IdType, Ids};
///
/// let mut ids = Ids::new(IdType::Utf8);
/// ids.push_str("vim");
/// ids.push_str("bash");
/// assert_eq!(ids.sort_permutation(), [1, 0]);
/// assert_eq!(ids.display(0), "vim");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    id_type: IdType,
    values: Values,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Values {
    Keys(Vec<u64>),
    /// `offsets` starts with 0 and is one longer than the column.
    Text {
        offsets: Vec<u64>,
        bytes: Vec<u8>,
    },
}

/// Hashes an integer id, given as the 64 bits of its value (`id as i64 as u64`).
///
/// The same value has the same hash as a 32-bit or a 64-bit id. Never change this function
/// (SplitMix64's finaliser): samples and partitions depend on it.
pub fn hash_int(id: u64) -> u64 {
    let mut mixed = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Key of an edge's end whose id does not fit the type of the node ids; it is an error at a node.
pub(crate) const NOWHERE: u64 = 0x9d3c_61b5_e08a_47f3;

impl Ids {
    /// Creates an empty column.
    pub fn new(id_type: IdType) -> Self {
        Self::with_capacity(id_type, 0)
    }

    /// Creates an empty column with room for some ids (strings: for their offsets only).
    pub fn with_capacity(id_type: IdType, capacity: usize) -> Self {
        let values = if id_type.is_integer() {
            Values::Keys(Vec::with_capacity(capacity))
        } else {
            let mut offsets = Vec::with_capacity(capacity + 1);
            offsets.push(0);
            Values::Text {
                offsets,
                bytes: Vec::new(),
            }
        };
        Self { id_type, values }
    }

    /// Makes a column of integer ids from their order-preserving keys ([`Ids::as_int`]).
    ///
    /// # Panics
    ///
    /// If `id_type` is a string type.
    pub fn from_keys(id_type: IdType, keys: Vec<u64>) -> Self {
        assert!(id_type.is_integer(), "keys are of integer ids");
        Self {
            id_type,
            values: Values::Keys(keys),
        }
    }

    /// Makes a column of strings from offsets and bytes as returned by [`Ids::text`].
    ///
    /// # Errors
    ///
    /// If the offsets do not rise from 0 to the number of bytes, or a string is not UTF-8.
    pub fn from_text(offsets: Vec<u64>, bytes: Vec<u8>) -> Result<Self> {
        let invalid = |problem: &str| SchemaError::Invalid {
            what: "ids",
            problem: problem.into(),
        };
        if offsets.first() != Some(&0) || offsets.last() != Some(&(bytes.len() as u64)) {
            return Err(invalid("string offsets do not span the bytes"));
        }
        if offsets.is_sorted() && bytes.is_ascii() {
            return Ok(Self {
                id_type: IdType::Utf8,
                values: Values::Text { offsets, bytes },
            });
        }
        for pair in offsets.windows(2) {
            let range = usize::try_from(pair[0])
                .ok()
                .zip(usize::try_from(pair[1]).ok());
            let text = range.and_then(|(start, end)| bytes.get(start..end));
            if text.is_none_or(|text| std::str::from_utf8(text).is_err()) {
                return Err(invalid("string offsets fall, or a string is not UTF-8"));
            }
        }
        Ok(Self {
            id_type: IdType::Utf8,
            values: Values::Text { offsets, bytes },
        })
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Keys(keys) => keys.len(),
            Values::Text { offsets, .. } => offsets.len() - 1,
        }
    }

    /// Tells whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type of the ids.
    pub fn id_type(&self) -> IdType {
        self.id_type
    }

    /// Returns the bytes of memory the ids take, without spare capacity.
    pub fn size_bytes(&self) -> usize {
        match &self.values {
            Values::Keys(keys) => keys.len() * 8,
            Values::Text { offsets, bytes } => offsets.len() * 8 + bytes.len(),
        }
    }

    /// Returns the order-preserving key of an integer id, not its value; none for strings.
    pub fn as_int(&self, i: usize) -> Option<u64> {
        match &self.values {
            Values::Keys(keys) => Some(keys[i]),
            Values::Text { .. } => None,
        }
    }

    /// Returns a string id; none for integers.
    pub fn as_str(&self, i: usize) -> Option<&str> {
        match &self.values {
            Values::Keys(_) => None,
            Values::Text { offsets, bytes } => Some(
                std::str::from_utf8(slice(offsets, bytes, i)).expect("checked when it was added"),
            ),
        }
    }

    /// Returns all order-preserving keys; none for strings.
    pub fn keys(&self) -> Option<&[u64]> {
        match &self.values {
            Values::Keys(keys) => Some(keys),
            Values::Text { .. } => None,
        }
    }

    /// Returns offsets (one more than ids, from 0) and bytes of all strings; none for integers.
    pub fn text(&self) -> Option<(&[u64], &[u8])> {
        match &self.values {
            Values::Keys(_) => None,
            Values::Text { offsets, bytes } => Some((offsets, bytes)),
        }
    }

    /// Returns a string id's bytes; none for integers.
    pub fn key_bytes(&self, i: usize) -> Option<&[u8]> {
        self.text().map(|(offsets, bytes)| slice(offsets, bytes, i))
    }

    /// Hashes an id: integers of any width by value ([`hash_int`]), strings with XXH3.
    pub fn hash(&self, i: usize) -> u64 {
        match &self.values {
            Values::Keys(keys) => hash_int(self.value_bits(keys[i])),
            Values::Text { offsets, bytes } => xxhash_rust::xxh3::xxh3_64(slice(offsets, bytes, i)),
        }
    }

    /// Appends the hash of each id, as [`Ids::hash`] gives it.
    pub fn hashes_into(&self, out: &mut Vec<u64>) {
        match &self.values {
            Values::Keys(keys) => {
                out.extend(keys.iter().map(|&key| hash_int(self.value_bits(key))))
            }
            Values::Text { .. } => out.extend((0..self.len()).map(|i| self.hash(i))),
        }
    }

    /// Compares two ids in their natural order; strings bytewise.
    ///
    /// # Panics
    ///
    /// If one column holds integers and the other strings.
    pub fn cmp(&self, i: usize, other: &Ids, j: usize) -> Ordering {
        match (&self.values, &other.values) {
            (Values::Keys(left), Values::Keys(right)) => {
                if self.id_type.is_signed() == other.id_type.is_signed() {
                    left[i].cmp(&right[j])
                } else {
                    self.wide(left[i]).cmp(&other.wide(right[j]))
                }
            }
            (
                Values::Text {
                    offsets: left,
                    bytes: left_bytes,
                },
                Values::Text {
                    offsets: right,
                    bytes: right_bytes,
                },
            ) => slice(left, left_bytes, i).cmp(slice(right, right_bytes, j)),
            _ => panic!(
                "ids of types {} and {} do not compare",
                self.id_type, other.id_type
            ),
        }
    }

    /// Tells whether two ids are the same.
    ///
    /// # Panics
    ///
    /// If one column holds integers and the other strings.
    pub fn equal(&self, i: usize, other: &Ids, j: usize) -> bool {
        self.cmp(i, other, j) == Ordering::Equal
    }

    /// Returns the positions in the order of their ids; equal ids in order of position.
    ///
    /// # Panics
    ///
    /// If there are 2^32 ids or more.
    pub fn sort_permutation(&self) -> Vec<u32> {
        let len = u32::try_from(self.len()).expect("positions fit 32 bits");
        let mut order: Vec<u32> = (0..len).collect();
        match &self.values {
            Values::Keys(keys) => order.sort_by_key(|&i| keys[i as usize]),
            Values::Text { offsets, bytes } => order.sort_by(|&i, &j| {
                slice(offsets, bytes, i as usize).cmp(slice(offsets, bytes, j as usize))
            }),
        }
        order
    }

    /// Returns an id as text, as people write it.
    pub fn display(&self, i: usize) -> String {
        match &self.values {
            Values::Keys(keys) => self.wide(keys[i]).to_string(),
            Values::Text { .. } => self.as_str(i).unwrap_or_default().to_owned(),
        }
    }

    /// Returns the 64 bits of an integer id, which [`hash_int`] hashes, from its key: sign-extended
    /// for signed types.
    pub fn value_bits(&self, key: u64) -> u64 {
        if self.id_type.is_signed() {
            key ^ SIGN_BIT
        } else {
            key
        }
    }

    /// The value, in a type that holds every signed and unsigned id.
    fn wide(&self, key: u64) -> i128 {
        let bits = self.value_bits(key);
        if self.id_type.is_signed() {
            i128::from(bits.cast_signed())
        } else {
            i128::from(bits)
        }
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("offsets point into memory")
}

fn slice<'a>(offsets: &[u64], bytes: &'a [u8], i: usize) -> &'a [u8] {
    &bytes[index(offsets[i])..index(offsets[i + 1])]
}
