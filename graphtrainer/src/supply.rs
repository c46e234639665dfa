//! Inputs that all threads of a pipeline share, and the busy time of each of its stages.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use crate::TrainError;
use crate::link::LinkBatches;
use crate::order::Selection;
use crate::source::{PartKey, Source};
use crate::vectorise::Vectoriser;

/// The values that all threads that make batches share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'env> {
    pub(crate) source: &'env Source,
    pub(crate) vectoriser: &'env Vectoriser,
    pub(crate) busy: &'env Busy,
}

impl Supply<'_> {
    /// Tells whether a worker with these targets of a segment reads the segment's part: without
    /// targets it needs the part only for the weights of classes or pairs, and for the pairs of src nodes.
    pub(crate) fn reads(&self, own: &Range<usize>) -> bool {
        let of_links = self.vectoriser.links.as_ref();
        let weighs = of_links.is_some_and(LinkBatches::weighs);
        !own.is_empty() || weighs || !self.vectoriser.class_weights.is_empty()
    }

    /// Returns the parts that a worker's batch reads, in its order.
    pub(crate) fn part_keys(&self, selection: &Selection) -> Vec<PartKey> {
        let read = selection.shares().filter(|(_, own)| self.reads(own));
        let keys = read.map(|(segment, _)| self.source.key(segment.part, selection.epoch));
        keys.collect()
    }
}

/// Busy time of the stages, summed over their threads.
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

    /// Returns the seconds of a stage since the last call, and resets them to 0.
    pub(crate) fn take_seconds(&self, stage: PipelineStage) -> f64 {
        self.of(stage).swap(0, Ordering::Relaxed) as f64 * 1e-9
    }

    /// Returns the nanoseconds of every stage since the last call, and resets them to 0.
    pub(crate) fn take_ns(&self) -> [u64; 3] {
        PipelineStage::ALL.map(|stage| self.of(stage).swap(0, Ordering::Relaxed))
    }

    /// Adds the times that [`take_ns`](Self::take_ns) returned in another process.
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

/// Runs a thread's work; an error is sent as the last message.
pub(crate) fn forward_error<T>(
    sender: &SyncSender<Result<T, TrainError>>,
    work: impl FnOnce() -> Result<(), TrainError>,
) {
    if let Err(error) = work() {
        // Sending fails if the training has ended for another reason.
        let _ = sender.send(Err(error));
    }
}
