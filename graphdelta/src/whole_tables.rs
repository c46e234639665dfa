//! The files of the whole tables that a graph was read from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use store::Store;

/// Fingerprints of the files of whole tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeTables {
    /// By type.
    pub(crate) nodes: BTreeMap<String, String>,
    /// By name of the table.
    pub(crate) edges: BTreeMap<String, String>,
}

impl WholeTables {
    /// Returns those that a store was built from; none if it holds changes of them.
    pub fn of_store(store: &Store) -> Option<Self> {
        let meta = store.meta();
        let files = |kind: &str, name: &str| {
            let files = meta.files_fingerprint(kind, name)?;
            Some((name.to_owned(), files.to_owned()))
        };
        let nodes = meta.graph.types.iter();
        let edges = meta.graph.relations.iter();
        meta.base.is_none().then(|| Self {
            nodes: nodes.filter_map(|of| files("nodes", &of.name)).collect(),
            edges: edges.filter_map(|of| files("edges", &of.name)).collect(),
        })
    }
}
