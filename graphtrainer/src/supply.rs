//! Inputs that all threads of a pipeline share, and the time each of its stages was busy.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use crate::TrainError;
use crate::order::Selection;
use crate::source::{PartKey, Source};
use crate::vectorise::Vectoriser;

/// What everything that makes batches shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'env> {
    pub(crate) source: &'env Source,
    pub(crate) vectoriser: &'env Vectoriser,
    pub(crate) busy: &'env Busy,
}

impl Supply<'_> {
    /// Tells whether the part of a segment is read, of which a worker has these targets: those of
    /// others are looked at only for the weights of their classes.
    pub(crate) fn reads(&self, own: &Range<usize>) -> bool {
        !own.is_empty() || !self.vectoriser.class_weights.is_empty()
    }

    /// Returns the parts that a batch of a worker takes, in its order.
    pub(crate) fn part_keys(&self, selection: &Selection) -> Vec<PartKey> {
        let read = selection.shares().filter(|(_, own)| self.reads(own));
        let keys = read.map(|(segment, _)| self.source.key(segment.part, selection.epoch));
        keys.collect()
    }
}

/// Time the stages were busy, summed over their threads.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    read_ns: AtomicU64,
    vectorise_ns: AtomicU64,
    compute_ns: AtomicU64,
}

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PipelineStage {
    Read,
    Vectorise,
    Compute,
}

impl PipelineStage {
    const ALL: [Self; 3] = [Self::Read, Self::Vectorise, Self::Compute];
}

impl Busy {
    /// Runs `work` and adds its time to a stage.
    pub(crate) fn time<T>(&self, stage: PipelineStage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.of(stage).fetch_add(ns, Ordering::Relaxed);
        done
    }

    /// Returns the seconds of a stage since the last call, and starts again from 0.
    pub(crate) fn take_seconds(&self, stage: PipelineStage) -> f64 {
        self.of(stage).swap(0, Ordering::Relaxed) as f64 * 1e-9
    }

    /// Returns the nanoseconds of every stage since the last call, and starts again from 0.
    pub(crate) fn take_ns(&self) -> [u64; 3] {
        PipelineStage::ALL.map(|stage| self.of(stage).swap(0, Ordering::Relaxed))
    }

    /// Adds what [`take_ns`](Self::take_ns) returned in another process.
    pub(crate) fn add_ns(&self, all: [u64; 3]) {
        for (stage, ns) in PipelineStage::ALL.into_iter().zip(all) {
            self.of(stage).fetch_add(ns, Ordering::Relaxed);
        }
    }

    fn of(&self, stage: PipelineStage) -> &AtomicU64 {
        match stage {
            PipelineStage::Read => &self.read_ns,
            PipelineStage::Vectorise => &self.vectorise_ns,
            PipelineStage::Compute => &self.compute_ns,
        }
    }
}

/// Runs a thread's work; its error is the last thing its receiver gets.
pub(crate) fn forward_error<T>(
    sender: &SyncSender<Result<T, TrainError>>,
    work: impl FnOnce() -> Result<(), TrainError>,
) {
    if let Err(error) = work() {
        // Nobody listens any more: the training ended for another reason.
        let _ = sender.send(Err(error));
    }
}
