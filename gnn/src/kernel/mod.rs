//! Fused aggregation kernels on compressed rows, forward and backward, without a tensor library.
//!
//! Every kernel splits rows over threads so that no two threads write one row, and adds up a row
//! in a fixed order: results are the same bits for any thread count and [`Partitioning`].
//! Nothing of size `[edges, dim]` is ever made; attention keeps `[edges, heads]`.

#![expect(
    clippy::shadow_unrelated,
    reason = "inner loops name an element like the slice it comes from"
)]

mod attention;
mod best;
mod csr;
mod dropout;
mod edge_feature;
mod edge_projection;
mod float;
mod gat;
mod gatv2;
mod gine;
mod heads;
mod hidden;
pub mod instruction_set;
mod linear;
mod mask;
mod norm;
pub(crate) mod partial;
mod prefetch;
pub(crate) mod product;
pub(crate) mod propagate;
mod raw_gat;
mod relational;
mod segment_max;
mod shared;
mod split;
mod spmm;
mod stored;
mod update;

pub use attention::Attention;
pub use best::BestItems;
pub use csr::{Csr, Partitioning, Transposed};
pub use dropout::Dropout;
pub use edge_feature::EdgeFeatures;
pub use float::Float;
pub use gat::{Gat, node_scores};
pub use gatv2::GatV2;
pub use gine::Gine;
pub(crate) use hidden::LastMap;
pub use instruction_set::InstructionSet;
pub use linear::Linear;
pub use mask::mix;
pub use mask::{Mask, RowMask};
pub(crate) use norm::count_of;
pub use norm::{BatchNorm, LayerNorm, column_statistics};
pub use prefetch::{prefetch, prefetch_values};
pub use raw_gat::RawGat;
#[cfg(feature = "gpu")]
pub(crate) use relational::on_relational;
pub use relational::{
    DotScores, EdgeDropout, EdgeScores, EdgeSoftmax, EdgeTerm, HeadSum, NodeScores, Relational,
    RowNormalize,
};
pub use segment_max::SegmentMax;
pub use shared::Shared;
pub use spmm::Spmm;
pub(crate) use stored::Gather;
pub use stored::{Stored, round_all_to_bf16, round_to_bf16, widen};
pub use update::Update;

/// A differentiable function of a few row-major matrices.
pub trait Kernel {
    /// Computes the output, and the values that the backward pass needs.
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F>;

    /// Returns the gradient of each input, computed from the gradient of the output.
    ///
    /// An input whose `needed` is false may come back empty.
    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        needed: &[bool],
    ) -> Vec<Vec<F>>;
}

/// The result of a forward pass.
#[derive(Debug)]
pub struct Forward<F> {
    /// The output, row-major.
    pub out: Vec<F>,
    /// Number of columns of the output.
    pub cols: usize,
    /// Values for the backward pass.
    pub saved: Saved<F>,
}

impl<F> Forward<F> {
    /// An output whose backward pass needs only the inputs.
    fn of(out: Vec<F>, cols: usize) -> Forward<F> {
        let saved = Saved::default();
        Forward { out, cols, saved }
    }
}

/// Values that a forward pass keeps for the backward pass, besides its inputs.
#[derive(Debug)]
pub struct Saved<F> {
    /// Values, such as attention coefficients.
    pub values: Vec<F>,
    /// Positions, such as the edge that gave a maximum.
    pub positions: Vec<u32>,
}

impl<F> Default for Saved<F> {
    fn default() -> Saved<F> {
        Saved {
            values: Vec::new(),
            positions: Vec::new(),
        }
    }
}
