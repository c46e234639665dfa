//! Flattens k-hop neighbourhoods on timely dataflow: k reduce rounds over the store of a graph.
//!
//! [`flatten`] runs the rounds on a [`store::Store`], wave by wave, and writes GraphFeatures.
//! [`Waves`] draws them without files, for streamed training. [`generate`] writes graphs for tests
//! and benchmarks, and [`survey`] predicts the output of [`flatten`].
//!
//! # Examples
//!
//! Generates a graph and stores it on two workers, then flattens the neighbourhoods of its train
//! nodes: two hops, and at most three in-edges per node.
//!
//! ```
//! use graphflat::generate::{GraphSpec, generate};
//! use graphflat::{FlattenSpec, flatten};
//! use schemas::{EdgesSpec, GraphFeatureDataset, GraphPlan, NodesSpec, Progress, Sampling};
//! use serde_json::{from_value, json};
//! use std::sync::Arc;
//! use store::{HUB_THRESHOLD, StorePlan, open_or_build};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let graph = GraphSpec {
//!     nodes: 200,
//!     edges: 1000,
//!     features: 8,
//!     classes: 4,
//!     hubs: 0,
//!     hub_in_edges: 0,
//!     weights: false,
//!     seed: 7,
//! };
//! generate(&graph.into_plan()?, dir.path())?;
//!
//! let nodes: NodesSpec = from_value(json!({
//!     "path": "nodes.parquet", "id": "id", "features": ["features"], "label": "label",
//!     "split": "split",
//! }))?;
//! let edges: EdgesSpec =
//!     from_value(json!({ "path": "edges.parquet", "src": "src", "dst": "dst" }))?;
//! let nodes = nodes.into_plan(dir.path())?;
//! let edges = edges.into_plan(dir.path())?;
//! let spec: FlattenSpec = from_value(json!({
//!     "output": "graphfeatures", "hops": 2, "fanouts": [3, 3], "targets": "train",
//! }))?;
//! let plan = spec.into_plan(dir.path(), false)?;
//!
//! let silent: Progress = Arc::new(|_| {});
//! let store = StorePlan {
//!     graph: Arc::new(GraphPlan::untyped(nodes, edges)?),
//!     target_type: 0,
//!     seed: 7,
//!     sampling: Sampling::Uniform,
//!     keep: vec![plan.sample().keep()],
//!     samples: plan.samples(),
//!     redraw: false,
//!     left_out: false,
//!     hub_threshold: HUB_THRESHOLD,
//!     workers: 2,
//!     memory_budget: 64 << 20,
//!     page_cache: None,
//!     dir: dir.path().join("store"),
//!     fresh: false,
//! };
//! let store = open_or_build(&store, &silent)?;
//! let manifest = flatten(&plan, &store, &silent)?;
//!
//! let written = GraphFeatureDataset::open(plan.output())?;
//! let part = written.read_part(0)?;
//! let is_target = part.nodes[0].is_target.iter();
//! let targets = is_target.filter(|is_target| **is_target).count();
//! assert_eq!(targets as u64, manifest.parts[0].rows);
//! let in_edges = part.edges[0].in_offset.windows(2).map(|ends| ends[1] - ends[0]);
//! assert!(in_edges.max() <= Some(3));
//! # Ok(())
//! # }
//! ```

mod committer;
mod compact;
mod config;
mod error;
mod flatten;
pub mod generate;
mod group;
mod memory;
mod pair_parts;
mod parts;
mod probe_files;
mod round;
mod stream;
pub mod survey;
mod targets;
mod version;
mod wave;
mod wave_context;

pub use compact::compact;
pub use config::{FlattenPlan, FlattenSpec, HopSpec, RelationFanout, SamplePlan, Targets};
pub use error::FlattenError;
pub use flatten::flatten;
pub use group::GroupFeatures;
pub use memory::PartSize;
pub use parts::Parts;
pub use stream::Waves;
pub use version::{
    FlattenDecision, check_flatten_version, flatten_version, predict_flatten_version,
};
