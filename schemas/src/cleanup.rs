//! What a program removes when it ends before its work is done: temporary files, locks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Actions that are still needed, in the order in which they were planned.
static PLANNED: Mutex<Planned> = Mutex::new(Planned {
    next: 0,
    actions: BTreeMap::new(),
});

/// Whether all was done.
static HAS_RUN: AtomicBool = AtomicBool::new(false);

struct Planned {
    next: u64,
    actions: BTreeMap<u64, Action>,
}

type Action = Box<dyn FnOnce() + Send>;

/// An action of [`at_early_end`]; dropped, it is no longer needed.
#[derive(Debug)]
pub struct Cleanup(u64);

/// Plans what [`run`] does, for as long as the returned value is held.
#[must_use = "the action is forgotten when it is dropped"]
pub fn at_early_end(action: impl FnOnce() + Send + 'static) -> Cleanup {
    let mut planned = planned();
    let number = planned.next;
    planned.next += 1;
    planned.actions.insert(number, Box::new(action));
    Cleanup(number)
}

/// Plans that a temporary file or directory is removed.
#[must_use = "the file is forgotten when it is dropped"]
pub fn remove_at_early_end(path: &Path) -> Cleanup {
    let path: PathBuf = path.to_owned();
    at_early_end(move || {
        // What stays is removed by the next run.
        if path.is_dir() {
            std::fs::remove_dir_all(&path).ok();
        } else {
            std::fs::remove_file(&path).ok();
        }
    })
}

/// Does all that is planned, the latest first; the caller then ends the program. A second call does
/// nothing.
///
/// Whoever plans or forgets an action later waits for ever, so that nothing new is left behind.
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
        // An action may own what plans or forgets another one.
        drop(forgotten);
    }
}

fn planned() -> MutexGuard<'static, Planned> {
    PLANNED.lock().unwrap_or_else(PoisonError::into_inner)
}
