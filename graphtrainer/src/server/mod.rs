//! The parameter server: workers pull parameters from it and push gradients to it.

mod client;
mod gradient_format;
mod link;
mod memory;
mod optimizer;
mod service;
mod shard;
mod wire;

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

pub use client::GrpcClient;
pub use gradient_format::GradientFormat;
pub use link::Link;
pub use memory::MemoryServer;
pub use optimizer::{Optimizer, OptimizerKind, squared_norm};
pub use service::GrpcServer;
pub(crate) use shard::spread;
pub(crate) use wire::MESSAGE_BYTES_MAX;
pub use wire::Settings;

use crate::TrainError;
pub use crate::schedule::Schedule;

/// When a worker may go ahead of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// All workers take a step together; their gradients are summed in worker order, so the result
    /// depends on neither timing nor order of arrival.
    Sync,
    /// A gradient is applied when it arrives; nobody waits.
    Async,
    /// As `Async`, but a worker waits while it is more than so many steps ahead of the slowest.
    Bounded(u64),
}

/// One tensor of the flat parameter vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Its name; decides ties when tensors are spread over shards.
    pub name: String,
    /// Number of values.
    pub len: usize,
    /// Weight decay of this tensor.
    pub weight_decay: f32,
}

/// What a worker computes a step with.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The flat parameter vector.
    pub parameters: Vec<f32>,
    /// The model's buffers (running statistics of batch norm).
    pub buffers: Vec<f32>,
}

/// What a worker computed in a step.
#[derive(Clone, Copy, Debug)]
pub struct Pushed<'a> {
    /// The worker, from 0.
    pub worker: usize,
    /// Steps this worker pushed before, since the training began.
    pub step: u64,
    /// Gradient of its targets' loss, already divided by what all targets of the update count
    /// (in sync mode those of all workers), so that gradients add up.
    pub gradient: &'a [f32],
    /// Targets the gradient was computed from; 0 where a worker had none in this step.
    pub num_targets: u64,
    /// The model's buffers after the step.
    pub buffers: &'a [f32],
}

/// Everything a server has to remember to go on as if never stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerState {
    /// Steps every worker has pushed.
    pub step: u64,
    /// Updates applied: `step` in sync mode, else the pushes of all workers.
    pub updates: u64,
    /// Norms of the gradients of all updates, before they were clipped, added up.
    pub norm_sum: f64,
    /// The flat parameter vector.
    pub parameters: Vec<f32>,
    /// The model's buffers.
    pub buffers: Vec<f32>,
    /// The optimiser's vectors, each as long as `parameters` (none for plain SGD).
    pub moments: Vec<Vec<f32>>,
}

/// Holds the parameters and the optimiser's state, and decides who waits for whom.
///
/// Between threads it is [`MemoryServer`], between processes [`GrpcClient`], which speaks to one
/// [`GrpcServer`] a shard. A worker that fails has to say so with [`fail`], or those that wait for
/// it would wait for ever.
///
/// [`fail`]: ParameterServer::fail
pub trait ParameterServer: Send + Sync {
    /// Returns the parameters for `worker`'s step `step`, once the consistency allows that step.
    ///
    /// # Errors
    ///
    /// [`TrainError::PeerFailed`] once any worker failed.
    fn pull(&self, worker: usize, step: u64) -> Result<Pulled, TrainError>;

    /// Hands in the gradient of this worker's next step.
    ///
    /// # Errors
    ///
    /// [`TrainError::OutOfTurn`] if it is of another step, [`TrainError::PeerFailed`] once any worker
    /// failed.
    fn push(&self, pushed: Pushed<'_>) -> Result<(), TrainError>;

    /// Reports that `worker` will not come back: whoever waits, now or later, gets an error.
    fn fail(&self, worker: usize);

    /// Returns the whole state. Called between runs of steps, when no worker is in one.
    ///
    /// # Errors
    ///
    /// [`TrainError::PeerFailed`] once any worker failed.
    fn state(&self) -> Result<ServerState, TrainError>;
}

/// Workers a server can wait on at once, and the most it starts threads for.
const WORKERS_MAX: usize = 1024;

/// Starts the threads that drive connections.
fn runtime(num_threads: usize) -> Result<Runtime, TrainError> {
    // Building it panics where they cannot be started; calls need one thread more.
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
