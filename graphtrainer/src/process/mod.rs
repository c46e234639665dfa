//! Workers and parameter servers as processes of this machine: started, supervised, ended.
//!
//! The process that trains (the launcher) starts its own program again as `train-process server I`
//! and `train-process worker I`. They speak to it in lines of JSON: it tells them on standard input
//! what they are (`Hello`) and which steps to run, they say on standard output what they have done
//! (`Word`) and, four times within the timeout, that they live. Parameters and gradients do not go
//! this way but over gRPC, between workers and servers, and to the launcher between epochs; the secret
//! that every call has to carry is part of the hello.
//!
//! - A child whose standard input ends has lost its launcher, and ends.
//! - A worker that ends or is silent for too long ends the training, or is started again. It then asks
//!   the servers which of its steps they have, and goes on with the next. A step's share of the loss is
//!   said before its gradient is pushed, so nothing of it is lost or counted twice.
//! - A server that is lost takes its parameters along: all processes are ended, and the training loop
//!   starts them again from the last state it kept.

mod child;
mod launch;

use std::ops::Range;

use schemas::storage::StorageOptions;
use serde::{Deserialize, Serialize};

use crate::error::causes;
use crate::server::Credentials;
use crate::{TrainError, TrainPlan};

pub use child::run_child;
pub(crate) use launch::{Processes, with_processes};

/// The first line a child reads.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    credentials: Credentials,
    /// How stores are reached.
    storage: StorageOptions,
    role: Role,
    /// Silence that the launcher puts up with.
    timeout_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Server,
    Worker(Box<WorkerRole>),
}

#[derive(Debug, Serialize, Deserialize)]
struct WorkerRole {
    worker: usize,
    /// Ports of the servers.
    ports: Vec<u16>,
    plan: TrainPlan,
    /// The epoch of the first steps it will be told to run.
    epoch: u64,
    /// Threads to compute with.
    threads: usize,
}

/// Any further line a worker reads: steps to run.
#[derive(Debug, Serialize, Deserialize)]
struct Steps {
    epoch: u64,
    steps: Range<usize>,
}

/// A line that a child writes.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// It is there.
    Alive,
    /// A server takes calls on this port.
    Listening(u16),
    /// A worker will push this step; its share, the loss as the bits of a 64-bit float.
    Step {
        step: u64,
        loss_bits: u64,
        count_bits: u64,
    },
    /// A worker has run its steps; what its stages were busy.
    Done { busy_ns: [u64; 3] },
    /// A worker's steps failed.
    Failed(Failure),
}

/// An error that crosses from a worker to the process that leads the training.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// Another worker failed.
    Peer(usize),
    /// A server is gone.
    Server { server: usize, how: String },
    /// Any other.
    Other {
        text: String,
        kind: schemas::ErrorKind,
        is_bound_to_repeat: bool,
    },
}

impl Failure {
    pub(crate) fn of(error: &TrainError) -> Self {
        match error {
            TrainError::PeerFailed { worker } => Self::Peer(*worker),
            TrainError::ServerLost { server, how } => Self::Server {
                server: *server,
                how: how.clone(),
            },
            other => Self::Other {
                text: format!("{other}{}", causes(other)),
                kind: other.kind(),
                is_bound_to_repeat: other.is_bound_to_repeat(),
            },
        }
    }

    pub(crate) fn into_error(self) -> TrainError {
        match self {
            Self::Peer(worker) => TrainError::PeerFailed { worker },
            Self::Server { server, how } => TrainError::ServerLost { server, how },
            Self::Other {
                text,
                kind,
                is_bound_to_repeat,
            } => TrainError::Reported {
                text,
                kind,
                is_bound_to_repeat,
            },
        }
    }
}
