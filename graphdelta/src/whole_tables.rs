//! The files of the whole tables that a graph was read from.

use serde::{Deserialize, Serialize};
use store::Store;

/// Fingerprints of the files of whole tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeTables {
    /// By type.
    pub(crate) nodes: Vec<String>,
    /// By table, in the order of relations.
    pub(crate) edges: Vec<String>,
}

/// Which tables have the files of those of the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SameTables {
    /// By type.
    pub(crate) nodes: Vec<bool>,
    /// By table.
    pub(crate) edges: Vec<bool>,
}

impl WholeTables {
    /// Returns those that a store was built from; none if it holds changes of them.
    pub fn of_store(store: &Store) -> Option<Self> {
        let meta = store.meta();
        let files = |kind: &str, name: &str| meta.files_fingerprint(kind, name).map(str::to_owned);
        let nodes = meta.graph.types.iter();
        let nodes = nodes.map(|of| files("nodes", &of.name));
        let edges = meta.graph.relations.iter();
        let edges = edges.filter_map(|of| files("edges", &of.name));
        match meta.base {
            Some(_) => None,
            None => Some(Self {
                nodes: nodes.collect::<Option<_>>()?,
                edges: edges.collect(),
            }),
        }
    }

    /// Tells which tables have the same files in `parent`; none of them if its tables are not known.
    pub(crate) fn same_as(&self, parent: Option<&Self>) -> SameTables {
        let same = |own: &[String], theirs: Option<&Vec<String>>| {
            let own = own.iter().enumerate();
            own.map(|(at, of)| theirs.is_some_and(|of_parent| of_parent.get(at) == Some(of)))
                .collect()
        };
        SameTables {
            nodes: same(&self.nodes, parent.map(|of| &of.nodes)),
            edges: same(&self.edges, parent.map(|of| &of.edges)),
        }
    }
}

impl SameTables {
    /// Leaves those that have the same files in `other` too.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        let both = [
            (&mut self.nodes, &other.nodes),
            (&mut self.edges, &other.edges),
        ];
        for (own, theirs) in both {
            own.iter_mut().zip(theirs).for_each(|(own, of)| *own &= of);
        }
        self
    }
}
