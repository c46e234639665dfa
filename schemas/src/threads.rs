//! Threads, which a container may refuse: its limit on processes counts them.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::error::{Result, SchemaError};

/// Starts a thread.
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
/// If the system has none to give. The scope still waits for its other threads, so they have to end
/// when the caller returns this error.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let thread = Builder::new().name(name.to_owned());
    thread.spawn_scoped(scope, work).map_err(refused)
}

/// Checks that so many threads can be started at once, for a library that panics where they cannot.
///
/// # Errors
///
/// If the system has fewer to give.
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

/// Wraps what the system, or a library, said when a thread could not be started.
pub fn refused(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SchemaError {
    SchemaError::Thread {
        source: io::Error::other(cause),
    }
}
