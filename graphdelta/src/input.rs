//! The input of a version: tables of changes, or the whole tables of the day.

use std::path::Path;
use std::sync::Arc;

use schemas::{ChangesSpec, ColumnMeta, GraphPlan};
use serde_json::Value;
use store::Store;

use crate::{
    After, Changes, DeltaError, LabelsOf, Night, Numbers, OfStore, ParentGraph, Reach, ReachPlan,
    Snapshot, reach,
};

/// Tables, changes and parent of a version.
#[derive(Clone, Copy, Debug)]
pub struct VersionInput<'a> {
    /// The tables of the store.
    pub graph: &'a GraphPlan,
    /// What has changed since the parent, night by night.
    pub nights: &'a [ChangesSpec],
    /// The whole tables as they are now, in place of what has changed.
    pub snapshot: Option<&'a ChangesSpec>,
    /// Directory that relative paths of tables start from.
    pub base: &'a Path,
    /// Output of the parent.
    pub parent: &'a Path,
    /// Whether all rows are computed and written, whatever the changes reach.
    pub full: bool,
}

/// The tables of a version: tables of changes, or a snapshot.
#[derive(Debug)]
pub enum NewTables {
    /// What has changed, night by night.
    Changes(Vec<Changes>),
    /// All nodes and edges.
    Snapshot(Snapshot),
}

/// A graph with the changes applied, and what they reach.
#[derive(Debug)]
pub struct Reached {
    /// The numbers of its nodes.
    pub numbers: Arc<Numbers>,
    /// What the changes reach.
    pub reach: Reach,
    /// The graph after the changes.
    pub after: After,
}

impl VersionInput<'_> {
    /// Reads the tables of changes of a store, or opens those of a snapshot; with the labels and
    /// splits of the target type if `labels`.
    ///
    /// # Errors
    ///
    /// As [`Changes::read`] and [`Snapshot::open`].
    pub fn read(&self, store: &Store, labels: bool) -> Result<NewTables, DeltaError> {
        let meta = &store.meta().graph;
        let columns: Vec<&[ColumnMeta]> = meta.types.iter().map(|of| &of.columns[..]).collect();
        let of_store = OfStore {
            sampling: store.meta().sampling,
            columns: &columns,
            labels: labels.then(|| LabelsOf::target(meta)),
        };
        if let Some(tables) = self.snapshot {
            let snapshot = Snapshot::open(tables, self.base, self.graph, of_store)?;
            return Ok(NewTables::Snapshot(snapshot));
        }
        let threads = store.cluster().num_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let read = |night| Changes::read(night, self.base, self.graph, of_store);
        let nights = || self.nights.iter().map(read).collect::<Result<_, _>>();
        let nights = pool.map_err(DeltaError::Threads)?.install(nights);
        Ok(NewTables::Changes(nights?))
    }
}

impl NewTables {
    /// Returns fingerprints of the tables.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprints(&self) -> Result<Value, DeltaError> {
        match self {
            Self::Changes(nights) => nights.iter().map(Changes::fingerprints).collect(),
            Self::Snapshot(snapshot) => snapshot.fingerprints(),
        }
    }

    /// Applies what has changed to the nodes and edges of the parent.
    fn apply(self, numbers: &mut Numbers) -> Result<Vec<Night>, DeltaError> {
        let nights = match self {
            Self::Changes(nights) => nights,
            Self::Snapshot(snapshot) => vec![snapshot.changes(numbers)?],
        };
        nights
            .into_iter()
            .map(|night| numbers.apply(night))
            .collect()
    }

    /// Applies what has changed to the graph of the parent, and finds what it reaches.
    ///
    /// # Errors
    ///
    /// If a change cannot be applied: names file and row.
    pub fn reach(
        self,
        (store, graph): (&Store, &GraphPlan),
        parent: ParentGraph,
        plan: &ReachPlan,
    ) -> Result<Reached, DeltaError> {
        let mut numbers = Numbers::of(store, graph, parent.overlay)?;
        let nights = self.apply(&mut numbers)?;
        let numbers = Arc::new(numbers);
        let (reach, overlay) = reach(&numbers, nights, &parent.out, plan)?;
        Ok(Reached {
            after: After::new(&numbers, overlay),
            numbers,
            reach,
        })
    }
}
