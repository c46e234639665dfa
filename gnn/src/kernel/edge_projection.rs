//! A linear map of edge features, computed edge by edge when a kernel needs it.

use super::Float;
use super::heads::add_scaled;
use crate::Dense;

/// `weight * feature[e]` of edges whose features are constant.
#[derive(Debug)]
pub(super) struct EdgeProjection<'a, F> {
    feature: &'a Dense,
    /// `[edge_dim, dim]`: the weight, transposed so that a feature scales a whole row.
    pub(super) weight: Vec<F>,
    dim: usize,
}

impl<'a, F: Float> EdgeProjection<'a, F> {
    /// Wraps a weight `[dim, edge_dim]`.
    pub(super) fn new(feature: &'a Dense, weight: &[F]) -> EdgeProjection<'a, F> {
        let dim = weight.len() / feature.cols;
        EdgeProjection {
            feature,
            weight: transposed(weight, dim),
            dim,
        }
    }

    /// Copies the features of an edge.
    #[inline(always)]
    pub(super) fn read(&self, edge: usize, feature: &mut [F]) {
        for (out, &x) in feature.iter_mut().zip(self.feature.row(edge)) {
            *out = F::from_f32(x);
        }
    }

    /// Adds the projection of `feature` to `out`.
    #[inline(always)]
    pub(super) fn add(&self, feature: &[F], out: &mut [F]) {
        for (&x, weight) in feature.iter().zip(self.weight.chunks_exact(self.dim)) {
            add_scaled(out, x, weight);
        }
    }

    /// Adds the slope of the transposed weight: the outer product of `feature` and `grad`.
    #[inline(always)]
    pub(super) fn add_slope(&self, feature: &[F], grad: &[F], slope: &mut [F]) {
        for (&x, slope) in feature.iter().zip(slope.chunks_exact_mut(self.dim)) {
            add_scaled(slope, x, grad);
        }
    }
}

/// Transposes a row-major matrix of `rows` rows.
pub(super) fn transposed<F: Float>(values: &[F], rows: usize) -> Vec<F> {
    let cols = values.len() / rows;
    (0..cols)
        .flat_map(|col| (0..rows).map(move |row| values[row * cols + col]))
        .collect()
}
