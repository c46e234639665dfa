//! Commits parts on a thread of its own.

use crate::FlattenError;
use crate::wave_context::WaveContext;
use schemas::PartEntry;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

/// A thread that commits parts, so that workers do not wait for the disk.
pub(crate) struct Committer {
    parts: Sender<(usize, PartEntry)>,
    thread: JoinHandle<Result<(), FlattenError>>,
}

impl Committer {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the system refuses it.
    pub(crate) fn start(context: &WaveContext) -> Result<Self, FlattenError> {
        let (parts, written) = std::sync::mpsc::channel();
        let context = context.clone();
        let commit_all = move || {
            for (index, part) in written {
                let committed = context.output.commit_part(index, part);
                committed
                    .map_err(FlattenError::from)
                    .inspect_err(|e| context.fail(e))?;
            }
            Ok(())
        };
        let thread = schemas::threads::spawn("commit", commit_all)?;
        Ok(Self { parts, thread })
    }

    /// Passes a part to the thread.
    pub(crate) fn commit(&self, index: usize, part: PartEntry) {
        // If the thread has ended, `finish` returns its error.
        self.parts.send((index, part)).ok();
    }

    /// Waits until all parts are committed.
    pub(crate) fn finish(self) -> Result<(), FlattenError> {
        drop(self.parts);
        self.thread.join().expect("a panic has ended the process")
    }
}
