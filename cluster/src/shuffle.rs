//! Shuffles between workers: each is a timely dataflow that moves whole batches to their owners.

use crate::{Cluster, ClusterError, WorkerError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::{Input, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};
use timely::worker::Worker;

/// Batches that a worker sends before it lets the dataflow run a step.
const BATCHES_A_STEP: u64 = 4;

/// Greatest number of steps by which a worker may be ahead of the slowest receiver.
const STEPS_AHEAD: u64 = 4;

/// A worker, with the operations that exchange values with all other workers.
pub struct Peer<'a> {
    worker: &'a mut Worker,
    /// Number of workers of each process.
    threads: usize,
}

/// A value that a shuffle can send, also to another process.
pub trait Message: Clone + Serialize + DeserializeOwned + Send + 'static {}
impl<M: Clone + Serialize + DeserializeOwned + Send + 'static> Message for M {}

#[derive(Clone, Serialize, Deserialize)]
struct Parcel<M> {
    to: u64,
    from: usize,
    ordinal: u64,
    /// `None` if the sender failed: then nothing of what it sent may be used.
    message: Option<M>,
}

/// The state of a shuffle on one worker.
struct Outcome<E> {
    /// The first error of this worker's `take`, if any.
    taken: Result<(), E>,
    /// Whether a sender failed; it tells every worker.
    peer_failed: bool,
}

impl<E> Outcome<E> {
    fn is_failure(&self) -> bool {
        self.peer_failed || self.taken.is_err()
    }
}

/// Runs `body` on each worker; returns the results of this process's workers, in worker order.
///
/// # Errors
///
/// The error of the first worker of this process that failed by itself. If only workers of other
/// processes failed by themselves, [`ClusterError::PeerFailed`]. An error if the processes cannot
/// be connected.
pub fn run_workers<T, E>(
    cluster: &Cluster,
    body: impl Fn(&mut Peer<'_>) -> Result<T, E> + Send + Sync + 'static,
) -> Result<Vec<T>, E>
where
    T: Send + 'static,
    E: WorkerError,
{
    let threads = cluster.num_threads();
    let guards = cluster.execute(move |worker| {
        let _guard = AbortOnPanic;
        body(&mut Peer { worker, threads })
    })?;
    let results = guards
        .join()
        .into_iter()
        .map(|r| r.expect("a panic has ended the process"));
    let (done, failed): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
    let mut failures: Vec<E> = failed.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return Ok(done.into_iter().filter_map(Result::ok).collect());
    }
    let first = failures
        .iter()
        .position(|e| !e.is_peer_failure())
        .unwrap_or(0);
    Err(failures.swap_remove(first))
}

/// Ends the process if a worker panics: otherwise its peers would wait for it for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Peer<'_> {
    /// Returns this worker's number.
    pub fn index(&self) -> usize {
        self.worker.index()
    }

    /// Tells whether this is the first worker of its process, which acts for the process.
    pub fn leads_process(&self) -> bool {
        self.index().is_multiple_of(self.threads)
    }

    /// Returns the first worker of each other process.
    pub fn other_processes(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.index() - self.index() % self.threads;
        let first = (0..self.peers()).step_by(self.threads);
        first.filter(move |&worker| worker != own)
    }

    /// Returns the number of workers.
    pub fn peers(&self) -> usize {
        self.worker.peers()
    }

    /// Returns the timely worker, to build a dataflow on.
    pub fn worker(&mut self) -> &mut Worker {
        self.worker
    }

    /// Sends each `(worker, message)` to its worker; returns the messages that this worker
    /// receives, ordered by sender and then as they were sent.
    ///
    /// # Errors
    ///
    /// The first error of `outgoing`; every other worker then returns [`ClusterError::PeerFailed`].
    pub fn shuffle<M: Message, E: WorkerError>(
        &mut self,
        outgoing: impl Iterator<Item = Result<(usize, M), E>>,
    ) -> Result<Vec<(usize, M)>, E> {
        let received = Rc::new(RefCell::new(Vec::new()));
        let take = Rc::clone(&received);
        self.run_shuffle(outgoing, move |from, ordinal, message| {
            take.borrow_mut().push((from, ordinal, message));
            Ok(())
        })??;
        let mut received = received.take();
        received.sort_unstable_by_key(|&(from, ordinal, _)| (from, ordinal));
        Ok(received.into_iter().map(|(from, _, m)| (from, m)).collect())
    }

    /// Sends each `(worker, message)` to its worker, which calls `take` as soon as a message
    /// arrives, with the sender, the position of the message among the sender's, and the message.
    ///
    /// Senders are ahead of receivers by a few messages at most.
    ///
    /// # Errors
    ///
    /// The first error of `outgoing` or of `take`; every other worker then returns
    /// [`ClusterError::PeerFailed`].
    pub fn shuffle_each<M: Message, E: WorkerError>(
        &mut self,
        outgoing: impl Iterator<Item = Result<(usize, M), E>>,
        take: impl FnMut(usize, u64, M) -> Result<(), E> + 'static,
    ) -> Result<(), E> {
        let taken = self.run_shuffle(outgoing, take)?;
        self.agree(taken)
    }

    /// Runs a shuffle. The outer error is one that all workers know of, the inner one an error of
    /// this worker's `take` that the others do not know of.
    fn run_shuffle<M: Message, E: WorkerError>(
        &mut self,
        outgoing: impl Iterator<Item = Result<(usize, M), E>>,
        take: impl FnMut(usize, u64, M) -> Result<(), E> + 'static,
    ) -> Result<Result<(), E>, E> {
        let (from, peers) = (self.index(), self.peers());
        let outcome = Rc::new(RefCell::new(Outcome {
            taken: Ok(()),
            peer_failed: false,
        }));
        let (mut input, probe) = self.shuffle_dataflow(take, &outcome);
        let mut failure = None;
        for (ordinal, item) in (0u64..).zip(outgoing) {
            if outcome.borrow().is_failure() {
                break;
            }
            match item {
                Ok((to, message)) => {
                    input.send(Parcel {
                        to: to as u64,
                        from,
                        ordinal,
                        message: Some(message),
                    });
                }
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
            if ordinal % BATCHES_A_STEP == BATCHES_A_STEP - 1 {
                let step = ordinal / BATCHES_A_STEP;
                input.advance_to(step + 1);
                self.worker.step();
                while probe.less_than(&step.saturating_sub(STEPS_AHEAD)) {
                    self.worker.step_or_park(None);
                }
            }
        }
        if failure.is_none() {
            let mut so_far = outcome.borrow_mut();
            failure = std::mem::replace(&mut so_far.taken, Ok(())).err();
            // Messages that still arrive are dropped.
            so_far.peer_failed |= failure.is_some();
        }
        if failure.is_some() {
            for to in 0..peers as u64 {
                input.send(Parcel {
                    to,
                    from,
                    ordinal: u64::MAX,
                    message: None,
                });
            }
        }
        drop(input);
        while !probe.done() {
            self.worker.step_or_park(None);
        }
        if let Some(e) = failure {
            return Err(e);
        }
        let outcome = outcome.replace(Outcome {
            taken: Ok(()),
            peer_failed: false,
        });
        if outcome.peer_failed {
            return Err(ClusterError::PeerFailed.into());
        }
        Ok(outcome.taken)
    }

    /// Sends one message to every worker; returns the messages of all workers, in worker order.
    ///
    /// # Errors
    ///
    /// The given error; every other worker then returns [`ClusterError::PeerFailed`].
    pub fn gather_all<M: Message, E: WorkerError>(
        &mut self,
        message: Result<M, E>,
    ) -> Result<Vec<M>, E> {
        let peers = self.peers();
        let outgoing: Vec<Result<(usize, M), E>> = match message {
            Ok(message) => (0..peers).map(|to| Ok((to, message.clone()))).collect(),
            Err(e) => vec![Err(e)],
        };
        let received = self.shuffle(outgoing.into_iter())?;
        Ok(received.into_iter().map(|(_, one)| one).collect())
    }

    /// Waits for all workers; returns the value only if each of them gives `Ok`.
    ///
    /// # Errors
    ///
    /// The given error; every other worker then returns [`ClusterError::PeerFailed`].
    pub fn agree<T, E: WorkerError>(&mut self, result: Result<T, E>) -> Result<T, E> {
        match result {
            Ok(value) => self.gather_all(Ok(())).map(|_| value),
            Err(e) => self
                .gather_all::<(), E>(Err(e))
                .map(|_| unreachable!("an error stays one")),
        }
    }

    #[expect(clippy::type_complexity, reason = "timely's own handle types")]
    fn shuffle_dataflow<M: Message, E: WorkerError>(
        &mut self,
        mut take: impl FnMut(usize, u64, M) -> Result<(), E> + 'static,
        outcome: &Rc<RefCell<Outcome<E>>>,
    ) -> (
        InputHandle<u64, timely::container::CapacityContainerBuilder<Vec<Parcel<M>>>>,
        ProbeHandle<u64>,
    ) {
        let shared = Rc::clone(outcome);
        let mut input = InputHandle::new();
        let probe = ProbeHandle::new();
        let mut take_parcel = move |parcel: Parcel<M>, so_far: &mut Outcome<E>| match parcel.message
        {
            Some(message) if !so_far.is_failure() => {
                so_far.taken = take(parcel.from, parcel.ordinal, message);
            }
            Some(_) => {}
            None => so_far.peer_failed = true,
        };
        self.worker.dataflow(|scope| {
            let pact = Exchange::new(|parcel: &Parcel<M>| parcel.to);
            let parcels = scope.input_from(&mut input);
            let done = parcels
                .unary::<timely::container::CapacityContainerBuilder<Vec<()>>, _, _, _>(
                    pact,
                    "Shuffle",
                    move |_, _| {
                        move |batches, _output| {
                            batches.for_each_time(|_, data| {
                                let mut so_far = shared.borrow_mut();
                                data.flat_map(|batch| batch.drain(..))
                                    .for_each(|parcel| take_parcel(parcel, &mut so_far));
                            });
                        }
                    },
                );
            done.probe_with(&probe);
        });
        (input, probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Error {
        Own(usize),
        Peer,
    }
    impl From<ClusterError> for Error {
        fn from(error: ClusterError) -> Self {
            assert!(matches!(error, ClusterError::PeerFailed), "{error}");
            Self::Peer
        }
    }
    impl WorkerError for Error {
        fn is_peer_failure(&self) -> bool {
            *self == Self::Peer
        }
    }

    fn run<T: Send + 'static>(
        workers: usize,
        body: impl Fn(&mut Peer<'_>) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Error> {
        run_workers(&Cluster::of_threads(workers), body)
    }

    #[test]
    fn messages_arrive_by_sender_and_order() {
        let received = run(3, |peer| {
            let from = peer.index();
            let outgoing = (0..30usize).map(move |i| Ok((i % 3, vec![from, i])));
            peer.shuffle(outgoing)
        });
        for (to, messages) in received.unwrap().into_iter().enumerate() {
            let expected: Vec<_> = (0..3)
                .flat_map(|from| {
                    (0..30)
                        .filter(move |i| i % 3 == to)
                        .map(move |i| (from, vec![from, i]))
                })
                .collect();
            assert_eq!(messages, expected);
        }
    }

    #[test]
    fn one_failure_ends_all_workers_and_is_the_one_reported() {
        let result = run(3, |peer| {
            let from = peer.index();
            let mine = if from == 1 {
                Err(Error::Own(from))
            } else {
                Ok((0, from))
            };
            peer.shuffle(std::iter::once(mine))?;
            peer.gather_all(Ok(())).map(|_| ())
        });
        // Workers 0 and 2 read in the failed worker's parcels that it has failed.
        assert_eq!(result, Err(Error::Own(1)));
    }

    #[test]
    fn a_worker_that_cannot_take_what_it_gets_ends_all() {
        let result = run(3, |peer| {
            let me = peer.index();
            let outgoing = (0..90usize).map(|i| Ok((i % 3, i)));
            peer.shuffle_each(outgoing, move |_, ordinal, _| match (me, ordinal) {
                (2, 40..) => Err(Error::Own(2)),
                _ => Ok(()),
            })
        });
        assert_eq!(result, Err(Error::Own(2)));
    }

    #[test]
    fn shuffles_follow_one_another() {
        let sums = run(4, |peer| {
            let first = peer.gather_all::<usize, Error>(Ok(peer.index()))?;
            let second = peer.gather_all::<usize, Error>(Ok(first.iter().sum()))?;
            peer.agree(Ok(second.iter().sum::<usize>()))
        });
        assert_eq!(sums, Ok(vec![24; 4]));
    }
}
