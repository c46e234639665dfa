//! Starts threads; a thread that the system refuses is an error, not a panic.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::error::{Result, SchemaError};

/// Starts a thread. A container may refuse it: its limit on processes counts threads.
///
/// # Errors
///
/// If the system has none to give.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = Builder::new().name(name.to_owned());
    thread.spawn(work).map_err(refused)
}

/// Starts a thread of a scope.
///
/// # Errors
///
/// If the system refuses the thread. The scope still waits for its other threads, so they have to
/// end when the caller returns this error.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let thread = Builder::new().name(name.to_owned());
    thread.spawn_scoped(scope, work).map_err(refused)
}

/// Checks that `num_threads` threads can run at the same time, for a library that panics otherwise.
///
/// # Errors
///
/// If the system refuses one of them.
pub fn check(num_threads: usize) -> Result<()> {
    let (sender, hold) = std::sync::mpsc::channel::<()>();
    let hold = Arc::new(Mutex::new(hold));
    let mut started = Vec::with_capacity(num_threads);
    let mut checked = Ok(());
    for _ in 0..num_threads {
        let hold = Arc::clone(&hold);
        // Each lives until the sender is dropped.
        match spawn("check", move || drop(hold.lock().map(|hold| hold.recv()))) {
            Ok(thread) => started.push(thread),
            Err(error) => {
                checked = Err(error);
                break;
            }
        }
    }
    drop(sender);
    for thread in started {
        thread.join().ok();
    }
    checked
}

/// Wraps the error of the system, or of a library, that could not start a thread.
pub fn refused(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SchemaError {
    SchemaError::Thread {
        source: io::Error::other(cause),
    }
}
