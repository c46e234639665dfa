//! Coefficients of a block, kept once they were computed.

use std::sync::OnceLock;

use crate::kernel::Shared;

/// Coefficients by kind, each without and with edge weights.
#[derive(Debug, Default)]
pub(crate) struct CoefficientCache {
    pub(crate) mean: [OnceLock<Shared<f32>>; 2],
    pub(crate) sum: [OnceLock<Shared<f32>>; 2],
    pub(crate) gcn: [OnceLock<(Shared<f32>, Shared<f32>)>; 2],
    pub(crate) weights: OnceLock<Shared<f32>>,
}
