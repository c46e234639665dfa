//! Tables, ids and outputs on disk, shared by every stage.
//!
//! # Data dictionary
//!
//! Inputs are Parquet tables whose column names the job file maps ([`NodesSpec`], [`EdgesSpec`]):
//!
//! - *nodes*: `id` (int32, int64, uint64 or string), features (list and number columns side by
//!   side, or a sparse index and value list, or none), optional `label` and `split`;
//! - *edges*: `src`, `dst`, optional `weight`, optional features. Messages flow `src -> dst`.
//!
//! Outputs are directories ([`Output`], [`Manifest`]) of Parquet parts:
//!
//! - *graph features* ([`GraphFeatureDataset`]) in layout `rows` (a row is one [`GraphFeature`]) or
//!   `shards` (a part is one [`GraphShard`]: flat `nodes` and `edges` tables);
//! - *embeddings* ([`EmbeddingsDataset`]): `id`, `embedding`, optional `prediction`.
//!
//! A directory is whole or not there: readers accept it only once `_SUCCESS`, written last, exists.

mod as_given;
pub mod columns;
pub mod config;
pub mod dataset;
pub mod embeddings;
pub mod error;
pub mod fanout;
pub mod graph_feature;
pub mod ids;
pub mod input;
mod parquet_file;
pub mod progress;
pub mod xxh;

pub use columns::{
    FeatureMeta, Features, GraphMeta, LabelKind, LabelMeta, Labels, NO_CLASS, Split, SplitMeta,
};
pub use config::{Dangling, EdgesSpec, NodesSpec, SparseSpec, SplitValues, Transform};
pub use dataset::{
    FileEntry, Manifest, Opened, Output, PartEntry, PartFile, SplitCounts, read_manifest,
};
pub use embeddings::{EmbeddingRows, EmbeddingsDataset, EmbeddingsWriter};
pub use error::{ErrorKind, Result, SchemaError};
pub use fanout::{Fanout, FlattenMeta, Layout, Sampling, keep_at_hop, use_at_layer};
pub use graph_feature::{
    ExtractScratch, GraphFeature, GraphFeatureDataset, GraphShard, ShardBuilder, write_part,
};
pub use ids::{IdType, Ids, hash_int};
pub use input::{EdgeRows, EdgesPlan, NodeKeys, NodeRows, NodesPlan, Unit};
pub use progress::{Event, Progress};
