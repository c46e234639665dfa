//! The input tables of a job as written.

mod changes;
mod column;
mod graphs;
mod input;
mod pairs;
mod row_filter;
mod split;
mod table_path;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use changes::{ChangesSpec, DELETE, OP, UPSERT, table_key};
pub use column::{CATEGORIES_MAX, ColumnKind, ColumnSpec, ONE_HOT};
pub(crate) use graphs::NamedTables;
pub use graphs::{GRAPH, GraphsSpec, IN_GRAPH};
pub use input::InputSpec;
pub use pairs::{Exclude, FromEdges, PairsSpec, WalksSpec};
pub use row_filter::{RowsWhere, WhereValue, describe_where};
pub use split::{SplitShares, SplitSpec};
pub use table_path::TablePath;
pub(crate) use table_path::expand_braces;

/// Greatest number of classes: each is a column of the last layer. More are an error of the label
/// column.
pub const CLASSES_MAX: u32 = 1 << 20;

/// Greatest width of sparse features: each is a row of the first layer. More are an error of the
/// key.
pub const SPARSE_WIDTH_MAX: u32 = 1 << 24;

/// Greatest width of a learnable row.
pub(crate) const EMBEDDING_MAX: u32 = 4096;

/// `[input.nodes]` or `[input.nodes.TYPE]` as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodesSpec {
    /// Parquet or CSV file, directory (every `*.parquet` below it) or glob, or several of these.
    pub path: TablePath,
    /// Column of the ids.
    pub id: String,
    /// Feature columns, concatenated in this order; none: nodes have no features.
    #[serde(default)]
    pub features: Vec<String>,
    /// How columns of `features` are read, where it differs from the default.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, ColumnSpec>,
    /// Sparse features, in place of `features`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse: Option<SparseSpec>,
    /// Column of the labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Meaning of the numbers in the label column. Default: integers are classes, floats are
    /// numbers, and floats without a fraction are an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_kind: Option<NumericLabel>,
    /// Upper bound of class numbers (exclusive), at most [`CLASSES_MAX`]; without it, one more than
    /// the greatest found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_classes: Option<u32>,
    /// Column of the splits, or shares to draw them by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitSpec>,
    /// The numbers of the splits, if the split column holds numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_values: Option<SplitValues>,
    /// Column with the id of a node's graph in `[input.graphs]`, where graphs are the targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<String>,
    /// Transform of the features, fitted and applied by the trainer; tables hold raw features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
    /// Width of a learnable row for each node, trained with the model; tables do not hold it. Default:
    /// nodes have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<u32>,
    /// The rows of the table that are nodes of the type. Default: all.
    #[serde(rename = "where", default, skip_serializing_if = "RowsWhere::is_empty")]
    pub rows_where: RowsWhere,
}

impl NodesSpec {
    /// Returns the column of the splits, where there is one.
    pub fn split_column(&self) -> Option<&str> {
        match &self.split {
            Some(SplitSpec::Column(column)) => Some(column),
            Some(SplitSpec::Shares(_)) | None => None,
        }
    }

    /// Returns the feature columns whose kind is declared, without their other settings.
    pub fn declared_kinds(&self) -> BTreeMap<String, ColumnSpec> {
        let declared = |(name, column): (&String, &ColumnSpec)| {
            let of_kind = ColumnSpec {
                kind: Some(column.kind?),
                ..ColumnSpec::default()
            };
            Some((name.clone(), of_kind))
        };
        self.columns.iter().filter_map(declared).collect()
    }

    /// Sets the seed of splits that are drawn by shares, unless the job file sets one.
    pub fn set_split_seed(&mut self, seed: u64) {
        if let Some(SplitSpec::Shares(shares)) = &mut self.split {
            shares.seed.get_or_insert(seed);
        }
    }
}

/// Meaning of the numbers in a label column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumericLabel {
    /// Class numbers.
    Class,
    /// Numbers to predict.
    Number,
}

/// `sparse = { index, value, width }` as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseSpec {
    /// List column of 0-based positions below `width`.
    pub index: String,
    /// List column of values, one for each position.
    pub value: String,
    /// Number of features, at most [`SPARSE_WIDTH_MAX`].
    pub width: u32,
}

/// `split_values = { train, val, test, none }` as written: the numbers that stand for the splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitValues {
    /// Number of the training split.
    pub train: i64,
    /// Number of the validation split.
    pub val: i64,
    /// Number of the test split.
    pub test: i64,
    /// Number of nodes in no split, besides null and -1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<i64>,
}

/// Transform of node features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// Divides each row by the larger of its sum and 1, so that a row whose sum is below 1 stays.
    RowNormalize,
    /// Subtracts the mean and divides by the standard deviation of the train nodes.
    Standardize,
}

/// `[input.edges]` or `[input.edges.RELATION]` as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgesSpec {
    /// Parquet or CSV file, directory (every `*.parquet` below it) or glob, or several of these.
    pub path: TablePath,
    /// Node type of the sources; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Node type of the destinations; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Column of the source ids; messages flow from `src` to `dst`.
    pub src: String,
    /// Column of the destination ids.
    pub dst: String,
    /// Adds the reverse of every edge.
    #[serde(default)]
    pub undirected: bool,
    /// Adds the reverse of every edge as a relation of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<String>,
    /// Column of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// List and number columns of edge features, concatenated in this order.
    #[serde(default)]
    pub features: Vec<String>,
    /// What to do with an edge whose end is no node.
    #[serde(default)]
    pub dangling: Dangling,
    /// The rows of the table that are edges of the relation. Default: all.
    #[serde(rename = "where", default, skip_serializing_if = "RowsWhere::is_empty")]
    pub rows_where: RowsWhere,
}

/// What to do with an edge whose end is no node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dangling {
    /// The job fails and names the edge.
    #[default]
    Error,
    /// The edge is dropped and counted.
    Drop,
}
