//! The messages about rows of embedding tables.

use prost::Message;
use prost::bytes::Bytes;
use schemas::{IdType, Ids};

use super::wire::{decode, encode};
use super::{GradientFormat, RowGradient, TableRows};

/// Values of a [`RowPage`], moments included; 64 MiB.
const PAGE_VALUES: usize = 16 << 20;

/// Ids of rows of one table.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RowIds {
    /// Order-preserving keys of integer ids, 8 bytes each, little-endian.
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) keys: Bytes,
    /// Offsets of string ids, one more than ids, 8 bytes each, little-endian.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) offsets: Bytes,
    /// Bytes of string ids.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) text: Bytes,
}

/// Asks for rows, by table.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PullRowsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) tables: Vec<RowIds>,
}

/// The values of the rows, by table.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PullRowsReply {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) tables: Vec<Bytes>,
}

/// Gradients of rows of one table, in the format of the push.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RowPush {
    #[prost(message, required, tag = "1")]
    pub(super) ids: RowIds,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) gradient: Bytes,
}

/// Asks for the rows of a table from position `start` on.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct SaveRowsRequest {
    #[prost(uint64, tag = "1")]
    pub(super) table: u64,
    #[prost(uint64, tag = "2")]
    pub(super) start: u64,
}

/// Some rows of a table with the optimiser's state; no rows after the last.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RowPage {
    #[prost(uint64, tag = "1")]
    pub(super) table: u64,
    #[prost(message, required, tag = "2")]
    pub(super) ids: RowIds,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) values: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub(super) moments: Vec<Bytes>,
}

impl RowIds {
    pub(super) fn of(ids: &Ids) -> Self {
        if let Some(keys) = ids.keys() {
            return Self {
                keys: encode_words(keys),
                ..Self::default()
            };
        }
        let (offsets, text) = ids.text().expect("ids are integers or strings");
        Self {
            keys: Bytes::new(),
            offsets: encode_words(offsets),
            text: Bytes::copy_from_slice(text),
        }
    }

    /// Returns the ids; none if they are not ids of this type.
    pub(super) fn to_ids(&self, id_type: IdType) -> Option<Ids> {
        if id_type.is_integer() {
            let is_plain = self.offsets.is_empty() && self.text.is_empty();
            return is_plain.then_some(Ids::from_keys(id_type, decode_words(&self.keys)?));
        }
        let offsets = decode_words(&self.offsets).filter(|_| self.keys.is_empty())?;
        Ids::from_text(offsets, self.text.to_vec()).ok()
    }
}

impl RowPush {
    pub(super) fn of(gradient: &RowGradient, format: GradientFormat) -> Self {
        let mut bytes = Vec::new();
        format.encode(&gradient.values, &mut bytes);
        Self {
            ids: RowIds::of(&gradient.ids),
            gradient: bytes.into(),
        }
    }

    /// Returns the gradients; none if they are cut off, or of other rows.
    pub(super) fn to_gradient(
        &self,
        (id_type, dim): (IdType, usize),
        format: GradientFormat,
    ) -> Option<RowGradient> {
        let ids = self.ids.to_ids(id_type)?;
        let values = format.decode(&self.gradient)?;
        let fits = ids.len().checked_mul(dim) == Some(values.len());
        fits.then_some(RowGradient { ids, values })
    }
}

impl RowPage {
    pub(super) fn of(table: usize, rows: &TableRows) -> Self {
        Self {
            table: table as u64,
            ids: RowIds::of(&rows.ids),
            values: encode(&rows.values),
            moments: rows.moments.iter().map(|moment| encode(moment)).collect(),
        }
    }

    /// Returns the rows; none if they are cut off.
    pub(super) fn to_rows(&self, id_type: IdType, dim: usize) -> Option<TableRows> {
        let ids = self.ids.to_ids(id_type)?;
        let len = ids.len().checked_mul(dim)?;
        let own = |bytes: &Bytes| decode(bytes).filter(|values| values.len() == len);
        Some(TableRows {
            ids,
            values: own(&self.values)?,
            moments: self.moments.iter().map(own).collect::<Option<_>>()?,
        })
    }
}

/// Returns the rows of a page for a table of this width and number of moments.
pub(super) fn page_rows(dim: usize, num_moments: usize) -> usize {
    (PAGE_VALUES / (dim * (num_moments + 1))).max(1)
}

fn encode_words(words: &[u64]) -> Bytes {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.into()
}

/// Decodes numbers; none if they are cut off.
fn decode_words(bytes: &[u8]) -> Option<Vec<u64>> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    rest.is_empty().then(|| words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> [Ids; 2] {
        let mut text = Ids::new(IdType::Utf8);
        ["", "vim", "ä"].iter().for_each(|id| text.push_str(id));
        [Ids::from_keys(IdType::Int32, vec![3, 1 << 63, 9]), text]
    }

    #[test]
    fn ids_and_rows_come_back() {
        for ids in columns() {
            let id_type = ids.id_type();
            assert_eq!(RowIds::of(&ids).to_ids(id_type).as_ref(), Some(&ids));
            let rows = TableRows {
                ids: ids.clone(),
                values: vec![0.5; 6],
                moments: vec![vec![-0.0; 6]; 2],
            };
            let page = RowPage::of(1, &rows);
            assert_eq!(page.to_rows(id_type, 2).as_ref(), Some(&rows));
            assert_eq!(page.to_rows(id_type, 3), None);
            let gradient = RowGradient {
                ids,
                values: vec![1.0; 6],
            };
            for format in [GradientFormat::F32, GradientFormat::Bf16] {
                let push = RowPush::of(&gradient, format);
                assert_eq!(
                    push.to_gradient((id_type, 2), format).as_ref(),
                    Some(&gradient)
                );
                assert_eq!(push.to_gradient((id_type, 1), format), None);
            }
        }
    }

    #[test]
    fn any_bytes_are_ids_or_none() {
        for ids in columns() {
            let whole = RowIds::of(&ids).encode_to_vec();
            for draw in 0..5000_u64 {
                let random = schemas::hash_int(draw);
                let at = usize::try_from(random >> 32).unwrap() % whole.len();
                let mut bytes = whole.clone();
                match draw % 2 {
                    0 => bytes.truncate(at),
                    _ => bytes[at] ^= 1 << (random % 8),
                }
                let Ok(message) = RowIds::decode(&bytes[..]) else {
                    continue;
                };
                for id_type in [IdType::Int32, IdType::Utf8] {
                    // Decoded strings can be read.
                    if let Some(decoded) = message.to_ids(id_type) {
                        (0..decoded.len()).for_each(|id| drop(decoded.display(id)));
                    }
                }
            }
        }
    }
}
