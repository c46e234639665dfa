//! Flattens k-hop neighbourhoods on timely dataflow: k reduce rounds over the store of a graph.
//!
//! [`flatten`] answers the rounds from a [`store::Store`], wave by wave, and writes GraphFeatures;
//! [`Waves`] draws them without files, for training that is streamed.

pub mod config;
pub mod error;
mod flatten;
pub mod generate;
mod group;
mod parts;
mod round;
mod stream;
pub mod survey;
mod targets;
mod wave;

pub use config::{FlattenPlan, FlattenSpec, SamplePlan, Targets};
pub use error::FlattenError;
pub use flatten::flatten;
pub use group::GroupFeatures;
pub use parts::Parts;
pub use stream::Waves;
pub use wave::{PART_EDGE_BYTES, PART_NODE_BYTES, WAVES_IN_FLIGHT, WRITER_BYTES};
