//! The slices of a model: each round runs one conv.

/// The part of a model that one round runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The conv, from 1.
    pub(crate) layer: usize,
    /// How many in-edges of a node it reads: those of the lowest ranks.
    pub(crate) limit: usize,
}

impl Slice {
    /// Returns the slices of the first convs; `limits`: how many in-edges of a node each conv
    /// reads.
    pub(crate) fn all(limits: Vec<usize>) -> Vec<Self> {
        let slices = (1..).zip(limits);
        slices.map(|(layer, limit)| Self { layer, limit }).collect()
    }
}
