//! Trains GNN models on stored neighbourhoods with a parameter server.
//!
//! [`train`] runs a whole `[train]` stage: it reads graph features from one directory and writes a
//! model to another; [`train_on`] reads any [`Source`], also one that draws a fresh sample each
//! epoch; [`train_among`] does it with other processes. [`fit`] is the loop inside, and [`batch`] turns targets into the blocks a model runs on.
//!
//! A worker is a pipeline of four threads (fetch a part, choose targets, vectorise, compute) on
//! bounded queues; the report counts the first two as one stage, `read`. Workers
//! pull parameters from a [`server::ParameterServer`] and push gradients to it; the optimiser's
//! state lives there. All draws (order, dropout, initial weights) are functions of the seed and of
//! what they are drawn for, so in sync mode neither the number of threads nor a kill changes the
//! result.

pub mod batch;
mod checkpoint;
pub mod class_weight;
pub mod config;
mod crew;
mod device;
mod error;
mod evaluate;
mod fetch;
mod fit;
pub mod metric;
mod order;
mod peers;
mod pipeline;
mod prepare;
pub mod process;
pub mod schedule;
pub mod scores;
pub mod server;
mod source;
mod train;
mod worker;

#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;

pub use config::{TrainContext, TrainPlan, TrainSpec};
pub use error::TrainError;
pub use fit::{EpochReport, Trained, fit};
pub use peers::Peers;
pub use source::{Neighborhoods, Source};
pub use train::{EPOCHS_JSONL, train, train_among, train_on};
