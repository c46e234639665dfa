//! Tables of changes, `[input.changes]`, as written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TablePath;

/// Column that tells what a row of changes does.
pub const OP: &str = "op";

/// What `op` says of a row that adds or replaces.
pub const UPSERT: &str = "upsert";

/// What `op` says of a row that removes.
pub const DELETE: &str = "delete";

/// Returns the key of a table in the job file: that of a node type (`kind` is `nodes`), a relation
/// (`edges`) or pairs (`pairs`) in a [list](ChangesSpec) under the key `list`.
pub fn table_key(list: &str, kind: &str, name: &str) -> String {
    match name {
        "" => format!("{list}.{kind}"),
        _ => format!("{list}.{kind}.{name}"),
    }
}

/// Tables of the changes of one night, or of a snapshot. Those of nodes and edges have the type or
/// relation of the table of `[input]`; the name is empty if nodes have no types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangesSpec {
    /// For node tables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, TablePath>,
    /// For edge tables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edges: BTreeMap<String, TablePath>,
    /// For the table of pairs, where pairs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<TablePath>,
}

impl ChangesSpec {
    /// Tells whether there is no table.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.edges.is_empty() && self.pairs.is_none()
    }

    /// Returns the paths of all tables, each with its key; `list` is that of the tables.
    pub fn paths(&self, list: &str) -> impl Iterator<Item = (String, &TablePath)> {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(move |(name, path)| (table_key(list, "nodes", name), path));
        let edges = self.edges.iter();
        let edges = edges.map(move |(name, path)| (table_key(list, "edges", name), path));
        let pairs = self.pairs.iter();
        let pairs = pairs.map(move |path| (table_key(list, "pairs", ""), path));
        nodes.chain(edges).chain(pairs)
    }
}
