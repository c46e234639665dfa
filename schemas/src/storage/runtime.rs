//! The threads that send requests to object stores (not to the store of the crate `store`).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{LazyLock, mpsc};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::fault::{generic, lasting};
use crate::error::{Result, SchemaError};
use crate::guard;

/// Longest time of a request, as a multiple of the time in which its server may stay silent.
pub(super) const SLOWEST: u32 = 10;

/// Threads that send requests to object stores, or `None` if the system refuses threads.
///
/// Callers block until a request is done.
static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("storage")
        .enable_all()
        .build()
        .ok()
});

/// Receives the result of a future of the runtime; [`wait`] returns it.
pub(crate) type Pending<T, E = SchemaError> = mpsc::Receiver<Result<T, E>>;

/// Fails if the system refused to start the threads; called before a store is used.
pub(super) fn check_started() -> object_store::Result<()> {
    match *RUNTIME {
        Some(_) => Ok(()),
        None => Err(generic(
            "the system refuses to start threads for it".to_owned(),
        )),
    }
}

fn runtime() -> &'static Runtime {
    RUNTIME.as_ref().expect("opening a store checks it")
}

/// Starts a future in the runtime.
pub(super) fn start<T, E>(
    future: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Pending<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime().spawn(async move {
        // Fails if the caller no longer waits.
        sender.send(future.await).ok();
    });
    receiver
}

/// Starts work that may block, on a thread of its own; the work may [`wait`] for futures.
pub(super) fn start_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Pending<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime().spawn_blocking(move || sender.send(work()).ok());
    receiver
}

/// Makes a call that needs the runtime around it, for example to start tasks.
pub(super) fn enter<T>(call: impl FnOnce() -> T) -> T {
    let _entered = runtime().enter();
    call()
}

/// Waits for a future of the runtime.
pub(crate) fn wait<T, E>(pending: Pending<T, E>) -> Result<T, E> {
    pending.recv().expect("a panic ends the process")
}

/// Runs a request of a store's client; a panic of the client becomes an error.
pub(super) async fn guarded<T>(
    request: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let mut request = pin!(request);
    let polled = poll_fn(
        |context| match guard::guarded(|| request.as_mut().poll(context)) {
            Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(problem) => Poll::Ready(Err(problem)),
        },
    );
    let answer = polled.await;
    answer.unwrap_or_else(|problem| {
        // The message of `guard` names a decoder.
        let problem = problem.replacen("its decoder", "the client of the store", 1);
        Err(lasting(problem))
    })
}

/// Ends a request after [`SLOWEST`] times `timeout`, the time in which its server may stay silent.
pub(super) async fn limited<T>(
    timeout: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let limit = timeout * SLOWEST;
    let answer = tokio::time::timeout(limit, request).await;
    answer.unwrap_or_else(|_elapsed| Err(generic(format!("no answer within {limit:?}"))))
}
