//! The child's side: what `train-process` does.

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use schemas::Split;

use super::{Failure, Hello, Role, Steps, Word, WorkerRole};
use crate::TrainError;
use crate::order::training_order;
use crate::pipeline::{Busy, Supply, start};
use crate::prepare::{prepare, tensors};
use crate::server::{Credentials, GrpcClient, GrpcServer};
use crate::source::Source;
use crate::worker::{EpochShare, Outcome, Task, Worker};

/// Runs a worker or a parameter server as the launcher says on standard input, until that ends.
///
/// # Errors
///
/// [`TrainError::NotLaunched`] if nothing, or nothing understandable, comes from a launcher. A worker's
/// own errors go to the launcher.
pub fn run_child() -> Result<(), TrainError> {
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line);
    let hello = read
        .ok()
        .and_then(|_| serde_json::from_str::<Hello>(&line).ok());
    let hello = hello.ok_or(TrainError::NotLaunched)?;
    schemas::storage::configure(hello.storage);
    let timeout = Duration::from_millis(hello.timeout_ms);
    thread::spawn(move || {
        loop {
            say(&Word::Alive);
            thread::sleep(timeout / 4);
        }
    });
    match hello.role {
        Role::Server => {
            let server = GrpcServer::listen(hello.credentials, timeout)?;
            say(&Word::Listening(server.port()));
            for _ in stdin().lock().lines().map_while(Result::ok) {}
        }
        Role::Worker(role) => {
            let (task_sender, tasks) = channel();
            thread::spawn(move || obey(&task_sender));
            let (done_sender, done) = channel();
            let busy = Busy::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    for (_, outcome) in done {
                        report(&outcome, &busy);
                    }
                });
                let worked = work(*role, (hello.credentials, timeout), &busy, |worker| {
                    worker.run(&tasks, &done_sender);
                });
                if let Err(error) = worked {
                    say(&Word::Failed(Failure::of(&error)));
                }
                drop(done_sender);
            });
        }
    }
    Ok(())
}

/// Hands on the steps that the launcher asks for; ends the process with the launcher.
fn obey(tasks: &Sender<Task>) {
    for line in stdin().lock().lines().map_while(Result::ok) {
        if let Ok(Steps { epoch, steps }) = serde_json::from_str(&line) {
            // The launcher adds shares up. A worker that has failed wants no more.
            let share = EpochShare::default();
            let _ = tasks.send(Task {
                epoch,
                steps,
                share,
            });
        }
    }
    std::process::exit(1);
}

/// Builds the worker from its plan and runs it.
fn work(
    role: WorkerRole,
    (credentials, timeout): (Credentials, Duration),
    busy: &Busy,
    run: impl FnOnce(Worker<'_>),
) -> Result<(), TrainError> {
    let WorkerRole { worker, plan, .. } = role;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(role.threads);
    threads
        .build_global()
        .map_err(|error| TrainError::Process {
            action: "start the threads of a worker",
            source: std::io::Error::other(error),
        })?;
    let num_workers = plan.result.workers;
    let cache_bytes = plan.part_cache_bytes();
    let source = Source::open(&plan.input, cache_bytes / num_workers)?;
    let prepared = prepare(&plan, &source)?;
    let specs = tensors(prepared.model.parameters(), &prepared.decays);
    let format = plan.result.gradient_format;
    let server = GrpcClient::new(&role.ports, &specs, credentials, timeout, format)?;
    let order = &training_order(&plan, &source);
    let vectoriser = prepared.vectoriser(true);
    let supply = Supply {
        source: &source,
        vectoriser: &vectoriser,
        busy,
    };
    let first_step = server.clock(worker)?;
    let before = role.epoch * order.num_batches() as u64;
    let skip = usize::try_from(first_step.saturating_sub(before)).unwrap_or(usize::MAX);
    let all = (role.epoch..plan.result.epochs)
        .flat_map(|epoch| order.of_worker(epoch, worker, num_workers))
        .skip(skip);
    thread::scope(|scope| {
        run(Worker {
            worker,
            server: &server,
            order,
            consistency: plan.result.consistency,
            seed: plan.result.seed,
            busy,
            batches: start(scope, supply, (order, Split::Train), all),
            model: prepared.model,
            format,
            first_step,
            on_step: Some(&|step, share| {
                say(&Word::Step {
                    step,
                    loss_bits: share.loss_sum.to_bits(),
                    count_bits: share.count.to_bits(),
                });
            }),
        });
    });
    Ok(())
}

fn report(outcome: &Outcome, busy: &Busy) {
    say(&match outcome {
        Ok(_) => Word::Done {
            busy_ns: busy.take_ns(),
        },
        Err(error) => Word::Failed(Failure::of(error)),
    });
}

/// Writes a line to the launcher. One that cannot hear is gone, and the process ends with it.
fn say(word: &Word) {
    let line = serde_json::to_string(word).expect("a word holds no map and no foreign type");
    let mut out = stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}
