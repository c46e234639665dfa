//! GNN layers, models and the aggregation kernels they run on.
//!
//! A [`Model`] runs on [`Block`]s: one layer of one batch each, with plain vectors at the boundary.
//! The trainer calls [`Model::loss_and_gradient`]; layer-sliced inference calls
//! [`Model::forward_layer`], which is the same code. [`save`] and [`load`] keep a model as
//! `model.safetensors`, named and laid out as `PyG` does, with `model.json` beside it.

mod architecture;
mod block;
mod error;
pub mod kernel;
mod layer;
mod loss;
mod model;
mod ops;
mod parameter;
mod tensor;
pub mod transform;
pub mod weights;

pub use architecture::{Activation, Aggregator, Architecture, LayerKind, Norm, Task};
pub use block::{Block, BlockData, Sampling};
pub use error::GnnError;
pub use loss::{Labels, loss};
pub use model::{LossAndGradient, Mode, Model};
pub use parameter::ParameterInfo;
pub use tensor::{Dense, Input, SparseRows};
pub use transform::{Transform, fit_standardize};
pub use weights::{MODEL_JSON, MODEL_WEIGHTS, ModelFile, load, save};
