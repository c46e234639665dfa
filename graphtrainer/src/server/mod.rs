//! The parameter server: workers pull parameters from it and push gradients to it.

mod client;
mod gradient_format;
mod link;
mod memory;
mod optimizer;
mod service;
mod shard;
mod table;
mod tables;
mod wire;
mod wire_rows;

use std::sync::Arc;

use schemas::Ids;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

pub use client::GrpcClient;
pub use gradient_format::GradientFormat;
pub use link::Link;
pub use memory::MemoryServer;
pub use optimizer::{Optimizer, OptimizerKind, squared_norm};
pub use service::GrpcServer;
pub(crate) use shard::spread;
pub use table::{RowGradient, TableRows, TableSpec};
pub(crate) use wire::MESSAGE_BYTES_MAX;
pub use wire::Settings;

use crate::TrainError;
pub use crate::schedule::Schedule;

/// How far a worker may be ahead of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// All workers take a step together. Their gradients are summed in worker order, so the result
    /// does not depend on timing.
    Sync,
    /// A gradient is applied on arrival; no worker waits.
    Async,
    /// As `Async`, but a worker waits while it is more than this many steps ahead of the slowest.
    Bounded(u64),
}

/// One tensor of the flat parameter vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Its name, which breaks ties when tensors are spread over shards.
    pub name: String,
    /// Number of values.
    pub len: usize,
    /// Weight decay of this tensor.
    pub weight_decay: f32,
}

/// The values that a worker computes a step with.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The flat parameter vector.
    pub parameters: Vec<f32>,
    /// The model's buffers (running statistics of batch norm).
    pub buffers: Vec<f32>,
}

/// The result of a worker's step.
#[derive(Clone, Copy, Debug)]
pub struct Pushed<'a> {
    /// The worker, from 0.
    pub worker: usize,
    /// Number of steps that this worker pushed before, since the training began.
    pub step: u64,
    /// Gradient of its targets' loss, divided by the total weight of all targets of the update (in
    /// sync mode of all workers), so that gradients add up.
    pub gradient: &'a [f32],
    /// Number of targets of the gradient; 0 if the worker had none in this step.
    pub num_targets: u64,
    /// The model's buffers after the step.
    pub buffers: &'a [f32],
    /// Gradients of rows, by embedding table, divided as `gradient`; empty if no row has one.
    pub rows: &'a [RowGradient],
}

/// The state that a server needs to continue as if never stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerState {
    /// Number of steps that every worker has pushed.
    pub step: u64,
    /// Number of updates: `step` in sync mode, else the pushes of all workers.
    pub updates: u64,
    /// Sum of the norms of the gradients of all updates, before clipping.
    pub norm_sum: f64,
    /// The flat parameter vector.
    pub parameters: Vec<f32>,
    /// The model's buffers.
    pub buffers: Vec<f32>,
    /// The optimiser's vectors, each as long as `parameters` (none for plain SGD).
    pub moments: Vec<Vec<f32>>,
    /// The rows of each embedding table that have had a gradient; empty: no table has such rows.
    pub tables: Vec<Arc<TableRows>>,
}

/// Holds the parameters and the optimiser's state, and decides which workers wait.
///
/// Between threads it is [`MemoryServer`]; between processes [`GrpcClient`], which calls one
/// [`GrpcServer`] per shard. A worker that fails must call [`fail`], because otherwise workers that
/// wait for it wait forever.
///
/// [`fail`]: ParameterServer::fail
pub trait ParameterServer: Send + Sync {
    /// Returns the parameters for `worker`'s step `step`, once the consistency allows that step.
    ///
    /// # Errors
    ///
    /// [`TrainError::PeerFailed`] once any worker failed.
    fn pull(&self, worker: usize, step: u64) -> Result<Pulled, TrainError>;

    /// Returns rows of the embedding tables, `[ids, dim]` for each table, with no row twice. `wanted`
    /// has the ids, by table. Called between a worker's pull and its push, so that in mode sync no
    /// update comes between them.
    ///
    /// # Errors
    ///
    /// If a server is lost.
    fn pull_rows(&self, wanted: &[&Ids]) -> Result<Vec<Vec<f32>>, TrainError>;

    /// Passes the gradient of this worker's next step to the server.
    ///
    /// # Errors
    ///
    /// [`TrainError::OutOfTurn`] if the gradient is of another step, [`TrainError::PeerFailed`]
    /// once any worker failed.
    fn push(&self, pushed: Pushed<'_>) -> Result<(), TrainError>;

    /// Reports that `worker` has failed for good: every call that waits, now or later, returns an
    /// error.
    fn fail(&self, worker: usize);

    /// Returns the whole state. Called between runs of steps, when no worker computes a step.
    ///
    /// # Errors
    ///
    /// [`TrainError::PeerFailed`] once any worker failed.
    fn state(&self) -> Result<ServerState, TrainError>;
}

/// Largest number of workers of a server, and of threads that it starts for their calls.
const WORKERS_MAX: usize = 1024;

/// Starts the threads that drive connections.
fn runtime(num_threads: usize) -> Result<Runtime, TrainError> {
    // The builder panics if threads cannot be started; a call needs one more thread.
    schemas::threads::check(num_threads + 1)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(num_threads)
        .max_blocking_threads(2 * WORKERS_MAX)
        .enable_all()
        .build();
    runtime.map_err(|source| TrainError::Process {
        action: "start the threads of a connection",
        source,
    })
}
