//! The slices of a model: a round runs one conv.

/// The part of a model that one round runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The conv, from 1.
    pub(crate) layer: usize,
    /// In-edges of a node that it reads, those of the lowest ranks.
    pub(crate) limit: usize,
}

impl Slice {
    /// Returns the slices of the first convs, given how many in-edges of a node each reads.
    pub(crate) fn all(limits: Vec<usize>) -> Vec<Self> {
        let slices = (1..).zip(limits);
        slices.map(|(layer, limit)| Self { layer, limit }).collect()
    }
}
