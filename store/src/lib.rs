//! The graph on disk, as flatten, streamed training and inference read it: nodes and ranked in-edges,
//! one memory-mapped partition a worker.
//!
//! [`open_or_build`] reads the input tables once into a [`Store`], or opens the one that is there. A
//! node is a [`schemas::NodeIdx`], its position in the order of ids; [`Placement`] tells which worker
//! owns it.

mod buckets;
mod build;
mod description;
mod edges;
mod ends;
mod error;
mod file;
mod hub;
mod map;
mod nodes;
mod number;
mod placement;
mod plan;
pub mod sample;
#[cfg(unix)]
mod sigbus;
mod store;
mod sum;

pub use edges::EdgeCounts;
pub use error::{StoreCause, StoreError};
pub use file::InEdges;
pub use map::map_bytes;
pub use placement::{NUM_NODES_MAX, Placement};
pub use plan::{HUB_THRESHOLD, StorePlan};
pub use store::{Hub, Partition, Store, StoreMeta, open_or_build, open_or_build_on};
