//! The leader: process 0 of a training in several processes.

use std::io::BufReader;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cluster::Cluster;
use schemas::Manifest;
use schemas::threads::spawn_scoped;

use super::{Command, Connections, LineSender, Report, StopReading, Team, process_of, receive};
use crate::crew::Crew;
use crate::order::Order;
use crate::prepare::Prepared;
use crate::server::{GrpcClient, GrpcServer, ParameterServer, ServerState, Settings};
use crate::supply::{Busy, Supply};
use crate::train::Identity;
use crate::worker::{Outcome, Task, Workers};
use crate::{TrainError, TrainPlan};

/// The leader of a training, with its connections to the followers.
pub(crate) struct Leader<'a> {
    cluster: &'a Cluster,
    connections: Connections,
}

/// The training that the leader runs.
pub(crate) struct LedTraining<'env> {
    pub(crate) plan: &'env TrainPlan,
    pub(crate) prepared: &'env Prepared,
    pub(crate) order: &'env Order,
    pub(crate) supply: Supply<'env>,
    /// Settings of the whole parameter server.
    pub(crate) settings: Settings,
    /// The epoch that it begins in, and its finished steps.
    pub(crate) begin: (u64, usize),
}

impl<'a> Leader<'a> {
    /// Connects to the followers.
    pub(crate) fn meet(plan: &TrainPlan, cluster: &'a Cluster) -> Result<Self, TrainError> {
        cluster.set_phase("train, its start");
        Ok(Self {
            cluster,
            connections: Connections::make(plan, cluster)?,
        })
    }

    /// Waits until all followers report the same input and the same training as the leader.
    pub(crate) fn agree(&mut self, identity: &Identity) -> Result<(), TrainError> {
        self.send_all(&Command::Compare {
            read: identity.read.clone(),
            fingerprint: identity.fingerprint.clone(),
        });
        for control in &mut self.connections.control {
            match control.receive()? {
                Report::Same => {}
                report => return Err(misplaced(control.process, &report)),
            }
        }
        Ok(())
    }

    /// Makes all followers prepare their workers.
    pub(crate) fn prepare(&self) {
        self.send_all(&Command::Prepare);
    }

    /// Sends the result of the training to all followers.
    pub(crate) fn end(&self, ended: &Result<Manifest, TrainError>) {
        self.send_all(&match ended {
            Ok(manifest) => Command::Done(Box::new(manifest.clone())),
            Err(_) => Command::Stop,
        });
    }

    /// Returns the processes that evaluate a model; none if the leader evaluates it alone.
    pub(crate) fn evaluates(&self, prepared: &Prepared) -> Option<&'a Cluster> {
        self.team(prepared).map(|_| self.cluster)
    }

    /// Returns the followers that evaluate a model with the leader, if they do.
    pub(crate) fn team(&self, prepared: &Prepared) -> Option<Team<'_>> {
        let control = self.connections.control.iter();
        let senders = control.map(|control| &control.sender).collect();
        Team::new(self.cluster, senders, prepared)
    }

    fn send_all(&self, command: &Command) {
        for control in &self.connections.control {
            control.sender.send(command);
        }
    }

    /// Returns a note if some processes have no worker.
    pub(crate) fn note(&self, plan: &TrainPlan) -> Option<String> {
        let (num_workers, num_processes) = (plan.result.workers, self.cluster.num_processes());
        let note = format!(
            "{num_workers} of {num_processes} processes train, with a worker each: `train.workers` is \
             {num_workers}"
        );
        (num_workers < num_processes).then(|| {
            tracing::warn!("{note}");
            note
        })
    }

    /// Calls `run` with the workers of all processes, their common parameter server, which starts
    /// from `state`, and the followers if they can evaluate the model.
    pub(crate) fn train<T>(
        &mut self,
        of: &LedTraining<'_>,
        state: ServerState,
        run: impl FnOnce(&Workers, &dyn ParameterServer, Option<&Team<'_>>) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let result = &of.plan.result;
        let (_own_shards, server) = self.begin(of, state)?;
        let crew = Crew {
            plan: of.plan,
            prepared: of.prepared,
            order: of.order,
            server: &server,
            supply: of.supply,
            begin: of.begin,
        };
        let (num_workers, num_processes) = (result.workers, self.cluster.num_processes());
        let (mut readers, mut senders) = (Vec::new(), Vec::new());
        for control in &mut self.connections.control {
            readers.push((control.process, &mut control.lines));
            senders.push(&control.sender);
        }
        let ended = thread::scope(|scope| {
            // Dropped at the end in any case, which ends the threads that read.
            let _reading = StopReading(senders.clone());
            let (done_sender, done) = channel();
            let mut tasks = Vec::with_capacity(num_workers);
            for worker in 0..num_workers {
                tasks.push(match process_of(worker, num_workers, num_processes) {
                    // Worker 0 takes part in every task.
                    0 if worker == 0 => {
                        let own = crew.start(scope, worker, &done_sender)?;
                        let announcer = Announcer {
                            senders: senders.clone(),
                            cluster: self.cluster,
                            epochs: result.epochs,
                        };
                        let (task_sender, own_tasks) = channel();
                        let announce = move || announcer.hand_on(&own_tasks, &own);
                        spawn_scoped(scope, "announcer", announce)?;
                        task_sender
                    }
                    0 => crew.start(scope, worker, &done_sender)?,
                    process => {
                        let sender = senders[process - 1];
                        let (task_sender, own_tasks) = channel();
                        let send = move |task| send_steps(sender, worker, task);
                        let send_all = move || own_tasks.iter().for_each(send);
                        spawn_scoped(scope, "tasks", send_all)?;
                        task_sender
                    }
                });
            }
            for (process, lines) in readers {
                let is_its =
                    |worker: &usize| process_of(*worker, num_workers, num_processes) == process;
                let workers = (0..num_workers).filter(is_its).collect();
                let (busy, server) = (of.supply.busy, &server);
                let follower = Follower {
                    process,
                    workers,
                    busy,
                    server,
                };
                let own_done = done_sender.clone();
                spawn_scoped(scope, "follower", move || follower.listen(lines, &own_done))?;
            }
            drop(done_sender);
            let workers = Workers {
                tasks,
                done,
                epoch_steps: of.order.num_batches(),
            };
            let team = Team::new(self.cluster, senders, of.prepared);
            run(&workers, &server, team.as_ref())
        });
        self.cluster.set_phase("train, its end");
        ended
    }

    /// Starts the shards of all processes from `state`.
    fn begin(
        &mut self,
        of: &LedTraining<'_>,
        state: ServerState,
    ) -> Result<(Vec<GrpcServer>, GrpcClient), TrainError> {
        let (epoch, done_steps) = of.begin;
        let own_shards = self.connections.serve()?;
        self.send_all(&Command::Begin { epoch, done_steps });
        let Settings {
            tensors, tables, ..
        } = &of.settings;
        let format = of.plan.result.gradient_format;
        let server = self.connections.client((tensors, tables), format)?;
        server.start(&of.settings, &state)?;
        Ok((own_shards, server))
    }

    /// Waits until all followers have prepared their workers.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), TrainError> {
        self.cluster.set_phase("train, its start");
        for control in &mut self.connections.control {
            match control.receive()? {
                Report::Ready => {}
                Report::Unready(failure) => return Err(failure.into_error(control.process)),
                report => return Err(misplaced(control.process, &report)),
            }
        }
        Ok(())
    }
}

/// Returns the error of a follower that sent an unexpected report.
fn misplaced(process: usize, report: &Report) -> TrainError {
    TrainError::PeerEnded {
        process,
        how: format!("it sent an unexpected report: {report:?}"),
        is_bound_to_repeat: false,
    }
}

/// Reports the current epoch to all processes.
struct Announcer<'a> {
    senders: Vec<&'a LineSender>,
    cluster: &'a Cluster,
    epochs: u64,
}

impl Announcer<'_> {
    /// Passes on the tasks of a worker, until the sender is dropped.
    fn hand_on(&self, tasks: &Receiver<Task>, own: &Sender<Task>) {
        for task in tasks {
            self.cluster
                .set_phase(&format!("train, epoch {}/{}", task.epoch + 1, self.epochs));
            let command = Command::Epoch(task.epoch);
            self.senders.iter().for_each(|sender| sender.send(&command));
            // A worker that has ended has already sent the reason as an outcome.
            own.send(task).ok();
        }
    }
}

/// Makes a follower run some steps of a worker.
fn send_steps(sender: &LineSender, worker: usize, task: Task) {
    let Task {
        epoch,
        steps,
        share,
    } = task;
    sender.send(&Command::Steps {
        worker,
        epoch,
        steps,
        share,
    });
}

/// The leader's view of a follower.
struct Follower<'a> {
    process: usize,
    /// The workers that it runs.
    workers: Vec<usize>,
    busy: &'a Busy,
    server: &'a dyn ParameterServer,
}

impl Follower<'_> {
    /// Passes on the outcomes of the follower's workers, until its connection ends.
    fn listen(&self, lines: &mut BufReader<TcpStream>, done: &Sender<(usize, Outcome)>) {
        loop {
            let (worker, outcome) = match receive(self.process, lines) {
                Ok(Report::Same | Report::Ready | Report::Unready(_)) => continue,
                Ok(Report::Ran {
                    worker,
                    share,
                    busy_ns,
                }) => {
                    self.busy.add_ns(busy_ns);
                    (worker, Ok(share))
                }
                Ok(Report::Failed { worker, failure }) => {
                    // The follower may have lost its own connection to the shards.
                    self.server.fail(worker);
                    (worker, Err(failure.into_error(self.process)))
                }
                Err(error) => return self.lose(&error, done),
            };
            if self.workers.contains(&worker) {
                // The training loop may have ended.
                done.send((worker, outcome)).ok();
            }
        }
    }

    /// Releases everyone who waits for the follower's workers, unless the training is over.
    fn lose(&self, error: &TrainError, done: &Sender<(usize, Outcome)>) {
        for &worker in &self.workers {
            let lost = TrainError::WorkerLost {
                worker,
                how: error.to_string(),
            };
            if done.send((worker, Err(lost))).is_err() {
                return;
            }
            self.server.fail(worker);
        }
    }
}
