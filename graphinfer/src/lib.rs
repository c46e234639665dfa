//! Computes embeddings and predictions of every node, layer by layer.
//!
//! [`infer`] follows AGL's GraphInfer (PVLDB 13, section 3.4): a model of K convs is cut into K + 1
//! slices, and slice l is round l on the store. The rows of all nodes lie in one file a layer, in the
//! order of ids, which all threads map; a round computes blocks of the next layer's rows from it. So
//! each node is computed once per layer, unlike inference on stored neighbourhoods, and with the very
//! code that trained it; neither the graph nor its rows need fit in memory; and a finished round is a
//! checkpoint.
//!
//! Among several processes each computes the rows of the nodes that it owns, and has a copy of the rows
//! of other processes' nodes that those aggregate (its halo): a row crosses at most once a round and
//! process. The in-edges of hubs are aggregated in parts, where the rows of their sources are. The rows
//! that are written cross once more, to the process that writes their part.

mod checkpoint;
mod compare;
pub mod config;
mod deliver;
mod error;
mod exchange;
mod graph;
mod hub_round;
mod hubs;
mod infer;
mod local;
mod neighborhoods;
mod predict;
mod round;
mod rows;
mod slice;
mod threads;
mod write;

pub use config::{InferContext, InferPlan, InferSampling, InferSpec, InferTargets, Method};
pub use error::InferError;
pub use infer::infer;
pub use neighborhoods::infer_neighborhoods;
pub use slice::{Sample, StoreNeed};
