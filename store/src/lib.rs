//! The graph on disk, as flatten, streamed training and inference read it: nodes and ranked in-edges,
//! one memory-mapped partition a worker.
//!
//! [`open_or_build`] reads the input tables into a [`Store`], or opens an existing store. A
//! node is a [`schemas::NodeIdx`], its position in the order of (type, id); [`Placement`] gives the
//! worker that owns it. In-edges are kept for each relation.
//!
//! # Examples
//!
//! Three nodes and two edges are stored on two workers; then the sources of a node are looked up.
//!
//! ```
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use parquet::arrow::ArrowWriter;
//! use schemas::{InputSpec, NodeIdx, Progress, Sampling};
//! use serde_json::{from_value, json};
//! use std::fs::File;
//! use std::sync::Arc;
//! use store::{HUB_THRESHOLD, StorePlan, open_or_build};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let write = |name: &str, columns: &[(&str, &[i64])]| {
//!     let column = |&(name, of): &(_, &[i64])| {
//!         (name, Arc::new(Int64Array::from(of.to_vec())) as ArrayRef)
//!     };
//!     let batch = RecordBatch::try_from_iter(columns.iter().map(column))?;
//!     let mut writer =
//!         ArrowWriter::try_new(File::create(dir.path().join(name))?, batch.schema(), None)?;
//!     writer.write(&batch)?;
//!     writer.close()?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//! write("nodes.parquet", &[("id", &[30, 10, 20])])?;
//! write("edges.parquet", &[("src", &[20, 10]), ("dst", &[30, 30])])?;
//!
//! // An untyped graph has one type and one relation, both without a name.
//! let input: InputSpec = from_value(json!({
//!     "nodes": { "": { "path": "nodes.parquet", "id": "id" } },
//!     "edges": { "": { "path": "edges.parquet", "src": "src", "dst": "dst" } },
//! }))?;
//! let plan = StorePlan {
//!     graph: Arc::new(input.into_plan(dir.path())?),
//!     target_type: 0,
//!     seed: 7,
//!     sampling: Sampling::Top,
//!     keep: vec![usize::MAX],
//!     samples: 1,
//!     redraw: false,
//!     left_out: false,
//!     hub_threshold: HUB_THRESHOLD,
//!     workers: 2,
//!     memory_budget: 64 << 20,
//!     page_cache: None,
//!     dir: dir.path().join("store"),
//!     fresh: false,
//! };
//! let silent: Progress = Arc::new(|_| {});
//! let store = open_or_build(&plan, &silent)?;
//!
//! // In the order of ids, 10, 20 and 30 are the nodes 0, 1 and 2.
//! let (owner, local) = store.placement().owner_and_local(NodeIdx::from_raw(2));
//! let partition = store.partition(owner);
//! let (ids, row) = partition.id(local);
//! assert_eq!(ids.display(row), "30");
//! let (relation, sample) = (0, 0);
//! let in_edges = partition.in_edges(relation, sample, local, usize::MAX);
//! assert_eq!(in_edges.src, [0, 1].map(NodeIdx::from_raw));
//! # Ok(())
//! # }
//! ```

pub mod arrow_file;
mod buckets;
mod build;
mod description;
mod edge_columns;
mod edge_hash;
mod edges;
mod ends;
mod error;
mod graphs;
mod hub;
mod id_table;
mod in_edge_files;
mod map;
mod memory;
mod meta;
mod node_columns;
mod nodes;
mod number;
mod open;
mod page_cache;
mod pair_set;
mod pairs;
mod partition;
mod placement;
mod plan;
mod rebuild;
pub mod sample;
mod scatter;
#[cfg(unix)]
mod sigbus;
mod store;
mod sum;
mod units;
mod walks;
mod whole;

pub use edge_columns::{EdgeReads, InEdges};
pub use ends::{End, FindNodes};
pub use error::{StoreCause, StoreError};
pub use map::{MappedFile, map_bytes, will_need};
pub use memory::StoreSize;
pub use meta::{EdgeCounts, Keep, RelationCounts, StoreMeta, find_sampling};
pub use number::MISSING;
pub use open::{input_fingerprint, open_or_build, open_or_build_on};
pub use pairs::{Pair, Pairs, TimeSplits, read_pairs, time_key};
pub use partition::{Partition, ReadAhead};
pub use placement::{NUM_NODES_MAX, Placement, TypePlacement};
pub use plan::{HUB_THRESHOLD, StorePlan};
pub use rebuild::{
    NodeTable, SourceGraph, Unchanged, is_intact, open_rebuilt, open_share, rebuild,
};
#[cfg(unix)]
pub use sigbus::CutMaps;
pub use store::{Hub, Store};
pub use sum::exact_sum;
pub use walks::{Visit, next_node};
pub use whole::{open_copies, open_whole};
