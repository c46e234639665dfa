//! The table `[input.pairs]` of a job as written: the supervision of links.

use serde::{Deserialize, Serialize};

use super::{SplitShares, SplitValues, TablePath};

/// `[input.pairs]` as written: the pairs that a model of links is trained and measured on.
///
/// Pairs come from the edges of a relation (`from_edges`) or from a table of their own (`path`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairsSpec {
    /// The relation whose edges are the pairs; `true` in a graph without relations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_edges: Option<FromEdges>,
    /// Table of the pairs: Parquet or CSV file, directory or glob, or several of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TablePath>,
    /// Node type of the src ends of a table; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Node type of the dst ends of a table; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Column of the src ids of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Column of the dst ids of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<String>,
    /// Shares of the pairs: drawn by a hash of the two ids, or with `time` the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<SplitShares>,
    /// Column of the splits of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// The numbers of the splits, if the split column holds numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_values: Option<SplitValues>,
    /// Column of times: the latest pairs are the test split, those before the val split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Column of the weights of pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Column of the labels: 1 for a link, 0 for a pair that is known to be none. Default: every
    /// pair is a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// List column of the ids of hard negatives, which are of the type of the dst ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives: Option<String>,
    /// Which pairs carry no messages.
    #[serde(default)]
    pub exclude: Exclude,
}

/// `from_edges` as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FromEdges {
    /// `true`: the edges of a graph without relations.
    All(bool),
    /// Name of a relation.
    Relation(String),
}

/// Which pairs carry no messages: their edges and the reverses of these are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exclude {
    /// The pairs of every split.
    #[default]
    All,
    /// Val and test pairs, and train pairs in their own batch.
    Batch,
    /// Val and test pairs only.
    None,
}
