//! GNN layers, models and the aggregation kernels they run on.
//!
//! A [`Model`] runs on [`Block`]s: one layer of one batch each, with plain vectors at the boundary.
//! The trainer calls [`Model::loss_and_gradient`]; layer-sliced inference calls
//! [`Model::forward_layer`], which is the same code. [`save`] and [`load`] keep a model as
//! `model.safetensors`, named and laid out as `PyG` does, with `model.json` beside it.
//!
//! Layers compute what `PyG`'s layers of the same kind compute. Where `PyG` leaves a choice:
//!
//! - GCN normalises with the degrees of the whole graph, never with those of a block. Every node
//!   has one self-loop: of weight 1, or, in a model with edge weights, of the sum of the weights of
//!   the self-loops that it has, be it 0 (of parallel ones `PyG` keeps an unspecified one).
//! - Under sampling, sums (GCN, GIN) and means (SAGE) estimate those over all in-edges without
//!   bias, as [`Sampling`] says; maxima and attention are those of the sample, and so is everything
//!   where the heaviest in-edges were kept or a model does not use the weights it was sampled by.
//! - Edge weights scale messages: in a mean they do not enter the divisor, in attention they
//!   multiply the coefficient after the softmax. GINE scales its message after the `relu`.
//! - A residual is added before norm and activation, at every conv; [`Norm::Layer`] is per node;
//!   with a norm, GIN's perceptron has one inside, as in `PyG`'s `GIN`.
//! - GIN's eps is fixed at 0.
//!
//! # Examples
//!
//! ```
//! use gnn::{Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, LayerKind};
//! use gnn::{Mode, Model, Norm, Task};
//!
//! # fn main() -> Result<(), gnn::GnnError> {
//! let arch = Architecture {
//!     layer: LayerKind::Sage,
//!     aggregator: Aggregator::Mean,
//!     in_dim: 2,
//!     edge_dim: None,
//!     edge_weight: false,
//!     hidden: vec![],
//!     num_layers: 1,
//!     out_dim: 3,
//!     heads: 1,
//!     out_heads: 1,
//!     dropout: 0.0,
//!     input_dropout: 0.0,
//!     attention_dropout: 0.0,
//!     norm: Norm::None,
//!     residual: false,
//!     activation: Activation::Relu,
//!     task: Task::Classes,
//! };
//! // One target that hears from two other nodes.
//! let block = Block::new(BlockData {
//!     num_src: 3,
//!     num_dst: 1,
//!     in_offset: vec![0, 2],
//!     in_src: vec![1, 2],
//!     in_degree: vec![2, 0, 0],
//!     node_key: vec![10, 11, 12],
//!     num_active: 1,
//!     ..BlockData::default()
//! })?;
//! let input = Input::Dense(Dense { rows: 3, cols: 2, values: vec![1.0, 0.0, 0.5, 0.5, 0.0, 1.0] });
//! let logits = Model::init(&arch, 7)?.forward(&[block], &input, Mode::Eval)?;
//! assert_eq!((logits.rows, logits.cols), (1, 3));
//! # Ok(())
//! # }
//! ```

mod aggregation;
mod architecture;
mod block;
mod conv;
mod device;
mod error;
#[cfg(feature = "gpu")]
mod gpu;
pub mod kernel;
mod layer;
mod loss;
mod model;
mod ops;
mod parameter;
mod tensor;
pub mod transform;
pub mod weights;

pub use aggregation::{Aggregation, SomeInEdges, SrcRows};
pub use architecture::{
    Activation, Aggregator, Architecture, LayerKind, Norm, PARAMETERS_MAX, Task,
};
pub use block::{Block, BlockData, NodeColumns, RangeData, Sampling};
pub use conv::{Conv, Head, Projected};
pub use device::Device;
pub use error::GnnError;
pub use loss::{Labels, loss};
pub use model::{LossAndGradient, Mode, Model};
pub use parameter::ParameterInfo;
pub use tensor::{Dense, Input, ReadyInput, SharedRows, SparseRows};
pub use transform::{StandardizeFit, Transform};
pub use weights::{MODEL_JSON, MODEL_WEIGHTS, ModelFile, load, load_with, save, to_files};
