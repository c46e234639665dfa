//! Links as targets: decoders, which score pairs of nodes, and the losses of their scores.
//!
//! A model of [`Task::Links`](crate::Task::Links) is an encoder, whose output is the embedding of a
//! node, and a [`Decoder`]. The wanted outputs of a batch are [`Pairs`]. Each pair that exists has
//! negatives: pairs of the same src node with other dst nodes.

#![expect(
    clippy::shadow_unrelated,
    reason = "inner loops name an element like the rows it comes from"
)]

mod decoder;
mod full;
mod loss;
mod pairs;
mod scorer;

pub use decoder::Decoder;
pub(crate) use decoder::Weights;
pub(crate) use loss::{PairSlopes, loss_and_slope};
pub use pairs::{PairLoss, PairLossKind, Pairs};
pub use scorer::Scorer;

#[cfg(test)]
mod tests;
