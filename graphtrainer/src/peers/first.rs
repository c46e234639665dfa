//! The process that leads a training.

use std::io::BufReader;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use schemas::Manifest;

use super::{Connections, Listening, Peers, Said, Speech, Told, hear, process_of};
use crate::crew::Crew;
use crate::order::Order;
use crate::pipeline::{Busy, Supply};
use crate::prepare::Prepared;
use crate::process::Failure;
use crate::server::{Credentials, GrpcClient, GrpcServer, ParameterServer, ServerState, Settings};
use crate::train::Identity;
use crate::worker::{Outcome, Task, Workers};
use crate::{TrainError, TrainPlan};

/// The first process's way to the others.
pub(crate) struct Team<'a> {
    peers: Peers<'a>,
    connections: Connections,
}

/// What a training in several processes is made of.
pub(crate) struct TeamPlan<'env> {
    pub(crate) plan: &'env TrainPlan,
    pub(crate) prepared: &'env Prepared,
    pub(crate) order: &'env Order,
    pub(crate) supply: Supply<'env>,
    /// Of the whole parameter server.
    pub(crate) settings: Settings,
    /// The epoch it begins in, and its steps that are done.
    pub(crate) begin: (u64, usize),
}

impl<'a> Team<'a> {
    /// Connects to the others.
    pub(crate) fn meet(plan: &TrainPlan, peers: &Peers<'a>) -> Result<Self, TrainError> {
        (peers.set_phase)("train, its start");
        Ok(Self {
            peers: *peers,
            connections: Connections::make(plan, peers)?,
        })
    }

    /// Waits until all others have seen that they read the same.
    pub(crate) fn agree(&mut self, identity: &Identity) -> Result<(), TrainError> {
        self.tell_all(&Told::Input {
            read: identity.read.clone(),
            fingerprint: identity.fingerprint.clone(),
        });
        for control in &mut self.connections.control {
            let said: Said = control.hear()?;
            assert!(matches!(said, Said::Same), "nothing else was asked");
        }
        Ok(())
    }

    /// Tells all others that there is something to train.
    pub(crate) fn tell_open(&self) {
        self.tell_all(&Told::Open);
    }

    /// Tells all others how it ended.
    pub(crate) fn tell_end(&self, ended: &Result<Manifest, TrainError>) {
        self.tell_all(&match ended {
            Ok(manifest) => Told::Done(Box::new(manifest.clone())),
            Err(_) => Told::Stop,
        });
    }

    fn tell_all(&self, told: &Told) {
        for control in &self.connections.control {
            control.speech.tell(told);
        }
    }

    /// Says that some processes have nothing to do, if so.
    pub(crate) fn note(&self, plan: &TrainPlan) -> Option<String> {
        let (num_workers, num_processes) = (plan.result.workers, self.peers.num_processes);
        let note = format!(
            "{num_workers} of {num_processes} processes train, with a worker each: `train.workers` is \
             {num_workers}"
        );
        (num_workers < num_processes).then(|| {
            tracing::warn!("{note}");
            note
        })
    }

    /// Runs `run` with the workers of all processes and the parameter server that they hold together,
    /// which goes on from `state`.
    pub(crate) fn train<T>(
        &mut self,
        of: &TeamPlan<'_>,
        state: ServerState,
        run: impl FnOnce(&Workers, &dyn ParameterServer) -> Result<T, TrainError>,
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
        let (num_workers, num_processes) = (result.workers, self.peers.num_processes);
        let (mut ears, mut mouths) = (Vec::new(), Vec::new());
        for control in &mut self.connections.control {
            ears.push((control.process, &mut control.lines));
            mouths.push(&control.speech);
        }
        let ended = thread::scope(|scope| {
            let (done_sender, done) = channel();
            let mut tasks = Vec::with_capacity(num_workers);
            for worker in 0..num_workers {
                tasks.push(match process_of(worker, num_workers, num_processes) {
                    // Every task is also one of its.
                    0 if worker == 0 => {
                        let own = crew.start(scope, worker, &done_sender);
                        let announcer = Announcer {
                            mouths: mouths.clone(),
                            set_phase: self.peers.set_phase,
                            epochs: result.epochs,
                        };
                        let (task_sender, own_tasks) = channel();
                        scope.spawn(move || announcer.hand_on(&own_tasks, &own));
                        task_sender
                    }
                    0 => crew.start(scope, worker, &done_sender),
                    process => {
                        let speech = mouths[process - 1];
                        let (task_sender, own_tasks) = channel();
                        scope.spawn(move || own_tasks.iter().for_each(|t| ask(speech, worker, t)));
                        task_sender
                    }
                });
            }
            for (process, lines) in ears {
                let is_its =
                    |worker: &usize| process_of(*worker, num_workers, num_processes) == process;
                let workers = (0..num_workers).filter(is_its).collect();
                let (busy, server) = (of.supply.busy, &server);
                let remote = Remote {
                    process,
                    workers,
                    busy,
                    server,
                };
                let own_done = done_sender.clone();
                scope.spawn(move || remote.listen(lines, &own_done));
            }
            drop(done_sender);
            let _listening = Listening(mouths);
            let workers = Workers {
                tasks,
                done,
                epoch_steps: of.order.num_batches(),
            };
            run(&workers, &server)
        });
        (self.peers.set_phase)("train, its end");
        ended
    }

    /// Starts the shards of all processes, from `state`, when all have prepared what their workers need.
    fn begin(
        &mut self,
        of: &TeamPlan<'_>,
        state: ServerState,
    ) -> Result<(Vec<GrpcServer>, GrpcClient), TrainError> {
        self.wait_until_ready()?;
        let (epoch, done_steps) = of.begin;
        let credentials = Credentials::draw();
        let own_shards = self.connections.serve(&credentials)?;
        self.tell_all(&Told::Begin {
            credentials: credentials.clone(),
            epoch,
            done_steps,
        });
        let (tensors, format) = (&of.settings.tensors, of.plan.result.gradient_format);
        let server = self.connections.client(tensors, credentials, format)?;
        server.start(&of.settings, &state)?;
        Ok((own_shards, server))
    }

    /// Waits until all others have prepared what their workers need.
    fn wait_until_ready(&mut self) -> Result<(), TrainError> {
        (self.peers.set_phase)("train, its start");
        for control in &mut self.connections.control {
            match control.hear()? {
                Said::Ready => {}
                Said::Unready(failure) => return Err(error_of(control.process, failure)),
                said => {
                    return Err(TrainError::PeerEnded {
                        process: control.process,
                        how: format!("says {said:?}, which has no place here"),
                        is_bound_to_repeat: false,
                    });
                }
            }
        }
        Ok(())
    }
}

/// Tells all which epoch tasks are of.
struct Announcer<'a> {
    mouths: Vec<&'a Speech>,
    set_phase: &'a (dyn Fn(&str) + Sync),
    epochs: u64,
}

impl Announcer<'_> {
    /// Hands on the tasks of a worker, until no more come.
    fn hand_on(&self, tasks: &Receiver<Task>, own: &Sender<Task>) {
        for task in tasks {
            (self.set_phase)(&format!("train, epoch {}/{}", task.epoch + 1, self.epochs));
            let said = Told::Epoch(task.epoch);
            self.mouths.iter().for_each(|speech| speech.tell(&said));
            // One that has ended has said why.
            own.send(task).ok();
        }
    }
}

/// Asks another process to have a worker run some steps.
fn ask(speech: &Speech, worker: usize, task: Task) {
    let Task {
        epoch,
        steps,
        share,
    } = task;
    speech.tell(&Told::Steps {
        worker,
        epoch,
        steps,
        share: share.into(),
    });
}

/// Another process, as the first one hears of it.
struct Remote<'a> {
    process: usize,
    /// Those that it runs.
    workers: Vec<usize>,
    busy: &'a Busy,
    server: &'a dyn ParameterServer,
}

impl Remote<'_> {
    /// Hands on what its workers did, until nothing more can come.
    fn listen(&self, lines: &mut BufReader<TcpStream>, done: &Sender<(usize, Outcome)>) {
        loop {
            let (worker, outcome) = match hear(self.process, lines) {
                Ok(Said::Same | Said::Ready | Said::Unready(_)) => continue,
                Ok(Said::Ran {
                    worker,
                    share,
                    busy_ns,
                }) => {
                    self.busy.add_ns(busy_ns);
                    (worker, Ok(share.into()))
                }
                Ok(Said::Failed { worker, failure }) => {
                    // Its own connection to the shards may be what it lost.
                    self.server.fail(worker);
                    (worker, Err(error_of(self.process, failure)))
                }
                Err(error) => return self.lose(&error, done),
            };
            if self.workers.contains(&worker) {
                // Whoever asked may have ended.
                done.send((worker, outcome)).ok();
            }
        }
    }

    /// Frees those that wait for its workers, unless the training is over and nobody does.
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

/// The error of another process, as the first one has it.
fn error_of(process: usize, failure: Failure) -> TrainError {
    match failure {
        Failure::Other {
            text,
            is_bound_to_repeat,
            ..
        } => TrainError::PeerEnded {
            process,
            how: text,
            is_bound_to_repeat,
        },
        known => known.into_error(),
    }
}
