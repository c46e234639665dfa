//! The input of a version: tables of changes, or the whole tables of the day. Two stages of a job
//! can share what it reaches.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use schemas::{ChangesSpec, ColumnMeta, GraphPlan, threads};
use serde_json::Value;
use store::Store;

use crate::{
    After, Changes, DeltaError, KeptGraph, KeptVersions, LabelsOf, Night, Numbers, OfStore,
    ParentGraph, Reach, ReachPlan, RebuildPlan, Snapshot, WholeTables, reach,
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
    /// Share of the store that changes before it is written anew; none: the default.
    pub rebuild_share: Option<f64>,
    /// What the stages of the job share; none if only one of them writes a version.
    pub shared: Option<&'a SharedReach>,
}

/// What two stages of a job share: the first one reads the tables and finds what they reach for
/// both, and the second one takes it if the graph of its parent is the same.
#[derive(Debug)]
pub struct SharedReach {
    /// What the second stage reads.
    later: ReachPlan,
    found: Mutex<Option<Found>>,
}

/// What the first of two stages has found.
#[derive(Clone, Debug)]
struct Found {
    /// [`ParentGraph::identity`] of its parent.
    identity: String,
    fingerprints: Value,
    reached: Arc<Reached>,
}

/// The tables of a version, read or not.
#[derive(Debug)]
pub struct NewTables<'a> {
    input: VersionInput<'a>,
    labels: bool,
    fingerprints: Value,
    /// None if another stage has read them.
    read: Option<ReadTables>,
}

/// The tables of a version: tables of changes, or a snapshot.
#[derive(Debug)]
enum ReadTables {
    /// What has changed, night by night.
    Changes(Vec<Changes>),
    /// All nodes and edges, and their files.
    Snapshot(Snapshot, WholeTables),
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
    /// The whole tables that it was read from; none if tables of changes made it.
    pub tables: Option<WholeTables>,
    /// Fingerprint of a version that keeps the changes.
    kept_as: OnceLock<String>,
}

impl Reached {
    /// Frees the changes on another thread: they are many lists, and a job does not wait for it.
    pub fn free_beside(self: Arc<Self>) {
        // Without a thread, they are freed here.
        drop(threads::spawn("free", move || drop(self)));
    }

    /// Notes that a version keeps the changes.
    pub fn set_kept(&self, fingerprint: &str) {
        // One version suffices.
        let _ = self.kept_as.set(fingerprint.to_owned());
    }

    /// Keeps the changes in `dir` as [`KeptVersions::keep_graph`] does, or links those that the other
    /// stage has kept: stages that share what changes reach keep as many in-edges.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn keep_graph(
        &self,
        (versions, dir): (&KeptVersions, &Path),
        keep: &[usize],
        plan: RebuildPlan<'_>,
    ) -> Result<KeptGraph, DeltaError> {
        let is_kept = self
            .kept_as
            .get()
            .filter(|_| plan.reason(&self.after).is_none());
        let Some(name) = is_kept else {
            return versions.keep_graph(dir, (&self.after, keep), plan);
        };
        versions.link_overlay(name, dir)?;
        Ok(KeptGraph::of(self.after.store()))
    }
}

impl SharedReach {
    /// Shares what the changes reach with a stage that reads this later.
    pub fn new(later: ReachPlan) -> Self {
        Self {
            later,
            found: Mutex::default(),
        }
    }

    fn found(&self) -> MutexGuard<'_, Option<Found>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the plan of both stages for a first stage that reads hops alone; none if the kept
    /// in-edges are too few for both, or a layer may aggregate the in-edges of hubs in another way
    /// than before, which reaches no hop.
    fn of_both(&self, first: &ReachPlan, keep: &[usize]) -> Option<ReachPlan> {
        let both = ReachPlan {
            hops: first.hops.clone(),
            ..self.later.clone()
        };
        let mut limits = both.layers.iter().flatten();
        let needs_hubs = limits.any(|&limit| limit > both.hub_edges);
        let is_enough = both
            .keep()
            .iter()
            .zip(keep)
            .all(|(least, kept)| least <= kept);
        (first.layers.is_empty() && !needs_hubs && is_enough).then_some(both)
    }
}

impl<'a> VersionInput<'a> {
    /// Returns how the store of the version is written anew.
    pub fn rebuild_plan(&self) -> RebuildPlan<'a> {
        RebuildPlan {
            graph: self.graph,
            share: self.rebuild_share,
        }
    }

    /// Reads the tables of changes of a store, or opens those of a snapshot, unless another stage
    /// has read them; with the labels and splits of the target type if `labels`.
    ///
    /// # Errors
    ///
    /// As [`Changes::read`] and [`Snapshot::open`].
    pub fn read(self, store: &Store, labels: bool) -> Result<NewTables<'a>, DeltaError> {
        let found = self.shared.and_then(|shared| shared.found().clone());
        let (read, fingerprints) = match found {
            Some(found) => (None, found.fingerprints),
            None => {
                let read = self.read_tables(store, labels)?;
                let fingerprints = read.fingerprints()?;
                (Some(read), fingerprints)
            }
        };
        Ok(NewTables {
            input: self,
            labels,
            fingerprints,
            read,
        })
    }

    fn read_tables(&self, store: &Store, labels: bool) -> Result<ReadTables, DeltaError> {
        let meta = &store.meta().graph;
        let columns: Vec<&[ColumnMeta]> = meta.types.iter().map(|of| &of.columns[..]).collect();
        let of_store = OfStore {
            sampling: store.meta().sampling,
            columns: &columns,
            labels: labels.then(|| LabelsOf::target(meta)),
        };
        if let Some(tables) = self.snapshot {
            let snapshot = Snapshot::open(tables, self.base, self.graph, of_store)?;
            let files = snapshot.tables()?;
            return Ok(ReadTables::Snapshot(snapshot, files));
        }
        let threads = store.cluster().num_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let read = |night| Changes::read(night, self.base, self.graph, of_store);
        let nights = || self.nights.iter().map(read).collect::<Result<_, _>>();
        let nights = pool.map_err(DeltaError::Threads)?.install(nights);
        Ok(ReadTables::Changes(nights?))
    }
}

impl ReadTables {
    /// Returns fingerprints of the tables.
    fn fingerprints(&self) -> Result<Value, DeltaError> {
        match self {
            Self::Changes(nights) => nights.iter().map(Changes::fingerprints).collect(),
            Self::Snapshot(snapshot, files) => snapshot.fingerprints(files),
        }
    }

    /// Returns the whole tables; none if they are tables of changes.
    fn whole(&self) -> Option<&WholeTables> {
        match self {
            Self::Changes(_) => None,
            Self::Snapshot(_, files) => Some(files),
        }
    }

    /// Applies what has changed to the nodes and edges of the parent; `parent` are the whole tables
    /// that these were read from, if they are known.
    fn apply(
        self,
        numbers: &mut Numbers,
        parent: Option<&WholeTables>,
    ) -> Result<Vec<Night>, DeltaError> {
        let nights = match self {
            Self::Changes(nights) => nights,
            Self::Snapshot(snapshot, own) => {
                let found = snapshot.changes(numbers, (&own, parent))?;
                let (nodes, edges) = found.counts();
                tracing::debug!("the snapshot changes {nodes} nodes and {edges} rows of edges");
                vec![found]
            }
        };
        nights
            .into_iter()
            .map(|night| numbers.apply(night))
            .collect()
    }
}

impl NewTables<'_> {
    /// Returns fingerprints of the tables.
    pub fn fingerprints(&self) -> &Value {
        &self.fingerprints
    }

    /// Applies what has changed to the graph of the parent, and finds what it reaches; takes what
    /// another stage has found for the same graph.
    ///
    /// # Errors
    ///
    /// If a change cannot be applied: names file and row.
    pub fn reach(
        self,
        store: &Store,
        parent: ParentGraph,
        plan: &ReachPlan,
    ) -> Result<Arc<Reached>, DeltaError> {
        let shared = self.input.shared;
        if let Some(found) = shared.and_then(|shared| shared.found().take())
            && found.identity == parent.identity
        {
            return Ok(found.reached);
        }
        let read = match self.read {
            Some(read) => read,
            None => self.input.read_tables(store, self.labels)?,
        };
        let both = shared.and_then(|shared| Some((shared, shared.of_both(plan, &parent.keep)?)));
        let plan = both.as_ref().map_or(plan, |(_, of_both)| of_both);
        let mut numbers = Numbers::of(store, self.input.graph, parent.overlay)?;
        let tables = read.whole().cloned();
        let nights = read.apply(&mut numbers, parent.tables.as_ref())?;
        let numbers = Arc::new(numbers);
        let (reach, overlay) = reach(&numbers, nights, &parent.out, plan)?;
        let reached = Arc::new(Reached {
            after: After::new(&numbers, overlay),
            numbers,
            reach,
            tables,
            kept_as: OnceLock::new(),
        });
        if let Some((with_later, _)) = both {
            *with_later.found() = Some(Found {
                identity: parent.identity,
                fingerprints: self.fingerprints,
                reached: Arc::clone(&reached),
            });
        }
        Ok(reached)
    }
}
