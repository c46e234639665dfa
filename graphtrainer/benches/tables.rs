//! Times a step on an embedding table of few and of many possible rows.
//!
//! ```text
//! cargo bench -p graphtrainer --bench tables
//! ```
//!
//! A step pulls the rows of 4096 draws from the nodes, and pushes a gradient of each row (Adam, 64
//! numbers a row, one worker). `same` draws from the same number of nodes, whose ids lie in 10^4 or
//! 10^8 possible ones; `fresh` draws from all possible ids, so nearly every row of the 10^8 is new.
//! The variants take turns, so that other load on the machine affects all alike. Prints a JSON line
//! for each: the median microseconds of a step a touched row, and the rows that the server holds.

use std::collections::BTreeSet;
use std::time::Instant;

use graphtrainer::TrainError;
use graphtrainer::server::{
    Consistency, MemoryServer, Optimizer, ParameterServer, Pushed, RowGradient, ServerState,
    TableSpec, TensorSpec,
};
use schemas::{IdType, Ids, hash_int};
use serde_json::json;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DIM: usize = 64;
const DRAWS: u64 = 4096;
const STEPS: u64 = 300;
const FEW: u64 = 10_000;
const MANY: u64 = 100_000_000;

struct Variant {
    name: &'static str,
    possible: u64,
    /// Number of nodes that steps draw from.
    nodes: u64,
    server: MemoryServer,
    /// Microseconds of each step a touched row.
    times: Vec<f64>,
}

fn main() -> Result<(), TrainError> {
    let mut variants = [
        variant("same", FEW, FEW),
        variant("same", MANY, FEW),
        variant("fresh", MANY, MANY),
    ];
    for step in 0..STEPS {
        for of in &mut variants {
            let micros = of.step(step)?;
            of.times.push(micros);
        }
    }
    let mut lines = String::new();
    for of in &mut variants {
        of.times.sort_by(f64::total_cmp);
        let held: usize = of
            .server
            .state()?
            .tables
            .iter()
            .map(|rows| rows.ids.len())
            .sum();
        let line = json!({
            "variant": of.name,
            "possible_rows": of.possible,
            "microseconds_a_row": of.times[of.times.len() / 2],
            "held_rows": held,
        });
        lines.push_str(&format!("{line}\n"));
    }
    std::io::Write::write_all(&mut std::io::stdout(), lines.as_bytes()).map_err(|source| {
        TrainError::Process {
            action: "print",
            source,
        }
    })
}

fn variant(name: &'static str, possible: u64, nodes: u64) -> Variant {
    let spec = TableSpec {
        name: "node".to_owned(),
        id_type: IdType::UInt64,
        dim: DIM,
        seed: 1,
        weight_decay: 0.0,
    };
    let tensors = [TensorSpec {
        name: "a".to_owned(),
        len: 1,
        weight_decay: 0.0,
    }];
    let state = ServerState {
        parameters: vec![0.0],
        ..ServerState::default()
    };
    let (optimizer, counts) = (Optimizer::default(), (1, 1));
    let server = MemoryServer::new(&tensors, optimizer, Consistency::Sync, counts, &state);
    Variant {
        name,
        possible,
        nodes,
        server: server.with_tables(&[spec], &state),
        times: Vec::new(),
    }
}

impl Variant {
    /// Runs a step; returns its microseconds a touched row.
    fn step(&self, step: u64) -> Result<f64, TrainError> {
        let draw = |at| hash_int(step * DRAWS + at) % self.nodes * (self.possible / self.nodes);
        let touched: BTreeSet<u64> = (0..DRAWS).map(draw).collect();
        let count = touched.len();
        let ids = Ids::from_keys(IdType::UInt64, touched.into_iter().collect());
        let started = Instant::now();
        self.server.pull(0, step)?;
        let rows = self.server.pull_rows(&[&ids])?;
        let gradient = RowGradient {
            ids,
            values: rows.concat(),
        };
        self.server.push(Pushed {
            worker: 0,
            step,
            gradient: &[0.1],
            num_targets: 1,
            buffers: &[],
            rows: &[gradient],
        })?;
        Ok(started.elapsed().as_secs_f64() * 1e6 / count as f64)
    }
}
