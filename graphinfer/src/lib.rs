//! Computes the embedding and the prediction of every node, layer by layer.
//!
//! [`infer`] follows AGL's GraphInfer (PVLDB 13, section 3.4). It cuts a model of K convs into K
//! slices of one conv each and a prediction slice. Round 0 prepares the features, round l runs conv
//! l on all nodes, and the last round also runs the prediction slice. A round writes its rows, in
//! the order of ids, to files that the threads of the next round map.
//!
//! So each node is computed once a layer, with the code that trained the model. Inference on stored
//! neighbourhoods computes a node again for other neighbourhoods that contain it. Neither the graph
//! nor its rows need to fit in memory, and a finished round is a checkpoint.
//!
//! Of several processes, each computes the rows of the nodes that it owns. It also keeps copies of
//! its halo: the rows of other processes' nodes that its own nodes aggregate. A row is sent to a
//! process at most once a round. The in-edges of hubs are aggregated in segments, by the processes
//! that own their sources. Output rows are sent once more, to the process that writes their part.
//!
//! # Examples
//!
//! Four nodes in a ring, each with one feature, and a `GraphSAGE` of two layers:
//!
//! ```
//! use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
//! use graphinfer::{InferContext, InferSpec, infer};
//! use parquet::arrow::ArrowWriter;
//! use schemas::{EdgesSpec, EmbeddingsDataset, GraphPlan, NodesSpec, Progress, Sampling};
//! use std::sync::Arc;
//! use store::{StorePlan, open_or_build};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let write = |name: &str, columns: Vec<(&str, ArrayRef)>| {
//!     let table = RecordBatch::try_from_iter(columns)?;
//!     let file = std::fs::File::create(dir.path().join(name))?;
//!     let mut writer = ArrowWriter::try_new(file, table.schema(), None)?;
//!     writer.write(&table)?;
//!     writer.close()?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//! let ids = |ids: [i64; 4]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
//! let x = Arc::new(Float32Array::from(vec![0.0, 1.0, 2.0, 3.0]));
//! write("nodes.parquet", vec![("id", ids([10, 11, 12, 13])), ("x", x)])?;
//! write("edges.parquet", vec![("src", ids([10, 11, 12, 13])), ("dst", ids([11, 12, 13, 10]))])?;
//!
//! // The two files of a model: `gnn::save` writes them, the trainer writes more files beside them.
//! let file: gnn::ModelFile = serde_json::from_value(serde_json::json!({
//!     "transform": "none",
//!     "architecture": {
//!         "layer": "sage", "aggregator": "mean", "in_dim": 1, "hidden": [8], "num_layers": 2,
//!         "out_dim": 3, "edge_dim": null, "edge_weight": false, "heads": 1, "out_heads": 1,
//!         "dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0, "norm": "none",
//!         "residual": false, "activation": "relu", "task": "classes",
//!     },
//! }))?;
//! let model = gnn::Model::init(&file.architecture, 7)?;
//! std::fs::create_dir(dir.path().join("model"))?;
//! gnn::save(&dir.path().join("model"), &model, &file)?;
//!
//! let nodes: NodesSpec = serde_json::from_value(
//!     serde_json::json!({ "path": "nodes.parquet", "id": "id", "features": ["x"] }),
//! )?;
//! let edges: EdgesSpec = serde_json::from_value(
//!     serde_json::json!({ "path": "edges.parquet", "src": "src", "dst": "dst" }),
//! )?;
//! let (nodes, edges) = (nodes.into_plan(dir.path())?, edges.into_plan(dir.path())?);
//! let quiet: Progress = Arc::new(|_| {});
//! let store = open_or_build(
//!     &StorePlan {
//!         graph: Arc::new(GraphPlan::untyped(nodes, edges)?),
//!         target_type: 0,
//!         seed: 7,
//!         sampling: Sampling::Uniform,
//!         keep: vec![usize::MAX],
//!         samples: 1,
//!         redraw: false,
//!         left_out: false,
//!         hub_threshold: 10_000,
//!         workers: 2,
//!         memory_budget: 1 << 26,
//!         page_cache: None,
//!         dir: dir.path().join("store"),
//!         fresh: false,
//!     },
//!     &quiet,
//! )?;
//! let spec: InferSpec = serde_json::from_value(
//!     serde_json::json!({ "output": "embeddings", "model": "model", "sampling": "none" }),
//! )?;
//! let plan = spec.into_plan(InferContext {
//!     model: None,
//!     input: None,
//!     base: dir.path().to_owned(),
//!     nodes: None,
//!     work_dir: dir.path().join("work"),
//!     fresh: false,
//! })?;
//! infer(&plan, &store, &quiet)?;
//! let rows = EmbeddingsDataset::open(plan.output())?.read_part(0)?;
//! assert_eq!((rows.ids.len(), rows.dim), (4, 8)); // the hidden layer of 8, not the 3 logits
//! # Ok(())
//! # }
//! ```

mod changed_rows;
mod checkpoint;
mod columns;
mod compact;
mod compare;
mod config;
mod deliver;
mod device;
mod embedding;
mod error;
mod exchange;
mod fit;
mod gather;
mod gathered;
mod graph;
mod group;
mod halo;
mod hub_layer;
mod hub_round;
mod hubs;
mod identity;
mod infer;
mod inner;
mod kept_rows;
mod kept_versions;
mod last_round;
mod layer;
mod lists;
mod local;
mod locate;
mod memory;
mod model;
mod neighborhoods;
mod node_columns;
mod part;
mod plan;
mod predict;
mod resume;
mod round;
mod rounding;
mod rows;
mod sample;
mod slice;
mod spool;
mod spooled;
mod threads;
mod typed;
mod version;
mod whole_rows;

pub use changed_rows::{ChangedRows, changed_rows, reach_plan};
pub use compact::compact;
pub use config::{InferDevice, InferSampling, InferSpec, InferTargets, InferTypes, Method};
pub use error::InferError;
pub use infer::infer;
pub use kept_rows::KeptRows;
pub use model::{Sample, StoreNeed};
pub use neighborhoods::infer_neighborhoods;
pub use plan::{InferContext, InferPlan};
pub use version::{
    Decision, check_kept_model, check_kept_plan, check_version, check_version_input, infer_version,
    predict_version,
};
