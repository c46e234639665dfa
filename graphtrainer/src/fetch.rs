//! Fetches parts ahead: the next part is read while batches are made of the one before.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Scope;

use schemas::threads::spawn_scoped;

use crate::TrainError;
use crate::order::Selection;
use crate::source::{Part, PartKey};
use crate::supply::{PipelineStage, Supply, forward_error};

/// Capacity of the queue of parts that are read from files. With 0, the thread still reads one part
/// ahead, and holds it until the receiver takes it.
const QUEUE_STORED: usize = 0;

/// Capacity of the queue of parts that are drawn, which are small without their dense features. The
/// time to draw a part varies; with a part in the queue, a slow draw delays training less.
const QUEUE_DRAWN: usize = 1;

type Fetched = Result<(PartKey, Arc<Part>), TrainError>;

/// Receives the parts of a worker's selections, in the order of the selections.
pub(crate) struct FetchedParts {
    next: Receiver<Fetched>,
    /// The parts of the current selection.
    held: Vec<(PartKey, Arc<Part>)>,
}

/// Starts the thread that fetches the parts of all selections.
///
/// A part that consecutive selections need is fetched once. If a part cannot be fetched, the thread
/// sends the error and ends.
///
/// # Errors
///
/// If the system refuses a thread.
pub(crate) fn fetch_ahead<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    supply: Supply<'env>,
    selections: impl Iterator<Item = Selection> + Send + 'scope,
) -> Result<FetchedParts, TrainError> {
    let queue_parts = match supply.source.is_streamed {
        true => QUEUE_DRAWN,
        false => QUEUE_STORED,
    };
    let (sender, next) = sync_channel::<Fetched>(queue_parts);
    let fetch = move || {
        forward_error(&sender, || {
            let mut last = Vec::new();
            for selection in selections {
                let keys = supply.part_keys(&selection);
                for &key in keys.iter().filter(|key| !last.contains(*key)) {
                    let fetch = || supply.source.part(key);
                    let part = supply.busy.time(PipelineStage::Read, fetch)?;
                    if sender.send(Ok((key, part))).is_err() {
                        return Ok(());
                    }
                }
                last = keys;
            }
            Ok(())
        });
    };
    spawn_scoped(scope, "fetch", fetch)?;
    Ok(FetchedParts {
        next,
        held: Vec::new(),
    })
}

impl FetchedParts {
    /// Advances to the next selection, and keeps only its parts.
    ///
    /// # Errors
    ///
    /// A part that cannot be read.
    pub(crate) fn advance(
        &mut self,
        supply: Supply<'_>,
        selection: &Selection,
    ) -> Result<(), TrainError> {
        let keys = supply.part_keys(selection);
        self.held.retain(|(key, _)| keys.contains(key));
        while self.held.len() < keys.len() {
            let ended = || TrainError::Ended { thread: "a reader" };
            self.held.push(self.next.recv().map_err(|_| ended())??);
        }
        Ok(())
    }

    /// Returns a part of the current selection.
    ///
    /// # Panics
    ///
    /// If the current selection does not have the part.
    pub(crate) fn get(&self, key: PartKey) -> &Arc<Part> {
        let found = self.held.iter().find(|(known, _)| *known == key);
        &found.expect("parts come in the order of selections").1
    }
}
