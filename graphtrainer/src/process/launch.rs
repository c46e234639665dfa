//! The launcher's side: starts processes, tells them what to do, notices which are lost.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Hello, Role, Steps, Word, WorkerRole};
use crate::config::WorkerFailure;
use crate::pipeline::Busy;
use crate::server::{Credentials, GrpcClient, ParameterServer, ServerState, Settings};
use crate::worker::{EpochShare, Outcome, Task, Workers};
use crate::{TrainError, TrainPlan};

/// How often a worker is started again within one epoch, or between two checkpoints within one.
const RESTARTS_MAX: u32 = 3;

/// How long a process that has closed its output, or lost a connection, is waited for to see how it
/// ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What all processes of a training are told.
pub(crate) struct Processes<'a> {
    plan: &'a TrainPlan,
    settings: &'a Settings,
    epoch_steps: usize,
    busy: &'a Busy,
    credentials: Credentials,
    timeout: Duration,
}

/// A child and what it says. It is killed when this is dropped.
struct Process {
    child: Child,
    /// Its end tells the child to end. None once it was told.
    input: Option<ChildStdin>,
    words: Receiver<Word>,
}

/// The workers of a training with running servers.
struct Crew<'a> {
    processes: &'a Processes<'a>,
    ports: Vec<u16>,
    server: GrpcClient,
}

impl<'a> Processes<'a> {
    /// Prepares processes for a plan; `settings` are those of the whole parameter server.
    pub(crate) fn new(
        plan: &'a TrainPlan,
        settings: &'a Settings,
        epoch_steps: usize,
        busy: &'a Busy,
    ) -> Self {
        Self {
            plan,
            settings,
            epoch_steps,
            busy,
            credentials: Credentials::draw(),
            timeout: Duration::from_millis(plan.tuning.timeout_ms),
        }
    }

    fn start(&self, name: &str, idx: usize, role: Role) -> Result<Process, TrainError> {
        let hello = Hello {
            credentials: self.credentials.clone(),
            storage: schemas::storage::options(),
            role,
            timeout_ms: self.plan.tuning.timeout_ms,
        };
        let hello = serde_json::to_string(&hello).map_err(|source| TrainError::Json {
            what: "plan",
            source,
        })?;
        let failed = |source| TrainError::Process {
            action: "start a process of the training",
            source,
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(["train-process", name, &idx.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, words) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output?).lines().map_while(Result::ok);
            let heard = lines.map_while(|line| serde_json::from_str(&line).ok());
            // Stops at the end of the output, at a line that is none of ours, or if nobody listens.
            heard
                .map(|word| sender.send(word))
                .find(Result::is_err)
                .map(drop)
        });
        let mut process = Process {
            child,
            input,
            words,
        };
        // A child that is gone already is noticed by its silence.
        process.tell(&hello);
        Ok(process)
    }
}

/// Runs `run` with workers and servers in processes, from the given state; whatever comes of it, the
/// processes are gone afterwards.
pub(crate) fn with_processes<T>(
    processes: &Processes<'_>,
    state: &ServerState,
    run: impl FnOnce(&Workers, &dyn ParameterServer) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let tuning = &processes.plan.tuning;
    let mut servers = Vec::with_capacity(tuning.servers);
    for server in 0..tuning.servers {
        servers.push(processes.start("server", server, Role::Server)?);
    }
    let ports = servers.iter_mut().enumerate().map(|(server, process)| {
        let port = process.listening(processes.timeout);
        port.map_err(|how| TrainError::ServerLost { server, how })
    });
    let ports: Vec<u16> = ports.collect::<Result<_, _>>()?;
    let crew = Crew {
        server: GrpcClient::new(
            &ports,
            &processes.settings.tensors,
            processes.credentials.clone(),
            processes.timeout,
            processes.plan.result.gradient_format,
        )?,
        ports,
        processes,
    };
    let (lost_sender, lost) = channel();
    thread::scope(|scope| {
        // Dropped at the end of this closure, whatever comes of it: then the servers end.
        let mut inputs = Vec::with_capacity(servers.len());
        for (server, mut process) in servers.into_iter().enumerate() {
            inputs.push(process.input.take());
            let lost_sender = lost_sender.clone();
            scope.spawn(move || {
                let how = process.watch(processes.timeout);
                let _ = lost_sender.send((server, how));
            });
        }
        let started = crew.server.start(processes.settings, state);
        // A connection breaks at once; how the process ended is known a little later.
        match started.and_then(|()| crew.run(run)) {
            Err(TrainError::ServerLost { server, how }) => {
                let known = lost.recv_timeout(LAST_WORDS);
                let (server, how) = known.unwrap_or((server, how));
                Err(TrainError::ServerLost { server, how })
            }
            ended => ended,
        }
    })
}

impl Crew<'_> {
    /// Runs `run` with workers that wait for tasks; all have ended afterwards.
    fn run<T>(
        &self,
        run: impl FnOnce(&Workers, &dyn ParameterServer) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        thread::scope(|scope| {
            let (done_sender, done) = channel();
            let mut tasks = Vec::new();
            for worker in 0..self.processes.settings.workers {
                let (task_sender, own_tasks) = channel();
                let own_done = done_sender.clone();
                scope.spawn(move || self.manage(worker, &own_tasks, &own_done));
                tasks.push(task_sender);
            }
            drop(done_sender);
            let workers = Workers {
                tasks,
                done,
                epoch_steps: self.processes.epoch_steps,
            };
            run(&workers, &self.server)
        })
    }

    /// Has a worker's process run the tasks that come; ends it after the last one.
    fn manage(&self, worker: usize, tasks: &Receiver<Task>, done: &Sender<(usize, Outcome)>) {
        let mut process = None;
        while let Ok(task) = tasks.recv() {
            let outcome = self.steps(worker, &task, &mut process);
            let failed = outcome.is_err();
            if done.send((worker, outcome)).is_err() {
                return;
            }
            if failed {
                // Frees those that wait for this worker.
                self.server.fail(worker);
                return;
            }
        }
    }

    fn steps(&self, worker: usize, task: &Task, process: &mut Option<Process>) -> Outcome {
        let mut shares = BTreeMap::new();
        let mut restarts = 0;
        loop {
            let started = match process.take() {
                Some(running) => running,
                None => self.start(worker, task.epoch)?,
            };
            let how = match self.attempt(process.insert(started), task, &mut shares) {
                Ok(outcome) => return outcome,
                Err(how) => how,
            };
            *process = None;
            let policy = self.processes.plan.tuning.worker_failure;
            if policy == WorkerFailure::End || restarts == RESTARTS_MAX {
                return Err(TrainError::WorkerLost { worker, how });
            }
            restarts += 1;
            tracing::warn!("worker {worker} was lost and is started again: {how}");
        }
    }

    fn start(&self, worker: usize, epoch: u64) -> Result<Process, TrainError> {
        let num_workers = self.processes.settings.workers;
        let role = WorkerRole {
            worker,
            ports: self.ports.clone(),
            plan: self.processes.plan.clone(),
            epoch,
            threads: (rayon::current_num_threads() / num_workers).max(1),
        };
        self.processes
            .start("worker", worker, Role::Worker(Box::new(role)))
    }

    /// Waits for a process to run its steps: how that ended, or how the process was lost. Shares of
    /// the loss are kept by step, so that one that is said again counts once.
    fn attempt(
        &self,
        process: &mut Process,
        task: &Task,
        shares: &mut BTreeMap<u64, EpochShare>,
    ) -> Result<Outcome, String> {
        let asked = Steps {
            epoch: task.epoch,
            steps: task.steps.clone(),
        };
        process.tell(&serde_json::to_string(&asked).map_err(|error| error.to_string())?);
        loop {
            match process.hear(self.processes.timeout)? {
                Word::Alive => {}
                Word::Step {
                    step,
                    loss_bits,
                    count_bits,
                } => {
                    let loss_sum = f64::from_bits(loss_bits);
                    let count = f64::from_bits(count_bits);
                    shares.insert(step, EpochShare { loss_sum, count });
                }
                Word::Done { busy_ns } => {
                    self.processes.busy.add_ns(busy_ns);
                    // In the order of the steps, as a thread adds them up.
                    let all = shares.values().fold(task.share, |sum, share| EpochShare {
                        loss_sum: sum.loss_sum + share.loss_sum,
                        count: sum.count + share.count,
                    });
                    return Ok(Ok(all));
                }
                Word::Failed(failure) => return Ok(Err(failure.into_error())),
                Word::Listening(_) => return Err("it speaks as a server".to_owned()),
            }
        }
    }
}

impl Process {
    /// Writes a line to the process. One that cannot hear will be found lost when it is listened to.
    fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Returns the next word, or how the process was lost.
    fn hear(&mut self, timeout: Duration) -> Result<Word, String> {
        match self.words.recv_timeout(timeout) {
            Ok(word) => Ok(word),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("no sign of life for {} s", timeout.as_secs_f64()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.end()),
        }
    }

    /// Waits for a server to say where it listens.
    fn listening(&mut self, timeout: Duration) -> Result<u16, String> {
        loop {
            match self.hear(timeout)? {
                Word::Alive => {}
                Word::Listening(port) => return Ok(port),
                _ => return Err("it speaks as a worker".to_owned()),
            }
        }
    }

    /// Waits until the process is lost, kills what is left of it and returns how it was lost.
    fn watch(mut self, timeout: Duration) -> String {
        loop {
            if let Err(how) = self.hear(timeout) {
                return how;
            }
        }
    }

    /// Tells how a process ended that has closed its output.
    fn end(&mut self) -> String {
        let start = Instant::now();
        while start.elapsed() < LAST_WORDS {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Err(error) => return error.to_string(),
            }
        }
        "it closed its output".to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either may say that it is gone already, which is all that is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
