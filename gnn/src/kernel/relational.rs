//! Kernels that only typed models use: attention in steps, whose values are `[num_edges, heads]`.
//!
//! Scores of edges ([`EdgeScores`], [`DotScores`]), a softmax over each row ([`EdgeSoftmax`]) and a
//! weighted sum ([`HeadSum`]) make up attention over the in-edges of one or of several relations.
//! Between the steps a model can mix coefficients of several layers.

mod dot_scores;
mod edge_scores;
mod edge_softmax;
mod head_sum;
mod node_scores;
mod row_normalize;

pub use dot_scores::DotScores;
pub use edge_scores::{EdgeScores, EdgeTerm};
pub use edge_softmax::{EdgeDropout, EdgeSoftmax};
pub use head_sum::HeadSum;
pub use node_scores::NodeScores;
pub use row_normalize::RowNormalize;

use super::{Float, Forward, Kernel, Saved};

/// A kernel that only typed models use.
#[derive(Clone, Debug)]
pub enum Relational {
    /// Scores of edges as sums.
    EdgeScores(EdgeScores),
    /// Scores of edges as products.
    DotScores(DotScores),
    /// The softmax over the edges of each row.
    EdgeSoftmax(EdgeSoftmax),
    /// The sum of rows, weighted head by head.
    HeadSum(HeadSum),
    /// Scores of nodes.
    NodeScores(NodeScores),
    /// Rows of length 1.
    RowNormalize(RowNormalize),
}

/// Expands to a match that calls one method of the kernel inside.
macro_rules! on_relational {
    ($op:expr, $kernel:ident => $call:expr) => {
        match $op {
            $crate::kernel::Relational::EdgeScores($kernel) => $call,
            $crate::kernel::Relational::DotScores($kernel) => $call,
            $crate::kernel::Relational::EdgeSoftmax($kernel) => $call,
            $crate::kernel::Relational::HeadSum($kernel) => $call,
            $crate::kernel::Relational::NodeScores($kernel) => $call,
            $crate::kernel::Relational::RowNormalize($kernel) => $call,
        }
    };
}
#[cfg(feature = "gpu")]
pub(crate) use on_relational;

impl Kernel for Relational {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        on_relational!(self, kernel => kernel.forward(inputs))
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        needed: &[bool],
    ) -> Vec<Vec<F>> {
        on_relational!(self, kernel => kernel.backward(inputs, saved, grad, needed))
    }
}
