//! Tables, ids and outputs on disk, shared by every stage.
//!
//! # Data dictionary
//!
//! Inputs are Parquet tables whose column names the job file maps ([`NodesSpec`], [`EdgesSpec`]):
//!
//! - *nodes*: an id (integers or strings); features (number and list columns side by side, or a
//!   sparse position and value list, or none); a label (class number, class name, list of zeros
//!   and ones, or number); a split (`train`, `val`, `test`, or chosen numbers, or drawn by shares);
//! - *edges*: `src`, `dst`, a weight, features. Messages flow `src -> dst`.
//!
//! Outputs are directories ([`Output`], [`Manifest`]) of Parquet parts. Readers see a whole output
//! or none: they accept a directory only if `_SUCCESS`, which is written last, exists. They ignore
//! names that start with `_` or `.`. Columns in brackets are there only where the input has them.
//!
//! *Graph features*, layout `rows` (`part-00000.parquet`): a row is one target's neighbourhood, a
//! [`GraphFeature`], n nodes and e edges.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `target` | id | |
//! | \[`label`\], \[`split`\] | as given, null for none | |
//! | `node_id` | list of id, n | the target, then by hop, within a hop by id |
//! | `hop_offset` | list of uint32, hops + 2 | nodes of hop h are `hop_offset[h]..hop_offset[h+1]` |
//! | `in_degree` | list of uint32, n | before sampling |
//! | \[`in_weight`\] | list of float32, n | sum of the weights of all in-edges |
//! | \[`self_loops`\] | list of uint32, n | number of self-loops, before sampling |
//! | \[`self_weight`\] | list of float32, n | sum of the weights of the self-loops |
//! | \[`node_feature`\] | list of float32, n * dim | row-major |
//! | \[`feature_offset`\], \[`feature_index`\], \[`feature_value`\] | lists | sparse features |
//! | `in_offset` | list of uint32, m + 1 | in-edges of the m nodes before the last hop |
//! | `in_src` | list of uint32, e | position in `node_id`, in rank order |
//! | \[`edge_weight`\], \[`edge_feature`\] | list of float32, e, e * dim | |
//!
//! *Graph features*, layout `shards` (`nodes/part-00000.parquet`, `edges/part-00000.parquet`): a
//! part is the union of many targets' neighbourhoods, a [`GraphShard`].
//!
//! | column of `nodes` | type | meaning |
//! |---|---|---|
//! | `id` | id | rows are sorted by (hop, id); a row's number is its position |
//! | `hop` | uint8 | least distance to a target of the part |
//! | `in_degree`, \[`self_loops`\] | uint32 | as above |
//! | \[`in_weight`\], \[`self_weight`\] | float32 | as above |
//! | \[`feature`\], or \[`feature_index`\] and \[`feature_value`\] | lists | dense or sparse |
//! | \[`label`\], \[`split`\] | as given, null for none | of targets |
//! | `is_target` | boolean | |
//!
//! | column of `edges` | type | meaning |
//! |---|---|---|
//! | `dst`, `rank`, `src` | uint32 | positions of nodes; rows are sorted by (dst, rank) |
//! | \[`weight`\], \[`feature`\] | float32, list of float32 | |
//!
//! With `[input.pairs]` a part also has the table `pairs/part-00000.parquet`, and `is_target` is a
//! column of both types of ends. A row is a pair ([`PartPairs`]), or a random negative of the part,
//! which has a `dst` only; random negatives are the last rows.
//!
//! | column of `pairs` | type | meaning |
//! |---|---|---|
//! | `src`, `dst` | uint32 | positions among the nodes of their types; `src` null: random negative |
//! | \[`label`\] | float32 | 1 for a link, 0 for a pair that is none |
//! | \[`weight`\] | float32 | |
//! | `split` | as given | |
//! | \[`negatives`\] | list of uint32 | positions of hard negatives among the nodes of dst ends |
//!
//! A typed graph has these columns once for each node type and relation. Layout `rows` puts the name
//! in front: `author.node_id`, `writes.in_degree`, `writes.in_src`. Layout `shards` has the files
//! `nodes/TYPE/part-00000.parquet` and `edges/RELATION/part-00000.parquet`; the degrees of a
//! relation (`writes.in_degree`) are in the nodes of the type that it leads to. `target`, `label`,
//! `split` and `is_target` are those of the target type.
//!
//! Files of both carry the metadata keys `graphflat.schema` (`1`), `graphflat.graph` ([`GraphMeta`]
//! as JSON) and `graphflat.flatten` ([`FlattenMeta`] as JSON). The manifest names the layout of a
//! directory; [`GraphFeatureDataset`] reads both.
//!
//! *Embeddings* (`part-00000.parquet`, [`EmbeddingsDataset`]): `id`, `embedding` (fixed-size list of
//! float32) and, where a head was applied, `prediction`, typed as the label was given. Metadata key
//! `graphinfer.schema` (`1`).
//!
//! *Scores* ([`ScoresDataset`]): the best items of queries (`items/part-00000.parquet`: `id`, and the
//! lists `item` and `score`), and the scores of listed pairs (`pairs/part-00000.parquet`: `src`,
//! `dst`, `score`). Metadata key `graphscore.schema` (`1`).
//!
//! # Examples
//!
//! A plan of a table checks its files and columns. Its units are then read in any order and by any
//! number of threads:
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, Float32Array, RecordBatch, StringArray};
//! use parquet::arrow::ArrowWriter;
//! use schemas::{Features, Labels, NodesSpec, Split};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let columns: [(&str, ArrayRef); 3] = [
//!     ("package", Arc::new(StringArray::from(vec!["vim", "bash", "git"]))),
//!     ("size", Arc::new(Float32Array::from(vec![3.5, 1.5, 9.0]))),
//!     ("section", Arc::new(StringArray::from(vec![Some("editors"), Some("shells"), None]))),
//! ];
//! let batch = RecordBatch::try_from_iter(columns)?;
//! let file = std::fs::File::create(dir.path().join("nodes.parquet"))?;
//! let mut writer = ArrowWriter::try_new(file, batch.schema(), None)?;
//! writer.write(&batch)?;
//! writer.close()?;
//!
//! // As `[input.nodes]` of a job file.
//! let spec: NodesSpec = serde_json::from_value(serde_json::json!({
//!     "path": "nodes.parquet",
//!     "id": "package",
//!     "features": ["size"],
//!     "label": "section",
//!     "split": { "train": 1.0, "seed": 7 },
//! }))?;
//! let plan = spec.into_plan(dir.path())?;
//! let unit = &plan.units()[0];
//! // The classes are known when the keys of all units are read.
//! let keys = plan.read_keys(unit)?;
//! let label = plan.label_meta(keys.class_names, keys.max_class)?;
//! let columns = plan.column_meta(keys.categories, &[]);
//! let rows = plan.read_rows(unit, label.as_ref(), &columns)?;
//! assert_eq!(rows.ids.display(1), "bash");
//! assert_eq!(rows.features, Features::Dense { dim: 1, values: vec![3.5, 1.5, 9.0] });
//! assert_eq!(rows.labels, Labels::Class(vec![0, 1, schemas::NO_CLASS]));
//! assert_eq!(rows.split, [Split::Train, Split::Train, Split::None]);
//! # Ok(())
//! # }
//! ```

mod as_given;
pub mod cleanup;
mod columns;
mod config;
pub mod dataset;
mod embeddings;
mod error;
mod fanout;
mod float_pages;
mod graph_columns;
mod graph_feature;
pub mod guard;
mod ids;
mod idx;
mod input;
pub mod known;
mod parquet_file;
pub mod path;
pub mod progress;
mod scores;
pub mod storage;
mod table_writer;
pub mod threads;
pub mod xxh;

pub use columns::{
    ColumnMeta, ColumnValues, FeatureColumn, FeatureMeta, Features, GraphMeta, LabelKind,
    LabelMeta, Labels, NO_CLASS, PairsMeta, RelationMeta, Split, SplitMeta, TypeMeta, UntypedMeta,
};
pub use config::{
    CATEGORIES_MAX, CLASSES_MAX, ChangesSpec, ColumnKind, ColumnSpec, DELETE, Dangling, EdgesSpec,
    Exclude, FromEdges, GRAPH, GraphsSpec, IN_GRAPH, InputSpec, NodesSpec, NumericLabel, ONE_HOT,
    OP, PairsSpec, RowsWhere, SPARSE_WIDTH_MAX, SparseSpec, SplitShares, SplitSpec, SplitValues,
    TablePath, Transform, UPSERT, WalksSpec, WhereValue, describe_where, table_key,
};
pub use dataset::{
    FileEntry, KeptOutput, Manifest, Opened, Output, ParentOutput, PartEntry, PartFile,
    ReplacedRows, SplitCounts, VersionMeta, read_manifest,
};
pub use embeddings::{
    DeletedNodes, EmbeddingBatch, EmbeddingColumns, EmbeddingRows, EmbeddingsDataset,
    EmbeddingsWriter, PartSizes, Precision, RowPosition, read_embedding_table, write_version_part,
};
pub use error::{ErrorKind, Result, RowPlace, SchemaError, error_causes, error_chain};
pub use fanout::{Fanout, FlattenMeta, HopFanouts, Layout, Sampling, keep_at_hop, use_at_layer};
pub use graph_columns::{GraphColumns, RelationColumns, TypeColumns, TypedColumns};
pub use graph_feature::{
    DenseRows, DrawParts, ExtractScratch, FeatureEdges, FeatureNodes, GraphFeature,
    GraphFeatureDataset, GraphShard, HardNegatives, Neighborhoods, PartPairs, ShardBuilder,
    ShardEdges, ShardNodes, write_changed_degrees, write_changed_part, write_part,
};
pub use ids::{IdType, Ids, hash_int};
pub use idx::{LocalIdx, NodeIdx, Row};
pub use input::{
    Categories, DescribedColumns, EdgeRows, EdgeSource, EdgesPlan, FileFingerprints, GraphPlan,
    IdListPlan, KnownInput, KnownNodes, NoPair, NodeKeys, NodeReader, NodeRows, NodeSource,
    NodesPlan, PairListPlan, PairListSpec, PairRows, PairsPlan, PassedColumns, RelationPlan,
    RowNumbers, SplitRows, TypePlan, Unit,
};
pub use progress::{Event, Progress};
pub use scores::{BestItemRows, PairScoreRows, ScoresDataset, ScoresWriter};
