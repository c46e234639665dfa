//! The report of one epoch, as `epochs.jsonl` and checkpoints store it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::Metrics;

/// Loss, metrics and times of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// 1-based.
    pub epoch: u64,
    /// Mean training loss per target, with dropout, during the epoch; with class weights the
    /// weighted mean.
    pub loss: f64,
    /// Finite metrics on the val split after the epoch; empty if the epoch was not evaluated.
    pub val: Metrics,
    /// Step size of the epoch's last step.
    pub learning_rate: f32,
    /// Mean norm of the gradients of the epoch's updates, before clipping.
    pub gradient_norm: f64,
    /// Wall-clock seconds of the epoch, with evaluation, since it began or was resumed.
    pub seconds: f64,
    /// Busy seconds of the stages `read`, `vectorise` and `compute`, summed over threads. `read`
    /// and `vectorise` run ahead, so their seconds may include the next epoch's batches.
    pub busy: BTreeMap<String, f64>,
}
