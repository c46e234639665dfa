//! Computes embeddings and predictions of every node, layer by layer.
//!
//! [`infer`] follows AGL's GraphInfer (PVLDB 13, section 3.4): a model of K convs is cut into K + 1
//! slices, and slice l is round l on the store. A worker holds the rows of its own nodes; before a
//! round the owners push the rows that other workers' in-edges read, each at most once a round and
//! peer, and then every worker computes its nodes from what it holds. So each node is computed once
//! per layer, unlike inference on stored neighbourhoods, and with the very code that trained it.

mod block;
pub mod config;
mod error;
mod halo;
mod infer;
mod predict;
mod round;
mod slice;
mod write;

pub use config::{InferContext, InferPlan, InferSampling, InferSpec, Method};
pub use error::InferError;
pub use infer::infer;
pub use slice::{Sample, StoreNeed};
