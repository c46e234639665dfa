//! GNN layers, models and the aggregation kernels they run on.
//!
//! A [`Model`] runs on [`Block`]s: one layer of one batch each, with plain vectors at the boundary.
//! The trainer calls [`Model::loss_and_gradient`]; layer-sliced inference calls
//! [`Model::layer_slice`], which is the same code. [`save`] and [`load`] keep a model as
//! `model.safetensors`, named and laid out as `PyG` does, with `model.json` beside it.
//!
//! Layers compute the same as `PyG`'s layers of the same kind. Where `PyG` leaves a choice:
//!
//! - GCN normalises with the degrees of the whole graph, never with those of a block. Every node
//!   has one self-loop. Its weight is 1, or, in a model with edge weights, the sum of the weights
//!   of the node's self-loops, even if that is 0 (`PyG` keeps an unspecified one of parallel
//!   self-loops).
//! - Under sampling, sums (GCN, GIN) and means (SAGE) are unbiased estimates of the sums and means
//!   over all in-edges, as [`Sampling`] says. Maxima and attention are those of the sample. If the
//!   heaviest in-edges were kept, nothing is scaled. If the model does not use the weights that the
//!   sample was drawn by, sums are scaled as for uniform sampling, and sums and means are biased.
//! - Edge weights scale messages: in a mean they do not enter the divisor, in attention they
//!   multiply the coefficient after the softmax. GINE scales its message after the `relu`.
//! - A residual is added before norm and activation, at every conv. [`Norm::Layer`] normalises each
//!   node's row. With a norm, GIN's perceptron has one inside, as in `PyG`'s `GIN`.
//! - GIN's eps is fixed at 0.
//!
//! Graphs with several node types and relations have [`typed::TypedModel`]s.
//!
//! A [`LayerKind`] is one file of this crate. A layer outside this crate is a type that implements
//! [`Conv`], as in `examples/custom_layer.rs`.
//!
//! # Examples
//!
//! A GraphSAGE that learns which of two groups a node's in-edges come from:
//!
//! ```
//! use gnn::{
//!     Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, Labels, LayerKind, Mode,
//!     Model, Norm, ReadyInput, Task,
//! };
//!
//! # fn main() -> Result<(), gnn::GnnError> {
//! let arch = Architecture {
//!     layer: LayerKind::Sage,
//!     aggregator: Aggregator::Mean,
//!     in_dim: 2,
//!     embedding_dim: None,
//!     edge_dim: None,
//!     edge_weight: false,
//!     hidden: vec![],
//!     num_layers: 1,
//!     out_dim: 2,
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
//! // Nodes 0 and 1 are targets: node 0 has in-edges from nodes 2 and 3, node 1 from 4 and 5.
//! let block = Block::new(BlockData {
//!     num_src: 6,
//!     num_dst: 2,
//!     in_offset: vec![0, 2, 4],
//!     in_src: vec![2, 3, 4, 5],
//!     in_degree: vec![2, 2, 0, 0, 0, 0],
//!     node_key: vec![10, 11, 12, 13, 14, 15],
//!     num_active: 2,
//!     ..BlockData::default()
//! })?;
//! let values = vec![0.0, 0.0, 0.0, 0.0, 1.0, 0.1, 0.9, 0.0, 0.1, 1.0, 0.0, 0.8];
//! let input = ReadyInput::new(Input::Dense(Dense { rows: 6, cols: 2, values }))?;
//! let (blocks, labels) = ([block], Labels::Classes(vec![0, 1]));
//!
//! let mut model = Model::init(&arch, 7)?;
//! for seed in 0..50 {
//!     let step = model.loss_and_gradient(&blocks, &input, &labels, 2.0, Mode::Train { seed })?;
//!     let flat = model.flat().into_iter().zip(step.gradient);
//!     model.set_flat(&flat.map(|(x, slope)| x - 0.5 * slope).collect::<Vec<f32>>());
//! }
//! let logits = model.forward(&blocks, &input, Mode::Eval)?;
//! assert!(logits.row(0)[0] > logits.row(0)[1] && logits.row(1)[1] > logits.row(1)[0]);
//! # Ok(())
//! # }
//! ```

mod architecture;
mod block;
mod check;
mod coefficient;
mod dense;
mod device;
mod encoder;
mod error;
#[cfg(feature = "gpu")]
mod gpu;
pub mod kernel;
mod label_scale;
mod layer;
mod light;
mod link;
mod loss;
mod model;
mod ops;
mod options;
mod parameter;
mod shared_rows;
mod slice;
mod stack;
mod tensor;
mod transform;
pub mod typed;
mod weights;

pub use architecture::{Architecture, PARAMETERS_MAX};
pub use block::{Block, BlockData, NodeColumns, RangeData, Sampling};
/// The tensor library that [`Conv`]s are written with.
pub use burn;
pub use coefficient::Coefficients;
pub use dense::Dense;
pub use device::Device;
pub use encoder::{
    CategoryCode, ColumnCode, EncodedColumn, Encoder, EncoderFit, NumberCode, NumberTransform,
    RawColumn, RawValues,
};
pub use error::GnnError;
pub use label_scale::LabelScale;
pub use layer::{
    Aggregated, Conv, ConvConfig, Features, LayerKind, LayerType, LinearTerms, PartialAggregation,
    Scope, SomeInEdges, Src, SrcRows, Summed, plain,
};
pub use link::{Decoder, PairLoss, PairLossKind, Pairs, Scorer};
pub use loss::{Labels, loss};
pub use model::{LossAndGradient, Mode, Model};
pub use ops::Fused;
pub use options::{Activation, Aggregator, Norm, Readout, Task};
pub use parameter::{ParameterInfo, ParameterList, Start};
pub use shared_rows::{RowFormat, RowValues, SharedRows};
pub use slice::{Head, LayerSlice, Projected};
pub use tensor::{Input, ReadyInput, SparseFeatures, SparseRows};
pub use transform::{StandardizeFit, Transform};
pub use weights::{MODEL_JSON, MODEL_WEIGHTS, ModelFile, load, load_with, save, to_files};
