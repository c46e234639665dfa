//! Values that all waves of a run share.

use crate::FlattenError;
use crate::pair_parts::{OnePart, PartTargets};
use schemas::progress::Progress;
use schemas::{FlattenMeta, Output};
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use store::Store;

/// A run of flatten: the store, the output and the parts to write.
#[derive(Clone)]
pub(crate) struct WaveContext {
    pub(crate) store: Store,
    pub(crate) output: Arc<Output>,
    pub(crate) meta: FlattenMeta,
    pub(crate) parts: Arc<PartTargets>,
    pub(crate) memory_budget: usize,
    pub(crate) progress: Progress,
    /// Set by the first worker that fails; no further wave starts then.
    pub(crate) failed: Arc<AtomicBool>,
}

impl WaveContext {
    /// Stops further waves, and reports the error to other processes so that they do not wait.
    pub(crate) fn fail(&self, error: &FlattenError) {
        self.failed.store(true, Relaxed);
        let cluster = self.store.cluster();
        cluster.fail_now(error, error.kind().exit_code());
    }

    /// Sets the phase that peer-loss messages name: the next round of a wave on this process.
    pub(crate) fn set_phase(&self, wave: u64, round: usize) {
        let hops = self.meta.hops;
        let at = match round.cmp(&hops) {
            Ordering::Less => format!("round {}/{hops}", round + 1),
            Ordering::Equal => "features and writing".to_owned(),
            Ordering::Greater => "its end".to_owned(),
        };
        let (wave, num) = (wave + 1, self.num_parts());
        let cluster = self.store.cluster();
        cluster.set_phase(&format!("flatten, wave {wave}/{num}, {at}"));
    }

    /// Returns the targets of a part of some sample, and the number of the sample.
    pub(crate) fn part(&self, part: usize) -> (usize, OnePart) {
        let sample = part / self.parts.len();
        let seed = self.meta.seed.wrapping_add(sample as u64);
        (sample, self.parts.part(part % self.parts.len(), seed))
    }

    /// Returns the number of parts of all samples; each part is a wave.
    pub(crate) fn num_parts(&self) -> usize {
        self.parts.len() * self.meta.samples_per_target as usize
    }
}
