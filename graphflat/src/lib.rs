//! Flattens k-hop neighbourhoods on timely dataflow: the store, the sample and the reduce rounds.
//!
//! [`open_or_build`] reads the input tables once into a [`Store`]; [`flatten`] answers k reduce
//! rounds from it, wave by wave, and writes GraphFeatures; [`Waves`] draws them without files, for
//! training that is streamed. The same store serves inference.

pub mod cluster;
pub mod config;
pub mod error;
mod flatten;
pub mod generate;
mod group;
mod hub;
mod output;
mod parts;
mod placement;
mod round;
pub mod sample;
mod shuffle;
pub mod store;
mod stream;
mod sum;
mod targets;
mod wave;

pub use cluster::{Cluster, ClusterError};
pub use config::{FlattenPlan, FlattenSpec, SamplePlan, StorePlan, Targets};
pub use error::FlattenError;
pub use flatten::flatten;
pub use group::GroupFeatures;
pub use output::open_output;
pub use parts::Parts;
pub use placement::{NodeIdx, Placement};
pub use shuffle::{Peer, PeerFailed, gather_processes, run_workers};
pub use store::{Partition, Store, open_or_build, open_or_build_on};
pub use stream::Waves;
pub use wave::{PART_EDGE_BYTES, PART_NODE_BYTES, WAVES_IN_FLIGHT, WRITER_BYTES};
