//! Trains GNN models on stored neighbourhoods with a parameter server.
//!
//! [`train`] runs a whole `[train]` stage: it reads graph features from one directory and writes a
//! model to another. [`train_on`] reads any [`Source`], also one that draws a new sample each
//! epoch; [`train_among`] trains with several processes. [`fit`] is the training loop, and
//! [`batch`] turns targets into the blocks that a model runs on.
//!
//! A worker is a pipeline of four threads (fetch a part, choose targets, vectorise, compute) on
//! bounded queues; the report counts the first two as one stage, `read`. Workers pull parameters
//! from a [`server::ParameterServer`] and push gradients to it; the server holds the optimiser's
//! state. All draws (order, dropout, initial weights) are pure functions of the seed and of the
//! purpose of the draw. So in sync mode neither the number of threads nor a kill changes the
//! result.
//!
//! # Examples
//!
//! Trains a GraphSAGE on a graph in memory whose classes depend only on the in-edges of nodes:
//!
//! ```
//! use std::sync::Arc;
//!
//! use graphtrainer::{Source, TrainContext, TrainSpec, fit};
//! use schemas::progress::Progress;
//! use schemas::{
//!     Fanout, FeatureMeta, Features, FlattenMeta, GraphMeta, GraphShard, IdType, Ids, LabelKind,
//!     LabelMeta, Labels, Layout, Sampling, ShardEdges, ShardNodes, Split, SplitMeta, UntypedMeta,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Nodes 0 and 1 have features; each other node has one in-edge, from the node of its class.
//! let num_nodes = 42;
//! let mut ids = Ids::new(IdType::UInt64);
//! (0..num_nodes).for_each(|node| ids.push_key(node));
//! let mut values = vec![0.0; 2 * num_nodes as usize];
//! (values[0], values[3]) = (1.0, 1.0);
//! let class = |node: u64| u32::from(node % 2 == 1);
//! let targets = 2..num_nodes;
//! let nodes = ShardNodes {
//!     ids,
//!     hop: (0..num_nodes).map(|node| u8::from(node < 2)).collect(),
//!     features: Features::Dense { dim: 2, values },
//!     labels: Labels::Class((0..num_nodes).map(class).collect()),
//!     split: (0..num_nodes)
//!         .map(|node| if node % 3 == 0 { Split::Test } else { Split::Train })
//!         .collect(),
//!     is_target: (0..num_nodes).map(|node| node >= 2).collect(),
//! };
//! let edges = ShardEdges {
//!     from: 0,
//!     to: 0,
//!     in_degree: (0..num_nodes).map(|node| u32::from(node >= 2)).collect(),
//!     in_weight: None,
//!     self_loops: None,
//!     self_weight: None,
//!     in_offset: [0, 0].into_iter().chain(0..=40).collect(),
//!     in_src: targets.map(class).collect(),
//!     edge_weight: None,
//!     edge_feature: None,
//! };
//! let shard =
//!     GraphShard { target_type: 0, nodes: vec![nodes], edges: vec![edges], pairs: None };
//! let graph = GraphMeta::from(UntypedMeta {
//!     id_type: IdType::UInt64,
//!     features: FeatureMeta::Dense { dim: 2 },
//!     columns: Vec::new(),
//!     label: Some(LabelMeta {
//!         data_type: "Int32".to_owned(),
//!         kind: LabelKind::Class { num_classes: 2 },
//!     }),
//!     split: Some(SplitMeta { data_type: "Utf8".to_owned(), values: None }),
//!     edge_weight: false,
//!     edge_feature_dim: None,
//!     self_loops: false,
//! });
//! let flatten = FlattenMeta {
//!     hops: 1,
//!     fanouts: vec![Fanout::All.into()],
//!     sampling: Sampling::Uniform,
//!     layout: Layout::Shards,
//!     seed: 1,
//!     samples_per_target: 1,
//! };
//! let counts = vec![shard.split_counts()];
//! let source = Source::new("memory".into(), (graph, flatten), counts, 1 << 20, move |_part| {
//!     Ok(shard.clone())
//! });
//!
//! let spec: TrainSpec = serde_json::from_value(serde_json::json!({
//!     "model": "sage", "epochs": 50, "batch_size": 16, "learning_rate": 0.1, "dropout": 0.0,
//!     "output": "model",
//! }))?;
//! let plan = spec.into_plan(TrainContext {
//!     input: Some("memory".into()),
//!     job_seed: 7,
//!     transform: None,
//!     one_hot: std::collections::BTreeMap::new(),
//!     base: ".".into(),
//!     fresh: false,
//! })?;
//! let silent: Progress = Arc::new(|_| {});
//! let trained = fit(&plan, &source, None, &silent)?;
//! assert_eq!(trained.metrics["test_accuracy"], 1.0);
//! # Ok(())
//! # }
//! ```

mod any_model;
pub mod batch;
mod checkpoint;
pub mod class_weight;
mod config;
pub mod convert;
mod crew;
mod degree_draws;
mod device;
mod embedding;
mod encode;
mod epoch_report;
mod epochs;
mod error;
mod evaluate;
mod exact;
mod fetch;
mod fit;
mod id_index;
mod learnable;
mod link;
mod memory;
pub mod metric;
mod order;
mod peers;
mod pipeline;
mod prepare;
pub mod ranking;
pub mod schedule;
pub mod scores;
pub mod server;
mod source;
mod supply;
mod train;
mod vectorise;
mod worker;

#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;

pub use any_model::{AnyArchitecture, AnyBlocks, AnyModel, AnyModelFile, load_any_with, schema_of};
pub use config::{
    BatchBy, Device, DrawBy, InBatch, Loss, NegativesSpec, TrainContext, TrainPlan, TrainSpec,
    UpdateMode,
};
pub use device::report_device;
pub use embedding::{NodeEmbeddings, TableFile};
pub use epoch_report::EpochReport;
pub use error::TrainError;
pub use fit::{Trained, fit};
pub use learnable::with_rows;
pub use memory::TrainingSize;
pub use source::Source;
pub use train::{EPOCHS_JSONL, train, train_among, train_on};
