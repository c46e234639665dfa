//! Tests the contract of parameter servers on every transport.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use graphtrainer::TrainError;
use graphtrainer::schedule::ScheduleSpec;
use graphtrainer::server::{
    Consistency, GradientFormat, GrpcClient, GrpcServer, Link, MemoryServer, Optimizer,
    OptimizerKind, ParameterServer, Pulled, Pushed, ServerState, Settings, TensorSpec,
};
use schemas::Ids;

const LENS: [usize; 4] = [3, 5, 1, 4];
const NUM_PARAMETERS: usize = 13;

/// Makes a server of 13 parameters with some workers and shards.
type Make = fn(Consistency, Optimizer, usize, usize, &ServerState) -> Box<dyn ParameterServer>;

fn tensors() -> Vec<TensorSpec> {
    let named = ["a", "b", "c", "d"].iter().zip(LENS);
    let of = |(name, len): (&&str, usize)| TensorSpec {
        name: (*name).to_owned(),
        len,
        weight_decay: 0.01,
    };
    named.map(of).collect()
}

fn memory(
    consistency: Consistency,
    optimizer: Optimizer,
    num_workers: usize,
    num_shards: usize,
    state: &ServerState,
) -> Box<dyn ParameterServer> {
    let counts = (num_workers, num_shards);
    Box::new(MemoryServer::new(
        &tensors(),
        optimizer,
        consistency,
        counts,
        state,
    ))
}

/// Servers and a client of all of them, connected by sockets and memory in turn.
struct Remote {
    client: GrpcClient,
    servers: Vec<GrpcServer>,
}

impl Remote {
    fn new(num_servers: usize) -> Self {
        let (remote, _) = Self::with_another(num_servers, &tensors(), GradientFormat::F32);
        remote
    }

    /// Makes servers, and a second client with `specs` on connections of its own.
    fn with_another(
        num_servers: usize,
        specs: &[TensorSpec],
        format: GradientFormat,
    ) -> (Self, GrpcClient) {
        let (mut links, mut other_links, mut servers) = (Vec::new(), Vec::new(), Vec::new());
        for server in 0..num_servers {
            let pair = if server % 2 == 0 {
                socket_pair
            } else {
                Link::pair
            };
            let ((here, there), (other_here, other_there)) = (pair(), pair());
            links.push(here);
            other_links.push(other_here);
            servers.push(GrpcServer::serve(vec![there, other_there]).unwrap());
        }
        let client = GrpcClient::over(links, &tensors(), GradientFormat::F32).unwrap();
        let other = GrpcClient::over(other_links, specs, format).unwrap();
        (Self { client, servers }, other)
    }
}

fn socket_pair() -> (Link, Link) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here.into(), listener.accept().unwrap().0.into())
}

fn settings(consistency: Consistency, optimizer: Optimizer, workers: usize) -> Settings {
    Settings {
        tensors: tensors(),
        optimizer,
        consistency,
        workers,
        tables: Vec::new(),
    }
}

impl ParameterServer for Remote {
    fn pull(&self, worker: usize, step: u64) -> Result<Pulled, TrainError> {
        self.client.pull(worker, step)
    }

    fn pull_rows(&self, wanted: &[&Ids]) -> Result<Vec<Vec<f32>>, TrainError> {
        self.client.pull_rows(wanted)
    }

    fn push(&self, pushed: Pushed<'_>) -> Result<(), TrainError> {
        self.client.push(pushed)
    }

    fn fail(&self, worker: usize) {
        self.client.fail(worker);
    }

    fn state(&self) -> Result<ServerState, TrainError> {
        self.client.state()
    }
}

fn grpc(
    consistency: Consistency,
    optimizer: Optimizer,
    num_workers: usize,
    num_shards: usize,
    state: &ServerState,
) -> Box<dyn ParameterServer> {
    // With clipping, one server must hold the whole gradient.
    let num_servers = if optimizer.clip_norm.is_some() {
        1
    } else {
        num_shards
    };
    let remote = Remote::new(num_servers);
    let settings = settings(consistency, optimizer, num_workers);
    remote.client.start(&settings, state).unwrap();
    Box::new(remote)
}

/// All transports; every test of the suite runs on each.
const TRANSPORTS: [Make; 2] = [memory, grpc];

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

/// Returns a gradient that depends on worker and step, whose sums depend on their order in f32.
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
        rows: &[],
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
        // Means of 0, 1 and 2, weighted by 1, 2 and 3 targets.
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

/// A rule with everything that can change a step.
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

/// A rule whose step is minus the gradient, clipped to norm 1; the second step is half as long.
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
                    rows: &[],
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
    // Long gradients that nearly cancel are not clipped: the norm of their sum counts.
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
                            // Counters rise after the pushes: the slowest worker may be ahead of them.
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

/// Draws a number from 0 to below `bound`.
fn draw(seed: u64, place: u64, bound: usize) -> usize {
    let word = schemas::hash_int(seed << 32 | place);
    usize::try_from(word % bound as u64).unwrap()
}

#[test]
fn servers_behind_grpc_equal_one_in_memory_on_random_sequences() {
    const WORKERS: usize = 3;
    for seed in 0..12 {
        let (consistency, lead) = match seed % 3 {
            0 => (Consistency::Sync, 0),
            1 => (Consistency::Async, u64::MAX),
            _ => (Consistency::Bounded(2), 2),
        };
        let num_servers = 1 + draw(seed, 0, 5);
        let twin = memory(consistency, adam(), WORKERS, 1, &start());
        let server = grpc(consistency, adam(), WORKERS, num_servers, &start());
        let mut clocks = [0_u64; WORKERS];
        for place in 1..60 {
            let worker = draw(seed, place, WORKERS);
            let step = clocks[worker];
            if step > clocks.iter().min().unwrap().saturating_add(lead) {
                continue;
            }
            let pulled = server.pull(worker, step).unwrap();
            assert_eq!(
                pulled,
                twin.pull(worker, step).unwrap(),
                "{seed}: {clocks:?}"
            );
            push(&*server, worker, step).unwrap();
            push(&*twin, worker, step).unwrap();
            clocks[worker] += 1;
        }
        assert_eq!(server.state().unwrap(), twin.state().unwrap(), "{seed}");
    }
}

/// Requires that a call failed with `problem`.
#[track_caller]
fn refused<T>(result: Result<T, TrainError>, problem: &str) {
    let error = result.err().unwrap().to_string();
    assert!(error.ends_with(problem), "{error}");
}

#[test]
fn a_server_is_started_once() {
    let remote = Remote::new(2);
    let sync = settings(Consistency::Sync, adam(), 1);
    refused(remote.pull(0, 0), "this server was not started yet");
    remote.client.start(&sync, &start()).unwrap();
    refused(
        remote.client.start(&sync, &start()),
        "this server was started before",
    );
}

#[test]
fn requests_of_another_shape_are_refused() {
    let (remote, other) = Remote::with_another(1, &tensors()[..1], GradientFormat::F32);
    let sync = settings(Consistency::Sync, adam(), 2);
    let no_worker = Settings {
        workers: 0,
        ..sync.clone()
    };
    for (settings, state) in [
        (&no_worker, &start()),
        (
            &sync,
            &ServerState {
                moments: vec![vec![0.0; NUM_PARAMETERS]],
                ..start()
            },
        ),
    ] {
        refused(
            remote.client.start(settings, state),
            "a state of another shape than its settings",
        );
    }
    remote.client.start(&sync, &start()).unwrap();
    refused(remote.pull(2, 0), "the request has worker 2 of 2");
    refused(other.pull(0, 0), "it sent 52 bytes for 3 values");
    let pushed = Pushed {
        worker: 0,
        step: 0,
        gradient: &[0.0; 3],
        num_targets: 1,
        buffers: &[0.0, 0.0],
        rows: &[],
    };
    refused(
        other.push(pushed),
        "the request has a gradient of another length",
    );
    let gradient = [0.0; NUM_PARAMETERS];
    let pushed = Pushed {
        gradient: &gradient,
        buffers: &[],
        ..pushed
    };
    refused(
        remote.push(pushed),
        "the request has buffers of another length",
    );
}

#[test]
fn a_server_that_goes_frees_those_that_wait() {
    let mut remote = Remote::new(2);
    let sync = settings(Consistency::Sync, adam(), 2);
    remote.client.start(&sync, &start()).unwrap();
    push(&remote, 0, 0).unwrap();
    let lost = remote.servers.pop();
    let client = &remote.client;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.pull(0, 1));
        drop(lost);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(
            matches!(error, TrainError::ServerLost { server: 1, .. }),
            "{error}"
        );
    });
    let error = client.state().unwrap_err();
    assert!(
        matches!(error, TrainError::ServerLost { server: 1, .. }),
        "{error}"
    );
}

/// Checks that the calls of a step name the lost server.
fn assert_lost(client: &GrpcClient, lost: usize, step: u64) {
    for result in [
        client.pull(0, step).map(drop),
        client.state().map(drop),
        push(client, 0, step),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, TrainError::ServerLost { server, .. } if server == lost),
            "{error}"
        );
    }
    client.fail(0);
}

#[test]
fn narrow_gradients_give_what_their_rounded_values_give() {
    let (remote, narrow) = Remote::with_another(2, &tensors(), GradientFormat::Bf16);
    let sync = settings(Consistency::Sync, adam(), 1);
    remote.client.start(&sync, &start()).unwrap();
    let twin = memory(Consistency::Sync, adam(), 1, 1, &start());
    push(&narrow, 0, 0).unwrap();
    // The nearest values with only the upper 16 bits set.
    let rounded: Vec<f32> = gradient(0, 0)
        .iter()
        .map(|value| {
            f32::from_bits((value.to_bits() + 0x7fff + (value.to_bits() >> 16 & 1)) & 0xffff_0000)
        })
        .collect();
    assert_ne!(rounded, gradient(0, 0));
    let pushed = Pushed {
        worker: 0,
        step: 0,
        gradient: &rounded,
        num_targets: 1,
        buffers: &[0.0, 4.0],
        rows: &[],
    };
    twin.push(pushed).unwrap();
    assert_eq!(narrow.state().unwrap(), twin.state().unwrap());
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
            rows: &[],
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

#[test]
fn a_link_that_is_lost_is_not_made_again() {
    let mut remote = Remote::new(2);
    let sync = settings(Consistency::Sync, adam(), 1);
    remote.client.start(&sync, &start()).unwrap();
    push(&remote, 0, 0).unwrap();
    drop(remote.servers.pop());
    assert_lost(&remote.client, 1, 1);
}

/// More concurrent calls than HTTP/2's default limit for a connection: no call waits for another.
#[test]
fn many_workers_share_a_link() {
    let (here, there) = socket_pair();
    let _server = GrpcServer::serve(vec![there]).unwrap();
    let format = GradientFormat::F32;
    let client = &GrpcClient::over(vec![here], &tensors(), format).unwrap();
    let num_workers = 300;
    let sync = settings(Consistency::Sync, adam(), num_workers);
    client.start(&sync, &start()).unwrap();
    let begun = std::time::Instant::now();
    let num_waiting = &AtomicU64::new(0);
    thread::scope(|scope| {
        for worker in 1..num_workers {
            scope.spawn(move || {
                push(client, worker, 0).unwrap();
                num_waiting.fetch_add(1, Ordering::SeqCst);
                client.pull(worker, 1).unwrap();
            });
        }
        while num_waiting.load(Ordering::SeqCst) < num_workers as u64 - 1 {
            thread::yield_now();
        }
        push(client, 0, 0).unwrap();
    });
    assert_eq!(client.state().unwrap().step, 1);
    assert!(begun.elapsed() < Duration::from_secs(10), "calls wait");
}
