//! A version of graph features: the neighbourhoods that changes reach are assembled and written,
//! all others stay in the outputs of earlier versions.

mod assembly;
mod chosen;
mod decision;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use assembly::Assembly;
use chosen::Chosen;
use cluster::{gather_processes, open_output};
use graphdelta::{
    After, Changes, Degrees, DeltaError, GoneRow, KeptGraph, KeptRowsOf, KeptVersions, LabelsOf,
    NewTables, NoRows, OfStore, Parent, ReachPlan, Reached, RebuildPlan, Snapshot, VersionInput,
    VersionRecord, fetch_kept, find_kept, finish_version, finished_version, is_own_part,
    join_parts, named_parent, write_nodes,
};
use hashbrown::HashMap;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use schemas::progress::Progress;
use schemas::threads::spawn_scoped;
use schemas::{
    DenseRows, FlattenMeta, GraphFeatureDataset, GraphMeta, IdListPlan, KeptOutput, Manifest,
    NodeIdx, Opened, Output, ParentOutput, PartEntry, PartPairs, Row, Split, VersionMeta,
    error_chain, keep_at_hop, write_changed_degrees, write_changed_part, write_part,
};
use serde_json::{Value, json};
use store::Store;

pub use decision::FlattenDecision;

use crate::flatten::{ENGINE_VERSION, meta_of};
use crate::pair_parts::{Candidates, PairParts, PartTargets};
use crate::probe_files::probe_files;
use crate::{FlattenError, FlattenPlan, Parts, SamplePlan, Targets, targets};

/// A version before its rows are written.
struct Prepared<'a> {
    plan: &'a FlattenPlan,
    /// The description of the tables.
    meta: GraphMeta,
    parent: Parent,
    record: VersionRecord<NoRows>,
    /// Nodes of the rows of each output that the parent has rows of, its own last.
    nodes: Vec<Option<Vec<NodeIdx>>>,
    changed: Arc<Reached>,
    /// In-edges of a node that the overlay has at most.
    keep: Vec<usize>,
    /// Targets whose rows are written; none if the ends of pairs are the targets.
    written: Vec<NodeIdx>,
    /// The pairs, if their ends are the targets.
    pairs: Option<PairParts>,
    /// Other nodes of rows of earlier outputs that are no targets any more.
    left_out: Vec<NodeIdx>,
    decision: FlattenDecision,
    rebuild: RebuildPlan<'a>,
}

/// Checks parent and tables of a version before any work; reads no rows.
///
/// # Errors
///
/// If the parent is no finished output of flatten, or nothing is kept of it, or a table of changes
/// or of a snapshot is missing or has other columns.
pub fn check_flatten_version(
    plan: &FlattenPlan,
    work_dir: &Path,
    input: VersionInput<'_>,
) -> Result<(), FlattenError> {
    let parent = open_parent(input.parent)?;
    let found = find_kept::<NoRows>(work_dir, &parent.manifest.fingerprint);
    let record = found.ok_or_else(|| parent.is_not_kept(work_dir))?;
    let (columns, meta) = (record.columns(), graph_of(&parent));
    check_target_type(
        &parent,
        plan.sample.target_type.as_deref().unwrap_or_default(),
    )?;
    let of_store = OfStore {
        sampling: plan.sample.sampling,
        columns: &columns,
        labels: Some(LabelsOf::target(meta)),
    };
    if let Some(tables) = input.snapshot {
        Snapshot::open(tables, input.base, input.graph, of_store)?;
    }
    let mut nights = input.nights.iter();
    nights.try_for_each(|night| Changes::check(night, input.base, input.graph, of_store))?;
    Ok(())
}

/// Predicts what a version writes. One part is written to a temporary directory in `work_dir` and
/// counts for all: few targets share few nodes, so bytes do not follow from those of the parent.
///
/// # Errors
///
/// As [`flatten_version`]; nothing else is written, except out-edges that are missing.
pub fn predict_flatten_version(
    plan: &FlattenPlan,
    store: &Store,
    (work_dir, input): (&Path, VersionInput<'_>),
) -> Result<FlattenDecision, FlattenError> {
    let parent = open_parent(input.parent)?;
    // A run may hold the lock; it changes no file that is read here.
    let versions = KeptVersions::unlocked(work_dir);
    let tables = input.read(store, true)?;
    let prepared = Prepared::new(plan, parent, &versions, (store, input, tables))?;
    let bytes = prepared.predict_bytes(work_dir);
    let bytes = bytes.inspect_err(|error| {
        let error = error_chain(error);
        tracing::warn!("cannot tell how many bytes the neighbourhoods take: {error}");
    });
    Ok(FlattenDecision {
        bytes: bytes.ok(),
        ..prepared.decision
    })
}

/// Applies changes to the graph of the parent, flattens the targets that they reach, commits them
/// as a version and returns its manifest.
///
/// The neighbourhoods are those of a full run on the changed tables, bit for bit. Of several
/// processes, each has the [whole store](store::open_whole) and writes a share of the parts; process
/// 0 finishes the output.
///
/// # Errors
///
/// If a change cannot be applied, before anything is written: names file and row; if nothing is
/// kept of the parent or it is one of another graph; if the output or the working directory cannot
/// be written; if another process fails.
pub fn flatten_version(
    plan: &FlattenPlan,
    store: &Store,
    (work_dir, input): (&Path, VersionInput<'_>),
    progress: &Progress,
) -> Result<Manifest, FlattenError> {
    store.cluster().set_phase("flatten, its start");
    let parent = open_parent(input.parent);
    // A finished version is skipped, even if its parent is gone.
    let of_parent = match &parent {
        Ok(parent) => Some(parent.manifest.fingerprint.clone()),
        Err(_) => named_parent(&plan.output, input.parent),
    };
    let Some(of_parent) = of_parent else {
        return Err(parent.expect_err("an open parent has a fingerprint"));
    };
    let tables = input.read(store, true)?;
    let mut identity = json!({
        "flatten": fingerprint(plan, store)?,
        "changes": tables.fingerprints(),
        "parent": of_parent,
    });
    if input.full {
        // Its rows are the same, but it keeps none of its parent.
        identity["full"] = json!(true);
    }
    let own = schemas::xxh::fingerprint(identity.to_string().as_bytes());
    let (cluster, named) = (store.cluster(), (&*plan.output, "flatten", &*own));
    if let Some(manifest) = finished_version(cluster, named, plan.fresh)? {
        if let Err(error) = GraphFeatureDataset::open(&plan.output) {
            tracing::warn!("the version is finished, but {}", error_chain(&error));
        }
        return Ok(manifest);
    }
    let parent = parent?;
    let versions = KeptVersions::lock(work_dir)?;
    let prepared = Prepared::new(plan, parent, &versions, (store, input, tables))?;
    let of_key = (&*plan.output, "flatten.output");
    let kept = prepared
        .parent
        .kept_outputs(&prepared.record.earlier, of_key)?;
    if cluster.leads() {
        prepared.decision.report(progress);
    }
    let output = match open_output::<FlattenError>(cluster, named, plan.fresh)? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let mut input_json = store.manifest_input();
    for name in ["changes", "parent"] {
        input_json[name] = identity[name].clone();
    }
    let planned = (plan.settings(), input_json);
    let mut manifest = Manifest::new("flatten", own.clone(), planned, store.meta().seed);
    let changed = Arc::clone(&prepared.changed);
    prepared.write(kept, &output, &versions, &mut manifest)?;
    finish_version(cluster, output, &manifest)?;
    changed.free_beside();
    if let Err(error) = versions.remove_old(&own) {
        // The next version tries again.
        tracing::warn!("{}", error_chain(&error));
    }
    Ok(manifest)
}

/// Keeps what versions of a full run need: the targets of its parts.
pub(crate) struct KeepFull {
    versions: KeptVersions,
}

impl KeepFull {
    /// Locks the kept versions, and writes the out-edges that the next one needs; none if the plan
    /// keeps no versions.
    pub(crate) fn start(plan: &FlattenPlan, store: &Store) -> Result<Option<Self>, FlattenError> {
        let Some(work_dir) = &plan.kept_in else {
            return Ok(None);
        };
        let versions = KeptVersions::lock(work_dir)?;
        versions.out_edges(store, &plan.sample.reach_plan().keep())?;
        Ok(Some(Self { versions }))
    }

    /// Keeps a run with these parts; returns when all processes have.
    pub(crate) fn finish(
        &self,
        (plan, fingerprint): (&FlattenPlan, &str),
        store: &Store,
        parts: &PartTargets,
    ) -> Result<(), FlattenError> {
        let dir = self.versions.begin()?;
        let mut nodes = Vec::new();
        // A version of pairs keeps no rows of its parent, so nobody asks for their nodes.
        let of_nodes = match parts {
            PartTargets::Nodes(parts) => Some(parts),
            PartTargets::Pairs(_) => None,
        };
        for part in of_nodes.into_iter().flat_map(Parts::iter) {
            let first = nodes.len();
            nodes.extend_from_slice(part);
            nodes[first..].sort_unstable();
        }
        let of_plan = kept_plan(plan, store)?;
        let record = VersionRecord {
            nodes: Some(write_nodes(&dir, &nodes)?),
            ..VersionRecord::new(store, &of_plan, NoRows::default())
        };
        self.versions.finish(fingerprint, &record)?;
        gather_processes(store.cluster(), ())?;
        Ok(())
    }
}

/// Warns that versions cannot start from a finished output, if any are planned. Processes that lack
/// what is kept fetch it from the leader.
pub(crate) fn warn_if_not_kept(
    plan: &FlattenPlan,
    fingerprint: &str,
    store: &Store,
) -> Result<(), FlattenError> {
    if let Some(work_dir) = &plan.kept_in {
        fetch_kept(store.cluster(), work_dir, &plan.output)?;
    }
    let is_kept = |dir: &Path| find_kept::<NoRows>(dir, fingerprint).is_some();
    if plan.kept_in.as_deref().is_some_and(|dir| !is_kept(dir)) {
        tracing::warn!(
            "versions of graph features cannot start from {}: what they need was not kept; compute it \
             again with --stage flatten --fresh if they are to",
            plan.output.display()
        );
    }
    Ok(())
}

/// Opens the parent of a version.
fn open_parent(dir: &Path) -> Result<Parent, FlattenError> {
    let dataset = GraphFeatureDataset::open(dir)?;
    Ok(Parent {
        dir: dir.to_owned(),
        manifest: dataset.manifest().clone(),
    })
}

/// Refuses a parent whose targets are not of the type `name`.
fn check_target_type(parent: &Parent, name: &str) -> Result<(), DeltaError> {
    let found = &graph_of(parent).target().name;
    if found == name {
        return Ok(());
    }
    Err(parent.problem(format!(
        "has targets of type `{found}`, the job those of type `{name}`; start with a run without a \
         parent"
    )))
}

/// Returns the description of a parent's tables.
fn graph_of(parent: &Parent) -> &GraphMeta {
    let graph = parent.manifest.graph.as_ref();
    graph.expect("opening checked it")
}

/// Returns the settings that the rows depend on; a list of targets by its content.
fn kept_plan(plan: &FlattenPlan, store: &Store) -> Result<Value, FlattenError> {
    let mut settings = plan.settings();
    settings["engine"] = ENGINE_VERSION.into();
    if let Some(list) = target_list(plan, store)? {
        settings["targets"] = list.fingerprint()?.into();
    }
    Ok(settings)
}

fn target_list(plan: &FlattenPlan, store: &Store) -> Result<Option<IdListPlan>, FlattenError> {
    match &plan.sample.targets {
        Targets::Listed(path) => Ok(Some(targets::list_plan(path, store)?)),
        _ => Ok(None),
    }
}

fn fingerprint(plan: &FlattenPlan, store: &Store) -> Result<String, FlattenError> {
    let list = target_list(plan, store)?;
    plan.fingerprint(&store.meta().input, store.meta().seed, list.as_ref())
}

impl SamplePlan {
    /// Returns the in-edges that the hops of a sample read.
    fn reach_plan(&self) -> ReachPlan {
        let relations = self.fanouts.first().map_or(0, |hop| hop.as_ref().len());
        let hops = (0..self.fanouts.len()).map(|hop| {
            let limits = (0..relations).map(|relation| keep_at_hop(&self.fanouts, relation, hop));
            limits.collect()
        });
        ReachPlan {
            hops: hops.collect(),
            layers: Vec::new(),
            degrees: Degrees::None,
            weights: false,
            hub_edges: usize::MAX,
        }
    }
}

impl<'a> Prepared<'a> {
    /// Applies the changes and finds what they reach.
    fn new(
        plan: &'a FlattenPlan,
        parent: Parent,
        versions: &KeptVersions,
        (store, input, tables): (&Store, VersionInput<'a>, NewTables<'_>),
    ) -> Result<Self, FlattenError> {
        let name = parent.manifest.fingerprint.clone();
        check_target_type(&parent, &store.meta().graph.target().name)?;
        let not_kept = || parent.is_not_kept(versions.work_dir());
        let mut records = versions.records::<NoRows>(&name).ok_or_else(not_kept)?;
        let nodes = versions.nodes_of_outputs(&records)?;
        let (_, record) = records.pop().expect("its own record is the last");
        let reach_plan = plan.sample.reach_plan();
        let read = reach_plan.keep();
        let graph = versions.parent_graph((&parent, &record), store, (&read, read.clone()))?;
        let keep = graph.keep.clone();
        let changed = tables.reach(store, graph, &reach_plan)?;
        let after = &changed.after;
        let pairs = pairs_of(plan, after)?;
        let chosen = Chosen::new(plan, store, after)?;
        let reached = match &pairs {
            Some(_) => Vec::new(),
            None => chosen.reached(&changed.reach),
        };
        let other_key = "a key of [flatten] is another than the parent's";
        let other_plan = record.why_full(&kept_plan(plan, store)?, other_key);
        let all = match (&pairs, other_plan) {
            (Some(pairs), _) => pairs.num_pairs() as u64,
            (None, None) => chosen.count(targets_of(&parent.manifest), &changed.reach),
            (None, Some(_)) => chosen.all().len() as u64,
        };
        if all == 0 {
            return Err(no_target(plan));
        }
        let meta = described(graph_of(&parent), after);
        let why = match () {
            () if input.full => Some("--full is given"),
            () if other_plan.is_some() => other_plan,
            () if pairs.is_some() => Some("the parts of pairs share random negatives"),
            () if meta != *graph_of(&parent) => {
                Some("the parent has no column for the first self-loop")
            }
            () => None,
        };
        let hops = changed.reach.hops.iter().map(|of_hop| of_hop.len() as u64);
        // All pairs are written.
        let num_reached = if pairs.is_some() {
            all
        } else {
            reached.len() as u64
        };
        let (why, counts) = (why.map(str::to_owned), [num_reached, all]);
        let decision = FlattenDecision {
            rebuilds: input.rebuild_plan().reason(after),
            ..FlattenDecision::new(why, counts, hops.collect())
        };
        let written = match decision.full {
            Some(_) if pairs.is_none() => chosen.all(),
            _ => reached,
        };
        Ok(Self {
            left_out: chosen.left_out(),
            rebuild: input.rebuild_plan(),
            decision,
            written,
            pairs,
            plan,
            meta,
            parent,
            record,
            nodes,
            keep,
            changed,
        })
    }

    /// Writes the parts, what they replace, the degrees, and what the next version needs; completes
    /// the manifest.
    fn write(
        self,
        mut kept: Vec<KeptOutput>,
        output: &Output,
        versions: &KeptVersions,
        manifest: &mut Manifest,
    ) -> Result<(), FlattenError> {
        let (plan, after) = (self.plan, &self.changed.after);
        let store = after.store();
        let flatten = meta_of(plan, store);
        let threads = store.cluster().num_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(DeltaError::Threads)?;
        let parts = pool.install(|| self.parts());
        let assembly = Assembly::new(after, &self.meta, &plan.sample.fanouts);
        let (written, upserts) = match &self.pairs {
            Some(pairs) => (Vec::new(), pairs.num_pairs()),
            None => (parts.concat(), self.written.len()),
        };
        let dir = versions.begin()?;
        // A part is written by one thread: meanwhile another one keeps the changes and finds the rows
        // that are replaced.
        let (graph, gone) = std::thread::scope(|scope| {
            let beside = || {
                let graph = self.keep_changes(&dir, versions)?;
                let to = (output, parts.len());
                let gone = self.write_replaced(&kept, &written, (to, &assembly))?;
                Ok::<_, FlattenError>((graph, gone))
            };
            let beside = spawn_scoped(scope, "keep", beside)?;
            let done = pool.install(|| self.write_parts(output, &assembly, (&parts, &flatten)));
            let beside = beside.join().expect("it does not panic");
            done.and(beside)
        })?;
        if self.decision.full.is_some() {
            kept.clear();
        }
        self.count_left(&mut kept, &gone);
        join_parts(store.cluster(), output).map_err(DeltaError::from)?;
        self.keep(
            (&dir, graph),
            &kept,
            versions,
            (&manifest.fingerprint, &written),
        )?;
        manifest.parts = output.parts();
        manifest.graph = Some(self.meta.clone());
        manifest.flatten = Some(flatten);
        manifest.report = self.decision.to_json();
        let deletes = after.removed_now().into_iter();
        let deletes = deletes.filter(|&node| after.type_of(node) == self.meta.target_type);
        manifest.version = Some(VersionMeta {
            parent: ParentOutput::of(&plan.output, &self.parent.dir, &self.parent.manifest),
            kept,
            upserts: upserts as u64,
            deletes: deletes.count() as u64,
        });
        Ok(())
    }

    /// Predicts the bytes of all parts from those of one.
    fn predict_bytes(&self, work_dir: &Path) -> Result<u64, FlattenError> {
        let parts = self.parts();
        let Some(part) = parts.get(parts.len() / 2) else {
            return Ok(0);
        };
        let after = &self.changed.after;
        let assembly = Assembly::new(after, &self.meta, &self.plan.sample.fanouts);
        let flatten = meta_of(self.plan, after.store());
        let files = probe_files(work_dir, |output| {
            let named = (parts.len() / 2, 0, &part[..]);
            self.write_targets(output, &assembly, (named, &flatten))
        })?;
        let bytes: u64 = files.iter().map(|of| of.bytes).sum();
        let all: usize = parts.iter().map(Vec::len).sum();
        let all = u128::from(bytes) * all as u128 / part.len() as u128;
        Ok(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// Returns the targets of the parts that are written, those of a part sorted.
    fn parts(&self) -> Vec<Vec<NodeIdx>> {
        match &self.pairs {
            Some(pairs) => self.pair_targets(pairs),
            None => self.cut(),
        }
    }

    /// Cuts the targets that are written into parts as large as those of a full run, and sorts
    /// those of a part by id.
    fn cut(&self) -> Vec<Vec<NodeIdx>> {
        if self.written.is_empty() {
            return Vec::new();
        }
        // Targets that share their least source share neighbours, so fewer nodes are in several
        // parts.
        let (after, meta) = (&self.changed.after, &self.meta);
        let relations: Vec<usize> = meta.relations_to(meta.target_type).collect();
        let key = |&node: &NodeIdx| {
            let mut sources = relations.iter().enumerate().map(|(at, &relation)| {
                let first = after.in_edges(relation, node, self.keep[relation]).src;
                (at, first.iter().min().copied())
            });
            let found = sources.find(|(_, least)| least.is_some());
            let (at, least) = found.unwrap_or((relations.len(), None));
            (at, least, node)
        };
        let mut keyed: Vec<_> = self.written.par_iter().map(key).collect();
        keyed.par_sort_unstable();
        let chosen = keyed.into_iter().map(|(_, _, node)| node).collect();
        let features = meta.types.iter().map(|of| of.features);
        let all = usize::try_from(self.decision.targets[1]).unwrap_or(usize::MAX);
        let (layout, sample) = (self.plan.layout, &self.plan.sample);
        let most = sample.targets_per_part(layout, all, features);
        let parts = Parts::cut(chosen, most, layout);
        let sorted = parts.iter().map(|part| {
            let mut part = part.to_vec();
            after.sort(&mut part);
            part
        });
        sorted.collect()
    }

    /// Returns the targets of the parts of pairs, those of a part sorted by type and id.
    fn pair_targets(&self, pairs: &PairParts) -> Vec<Vec<NodeIdx>> {
        let after = &self.changed.after;
        let parts = (0..pairs.len()).into_par_iter().map(|part| {
            let mut nodes = pairs.part(part, after.store().meta().seed).nodes;
            after.sort(&mut nodes);
            nodes
        });
        parts.collect()
    }

    /// Returns the pairs of a part as rows of its nodes; the targets come first in each type.
    fn placed_pairs(
        &self,
        pairs: &PairParts,
        (part, targets): (usize, &[NodeIdx]),
    ) -> Option<PartPairs> {
        let after = &self.changed.after;
        let mut next = vec![0; self.meta.types.len()];
        let rows = targets.iter().map(|&node| {
            let of_type = &mut next[after.type_of(node)];
            let row = Row::from_raw(*of_type);
            *of_type += 1;
            (node, row)
        });
        let rows: HashMap<NodeIdx, Row> = rows.collect();
        let drawn = pairs.part(part, after.store().meta().seed).pairs?;
        Some(pairs.place(&drawn, |node| rows[&node]))
    }

    /// Writes and commits the parts of this process on all threads; at once at most as many as have
    /// their lists of places in half of the memory budget.
    fn write_parts(
        &self,
        output: &Output,
        assembly: &Assembly<'_>,
        (parts, flatten): (&[Vec<NodeIdx>], &FlattenMeta),
    ) -> Result<(), FlattenError> {
        let cluster = self.changed.after.store().cluster();
        let of_place = assembly.place_bytes().max(1);
        let most = (self.plan.memory_budget / 2 / of_place).max(1);
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let write = |index: usize| -> Result<(), FlattenError> {
            if !is_own_part(cluster, index) || output.committed(index).is_some() {
                return Ok(());
            }
            let named = (index, index, &parts[index][..]);
            let part = self.write_targets(output, assembly, (named, flatten))?;
            Ok(output.commit_part(index, part)?)
        };
        // A thread has one part at a time: while it waits for pieces of it, it begins no other part.
        let written = rayon::broadcast(|thread| {
            if thread.index() >= most {
                return Ok(());
            }
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= parts.len() || has_failed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                write(index).inspect_err(|_| has_failed.store(true, Ordering::Relaxed))?;
            }
        });
        written.into_iter().collect()
    }

    /// Writes the neighbourhoods of the targets of part `index` as part `written_as`.
    fn write_targets(
        &self,
        output: &Output,
        assembly: &Assembly<'_>,
        ((index, written_as, targets), flatten): ((usize, usize, &[NodeIdx]), &FlattenMeta),
    ) -> Result<PartEntry, FlattenError> {
        let (mut shard, rows) = assembly.shard(targets);
        if let Some(pairs) = &self.pairs {
            shard.pairs = self.placed_pairs(pairs, (index, targets));
        }
        let lent = rows.iter();
        let lent = lent.map(|of_type| Some(of_type.as_ref()? as &dyn DenseRows));
        let lent: Vec<Option<&dyn DenseRows>> = lent.collect();
        let of_version = match self.decision.full {
            Some(_) => write_part,
            None => write_changed_part,
        };
        let part = of_version(output, written_as, &shard, &lent, &self.meta, flatten)?;
        Ok(part)
    }

    /// Returns the position of the file of a part whose first rows are the targets.
    fn file_of_targets(&self) -> usize {
        match self.plan.layout {
            schemas::Layout::Rows => 0,
            schemas::Layout::Shards => self.meta.target_type,
        }
    }

    /// Takes rows that are gone from the counts of the parts that are kept.
    fn count_left(&self, kept: &mut [KeptOutput], gone: &[GoneRow]) {
        for row in gone {
            // A row that was no row of the parent either was taken before.
            let Some(split) = self.split_of_parent(row.node) else {
                continue;
            };
            let part = &mut kept[row.output].parts[row.part];
            part.targets.iter_mut().for_each(|of| of.remove(split));
        }
    }

    /// Returns the split of a target of the parent; none if the node was no target of it.
    fn split_of_parent(&self, node: NodeIdx) -> Option<Split> {
        let split = self.changed.after.split_before(node)?;
        self.plan.sample.targets.takes(split).then_some(split)
    }

    /// Finds the rows of earlier outputs that are no rows of the version, and commits them with the
    /// changed degrees as part `index`. Returns the last row of each of their nodes; nothing if the
    /// version keeps no rows.
    fn write_replaced(
        &self,
        kept: &[KeptOutput],
        written: &[NodeIdx],
        ((output, index), assembly): ((&Output, usize), &Assembly<'_>),
    ) -> Result<Vec<GoneRow>, FlattenError> {
        if self.decision.full.is_some() {
            return Ok(Vec::new());
        }
        let after = &self.changed.after;
        let of_kept = KeptRowsOf {
            outputs: kept,
            nodes: &self.nodes,
            file: self.file_of_targets(),
        };
        let others = self.left_out.iter().copied();
        let others = others.chain(after.overlay().removed());
        let gone: Vec<NodeIdx> = written.iter().copied().chain(others).collect();
        let replaced = of_kept.replaced(after.end(), &gone);
        let replaced = replaced.map_err(|problem| self.parent.problem(problem))?;
        if after.store().cluster().leads() && output.committed(index).is_none() {
            let degrees = assembly.degrees();
            let part = write_changed_degrees(output, &replaced.rows, &degrees, &self.meta)?;
            output.commit_part(index, part)?;
        }
        Ok(replaced.last)
    }

    /// Keeps the changes of the graph in `dir`; none if a new store is to hold them, which needs all
    /// threads and much memory.
    fn keep_changes(
        &self,
        dir: &Path,
        versions: &KeptVersions,
    ) -> Result<Option<KeptGraph>, FlattenError> {
        let keeps = self.decision.rebuilds.is_none();
        let to = (versions, dir);
        let keep = || self.changed.keep_graph(to, &self.keep, self.rebuild);
        Ok(keeps.then(keep).transpose()?)
    }

    /// Keeps what the next version needs in `dir`, which has the graph if there is one.
    fn keep(
        &self,
        (dir, graph): (&Path, Option<KeptGraph>),
        kept: &[KeptOutput],
        versions: &KeptVersions,
        (fingerprint, written): (&str, &[NodeIdx]),
    ) -> Result<(), FlattenError> {
        let after = &self.changed.after;
        let store = after.store();
        let graph = match graph {
            Some(graph) => graph,
            None => {
                let to = (versions, dir);
                self.changed.keep_graph(to, &self.keep, self.rebuild)?
            }
        };
        let of_plan = kept_plan(self.plan, store)?;
        let removed = after.overlay().removed();
        let gone: Vec<NodeIdx> = self.left_out.iter().copied().chain(removed).collect();
        let earlier = match kept {
            [] => &[],
            _ => &self.nodes[..],
        };
        let record = VersionRecord {
            parent: Some(self.parent.manifest.fingerprint.clone()),
            earlier: kept.iter().map(|of| of.fingerprint.clone()).collect(),
            nodes_of_earlier: graph.write_earlier(dir, earlier, &gone, store)?,
            nodes: Some(write_nodes(dir, &graph.numbers_of(written))?),
            base: graph.base,
            overlay: Some(self.keep.clone()),
            tables: self.changed.tables.clone(),
            ..VersionRecord::new(store, &of_plan, NoRows::default())
        };
        versions.finish(fingerprint, &record)?;
        self.changed.set_kept(fingerprint);
        Ok(())
    }
}

/// Returns the error of a version without targets.
fn no_target(plan: &FlattenPlan) -> FlattenError {
    FlattenError::NoTargets {
        reason: match &plan.sample.targets {
            Targets::Listed(_) => {
                "after the changes, no node of the list in `flatten.targets` is left".into()
            }
            targets => format!("after the changes, {}", targets.why_none()),
        },
    }
}

/// Cuts the pairs after the changes into parts, as a full run does; none if nodes are the targets.
fn pairs_of(plan: &FlattenPlan, after: &After) -> Result<Option<PairParts>, FlattenError> {
    let graph = &after.store().meta().graph;
    let (Some(pairs), Some(meta)) = (after.pairs()?, &graph.pairs) else {
        return Ok(None);
    };
    let mut candidates = after.nodes();
    candidates.retain(|&node| after.type_of(node) == meta.to);
    let candidates = Candidates::Listed(candidates);
    let parts = PairParts::cut((&plan.sample, plan.layout), graph, pairs, candidates)?;
    Ok(Some(parts))
}

/// Returns the number of targets of an output, those of rows that it keeps included.
fn targets_of(manifest: &Manifest) -> u64 {
    let kept = manifest.version.iter().flat_map(|version| &version.kept);
    let parts = kept.flat_map(|of| &of.parts).chain(manifest.row_parts());
    let counts = parts.map(|part| part.targets.map_or(part.rows, |counts| counts.total()));
    counts.sum()
}

/// Returns the description of a version's tables: that of the parent, with columns for self-loops
/// where the first one is new.
fn described(parent: &GraphMeta, after: &After) -> GraphMeta {
    let mut meta = parent.clone();
    for (relation, node) in after.edited() {
        let of = &mut meta.relations[relation];
        of.self_loops |= after.self_loops(relation, node) > 0;
    }
    meta
}
