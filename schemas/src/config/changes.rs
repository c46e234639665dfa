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

/// Tables of the changes of one night, by the type or relation of the table that they change; the
/// name is empty if nodes have no types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangesSpec {
    /// Changes of node tables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, TablePath>,
    /// Changes of edge tables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub edges: BTreeMap<String, TablePath>,
}

impl ChangesSpec {
    /// Returns the paths of all tables, each with its key.
    pub fn paths(&self) -> impl Iterator<Item = (String, &TablePath)> {
        let key = |kind: &str, name: &str| match name {
            "" => format!("input.changes.{kind}"),
            _ => format!("input.changes.{kind}.{name}"),
        };
        let nodes = self.nodes.iter();
        let nodes = nodes.map(move |(name, path)| (key("nodes", name), path));
        let edges = self.edges.iter();
        nodes.chain(edges.map(move |(name, path)| (key("edges", name), path)))
    }
}
