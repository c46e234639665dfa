//! Models of graphs with several node types and relations.
//!
//! A relation is a named set of edges from nodes of one type to nodes of one type, which may be the
//! same. Each type's features are projected first, by a linear map of the type; from then on the
//! rows of all types are equally wide. A [`TypedModel`] runs on [`TypedBlock`]s: per type the src
//! and dst nodes of one layer of one batch, and per relation the in-edges between them.
//!
//! A [`TypedKind`] is one of the convs of this crate for each relation, or a layer over all
//! relations: `rgcn`, `simple_hgn` or `hgt`. They compute the same as `PyG`'s `HeteroConv`,
//! `RGCNConv` and `HGTConv`, and as the published Simple-HGN. Where these leave a choice:
//!
//! - A relation of one type has self-loops as the conv has them without types; a relation between
//!   two types has none. gcn needs relations of one type.
//! - Degrees, and the scale of sums under sampling, are by relation. Attention is that of the
//!   sample.
//! - A type that no relation leads to gets a linear map of its own rows (`skips`), in kinds that
//!   read own rows only by relation: `PyG` drops such a type.
//! - Edge weights are used by convs by relation, and by rgcn in its mean.
//! - The attention residual of `simple_hgn` takes the attention of earlier layers over the in-edges
//!   that the layer at hand reads, and has a gradient.
//!
//! `examples/typed_model.rs` makes blocks, trains a model and saves it.

mod architecture;
mod block;
mod check;
mod file;
mod gradient;
mod hgt;
mod hub;
mod hub_attention;
mod kind;
mod linear;
mod model;
mod per_relation;
mod schema;
mod simple_hgn;
mod slice;
mod stack;
mod touched;
mod union;

pub use architecture::{RelationInput, TypeInput, TypedArchitecture};
pub use block::{RelationData, RelationRange, TypeNodes, TypedBlock, TypedBlockData};
pub use file::{TypedModelFile, load_typed, load_typed_with, save_typed, typed_to_files};
pub use hub::AggregatedSources;
pub use kind::{RelationAggregator, TypedKind};
pub use model::TypedModel;
pub use schema::{RelationEnds, Schema};
pub use slice::{TypedHead, TypedLayerSlice, TypedProjection};
pub use stack::Source;
