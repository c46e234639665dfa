//! What every parameter server has to keep, whatever lies between it and its workers.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use graphtrainer::TrainError;
use graphtrainer::schedule::ScheduleSpec;
use graphtrainer::server::{
    Consistency, MemoryServer, Optimizer, OptimizerKind, ParameterServer, Pushed, ServerState,
    TensorSpec,
};

const LENS: [usize; 4] = [3, 5, 1, 4];
const NUM_PARAMETERS: usize = 13;

/// Makes a server of 13 parameters for some workers.
type Make = fn(Consistency, Optimizer, usize, usize, &ServerState) -> Box<dyn ParameterServer>;

fn memory(
    consistency: Consistency,
    optimizer: Optimizer,
    num_workers: usize,
    num_shards: usize,
    state: &ServerState,
) -> Box<dyn ParameterServer> {
    let tensors: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .zip(LENS)
        .map(|(name, len)| TensorSpec {
            name: (*name).to_owned(),
            len,
            weight_decay: 0.01,
        })
        .collect();
    let counts = (num_workers, num_shards);
    Box::new(MemoryServer::new(
        &tensors,
        optimizer,
        consistency,
        counts,
        state,
    ))
}

/// Every transport: the suite runs on each.
const TRANSPORTS: [Make; 1] = [memory];

fn start() -> ServerState {
    ServerState {
        parameters: (0..13_u8).map(|i| f32::from(i) * 0.1).collect(),
        buffers: vec![1.0, 2.0],
        ..ServerState::default()
    }
}

fn adam() -> Optimizer {
    Optimizer {
        kind: OptimizerKind::Adam,
        learning_rate: 0.1,
        ..Optimizer::default()
    }
}

/// A gradient that tells worker and step apart, with sums that depend on their order in f32.
fn gradient(worker: usize, step: u64) -> Vec<f32> {
    let of = |idx: usize| {
        let word = schemas::hash_int((worker as u64) << 32 | step << 16 | idx as u64);
        f32::from(u16::try_from(word & 0xffff).unwrap()) / 1000.0 - 30.0
    };
    (0..NUM_PARAMETERS).map(of).collect()
}

fn push(server: &dyn ParameterServer, worker: usize, step: u64) -> Result<(), TrainError> {
    let gradient = gradient(worker, step);
    #[expect(clippy::cast_precision_loss, reason = "a handful of workers")]
    let buffers = [worker as f32, 4.0];
    let num_targets = worker as u64 + 1;
    server.push(Pushed {
        worker,
        step,
        gradient: &gradient,
        num_targets,
        buffers: &buffers,
    })
}

/// Runs some steps with all workers at once, each in its own thread.
fn run(server: &dyn ParameterServer, num_workers: usize, steps: std::ops::Range<u64>) {
    thread::scope(|scope| {
        for worker in 0..num_workers {
            let steps = steps.clone();
            scope.spawn(move || {
                for step in steps {
                    server.pull(worker, step).unwrap();
                    push(server, worker, step).unwrap();
                }
            });
        }
    });
}

#[test]
fn sync_sums_in_worker_order_whatever_arrives_first() {
    for make in TRANSPORTS {
        let mut states = Vec::new();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let server = make(Consistency::Sync, adam(), 3, 2, &start());
            for step in 0..4 {
                for worker in order {
                    server.pull(worker, step).unwrap();
                    push(&*server, worker, step).unwrap();
                }
            }
            states.push(server.state().unwrap());
        }
        let threads = make(Consistency::Sync, adam(), 3, 2, &start());
        run(&*threads, 3, 0..4);
        states.push(threads.state().unwrap());
        assert!(
            states.iter().all(|state| *state == states[0]),
            "bit for bit"
        );
        assert_eq!((states[0].step, states[0].updates), (4, 4));
        // Means over 1, 2 and 3 targets of 0, 1 and 2.
        assert_eq!(states[0].buffers, [8.0 / 6.0, 4.0]);
    }
}

#[test]
fn shards_change_nothing() {
    for make in TRANSPORTS {
        let states = [1, 2, 3, 4, 7].map(|num_shards| {
            let server = make(Consistency::Sync, adam(), 2, num_shards, &start());
            run(&*server, 2, 0..3);
            server.state().unwrap()
        });
        assert!(states.iter().all(|state| *state == states[0]));
    }
}

#[test]
fn a_server_goes_on_from_a_state_over_other_shards() {
    for make in TRANSPORTS {
        for kind in [
            OptimizerKind::Sgd,
            OptimizerKind::Adam,
            OptimizerKind::AdamW,
        ] {
            let momentum = if kind == OptimizerKind::Sgd { 0.9 } else { 0.0 };
            let optimizer = Optimizer {
                kind,
                learning_rate: 0.1,
                momentum,
                ..Optimizer::default()
            };
            let whole = make(Consistency::Sync, optimizer, 2, 1, &start());
            run(&*whole, 2, 0..6);
            let first = make(Consistency::Sync, optimizer, 2, 3, &start());
            run(&*first, 2, 0..2);
            let second = make(Consistency::Sync, optimizer, 2, 2, &first.state().unwrap());
            run(&*second, 2, 2..6);
            assert_eq!(second.state().unwrap(), whole.state().unwrap(), "{kind:?}");
        }
    }
}

/// A rule with all that a step can be changed by.
fn changing() -> Optimizer {
    let schedule: ScheduleSpec =
        toml::from_str("kind = \"cosine\"\nwarmup = 1.5\nfloor = 0.1").unwrap();
    Optimizer {
        schedule: Some(schedule.in_steps(2, 3)),
        clip_norm: Some(5.0),
        ..adam()
    }
}

#[test]
fn shards_and_states_change_no_schedule_and_no_clipping() {
    for make in TRANSPORTS {
        for workers in [1, 3] {
            let whole = make(Consistency::Sync, changing(), workers, 1, &start());
            run(&*whole, workers, 0..6);
            let whole = whole.state().unwrap();
            assert!(whole.norm_sum > 30.0, "every gradient is longer than 5");
            for (num_shards, stop) in [(2, 1), (3, 2), (4, 5)] {
                let first = make(Consistency::Sync, changing(), workers, num_shards, &start());
                run(&*first, workers, 0..stop);
                let state = first.state().unwrap();
                let second = make(Consistency::Sync, changing(), workers, 1, &state);
                run(&*second, workers, stop..6);
                assert_eq!(second.state().unwrap(), whole);
            }
        }
    }
}

/// Plain steps of size 1 against the gradient, none longer than 1, the second half as long.
fn unit() -> Optimizer {
    let schedule: ScheduleSpec =
        toml::from_str("kind = \"step\"\nevery = 1\nfactor = 0.5").unwrap();
    Optimizer {
        kind: OptimizerKind::Sgd,
        learning_rate: 1.0,
        schedule: Some(schedule.in_steps(1, 2)),
        clip_norm: Some(1.0),
        ..Optimizer::default()
    }
}

#[test]
fn the_sum_is_clipped_and_every_push_without_one() {
    let still = ServerState {
        parameters: vec![0.0; NUM_PARAMETERS],
        ..ServerState::default()
    };
    let tensors = [TensorSpec {
        name: "all".to_owned(),
        len: NUM_PARAMETERS,
        weight_decay: 0.0,
    }];
    let moved = |consistency, step: u64, gradients: [f32; 2]| {
        let state = ServerState {
            step,
            updates: step,
            ..still.clone()
        };
        let server = MemoryServer::new(&tensors, unit(), consistency, (2, 1), &state);
        for (worker, first) in gradients.into_iter().enumerate() {
            let mut gradient = [0.0; NUM_PARAMETERS];
            gradient[0] = first;
            server
                .push(Pushed {
                    worker,
                    step,
                    gradient: &gradient,
                    num_targets: 1,
                    buffers: &[],
                })
                .unwrap();
        }
        let moved = server.state().unwrap();
        (-moved.parameters[0], moved.norm_sum)
    };
    let check = |got: (f32, f64), wanted: (f32, f64)| {
        assert!((got.0 - wanted.0).abs() < 1e-5, "{got:?} {wanted:?}");
        assert!((got.1 - wanted.1).abs() < 1e-5, "{got:?} {wanted:?}");
    };
    // Long ones that nearly cancel are not clipped; their sum is what counts.
    check(moved(Consistency::Sync, 0, [8.0, -7.5]), (0.5, 0.5));
    check(moved(Consistency::Sync, 0, [3.0, 4.0]), (1.0, 7.0));
    check(moved(Consistency::Sync, 1, [3.0, 4.0]), (0.5, 7.0));
    check(moved(Consistency::Async, 0, [8.0, -0.5]), (0.5, 8.5));
    check(moved(Consistency::Async, 1, [8.0, -0.5]), (0.25, 8.5));
}

#[test]
fn sync_waits_for_every_worker() {
    for make in TRANSPORTS {
        let server = make(Consistency::Sync, adam(), 2, 1, &start());
        let (sender, pulled) = channel();
        thread::scope(|scope| {
            let other = &*server;
            scope.spawn(move || {
                push(other, 0, 0).unwrap();
                sender.send(other.pull(0, 1).unwrap()).unwrap();
            });
            server.pull(1, 0).unwrap();
            assert_eq!(
                server.state().unwrap().parameters,
                start().parameters,
                "not yet"
            );
            push(&*server, 1, 0).unwrap();
            assert_eq!(
                pulled.recv().unwrap().parameters,
                server.state().unwrap().parameters
            );
        });
        assert_ne!(server.state().unwrap().parameters, start().parameters);
    }
}

#[test]
fn async_applies_on_arrival_and_never_waits() {
    for make in TRANSPORTS {
        let server = make(Consistency::Async, adam(), 2, 2, &start());
        for step in 0..5 {
            let before = server.pull(0, step).unwrap();
            push(&*server, 0, step).unwrap();
            assert_ne!(server.pull(1, 0).unwrap(), before);
        }
        let state = server.state().unwrap();
        assert_eq!((state.step, state.updates), (0, 5));
    }
}

#[test]
fn staleness_is_never_exceeded() {
    for make in TRANSPORTS {
        for staleness in [0, 1, 3] {
            let server = make(Consistency::Bounded(staleness), adam(), 3, 1, &start());
            let pushed = [const { AtomicU64::new(0) }; 3];
            thread::scope(|scope| {
                for worker in 0..3 {
                    let (server, pushed) = (&server, &pushed);
                    scope.spawn(move || {
                        for step in 0..200 {
                            server.pull(worker, step).unwrap();
                            // Counted after the push: the slowest can only be further than seen.
                            let slowest = pushed
                                .iter()
                                .map(|own| own.load(Ordering::SeqCst))
                                .min()
                                .unwrap();
                            assert!(step <= slowest + staleness + 1, "{step} {slowest}");
                            push(&**server, worker, step).unwrap();
                            pushed[worker].store(step + 1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(server.state().unwrap().updates, 600);
        }
    }
}

#[test]
fn bounded_waits_at_its_bound() {
    for make in TRANSPORTS {
        let server = make(Consistency::Bounded(2), adam(), 2, 1, &start());
        for step in 0..3 {
            server.pull(0, step).unwrap();
            push(&*server, 0, step).unwrap();
        }
        let (sender, pulled) = channel();
        thread::scope(|scope| {
            let fast = &*server;
            scope.spawn(move || sender.send(fast.pull(0, 3).map(|_| ())).unwrap());
            assert!(pulled.try_recv().is_err(), "three ahead of worker 1");
            push(&*server, 1, 0).unwrap();
            pulled.recv().unwrap().unwrap();
        });
    }
}

#[test]
fn a_worker_that_fails_frees_those_that_wait() {
    for make in TRANSPORTS {
        for consistency in [Consistency::Sync, Consistency::Bounded(0)] {
            let server = make(consistency, adam(), 3, 1, &start());
            thread::scope(|scope| {
                let waiting = [0, 1].map(|worker| {
                    push(&*server, worker, 0).unwrap();
                    let other = &server;
                    scope.spawn(move || other.pull(worker, 1))
                });
                server.fail(2);
                for worker in waiting {
                    let error = worker.join().unwrap().unwrap_err();
                    assert!(
                        matches!(error, TrainError::PeerFailed { worker: 2 }),
                        "{error}"
                    );
                }
            });
            assert!(server.pull(0, 0).is_err());
            assert!(push(&*server, 2, 0).is_err());
            assert!(server.state().is_err());
        }
    }
}

#[test]
fn steps_come_in_turn() {
    for make in TRANSPORTS {
        let server = make(Consistency::Sync, adam(), 2, 1, &start());
        push(&*server, 0, 0).unwrap();
        for step in [0, 2] {
            let error = push(&*server, 0, step).unwrap_err();
            let wanted = TrainError::OutOfTurn {
                worker: 0,
                step,
                expected: 1,
            };
            assert_eq!(error.to_string(), wanted.to_string());
        }
    }
}

#[test]
fn async_ignores_a_step_without_targets() {
    for make in TRANSPORTS {
        let server = make(Consistency::Async, adam(), 1, 1, &start());
        let none = vec![0.0; NUM_PARAMETERS];
        let pushed = Pushed {
            worker: 0,
            step: 0,
            gradient: &none,
            num_targets: 0,
            buffers: &[9.0, 9.0],
        };
        server.push(pushed).unwrap();
        let state = server.state().unwrap();
        assert_eq!((state.step, state.updates), (1, 0));
        assert_eq!(
            (state.parameters, state.buffers),
            (start().parameters, start().buffers)
        );
    }
}
