//! Appends ids of one column to another.

use std::ops::Range;

use super::{Ids, Values, index, slice};

impl Ids {
    /// Appends an order-preserving key.
    ///
    /// # Panics
    ///
    /// If the ids are strings.
    pub fn push_key(&mut self, key: u64) {
        match &mut self.values {
            Values::Keys(keys) => keys.push(key),
            Values::Text { .. } => panic!("a key is of an integer id"),
        }
    }

    /// Appends a string.
    ///
    /// # Panics
    ///
    /// If the ids are integers.
    pub fn push_str(&mut self, text: &str) {
        match &mut self.values {
            Values::Keys(_) => panic!("{text:?} is no integer id"),
            Values::Text { offsets, bytes } => push_text(offsets, bytes, text.as_bytes()),
        }
    }

    /// Appends one id of another column of the same type.
    ///
    /// # Panics
    ///
    /// If the types differ.
    pub fn push_from(&mut self, other: &Ids, i: usize) {
        self.assert_same_type(other);
        match (&mut self.values, &other.values) {
            (Values::Keys(keys), Values::Keys(from)) => keys.push(from[i]),
            (
                Values::Text { offsets, bytes },
                Values::Text {
                    offsets: from,
                    bytes: from_bytes,
                },
            ) => push_text(offsets, bytes, slice(from, from_bytes, i)),
            _ => unreachable!("the types are the same"),
        }
    }

    /// Appends a range of ids of another column of the same type.
    ///
    /// # Panics
    ///
    /// If the types differ.
    pub fn extend_from(&mut self, other: &Ids, range: Range<usize>) {
        self.assert_same_type(other);
        if range.is_empty() {
            return;
        }
        match (&mut self.values, &other.values) {
            (Values::Keys(keys), Values::Keys(from)) => keys.extend_from_slice(&from[range]),
            (
                Values::Text { offsets, bytes },
                Values::Text {
                    offsets: from,
                    bytes: from_bytes,
                },
            ) => {
                let (start, end) = (from[range.start], from[range.end]);
                let base = bytes.len() as u64;
                bytes.extend_from_slice(&from_bytes[index(start)..index(end)]);
                let ends = &from[range.start + 1..=range.end];
                offsets.extend(ends.iter().map(|offset| base + (offset - start)));
            }
            _ => unreachable!("the types are the same"),
        }
    }

    /// Appends ids of other columns of the same type.
    ///
    /// # Panics
    ///
    /// If the types differ.
    pub fn extend_each<'a>(&mut self, ids: impl Iterator<Item = (&'a Ids, usize)>) {
        match &mut self.values {
            Values::Keys(keys) => keys.extend(ids.map(|(other, i)| match &other.values {
                Values::Keys(from) if other.id_type == self.id_type => from[i],
                _ => panic!("ids of one column are of one type"),
            })),
            Values::Text { .. } => ids.for_each(|(other, i)| self.push_from(other, i)),
        }
    }

    /// Returns the ids at some positions, in that order.
    pub fn gather(&self, positions: &[u32]) -> Ids {
        let mut gathered = Ids::with_capacity(self.id_type, positions.len());
        gathered.extend_gather(self, positions);
        gathered
    }

    /// Appends the ids of another column at some positions.
    ///
    /// # Panics
    ///
    /// If the types differ.
    pub fn extend_gather(&mut self, other: &Ids, positions: &[u32]) {
        self.assert_same_type(other);
        match (&mut self.values, &other.values) {
            (Values::Keys(keys), Values::Keys(from)) => {
                keys.extend(positions.iter().map(|&i| from[i as usize]));
            }
            (
                Values::Text { offsets, bytes },
                Values::Text {
                    offsets: from,
                    bytes: from_bytes,
                },
            ) => {
                for &i in positions {
                    push_text(offsets, bytes, slice(from, from_bytes, i as usize));
                }
            }
            _ => unreachable!("the types are the same"),
        }
    }

    /// Removes all ids and keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.values {
            Values::Keys(keys) => keys.clear(),
            Values::Text { offsets, bytes } => {
                offsets.truncate(1);
                bytes.clear();
            }
        }
    }

    fn assert_same_type(&self, other: &Ids) {
        assert_eq!(
            self.id_type, other.id_type,
            "ids of one column are of one type"
        );
    }
}

fn push_text(offsets: &mut Vec<u64>, bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(text);
    offsets.push(bytes.len() as u64);
}
