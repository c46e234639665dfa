//! The graph on disk, as flatten, streamed training and inference read it: nodes and ranked in-edges,
//! one memory-mapped partition a worker.
//!
//! [`open_or_build`] reads the input tables once into a [`Store`], or opens the one that is there. A
//! node is a [`schemas::NodeIdx`], its position in the order of ids; [`Placement`] tells which worker
//! owns it.

mod arrow_file;
mod buckets;
mod build;
mod description;
mod edge_columns;
mod edges;
mod ends;
mod error;
mod hub;
mod in_edge_files;
mod map;
mod meta;
mod node_columns;
mod nodes;
mod number;
mod open;
mod partition;
mod placement;
mod plan;
pub mod sample;
mod scatter;
#[cfg(unix)]
mod sigbus;
mod store;
mod sum;
mod units;

pub use edge_columns::InEdges;
pub use error::{StoreCause, StoreError};
pub use map::map_bytes;
pub use meta::{EdgeCounts, StoreMeta};
pub use open::{open_or_build, open_or_build_on};
pub use partition::Partition;
pub use placement::{NUM_NODES_MAX, Placement};
pub use plan::{HUB_THRESHOLD, StorePlan};
pub use store::{Hub, Store};
