//! The report of one epoch, as `epochs.jsonl` and checkpoints store it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::Metrics;

/// Loss, metrics and times of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// 1-based.
    pub epoch: u64,
    /// Mean training loss per target, with dropout, during the epoch; the weighted mean where
    /// classes have weights.
    pub loss: f64,
    /// Metrics on the val split after the epoch, as far as they are finite; none where it was not
    /// evaluated.
    pub val: Metrics,
    /// Step size of the epoch's last step.
    pub learning_rate: f32,
    /// Mean norm of the gradients of the epoch's updates, before they were clipped.
    pub gradient_norm: f64,
    /// Wall-clock seconds of the epoch since it began or was resumed, evaluation included.
    pub seconds: f64,
    /// Busy seconds of the stages `read`, `vectorise` and `compute`, summed over threads. Reading
    /// and vectorising run ahead, so theirs may belong to the next epoch's batches.
    pub busy: BTreeMap<String, f64>,
}
