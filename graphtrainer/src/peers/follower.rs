//! A follower: a process that runs the leader's commands.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cluster::Cluster;
use schemas::threads::spawn_scoped;
use schemas::{Manifest, read_manifest};

use super::evaluation::FollowerEvaluation;
use super::{
    Command, Connections, Control, Failure, LineSender, Report, StopReading, process_of, receive,
};
use crate::crew::Crew;
use crate::order::training_order;
use crate::prepare::{Prepared, prepare, tensors};
use crate::source::Source;
use crate::supply::{Busy, Supply};
use crate::train::Identity;
use crate::worker::{Outcome, Task};
use crate::{TrainError, TrainPlan};

/// Runs the leader's commands until the output is finished; returns its manifest.
pub(crate) fn follow(plan: &TrainPlan, cluster: &Cluster) -> Result<Manifest, TrainError> {
    cluster.set_phase("train, its start");
    let mut connections = Connections::make(plan, cluster)?;
    let leader = &mut connections.control[0];
    // Before this command the leader may still write the input of this stage.
    let Command::Compare { read, fingerprint } = next_command(leader)? else {
        return Err(unexpected());
    };
    let flattened = read_manifest(&plan.input)?;
    let source = Source::open(&plan.input, plan.part_cache_bytes())?;
    let identity = Identity::among(plan, &source, &flattened.fingerprint)?;
    if identity.read != read {
        let input = plan.input.display();
        return Err(TrainError::Differs {
            process: cluster.process(),
            key: "input",
            problem: format!(
                "its {input} is another output of flatten; all processes need the same one"
            ),
        });
    }
    if identity.fingerprint != fingerprint {
        return Err(TrainError::Differs {
            process: cluster.process(),
            key: "model",
            problem: "its settings give another model on the same graph features".to_owned(),
        });
    }
    leader.sender.send(&Report::Same);
    match next_command(leader)? {
        Command::Prepare => {}
        Command::Done(manifest) => return Ok(*manifest),
        _ => return Err(unexpected()),
    }
    let prepared = match prepare(plan, &source) {
        Ok(prepared) => prepared,
        Err(error) => {
            leader.sender.send(&Report::Unready(Failure::of(&error)));
            return Err(at_end(leader, error));
        }
    };
    leader.sender.send(&Report::Ready);
    let vectoriser = prepared.vectoriser(false);
    let supply = Supply {
        source: &source,
        vectoriser: &vectoriser,
        busy: &Busy::default(),
    };
    let mut evaluation = FollowerEvaluation::new(plan, cluster, (&prepared, supply));
    loop {
        match next_command(&mut connections.control[0])? {
            Command::Begin { epoch, done_steps } => {
                let mut work = FollowerWork {
                    plan,
                    cluster,
                    source: &source,
                    prepared: &prepared,
                    begin: (epoch, done_steps),
                    evaluation,
                };
                return work.run(&mut connections);
            }
            // All epochs were done before.
            Command::Evaluate(command) => {
                if let Some(error) = evaluation.run(command)? {
                    return Err(at_end(&mut connections.control[0], error));
                }
            }
            Command::Done(manifest) => return Ok(*manifest),
            _ => return Err(unexpected()),
        }
    }
}

/// Waits for the leader's next command; an error if the command is to stop.
fn next_command(leader: &mut Control) -> Result<Command, TrainError> {
    match leader.receive()? {
        Command::Stop => Err(ended("it has stopped")),
        command => Ok(command),
    }
}

/// Returns an error after the leader has cleaned up the output.
fn at_end(leader: &mut Control, error: TrainError) -> TrainError {
    while next_command(leader).is_ok() {}
    error
}

fn ended(how: &str) -> TrainError {
    TrainError::PeerEnded {
        process: 0,
        how: how.to_owned(),
        is_bound_to_repeat: false,
    }
}

fn unexpected() -> TrainError {
    ended("it sent an unexpected command")
}

/// An event during a follower's training.
enum Event {
    Commanded(Result<Command, TrainError>),
    /// A worker has finished a task.
    Ended(usize, Outcome),
}

/// The values that a follower works with.
struct FollowerWork<'a> {
    plan: &'a TrainPlan,
    cluster: &'a Cluster,
    source: &'a Source,
    prepared: &'a Prepared,
    /// The epoch that it begins in, and its finished steps.
    begin: (u64, usize),
    evaluation: FollowerEvaluation<'a>,
}

impl FollowerWork<'_> {
    /// Serves the shards and runs the workers of this process.
    fn run(&mut self, connections: &mut Connections) -> Result<Manifest, TrainError> {
        let result = &self.plan.result;
        let _own_shards = connections.serve()?;
        let specs = tensors(self.prepared.model.parameters(), &self.prepared.decays);
        let format = result.gradient_format;
        let server = connections.client((&specs, &self.prepared.tables()), format)?;
        let order = training_order(self.plan, self.source)?;
        let busy = Busy::default();
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
        let Control { lines, sender, .. } = &mut connections.control[0];
        let (num_workers, num_processes) = (result.workers, self.cluster.num_processes());
        let is_own = |worker: &usize| {
            process_of(*worker, num_workers, num_processes) == self.cluster.process()
        };
        thread::scope(|scope| {
            // Dropped at the end in any case, which ends the thread that reads.
            let _reading = StopReading(vec![sender]);
            let (done_sender, done) = channel();
            let start = |worker| Ok((worker, crew.start(scope, worker, &done_sender)?));
            let own = (0..num_workers).filter(is_own);
            let tasks = own.map(start).collect::<Result<_, TrainError>>()?;
            drop(done_sender);
            let (events_sender, events) = channel();
            let command_sender = events_sender.clone();
            let read = move || {
                loop {
                    let command = receive(0, lines);
                    let is_last = command.is_err();
                    let event = Event::Commanded(command);
                    if command_sender.send(event).is_err() || is_last {
                        return;
                    }
                }
            };
            spawn_scoped(scope, "leader", read)?;
            let collect = move || {
                for (worker, outcome) in done {
                    // Sending fails after the work is over.
                    events_sender.send(Event::Ended(worker, outcome)).ok();
                }
            };
            spawn_scoped(scope, "outcomes", collect)?;
            self.obey(&events, &tasks, sender, &busy)
        })
    }

    /// Passes tasks to the workers and reports their outcomes, until the leader ends the training.
    fn obey(
        &mut self,
        events: &Receiver<Event>,
        tasks: &BTreeMap<usize, Sender<Task>>,
        leader: &LineSender,
        busy: &Busy,
    ) -> Result<Manifest, TrainError> {
        let mut own_failure = None;
        for event in events {
            match event {
                Event::Commanded(Ok(Command::Steps {
                    worker,
                    epoch,
                    steps,
                    share,
                })) => {
                    let task = Task {
                        epoch,
                        steps,
                        share,
                    };
                    // A worker that has ended has already reported the reason.
                    tasks.get(&worker).map(|own| own.send(task).ok());
                }
                Event::Commanded(Ok(Command::Epoch(epoch))) => {
                    let epochs = self.plan.result.epochs;
                    self.cluster
                        .set_phase(&format!("train, epoch {}/{epochs}", epoch + 1));
                }
                Event::Commanded(Ok(Command::Evaluate(asked))) => {
                    let failure = self.evaluation.run(asked)?;
                    own_failure = own_failure.or(failure);
                }
                Event::Commanded(Ok(Command::Done(manifest))) => return Ok(*manifest),
                Event::Commanded(command) => {
                    let error = match command {
                        Ok(Command::Stop) => ended("it has stopped"),
                        Ok(_) => unexpected(),
                        Err(error) => error,
                    };
                    return Err(own_failure.unwrap_or(error));
                }
                Event::Ended(worker, Ok(share)) => leader.send(&Report::Ran {
                    worker,
                    share,
                    busy_ns: busy.take_ns(),
                }),
                Event::Ended(worker, Err(error)) => {
                    let failure = Failure::of(&error);
                    leader.send(&Report::Failed { worker, failure });
                    if !error.is_peer_failure() {
                        own_failure.get_or_insert(error);
                    }
                }
            }
        }
        Err(own_failure.unwrap_or_else(|| ended("its connection is closed")))
    }
}
