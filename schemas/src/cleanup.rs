//! Removal of temporary files and locks when the program ends early.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Planned actions by number; a later action has a greater number.
static PLANNED: Mutex<Planned> = Mutex::new(Planned {
    next: 0,
    actions: BTreeMap::new(),
});

/// Whether [`run`] was called.
static HAS_RUN: AtomicBool = AtomicBool::new(false);

struct Planned {
    next: u64,
    actions: BTreeMap<u64, Action>,
}

type Action = Box<dyn FnOnce() + Send>;

/// A planned action; dropping it cancels the action.
#[derive(Debug)]
pub struct Cleanup(u64);

/// Plans an action for [`run`]; dropping the returned value cancels it.
#[must_use = "dropping it cancels the action"]
pub fn at_early_end(action: impl FnOnce() + Send + 'static) -> Cleanup {
    let mut planned = planned();
    let number = planned.next;
    planned.next += 1;
    planned.actions.insert(number, Box::new(action));
    Cleanup(number)
}

/// Plans for [`run`] to remove a temporary file or directory.
#[must_use = "dropping it cancels the removal"]
pub fn remove_at_early_end(path: &Path) -> Cleanup {
    let path: PathBuf = path.to_owned();
    at_early_end(move || {
        // If this fails, the next run removes it.
        if path.is_dir() {
            std::fs::remove_dir_all(&path).ok();
        } else {
            std::fs::remove_file(&path).ok();
        }
    })
}

/// Runs the planned actions, the latest first, before the caller ends the program. A second call
/// does nothing.
///
/// The lock stays taken: a thread that plans or cancels an action later blocks until the program
/// ends, so it leaves no new file behind.
pub fn run() {
    if HAS_RUN.swap(true, Ordering::SeqCst) {
        return;
    }
    let mut planned = planned();
    while let Some((_, action)) = planned.actions.pop_last() {
        action();
    }
    std::mem::forget(planned);
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let forgotten = planned().actions.remove(&self.0);
        // Dropped after the lock is released: an action may own another [`Cleanup`].
        drop(forgotten);
    }
}

fn planned() -> MutexGuard<'static, Planned> {
    PLANNED.lock().unwrap_or_else(PoisonError::into_inner)
}
