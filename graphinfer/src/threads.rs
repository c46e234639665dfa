//! The threads of inference: each takes the next piece of work and does it alone.

use crate::InferError;
use schemas::threads::spawn_scoped;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Threads that share pieces of work.
#[derive(Debug)]
pub(crate) struct Threads {
    /// Pools of one thread each, so that the kernels do not split a piece further.
    pools: Vec<rayon::ThreadPool>,
}

impl Threads {
    /// Starts `count` threads.
    pub(crate) fn new(count: usize) -> Result<Self, InferError> {
        let pool = |_| rayon::ThreadPoolBuilder::new().num_threads(1).build();
        let pools = (0..count).map(pool).collect::<Result<_, _>>();
        Ok(Self {
            pools: pools.map_err(InferError::Threads)?,
        })
    }

    /// Runs `work` on the pieces `0..num_pieces`, which start in this order. Each thread calls
    /// `state` once, for all its pieces.
    ///
    /// # Errors
    ///
    /// The error of the first piece that fails, for any number of threads; or if the system refuses
    /// a thread.
    pub(crate) fn run<S>(
        &self,
        num_pieces: usize,
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, usize) -> Result<(), InferError> + Sync,
    ) -> Result<(), InferError> {
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<(usize, InferError)>> = Mutex::new(None);
        let on_thread = || {
            let mut state = state();
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= num_pieces {
                    return;
                }
                if let Err(e) = work(&mut state, piece) {
                    // No more pieces start; all pieces before this one have started already.
                    next.fetch_max(num_pieces, Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(first, _)| piece < *first) {
                        *failed = Some((piece, e));
                    }
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            for pool in &self.pools {
                let started = spawn_scoped(scope, "pieces", || pool.install(on_thread));
                // The threads that have started take no more pieces.
                started.inspect_err(|_| {
                    next.fetch_max(num_pieces, Ordering::Relaxed);
                })?;
            }
            Ok::<_, InferError>(())
        })?;
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), |(_, e)| Err(e))
    }

    /// Runs `work` on the pieces of a list; returns its results in the order of the pieces.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub(crate) fn map<P: Sync, T: Send>(
        &self,
        pieces: &[P],
        work: impl Fn(&P) -> T + Sync,
    ) -> Result<Vec<T>, InferError> {
        let done = Mutex::new(Vec::with_capacity(pieces.len()));
        let state = || ();
        self.run(pieces.len(), state, |(), at| {
            let of_piece = work(&pieces[at]);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((at, of_piece));
            Ok(())
        })?;
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|of| of.0);
        Ok(done.into_iter().map(|(_, of_piece)| of_piece).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_and_the_first_failure_counts() {
        for threads in [1, 3] {
            let threads = Threads::new(threads).unwrap();
            let done = Mutex::new(Vec::new());
            let note = |_: &mut (), piece| {
                done.lock().unwrap().push(piece);
                Ok(())
            };
            threads.run(50, || (), note).unwrap();
            let listed: Vec<usize> = (0..50).collect();
            let doubled = threads.map(&listed, |piece| 2 * piece).unwrap();
            assert_eq!(
                doubled,
                listed.iter().map(|piece| 2 * piece).collect::<Vec<_>>()
            );
            let mut pieces = done.into_inner().unwrap();
            pieces.sort_unstable();
            assert_eq!(pieces, (0..50).collect::<Vec<_>>());
            let fail = |_: &mut (), piece: usize| match piece {
                7.. => Err(InferError::Missing {
                    key: "piece",
                    needed: if piece == 7 { "first" } else { "later" },
                }),
                _ => Ok(()),
            };
            let error = threads.run(50, || (), fail).unwrap_err().to_string();
            assert_eq!(error, "`piece` is missing: first");
        }
    }
}
