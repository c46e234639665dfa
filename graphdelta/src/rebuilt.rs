//! Stores that hold the changes of a version too, so that later versions start without them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::Cluster;
use hashbrown::HashSet;
use schemas::{FileEntry, GraphPlan, NodeIdx, error_chain, read_manifest};
use store::{
    HUB_THRESHOLD, MISSING, NodeTable, Pair, SourceGraph, Store, StoreMeta, StorePlan, Unchanged,
    is_intact, open_rebuilt, open_share, rebuild,
};

use crate::in_edges::Draws;
use crate::kept::{OTHER_GRAPH, failed, write_listed};
use crate::numbers::Numbers;
use crate::{After, DeltaError, KeptVersions, NoRows, Overlay, find_kept};

/// From so many changes on, and from this share of the store on, a version writes a store that
/// holds them: later versions would read and write them each night
/// (`docs/benchmarks/versions.md`, late in a chain).
const CHANGES_MIN: u64 = 100_000;
const SHARE_OF: u64 = 50;

/// How the store of a version is written anew.
#[derive(Clone, Copy, Debug)]
pub struct RebuildPlan<'a> {
    /// The tables of the store.
    pub graph: &'a GraphPlan,
    /// Share of its in-edges, nodes or pairs that have changed; none: 2 %, and at least 100,000.
    pub share: Option<f64>,
}

/// What is kept of the graph of a version.
#[derive(Debug)]
pub struct KeptGraph {
    /// Names the changes that its store holds; none if that is the store of the tables.
    pub base: Option<String>,
    renumbered: Option<Renumbered>,
}

/// A store that holds the changes of a version, before a record names it.
#[derive(Debug)]
pub struct NewStore {
    /// Names the changes.
    name: String,
    /// With the partitions of all processes.
    store: Store,
    plan: StorePlan,
    numbers: Renumbered,
    /// Relations and destinations whose in-edges were ever edited, by new numbers.
    edited: BTreeSet<(usize, NodeIdx)>,
}

/// The nodes of a version by their numbers in a store that holds its changes.
#[derive(Debug)]
struct Renumbered {
    /// By new number.
    before: Vec<NodeIdx>,
    /// By number before; [`MISSING`] for nodes that are removed.
    now: Vec<NodeIdx>,
    /// Whether all nodes keep their numbers.
    is_same: bool,
}

/// The graph of a version, with the numbers of its new store.
struct Rebuilt<'a> {
    after: &'a After,
    numbers: &'a Renumbered,
    /// Relations and destinations with edited in-edges: of those that carry messages, and of those
    /// that are left out.
    edited: [HashSet<(usize, NodeIdx)>; 2],
}

impl Renumbered {
    fn of(after: &After) -> Self {
        let before = after.nodes();
        let mut now = vec![MISSING; after.end()];
        for (number, node) in before.iter().enumerate() {
            now[node.index()] = NodeIdx::from_index(number);
        }
        let is_same = before.len() == now.len() && before.is_sorted();
        Self {
            before,
            now,
            is_same,
        }
    }

    fn now(&self, node: NodeIdx) -> NodeIdx {
        self.now.get(node.index()).copied().unwrap_or(MISSING)
    }
}

impl<'a> Rebuilt<'a> {
    fn new(after: &'a After, numbers: &'a Renumbered) -> Self {
        let overlay = after.overlay();
        let keys = [&overlay.edits, &overlay.left_out];
        Self {
            after,
            numbers,
            edited: keys.map(|edits| edits.keys().copied().collect()),
        }
    }
}

impl SourceGraph for Rebuilt<'_> {
    fn num_nodes(&self) -> Vec<u64> {
        let of_types = self.after.numbers().num_nodes_of_types().into_iter();
        of_types.map(|count| count as u64).collect()
    }

    fn id_hash(&self, node: NodeIdx) -> u64 {
        self.after.numbers().hash(self.numbers.before[node.index()])
    }

    fn read_node(&self, node: NodeIdx, out: &mut NodeTable) {
        let node = self.numbers.before[node.index()];
        let (ids, row) = self.after.id(node);
        out.ids.push_from(ids, row);
        self.after.features_into(node, &mut out.features);
        self.after.label_into(node, &mut out.labels);
        out.split.push(self.after.split(node));
    }

    fn unchanged(&self, relation: usize, dst: NodeIdx, left_out: bool) -> Option<Unchanged<'_>> {
        let (dst, store) = (self.numbers.before[dst.index()], self.after.store());
        let is_edited = self.edited[usize::from(left_out)].contains(&(relation, dst));
        if is_edited || !self.after.numbers().is_stored(dst) {
            return None;
        }
        let (owner, local) = store.placement().owner_and_local(dst);
        Some(Unchanged {
            partition: store.partition(owner),
            local,
            now: (!self.numbers.is_same).then_some(&*self.numbers.now),
        })
    }

    fn visit_in_edges(
        &self,
        relation: usize,
        dst: NodeIdx,
        left_out: bool,
        visit: &mut dyn FnMut(NodeIdx, f32, &[f32]),
    ) {
        let (dst, overlay) = (self.numbers.before[dst.index()], self.after.overlay());
        let draws = Draws::new(self.after.numbers(), relation, 0);
        let take = |src, weight, feature: &[f32]| visit(self.numbers.now(src), weight, feature);
        let key = (relation, dst);
        match left_out {
            false => draws.visit_edited(dst, overlay.edits.get(&key).map(Arc::as_ref), take),
            true => draws.visit_left_out(dst, overlay.left_out.get(&key).map(Arc::as_ref), take),
        }
    }

    fn release_nodes(&self) {
        self.after.store().release_nodes();
    }

    fn pairs(&self) -> Vec<Pair> {
        let mut all = self.after.numbers().rows_of_pairs(|_| true);
        for pair in &mut all {
            let ends = [&mut pair.src, &mut pair.dst].into_iter();
            for node in ends.chain(pair.negatives.iter_mut()) {
                *node = self.numbers.now(*node);
            }
        }
        all
    }
}

impl NewStore {
    /// Returns the store as a full run reads it: with the partitions of this process alone.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn of_process(&self) -> Result<Store, DeltaError> {
        match self.store.cluster().num_processes() {
            1 => Ok(self.store.clone()),
            _ => Ok(open_share(&self.store, &self.plan)?),
        }
    }

    /// Keeps it as the graph of a version in `dir`, the unfinished directory of its record, and
    /// writes its out-edges.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn keep_in(
        &self,
        versions: &KeptVersions,
        dir: &Path,
        keep: &[usize],
    ) -> Result<(), DeltaError> {
        let overlay = Overlay {
            edited_before: self.edited.clone(),
            ..Overlay::default()
        };
        overlay.write(&self.store, keep, &versions.overlay_in(dir))?;
        versions.out_edges(&self.store, keep)?;
        Ok(())
    }
}

impl KeptGraph {
    /// Returns what is kept of changes of a store.
    pub(crate) fn of(store: &Store) -> Self {
        Self {
            base: store.meta().base.clone(),
            renumbered: None,
        }
    }

    /// Returns the nodes by their old numbers, in the order of their new ones; none if they keep
    /// their numbers.
    pub fn nodes_before(&self) -> Option<&[NodeIdx]> {
        self.renumbered.as_ref().map(|of| &of.before[..])
    }

    /// Returns the numbers that nodes are kept with, [`MISSING`] for those that are removed.
    pub fn numbers_of<'a>(&self, nodes: &'a [NodeIdx]) -> Cow<'a, [NodeIdx]> {
        match &self.renumbered {
            None => Cow::Borrowed(nodes),
            Some(of) => nodes.iter().map(|&node| of.now(node)).collect(),
        }
    }

    /// Writes the nodes of the rows of each earlier output, if they have other numbers now: none of
    /// those in `gone`, which have no row any more.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn write_earlier(
        &self,
        dir: &Path,
        outputs: &[Option<Vec<NodeIdx>>],
        gone: &[NodeIdx],
        store: &Store,
    ) -> Result<Vec<FileEntry>, DeltaError> {
        if self.renumbered.is_none() {
            return Ok(Vec::new());
        }
        let gone: BTreeSet<&NodeIdx> = gone.iter().collect();
        let stored = || (0..store.placement().num_nodes()).map(NodeIdx::from_index);
        let written = outputs.iter().enumerate().map(|(at, listed)| {
            let listed: Cow<'_, [NodeIdx]> = match listed {
                Some(listed) => Cow::Borrowed(listed),
                None => stored().collect(),
            };
            let mut now = self.numbers_of(&listed).into_owned();
            for (number, node) in now.iter_mut().zip(&*listed) {
                if gone.contains(node) {
                    *number = MISSING;
                }
            }
            write_listed(&dir.join(format!("earlier-{at:03}.arrow")), &now)
        });
        written.collect()
    }
}

impl RebuildPlan<'_> {
    /// Returns why the graph of a version gets a store of its own; none if it does not.
    pub fn reason(&self, after: &After) -> Option<String> {
        let (overlay, meta) = (after.overlay(), after.store().meta());
        let pairs = meta.pairs.unwrap_or_default();
        let shares = [
            ("in-edges", overlay.num_edits(), meta.edges.in_edges),
            ("nodes", overlay.num_node_changes(), meta.num_nodes),
            ("pairs", overlay.pairs.len() as u64, pairs.total()),
        ];
        let mut shares = shares.into_iter();
        let found = shares.find(|&(_, changed, all)| is_much(changed, all, self.share));
        let (what, changed, all) = found?;
        Some(format!(
            "writes a new store with all changes: {changed} {what} have changed, of {all}"
        ))
    }
}

fn is_much(changed: u64, all: u64, share: Option<f64>) -> bool {
    match share {
        None => changed >= CHANGES_MIN && changed.saturating_mul(SHARE_OF) >= all,
        Some(share) => changed > 0 && changed as f64 >= share * all as f64,
    }
}

impl KeptVersions {
    /// Keeps the graph of a version in `dir`, the unfinished directory of its record: as changes of
    /// its store or, if these are many, as a store that holds them.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn keep_graph(
        &self,
        dir: &Path,
        (after, keep): (&After, &[usize]),
        plan: RebuildPlan<'_>,
    ) -> Result<KeptGraph, DeltaError> {
        let (store, to) = (after.store(), self.overlay_in(dir));
        let name = after.overlay().write_named(store, keep, &to)?;
        if plan.reason(after).is_none() {
            return Ok(KeptGraph::of(store));
        }
        std::fs::remove_dir_all(&to).map_err(failed("remove", &to))?;
        let new = self.new_store(after, name, plan.graph)?;
        new.keep_in(self, dir, keep)?;
        Ok(KeptGraph {
            base: Some(new.name),
            renumbered: Some(new.numbers),
        })
    }

    /// Writes a store that holds the changes of a version, or opens it if it is there.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn write_store(
        &self,
        (after, keep): (&After, &[usize]),
        graph: &GraphPlan,
    ) -> Result<NewStore, DeltaError> {
        let to = self.overlay_in(&self.begin()?);
        let name = after.overlay().write_named(after.store(), keep, &to)?;
        self.new_store(after, name, graph)
    }

    fn new_store(
        &self,
        after: &After,
        name: String,
        graph: &GraphPlan,
    ) -> Result<NewStore, DeltaError> {
        let (store, numbers) = (after.store(), Renumbered::of(after));
        let source = Rebuilt::new(after, &numbers);
        let workers = store.meta().workers;
        let own = self.base_dir(&name).join(workers.to_string());
        let plan = rebuild_plan(graph, store, workers, own);
        let open = || open_rebuilt(Some(store.cluster()), &plan);
        // Another stage may have written it.
        let base = match open() {
            Ok(Some(base)) => base,
            _ => {
                self.write_base(&source, &name, &plan)?;
                let path = plan.dir.clone();
                open()?.ok_or(DeltaError::OtherBase { path })?
            }
        };
        let edited = after.ever_edited();
        let edited = edited.map(|(relation, node)| (relation, numbers.now(node)));
        Ok(NewStore {
            edited: edited.filter(|(_, node)| *node != MISSING).collect(),
            name,
            store: base,
            plan,
            numbers,
        })
    }

    /// Writes a store that holds changes; a killed run leaves nothing under its name.
    fn write_base(
        &self,
        source: &Rebuilt<'_>,
        name: &str,
        plan: &StorePlan,
    ) -> Result<(), DeltaError> {
        let unfinished = StorePlan {
            dir: self.base_dir("unfinished"),
            ..plan.clone()
        };
        self.remove(&unfinished.dir)?;
        std::fs::create_dir(&unfinished.dir).map_err(failed("create", &unfinished.dir))?;
        let store = source.after.store();
        let threads = store.cluster().num_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(DeltaError::Threads)?;
        pool.install(|| rebuild(source, (store.meta(), name), &unfinished))?;
        self.remove(&plan.dir)?;
        let base = plan
            .dir
            .parent()
            .expect("it is in the directory of the base");
        std::fs::create_dir_all(base).map_err(failed("create", base))?;
        let rename = std::fs::rename(&unfinished.dir, &plan.dir);
        rename.map_err(failed("rename", &unfinished.dir))
    }
}

/// Returns the plan of a store that is like another one, but for its number of workers.
fn rebuild_plan(graph: &GraphPlan, like: &Store, workers: usize, dir: PathBuf) -> StorePlan {
    let meta = like.meta();
    StorePlan {
        graph: Arc::new(graph.clone()),
        target_type: meta.graph.target_type,
        seed: meta.seed,
        sampling: meta.sampling,
        keep: meta.keep.to_counts(),
        samples: meta.samples,
        redraw: meta.redraw,
        left_out: meta.keeps_left_out,
        hub_threshold: HUB_THRESHOLD,
        workers,
        memory_budget: like.memory_budget(),
        page_cache: Some(like.page_cache()),
        dir,
        fresh: false,
    }
}

/// Lists the stores of the same graph in the directory of a base, each with its number of workers.
fn stores_in(base: &Path) -> Vec<(usize, PathBuf)> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let stores = entries.filter_map(|entry| {
        let (name, path) = (entry.file_name(), entry.path());
        let workers = name.to_str()?.parse().ok()?;
        let has_meta = StoreMeta::read(&path).is_ok_and(|meta| meta.is_some());
        has_meta.then_some((workers, path))
    });
    let mut stores: Vec<(usize, PathBuf)> = stores.collect();
    stores.sort_unstable();
    stores
}

/// Tells whether the directory of a base has a store, and all files are as they were written.
pub(crate) fn has_store(base: &Path) -> bool {
    let mut stores = stores_in(base).into_iter();
    stores.any(|(_, dir)| is_intact(&dir))
}

/// A store that holds changes, as the record of a parent names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base<'a> {
    /// Names the changes.
    pub name: String,
    /// The output whose graph starts from it.
    pub parent: &'a Path,
}

impl<'a> Base<'a> {
    /// Finds the store that the graph of a parent starts from, if that holds changes; none if it is
    /// the store of the tables, or the graph is not kept.
    pub fn of(work_dir: &Path, parent: &'a Path) -> Option<Self> {
        let output = read_manifest(parent).ok()?.fingerprint;
        let record = find_kept::<NoRows>(work_dir, &output)?;
        let has_graph = KeptVersions::unlocked(work_dir).has_graph(&output, &record);
        let name = record.base.filter(|_| has_graph)?;
        Some(Self { name, parent })
    }

    /// Opens the store, with the partitions of all processes, for the processes and workers of
    /// `cluster`; none: as it is, with as many threads as it has partitions. If it has another
    /// number of partitions than there are workers, it is written anew. `plan.dir` is ignored.
    ///
    /// # Errors
    ///
    /// If it is not there or damaged, or is one of other tables; if it cannot be written, or
    /// another run uses the kept versions.
    pub fn open(
        &self,
        cluster: Option<&Cluster>,
        work_dir: &Path,
        plan: &StorePlan,
    ) -> Result<Store, DeltaError> {
        let dir = KeptVersions::unlocked(work_dir).base_dir(&self.name);
        let wanted = cluster.map_or(plan.workers, Cluster::num_workers);
        let all = stores_in(&dir);
        let own = all.iter().position(|(workers, _)| *workers == wanted);
        let Some((workers, found)) = all.into_iter().nth(own.unwrap_or(0)) else {
            return Err(self.problem(format!("its store {} is not there", dir.display())));
        };
        let store = self.open_in(cluster, &found, plan)?;
        if cluster.is_none() || workers == wanted {
            return Ok(store);
        }
        let versions = KeptVersions::lock(work_dir)?;
        let stored = Numbers::of(&store, &plan.graph, Overlay::default())?;
        let after = After::new(&Arc::new(stored), Overlay::default());
        let numbers = Renumbered::of(&after);
        let source = Rebuilt::new(&after, &numbers);
        let to = rebuild_plan(&plan.graph, &store, wanted, dir.join(wanted.to_string()));
        versions.write_base(&source, &self.name, &to)?;
        // A killed run leaves both.
        versions.remove(&found)?;
        self.open_in(cluster, &to.dir, plan)
    }

    fn open_in(
        &self,
        cluster: Option<&Cluster>,
        dir: &Path,
        plan: &StorePlan,
    ) -> Result<Store, DeltaError> {
        let plan = StorePlan {
            dir: dir.to_owned(),
            ..plan.clone()
        };
        let opened = open_rebuilt(cluster, &plan);
        let opened = opened.map_err(|error| self.problem(error_chain(&error)))?;
        opened.ok_or_else(|| DeltaError::Parent {
            dir: self.parent.to_owned(),
            problem: OTHER_GRAPH.to_owned(),
        })
    }

    /// Returns the error of a store that cannot be used.
    fn problem(&self, problem: String) -> DeltaError {
        DeltaError::Parent {
            dir: self.parent.to_owned(),
            problem: format!("cannot be continued: {problem}; start with a run without a parent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_much;

    #[test]
    fn a_fiftieth_is_much_unless_a_share_is_given() {
        assert!(is_much(320_000, 16_000_000, None));
        assert!(!is_much(319_999, 16_000_000, None));
        assert!(!is_much(99_999, 100_000, None));
        assert!(is_much(100_000, 0, None));
        assert!(is_much(1, 16_000_000, Some(0.0)) && !is_much(0, 10, Some(0.0)));
        assert!(is_much(3, 10, Some(0.3)) && !is_much(2, 10, Some(0.3)));
    }
}
