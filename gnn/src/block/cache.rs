//! Cache of the coefficients of a block.

use std::sync::OnceLock;

use crate::kernel::Shared;

/// Coefficients by kind; a pair holds those without edge weights, then those with them.
#[derive(Debug, Default)]
pub(crate) struct CoefficientCache {
    pub(crate) mean: [OnceLock<Shared<f32>>; 2],
    pub(crate) sum: [OnceLock<Shared<f32>>; 2],
    pub(crate) gcn: [OnceLock<(Shared<f32>, Shared<f32>)>; 2],
    pub(crate) light: OnceLock<Shared<f32>>,
    pub(crate) light_back: OnceLock<Shared<f32>>,
    pub(crate) weights: OnceLock<Shared<f32>>,
}
