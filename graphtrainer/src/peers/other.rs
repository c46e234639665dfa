//! A process that does as the first one says.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use schemas::{Manifest, read_manifest};

use super::{Connections, Control, Listening, Peers, Said, Speech, Told, hear, process_of};
use crate::crew::Crew;
use crate::order::training_order;
use crate::pipeline::{Busy, Supply};
use crate::prepare::{Prepared, prepare, tensors};
use crate::process::Failure;
use crate::server::Credentials;
use crate::source::Source;
use crate::train::Identity;
use crate::worker::{Outcome, Task};
use crate::{TrainError, TrainPlan};

/// Works for the first process until the output is finished; returns its manifest.
pub(crate) fn follow(plan: &TrainPlan, peers: &Peers<'_>) -> Result<Manifest, TrainError> {
    (peers.set_phase)("train, its start");
    let mut connections = Connections::make(plan, peers)?;
    let first = &mut connections.control[0];
    // Before that the first process may still be at what it writes for this stage to read.
    let Told::Input { read, fingerprint } = listen(first)? else {
        return Err(unexpected());
    };
    let flattened = read_manifest(&plan.input)?;
    let source = Source::open(&plan.input, plan.part_cache_bytes())?;
    let identity = Identity::among(plan, &source, &flattened.fingerprint)?;
    if identity.read != read {
        let input = plan.input.display();
        return Err(TrainError::Differs {
            process: peers.process,
            key: "input",
            problem: format!(
                "{input} there was flattened otherwise; all need the same graph features"
            ),
        });
    }
    if identity.fingerprint != fingerprint {
        return Err(TrainError::Differs {
            process: peers.process,
            key: "model",
            problem: "its plan comes to another model on the same graph features".to_owned(),
        });
    }
    first.speech.tell(&Said::Same);
    match listen(first)? {
        Told::Open => {}
        Told::Done(manifest) => return Ok(*manifest),
        _ => return Err(unexpected()),
    }
    let prepared = match prepare(plan, &source) {
        Ok(prepared) => prepared,
        Err(error) => {
            first.speech.tell(&Said::Unready(Failure::of(&error)));
            return wait_for_end(first).ok_or(error);
        }
    };
    first.speech.tell(&Said::Ready);
    match listen(first)? {
        Told::Begin {
            credentials,
            epoch,
            done_steps,
        } => {
            let work = Work {
                plan,
                peers,
                source: &source,
                prepared: &prepared,
                begin: (epoch, done_steps),
            };
            work.run(&mut connections, credentials)
        }
        Told::Done(manifest) => Ok(*manifest),
        _ => Err(unexpected()),
    }
}

/// Waits for what the first process says; an error if that is to stop.
fn listen(first: &mut Control) -> Result<Told, TrainError> {
    match first.hear()? {
        Told::Stop => Err(ended("it has stopped")),
        told => Ok(told),
    }
}

/// Waits until the first process has tidied up, or finds that there was nothing left to train.
fn wait_for_end(first: &mut Control) -> Option<Manifest> {
    loop {
        match listen(first) {
            Ok(Told::Done(manifest)) => return Some(*manifest),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

fn ended(how: &str) -> TrainError {
    TrainError::PeerEnded {
        process: 0,
        how: how.to_owned(),
        is_bound_to_repeat: false,
    }
}

fn unexpected() -> TrainError {
    ended("it says what has no place here")
}

/// What happens while a process works.
enum Event {
    Told(Result<Told, TrainError>),
    /// A worker has come to the end of a task.
    Ended(usize, Outcome),
}

/// The work of this process.
struct Work<'a> {
    plan: &'a TrainPlan,
    peers: &'a Peers<'a>,
    source: &'a Source,
    prepared: &'a Prepared,
    /// The epoch it begins in, and its steps that are done.
    begin: (u64, usize),
}

impl Work<'_> {
    /// Holds the shards and runs the workers that belong here.
    fn run(
        &self,
        connections: &mut Connections,
        credentials: Credentials,
    ) -> Result<Manifest, TrainError> {
        let result = &self.plan.result;
        let _own_shards = connections.serve(&credentials)?;
        let specs = tensors(self.prepared.model.parameters(), &self.prepared.decays);
        let format = result.gradient_format;
        let server = connections.client(&specs, credentials, format)?;
        let (busy, order) = (Busy::default(), training_order(self.plan, self.source));
        let vectoriser = self.prepared.vectoriser(true);
        let crew = Crew {
            plan: self.plan,
            prepared: self.prepared,
            order: &order,
            server: &server,
            supply: Supply {
                source: self.source,
                vectoriser: &vectoriser,
                busy: &busy,
            },
            begin: self.begin,
        };
        let Control { lines, speech, .. } = &mut connections.control[0];
        let (num_workers, num_processes) = (result.workers, self.peers.num_processes);
        let is_own =
            |worker: &usize| process_of(*worker, num_workers, num_processes) == self.peers.process;
        thread::scope(|scope| {
            let (done_sender, done) = channel();
            let start = |worker| (worker, crew.start(scope, worker, &done_sender));
            let tasks = (0..num_workers).filter(is_own).map(start).collect();
            drop(done_sender);
            let (events_sender, events) = channel();
            let told_sender = events_sender.clone();
            scope.spawn(move || {
                loop {
                    let told = hear(0, lines);
                    let is_last = told.is_err();
                    if told_sender.send(Event::Told(told)).is_err() || is_last {
                        return;
                    }
                }
            });
            scope.spawn(move || {
                for (worker, outcome) in done {
                    // Nobody listens once the work is over.
                    events_sender.send(Event::Ended(worker, outcome)).ok();
                }
            });
            let _listening = Listening(vec![speech]);
            self.obey(&events, &tasks, speech, &busy)
        })
    }

    /// Hands on tasks and what came of them, until the first process says that it is over.
    fn obey(
        &self,
        events: &Receiver<Event>,
        tasks: &BTreeMap<usize, Sender<Task>>,
        speech: &Speech,
        busy: &Busy,
    ) -> Result<Manifest, TrainError> {
        let mut own_failure = None;
        for event in events {
            match event {
                Event::Told(Ok(Told::Steps {
                    worker,
                    epoch,
                    steps,
                    share,
                })) => {
                    let task = Task {
                        epoch,
                        steps,
                        share: share.into(),
                    };
                    // One that has ended has said why.
                    tasks.get(&worker).map(|own| own.send(task).ok());
                }
                Event::Told(Ok(Told::Epoch(epoch))) => {
                    let epochs = self.plan.result.epochs;
                    (self.peers.set_phase)(&format!("train, epoch {}/{epochs}", epoch + 1));
                }
                Event::Told(Ok(Told::Done(manifest))) => return Ok(*manifest),
                Event::Told(told) => {
                    let error = match told {
                        Ok(Told::Stop) => ended("it has stopped"),
                        Ok(_) => unexpected(),
                        Err(error) => error,
                    };
                    return Err(own_failure.unwrap_or(error));
                }
                Event::Ended(worker, Ok(share)) => speech.tell(&Said::Ran {
                    worker,
                    share: share.into(),
                    busy_ns: busy.take_ns(),
                }),
                Event::Ended(worker, Err(error)) => {
                    let failure = Failure::of(&error);
                    speech.tell(&Said::Failed { worker, failure });
                    if !error.is_peer_failure() {
                        own_failure.get_or_insert(error);
                    }
                }
            }
        }
        Err(own_failure.unwrap_or_else(|| ended("nothing is heard of it")))
    }
}
