//! Embedding tables on parameter servers: every transport against a slow twin.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use graphtrainer::server::{
    Consistency, GradientFormat, GrpcClient, GrpcServer, Link, MemoryServer, Optimizer,
    OptimizerKind, ParameterServer, Pushed, RowGradient, ServerState, Settings, TableRows,
    TableSpec, TensorSpec,
};
use schemas::{IdType, Ids, hash_int};

const WORKERS: usize = 3;
const DIM: [usize; 2] = [3, 2];

/// The one dense parameter, which every server needs.
fn tensors() -> Vec<TensorSpec> {
    vec![TensorSpec {
        name: "a".to_owned(),
        len: 1,
        weight_decay: 0.5,
    }]
}

fn tables() -> Vec<TableSpec> {
    let table = |(name, id_type, dim): (&str, IdType, usize)| TableSpec {
        name: name.to_owned(),
        id_type,
        dim,
        seed: 11,
        weight_decay: 0.0,
    };
    let all = [
        ("author", IdType::Utf8, DIM[0]),
        ("paper", IdType::Int64, DIM[1]),
    ];
    all.into_iter().map(table).collect()
}

fn ids(table: usize, nodes: &[u64]) -> Ids {
    let mut ids = Ids::new(tables()[table].id_type);
    for node in nodes {
        match table {
            0 => ids.push_str(&format!("a{node}")),
            _ => ids.push_key(*node),
        }
    }
    ids
}

fn draw(parts: [u64; 4]) -> u64 {
    parts
        .into_iter()
        .fold(7, |hash, part| hash_int(hash ^ part))
}

/// Distinct nodes that a worker reads in a step: some of 40, none in every fifth step.
fn nodes(table: usize, worker: usize, step: u64) -> Vec<u64> {
    if draw([9, table as u64, worker as u64, step]).is_multiple_of(5) {
        return Vec::new();
    }
    let is_read = |node: &u64| draw([*node, table as u64, worker as u64, step]).is_multiple_of(4);
    (0..40).filter(is_read).collect()
}

/// A gradient whose sums depend on their order in f32.
fn slope(table: usize, worker: usize, step: u64, node: u64, column: usize) -> f32 {
    let word = draw([node << 8 | column as u64, table as u64, worker as u64, step]);
    f32::from(u16::try_from(word & 0xffff).unwrap()) / 1000.0 - 30.0
}

fn gradients(worker: usize, step: u64) -> Vec<RowGradient> {
    let of_table = |table: usize| {
        let nodes = nodes(table, worker, step);
        let rows = nodes.iter();
        let values = rows.flat_map(|&node| {
            (0..DIM[table]).map(move |column| slope(table, worker, step, node, column))
        });
        RowGradient {
            values: values.collect(),
            ids: ids(table, &nodes),
        }
    };
    (0..2).map(of_table).collect()
}

/// By node: its row and moments.
type TwinRows = BTreeMap<u64, (Vec<f32>, Vec<Vec<f32>>)>;

/// A map of touched rows, each with its moments: every row on its own.
struct Twin {
    optimizer: Optimizer,
    /// By table and node.
    rows: [TwinRows; 2],
}

impl Twin {
    fn new(optimizer: Optimizer) -> Self {
        Self {
            optimizer,
            rows: Default::default(),
        }
    }

    fn start(table: usize, node: u64) -> Vec<f32> {
        let (spec, id) = (&tables()[table], ids(table, &[node]));
        (0..DIM[table])
            .map(|column| spec.start_value(&id, 0, column))
            .collect()
    }

    fn row(&self, table: usize, node: u64) -> Vec<f32> {
        let known = self.rows[table].get(&node);
        known.map_or_else(|| Self::start(table, node), |(row, _)| row.clone())
    }

    /// Updates by the gradients of some workers; `update` counts from 1.
    fn step(&mut self, workers: std::ops::Range<usize>, step: u64, update: u64) {
        for (table, dim) in DIM.into_iter().enumerate() {
            let mut sums: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
            for worker in workers.clone() {
                for node in nodes(table, worker, step) {
                    let own = (0..dim).map(|c| slope(table, worker, step, node, c));
                    match sums.get_mut(&node) {
                        None => drop(sums.insert(node, own.collect())),
                        Some(sum) => sum
                            .iter_mut()
                            .zip(own)
                            .for_each(|(sum, value)| *sum += value),
                    }
                }
            }
            let optimizer = self.optimizer;
            for (node, sum) in sums {
                let (row, moments) = self.rows[table].entry(node).or_insert_with(|| {
                    let moments = vec![vec![0.0; dim]; optimizer.num_moments()];
                    (Self::start(table, node), moments)
                });
                let mut views: Vec<&mut [f32]> = moments.iter_mut().map(|m| &mut m[..]).collect();
                let at = optimizer.at(step);
                at.update(update, row, &sum, &mut views, 0.0);
            }
        }
    }

    fn state(&self) -> Vec<TableRows> {
        let of_table = |(table, rows): (usize, &TwinRows)| {
            // Strings are in another order than their numbers.
            let nodes: Vec<u64> = rows.keys().copied().collect();
            let unsorted = ids(table, &nodes);
            let order: Vec<u64> = unsorted
                .sort_permutation()
                .into_iter()
                .map(|at| nodes[at as usize])
                .collect();
            let moments = 0..self.optimizer.num_moments();
            TableRows {
                ids: ids(table, &order),
                values: order.iter().flat_map(|node| rows[node].0.clone()).collect(),
                moments: moments
                    .map(|at| {
                        order
                            .iter()
                            .flat_map(|node| rows[node].1[at].clone())
                            .collect()
                    })
                    .collect(),
            }
        };
        self.rows.iter().enumerate().map(of_table).collect()
    }
}

fn optimizers() -> [Optimizer; 4] {
    let of = |kind, momentum| Optimizer {
        kind,
        learning_rate: 0.1,
        momentum,
        ..Optimizer::default()
    };
    [
        of(OptimizerKind::Sgd, 0.0),
        of(OptimizerKind::Sgd, 0.9),
        of(OptimizerKind::Adam, 0.0),
        of(OptimizerKind::AdamW, 0.0),
    ]
}

fn start() -> ServerState {
    ServerState {
        parameters: vec![1.0],
        ..ServerState::default()
    }
}

/// A server, with what keeps it alive.
struct Made {
    server: Box<dyn ParameterServer>,
    _servers: Vec<GrpcServer>,
}

/// Makes a server in memory, or as services with a client.
fn make(
    remote: bool,
    (consistency, optimizer): (Consistency, Optimizer),
    (workers, shards): (usize, usize),
    state: &ServerState,
) -> Made {
    if !remote {
        let counts = (workers, shards);
        let server = MemoryServer::new(&tensors(), optimizer, consistency, counts, state);
        return Made {
            server: Box::new(server.with_tables(&tables(), state)),
            _servers: Vec::new(),
        };
    }
    let (mut links, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..shards {
        let (here, there) = Link::pair();
        links.push(here);
        servers.push(GrpcServer::serve(vec![there]).unwrap());
    }
    let client = GrpcClient::over(links, &tensors(), GradientFormat::F32).unwrap();
    let client = client.with_tables(&tables());
    let settings = Settings {
        tensors: tensors(),
        optimizer,
        consistency,
        workers,
        tables: tables(),
    };
    client.start(&settings, state).unwrap();
    Made {
        server: Box::new(client),
        _servers: servers,
    }
}

/// Runs a step of a worker, and compares the rows that it pulls.
fn step(server: &dyn ParameterServer, twin: Option<&Twin>, worker: usize, step: u64) {
    server.pull(worker, step).unwrap();
    let gradients = gradients(worker, step);
    let wanted: Vec<&Ids> = gradients.iter().map(|of_table| &of_table.ids).collect();
    let pulled = server.pull_rows(&wanted).unwrap();
    for (table, rows) in pulled.iter().enumerate() {
        assert_eq!(rows.len(), wanted[table].len() * DIM[table]);
        if let Some(twin) = twin {
            let nodes = nodes(table, worker, step).into_iter();
            let expected: Vec<f32> = nodes.flat_map(|node| twin.row(table, node)).collect();
            assert_eq!(*rows, expected, "bit for bit");
        }
    }
    let pushed = Pushed {
        worker,
        step,
        gradient: &[0.5],
        num_targets: 1,
        buffers: &[],
        rows: &gradients,
    };
    server.push(pushed).unwrap();
}

fn rows_of(state: &ServerState) -> Vec<TableRows> {
    state.tables.iter().map(|rows| (**rows).clone()).collect()
}

#[test]
fn sync_rows_equal_a_slow_twin_on_every_transport_and_number_of_shards() {
    for optimizer in optimizers() {
        let mut twin = Twin::new(optimizer);
        let servers = [(false, 1), (false, 3), (true, 1), (true, 3)].map(|(remote, shards)| {
            make(
                remote,
                (Consistency::Sync, optimizer),
                (WORKERS, shards),
                &start(),
            )
        });
        for at in 0..6 {
            for (idx, made) in servers.iter().enumerate() {
                // Gradients arrive in several orders.
                let order = (0..WORKERS).map(|worker| (worker + idx) % WORKERS);
                order.for_each(|worker| step(&*made.server, Some(&twin), worker, at));
            }
            twin.step(0..WORKERS, at, at + 1);
        }
        let expected = twin.state();
        assert!(expected.iter().all(|rows| rows.ids.len() > 20));
        let states = servers.map(|made| made.server.state().unwrap());
        for state in &states {
            assert_eq!(rows_of(state), expected, "bit for bit");
            assert_eq!(*state, states[0]);
        }
    }
}

#[test]
fn one_async_worker_updates_rows_as_sync() {
    for (remote, shards) in [(false, 2), (true, 2)] {
        for optimizer in optimizers() {
            let mut twin = Twin::new(optimizer);
            let made = make(
                remote,
                (Consistency::Async, optimizer),
                (1, shards),
                &start(),
            );
            for at in 0..5 {
                step(&*made.server, Some(&twin), 0, at);
                twin.step(0..1, at, at + 1);
            }
            assert_eq!(rows_of(&made.server.state().unwrap()), twin.state());
        }
    }
}

#[test]
fn rows_go_on_from_a_state_over_other_shards() {
    let optimizer = optimizers()[2];
    let sync = (Consistency::Sync, optimizer);
    let run = |made: &Made, steps: std::ops::Range<u64>| {
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (server, steps) = (&made.server, steps.clone());
                scope.spawn(move || steps.for_each(|at| step(&**server, None, worker, at)));
            }
        });
        made.server.state().unwrap()
    };
    let whole = run(&make(false, sync, (WORKERS, 2), &start()), 0..7);
    for (remote, shards) in [(false, 3), (true, 2)] {
        let half = run(&make(!remote, sync, (WORKERS, 1), &start()), 0..3);
        let rest = run(&make(remote, sync, (WORKERS, shards), &half), 3..7);
        assert_eq!(rest, whole, "bit for bit");
    }
}

#[test]
fn rows_that_no_gradient_reached_take_no_memory() {
    let made = make(
        false,
        (Consistency::Sync, optimizers()[0]),
        (1, 2),
        &start(),
    );
    let wanted = [ids(0, &[1, 2, 3]), ids(1, &(0..1000).collect::<Vec<_>>())];
    let wanted: Vec<&Ids> = wanted.iter().collect();
    let pulled = made.server.pull_rows(&wanted).unwrap();
    assert_eq!(pulled[1].len(), 1000 * DIM[1]);
    let state = made.server.state().unwrap();
    assert!(state.tables.iter().all(|rows| rows.ids.is_empty()));
}

#[test]
fn a_table_of_more_rows_than_a_page_comes_back() {
    // 30000 rows of two numbers and two moments are less than a page, so the width makes the pages.
    let spec = TableSpec {
        name: "wide".to_owned(),
        id_type: IdType::UInt64,
        dim: 2048,
        seed: 1,
        weight_decay: 0.0,
    };
    let (here, there) = Link::pair();
    let _server = GrpcServer::serve(vec![there]).unwrap();
    let client = GrpcClient::over(vec![here], &tensors(), GradientFormat::F32).unwrap();
    let client = client.with_tables(std::slice::from_ref(&spec));
    let settings = Settings {
        tensors: tensors(),
        optimizer: optimizers()[2],
        consistency: Consistency::Sync,
        workers: 1,
        tables: vec![spec],
    };
    let len = 6000;
    let keys: Vec<u64> = (0..len).collect();
    let values: Vec<f32> = (0..len * 2048).map(|at| (at % 1000) as f32).collect();
    let rows = TableRows {
        ids: Ids::from_keys(IdType::UInt64, keys),
        moments: vec![values.clone(); 2],
        values,
    };
    let state = ServerState {
        tables: vec![Arc::new(rows)],
        moments: vec![vec![0.0]; 2],
        ..start()
    };
    client.start(&settings, &state).unwrap();
    assert!(
        client.state().unwrap().tables == state.tables,
        "bit for bit"
    );
}

#[test]
fn rows_of_another_table_are_refused() {
    let made = make(true, (Consistency::Sync, optimizers()[0]), (1, 1), &start());
    let twice = Arc::new(TableRows {
        ids: ids(1, &[4, 4]),
        values: vec![0.0; 4],
        moments: Vec::new(),
    });
    let (here, there) = Link::pair();
    let _server = GrpcServer::serve(vec![there]).unwrap();
    let client = GrpcClient::over(vec![here], &tensors(), GradientFormat::F32).unwrap();
    let client = client.with_tables(&tables());
    let settings = Settings {
        tensors: tensors(),
        optimizer: optimizers()[0],
        consistency: Consistency::Sync,
        workers: 1,
        tables: tables(),
    };
    let state = ServerState {
        tables: vec![Arc::new(TableRows::empty(IdType::Utf8)), twice],
        ..start()
    };
    let error = client.start(&settings, &state).unwrap_err().to_string();
    assert!(
        error.contains("the request has a row that its table has already"),
        "{error}"
    );
    let (author, paper) = (ids(0, &[1]), ids(1, &[1]));
    let refused = made
        .server
        .pull_rows(&[&paper, &author])
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("the request has ids of other tables"),
        "{refused}"
    );
}
