//! The supervision pairs of a version: which pairs there are, and which edges carry no messages.
//!
//! An edge that equals a pair is left out of the in-edges of its destination. So a change of an edge
//! is one of the edges that carry messages or of those that are left out, and a change of a pair
//! moves edges between both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use rayon::iter::{
    IntoParallelIterator, IntoParallelRefIterator, ParallelExtend, ParallelIterator,
};
use rayon::slice::ParallelSliceMut;
use schemas::{GraphPlan, Ids, LocalIdx, NodeIdx, PairsPlan, Split, SplitShares, hash_int};
use serde::{Deserialize, Serialize};
use store::{
    End, FindNodes, InEdges, MISSING, Pair, Pairs, Partition, Store, StoreError, TimeSplits,
    read_pairs, time_key,
};

use super::{EdgeChange, EdgeKey, NewEdge, NodeChange, Numbers, found_ends, row_error};
use crate::changes::{Changes, PairChanges, PairTable};
use crate::in_edges::{Edits, places, visit_range};
use crate::overlay::ByInEdges;
use crate::{DeltaError, Overlay};

/// Src and dst of a pair.
pub(crate) type PairEnds = (NodeIdx, NodeIdx);

/// The pairs that a night adds or replaces, and those that it removes.
type ChangedPairs = BTreeMap<PairEnds, Option<PairRow>>;

/// What a version knows of a pair besides its ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PairRow {
    pub(crate) split: Split,
    /// 1 for a link, 0 for none; 1 where pairs have no labels.
    pub(crate) label: f32,
    /// 1 where pairs have no weights.
    pub(crate) weight: f32,
    /// Place in the order of times; 0 where pairs have no times.
    pub(crate) time: i64,
    /// Hard negatives.
    pub(crate) negatives: Vec<NodeIdx>,
}

impl PartialEq for PairRow {
    /// Compares the bits of label and weight.
    fn eq(&self, other: &Self) -> bool {
        let bits = |of: &Self| [of.label, of.weight].map(f32::to_bits);
        let is_same =
            |of: &Self| (of.split, of.time, bits(of)) == (self.split, self.time, bits(self));
        is_same(other) && self.negatives == other.negatives
    }
}

/// The pairs after some changes, and the edges that are left out because they equal one.
#[derive(Clone, Debug)]
pub(super) struct OfPairs {
    plan: Arc<PairsPlan>,
    /// The relation whose edges are the pairs; none if these have a table of their own.
    from_edges: Option<usize>,
    /// Places of the store's pairs; made when they are first needed.
    stored: OnceLock<Arc<StoredPairs>>,
    /// Pairs that were added, replaced or removed since the store was built.
    pub(super) edits: ChangedPairs,
    /// Edges that are left out, where they differ from the store's.
    pub(super) left_out: ByInEdges<Arc<Edits>>,
    /// Edges that carry messages, after earlier nights of the version.
    messages: BTreeMap<EdgeKey, Vec<NewEdge>>,
}

/// Finds the pairs of a store by their ends, without those of walks.
#[derive(Debug)]
struct StoredPairs {
    /// The ends, the worker, and the position among the pairs of the worker.
    places: HashTable<(PairEnds, u32, u32)>,
}

/// What the changes of a night make of the edges of the relations of pairs.
#[derive(Default)]
struct MovedEdges {
    /// Changes of edges that carry messages.
    messages: BTreeMap<EdgeKey, EdgeChange>,
    /// The edges of some keys that are left out after the night.
    left_out: Vec<(EdgeKey, Vec<NewEdge>)>,
}

fn hash_of((src, dst): PairEnds) -> u64 {
    hash_int(u64::from(src.raw()) << 32 | u64::from(dst.raw()))
}

impl StoredPairs {
    fn of(store: &Store, plan: &PairsPlan) -> Self {
        let narrow =
            |at: usize| u32::try_from(at).expect("workers and their pairs are fewer than 2^32");
        let count = |(_, pairs): (usize, &Pairs)| of_tables(plan, pairs).count();
        let count = all_stored(store).map(count).sum();
        let mut places = HashTable::with_capacity(count);
        for (worker, pairs) in all_stored(store) {
            for (at, ends) in of_tables(plan, pairs) {
                let place = (ends, narrow(worker), narrow(at));
                places.insert_unique(hash_of(ends), place, |of| hash_of(of.0));
            }
        }
        Self { places }
    }

    /// Returns worker and position of a pair.
    fn find(&self, ends: PairEnds) -> Option<(usize, usize)> {
        let found = self.places.find(hash_of(ends), |of| of.0 == ends);
        found.map(|&(_, worker, at)| (worker as usize, at as usize))
    }
}

/// Returns the pairs of a worker; where they have times, those in no split too.
fn stored_of(store: &Store, worker: usize) -> Option<&Pairs> {
    let partition = store.partition(worker);
    partition.timed_pairs().or_else(|| partition.pairs())
}

/// Returns the pairs of each worker.
fn all_stored(store: &Store) -> impl Iterator<Item = (usize, &Pairs)> {
    let workers = 0..store.placement().workers();
    workers.filter_map(|worker| Some((worker, stored_of(store, worker)?)))
}

fn ends_of(pairs: &Pairs) -> impl Iterator<Item = PairEnds> {
    pairs.src.iter().copied().zip(pairs.dst.iter().copied())
}

/// Lists the pairs that tables have, with their positions. The others are those of walks, which no
/// change names.
fn of_tables<'a>(
    plan: &'a PairsPlan,
    pairs: &'a Pairs,
) -> impl Iterator<Item = (usize, PairEnds)> + 'a {
    let all = ends_of(pairs).enumerate();
    all.filter(|(at, _)| pairs.time.is_some() || plan.keeps(pairs.split[*at]))
}

impl PairRow {
    /// Returns a pair of the store.
    fn stored(pairs: &Pairs, at: usize) -> Self {
        let value = |of: &Option<Vec<f32>>| of.as_ref().map_or(1.0, |of| of[at]);
        Self {
            split: pairs.split[at],
            label: value(&pairs.label),
            weight: value(&pairs.weight),
            time: pairs.time.as_ref().map_or(0, |of| of[at]),
            negatives: pairs.negatives(at).to_vec(),
        }
    }

    fn of(pair: &Pair) -> (PairEnds, Self) {
        let row = Self {
            split: pair.split,
            label: pair.label,
            weight: pair.weight,
            time: pair.time,
            negatives: pair.negatives.to_vec(),
        };
        ((pair.src, pair.dst), row)
    }
}

/// Returns the plan of pairs that tables hold; none if there are no pairs, or all are those of walks.
pub(crate) fn tables_of_pairs(graph: &GraphPlan) -> Option<&PairsPlan> {
    let pairs = graph.pairs.as_deref();
    pairs.filter(|of| of.spec().from_edges.is_some() || of.spec().path.is_some())
}

/// Returns the relation whose edges are the pairs of a graph; none if these have a table of their
/// own.
pub(crate) fn relation_of_pairs(graph: &GraphPlan, plan: &PairsPlan) -> Option<usize> {
    let mut relations = plan.relations().iter().copied();
    let own = relations.find(|&at| !graph.relations[at].reversed);
    own.filter(|_| plan.is_of_edges())
}

impl OfPairs {
    /// Returns the pairs of a version; none if the graph has no pairs.
    pub(super) fn new(graph: &GraphPlan, parent: &Overlay) -> Option<Self> {
        let plan = graph.pairs.as_ref()?;
        Some(Self {
            from_edges: relation_of_pairs(graph, plan),
            plan: Arc::clone(plan),
            stored: OnceLock::new(),
            edits: parent.pairs.clone(),
            left_out: parent.left_out.clone(),
            messages: BTreeMap::new(),
        })
    }

    /// Returns the types of src and dst ends.
    fn types(&self) -> (usize, usize) {
        (self.plan.from(), self.plan.to())
    }

    /// Tells whether splits follow from the times of all pairs.
    fn has_times(&self) -> bool {
        self.plan.spec().time.is_some()
    }

    fn find(&self, store: &Store, ends: PairEnds) -> Option<(usize, usize)> {
        let find_all = || Arc::new(StoredPairs::of(store, &self.plan));
        let stored = self.stored.get_or_init(find_all);
        stored.find(ends)
    }

    /// Returns the split of a pair; none if there is no such pair.
    fn split(&self, store: &Store, ends: PairEnds) -> Option<Split> {
        if let Some(edited) = self.edits.get(&ends) {
            return edited.as_ref().map(|row| row.split);
        }
        let (worker, at) = self.find(store, ends)?;
        Some(stored_of(store, worker)?.split[at])
    }

    /// Returns what is known of a pair; none if there is no such pair.
    fn row(&self, store: &Store, ends: PairEnds) -> Option<PairRow> {
        self.row_at(store, ends, self.find(store, ends))
    }

    /// Does the same as `row`; `stored` are worker and position of the pair in the store, if it is
    /// there.
    fn row_at(
        &self,
        store: &Store,
        ends: PairEnds,
        stored: Option<(usize, usize)>,
    ) -> Option<PairRow> {
        if let Some(edited) = self.edits.get(&ends) {
            return edited.clone();
        }
        let (worker, at) = stored?;
        Some(PairRow::stored(stored_of(store, worker)?, at))
    }

    /// Tells whether the edges between two nodes carry no messages.
    fn leaves(&self, store: &Store, (a, b): PairEnds) -> bool {
        let splits = [(a, b), (b, a)].map(|ends| self.split(store, ends));
        let mut splits = splits.into_iter().flatten();
        splits.any(|split| self.plan.leaves(split))
    }

    /// Replaces a pair, or removes it.
    fn set(&mut self, store: &Store, ends: PairEnds, row: Option<PairRow>) {
        if row.is_some() || self.find(store, ends).is_some() {
            self.edits.insert(ends, row);
        } else {
            self.edits.remove(&ends);
        }
    }

    /// Calls `visit` with all pairs of tables.
    fn visit(&self, store: &Store, mut visit: impl FnMut(PairEnds, &PairRow)) {
        for (_, pairs) in all_stored(store) {
            for (at, ends) in of_tables(&self.plan, pairs) {
                if !self.edits.contains_key(&ends) {
                    visit(ends, &PairRow::stored(pairs, at));
                }
            }
        }
        for (&ends, row) in &self.edits {
            if let Some(row) = row {
                visit(ends, row);
            }
        }
    }

    /// Returns how all pairs of a day, each there once, differ from these.
    fn differences(&self, store: &Store, all: &[Pair]) -> ChangedPairs {
        let workers = 0..store.placement().workers();
        let num_pairs = |worker| stored_of(store, worker).map_or(0, Pairs::len);
        // By worker: whether the day has a pair.
        let is_there: Vec<Vec<AtomicBool>> = workers
            .map(|worker| (0..num_pairs(worker)).map(|_| AtomicBool::new(false)))
            .map(Iterator::collect)
            .collect();
        // The table of places is made by this thread, before all threads ask for it.
        all.first()
            .map(|pair| self.find(store, (pair.src, pair.dst)));
        let differing = |pair: &Pair| {
            let (ends, mut row) = PairRow::of(pair);
            let stored = self.find(store, ends);
            if let Some((worker, at)) = stored {
                is_there[worker][at].store(true, Ordering::Relaxed);
            }
            let known = self.row_at(store, ends, stored);
            // Splits by time follow when all times are known.
            if let (true, Some(known)) = (self.has_times(), &known) {
                row.split = known.split;
            }
            (known.as_ref() != Some(&row)).then_some((ends, Some(row)))
        };
        let changed: Vec<(PairEnds, Option<PairRow>)> =
            all.par_iter().filter_map(differing).collect();
        let mut changed: ChangedPairs = changed.into_iter().collect();
        // Most versions have few edits, and a first one has none.
        let edited = |pair: &Pair| {
            let ends = (pair.src, pair.dst);
            self.edits.contains_key(&ends).then_some(ends)
        };
        let edited_of_day: Vec<PairEnds> = all.par_iter().filter_map(edited).collect();
        let edited_of_day: BTreeSet<PairEnds> = edited_of_day.into_iter().collect();
        let gone_since = self.edits.iter().filter(|(_, row)| row.is_some());
        let gone_since = gone_since.filter(|(ends, _)| !edited_of_day.contains(ends));
        changed.extend(gone_since.map(|(&ends, _)| (ends, None)));
        for (worker, pairs) in all_stored(store) {
            let gone = of_tables(&self.plan, pairs).filter(|(at, ends)| {
                let is_found = is_there[worker][*at].load(Ordering::Relaxed);
                !is_found && !self.edits.contains_key(ends)
            });
            changed.extend(gone.map(|(_, ends)| (ends, None)));
        }
        changed
    }

    /// Checks that splits have pairs, as a full run does.
    fn check_splits(&self, store: &Store) -> Result<(), DeltaError> {
        let mut counts = store.meta().pairs.unwrap_or_default();
        for (&ends, row) in &self.edits {
            let stored = self.find(store, ends);
            let stored = stored.and_then(|(worker, at)| Some(stored_of(store, worker)?.split[at]));
            let keeps = |split: &Split| self.plan.keeps(*split);
            stored
                .filter(keeps)
                .into_iter()
                .for_each(|of| counts.remove(of));
            let new = row.as_ref().map(|row| row.split);
            new.filter(keeps).into_iter().for_each(|of| counts.add(of));
        }
        self.plan.check_counts(&counts)?;
        if !self.plan.keeps(Split::Train) {
            return Ok(());
        }
        let edited = self.edits.values().flatten();
        let mut edited = edited.map(|row| (row.split, row.weight));
        let weighs = |(split, weight): (Split, f32)| split == Split::Train && weight > 0.0;
        let mut stored = all_stored(store).flat_map(|(_, pairs)| {
            let all = ends_of(pairs).enumerate();
            let left = all.filter(|(_, ends)| !self.edits.contains_key(ends));
            let weight = |at| pairs.weight.as_ref().map_or(1.0, |of| of[at]);
            left.map(move |(at, _)| (pairs.split[at], weight(at)))
        });
        match edited.any(weighs) || stored.any(weighs) {
            true => Ok(()),
            false => Err(self.plan.no_weight().into()),
        }
    }
}

impl FindNodes for Numbers {
    fn look_up(&self, type_idx: usize, ids: &Ids, out: &mut End) {
        let found = (0..ids.len()).into_par_iter();
        let found = found.map(|at| self.find_living(type_idx, ids, at).unwrap_or(MISSING));
        out.numbers = found.collect();
        out.hashes.clear();
        ids.hashes_into(&mut out.hashes);
    }
}

impl Numbers {
    /// Returns the pairs of tables after the changes, in the order of those of a full run; none if the
    /// graph has none.
    pub(crate) fn all_pairs(&self) -> Option<Pairs> {
        let of_pairs = self.pairs.as_ref()?;
        let mut all = self.rows_of_pairs(|split| of_pairs.plan.keeps(split));
        all.par_sort_unstable_by_key(|of| {
            (of.split, of.hash, self.order(of.src), self.order(of.dst))
        });
        Some(Pairs::of(&of_pairs.plan, &all))
    }

    /// Returns the pairs of tables after the changes whose split is taken, in any order. Those in no
    /// split are known where pairs have times.
    pub(crate) fn rows_of_pairs(&self, takes: impl Fn(Split) -> bool) -> Vec<Pair> {
        let mut all = Vec::new();
        let Some(of_pairs) = &self.pairs else {
            return all;
        };
        of_pairs.visit(&self.store, |(src, dst), row| {
            if !takes(row.split) {
                return;
            }
            all.push(Pair {
                hash: of_pairs.plan.hash(self.hash(src), self.hash(dst)),
                src,
                dst,
                row: 0,
                split: row.split,
                time: row.time,
                label: row.label,
                weight: row.weight,
                negatives: row.negatives.clone().into(),
            });
        });
        all
    }

    /// Checks, after the changes of all nights, that the splits of pairs are not empty.
    ///
    /// # Errors
    ///
    /// Names the first split without pairs.
    pub(crate) fn check_splits(&self) -> Result<(), DeltaError> {
        match &self.pairs {
            Some(pairs) if pairs.edits != self.parent.pairs => pairs.check_splits(&self.store),
            _ => Ok(()),
        }
    }

    /// Returns the plan of the pairs, if the graph has any.
    pub(crate) fn plan_of_pairs(&self) -> Option<&PairsPlan> {
        self.pairs.as_ref().map(|of| &*of.plan)
    }

    fn of_pairs(&self) -> &OfPairs {
        let pairs = self.pairs.as_ref();
        pairs.expect("it is called for graphs with pairs alone")
    }

    /// Tells whether the edges between two nodes carry no messages.
    fn leaves(&self, ends: PairEnds) -> bool {
        self.of_pairs().leaves(&self.store, ends)
    }

    fn pair_split(&self, ends: PairEnds) -> Option<Split> {
        self.of_pairs().split(&self.store, ends)
    }

    /// Returns the edges of a key that are left out, in their order.
    fn left_out_edges(&self, key: EdgeKey) -> Vec<NewEdge> {
        let (relation, dst, src) = key;
        let of_dst = self.of_pairs().left_out.get(&(relation, dst));
        match of_dst.and_then(|edits| edits.get(src)) {
            Some(edges) => edges.clone(),
            None => self.stored_edges(key, |of, local| of.left_out(relation, local)),
        }
    }

    /// Returns the edges of a key that carry messages, in their order.
    fn message_edges(&self, key: EdgeKey) -> Vec<NewEdge> {
        let (relation, dst, src) = key;
        let earlier = self.of_pairs().messages.get(&key);
        let parent = self.parent.edits.get(&(relation, dst));
        match earlier.or_else(|| parent?.get(src)) {
            Some(edges) => edges.clone(),
            None => self.stored_edges(key, |of, local| Some(of.unranked(relation, local))),
        }
    }

    /// Returns the edges of a key among some in-edges of its destination in the store.
    fn stored_edges<'a>(
        &'a self,
        (_, dst, src): EdgeKey,
        list: impl Fn(&'a Partition, LocalIdx) -> Option<InEdges<'a>>,
    ) -> Vec<NewEdge> {
        if !self.is_stored(dst) {
            return Vec::new();
        }
        let (owner, local) = self.placement().owner_and_local(dst);
        let Some(all) = list(self.store.partition(owner), local) else {
            return Vec::new();
        };
        let mut edges = Vec::new();
        visit_range(&all, places(all.src, src), &mut |_, weight, feature| {
            let feature = feature.to_vec();
            edges.push(NewEdge { weight, feature });
        });
        edges
    }

    /// Applies the changes of pairs of a night. Changes of edges that are left out are taken from
    /// `edges`, and those of edges that pairs leave out or no longer do are added to them.
    ///
    /// # Errors
    ///
    /// If a change names a pair or a node that is not there, two changes name one pair, or a removed
    /// node has pairs.
    pub(super) fn apply_pairs(
        &mut self,
        changes: &Changes,
        nodes: &BTreeMap<NodeIdx, NodeChange>,
        edges: &mut BTreeMap<EdgeKey, EdgeChange>,
    ) -> Result<(), DeltaError> {
        let mut changed = self.changed_pairs(changes, (nodes, edges))?;
        if self.of_pairs().has_times() && !changed.is_empty() {
            self.split_by_time(&mut changed);
        }
        // Both directions of a pair leave out the same edges.
        let either = |&(a, b): &PairEnds| (a.min(b), a.max(b));
        let both = changed.keys().map(either);
        let was_left_out = both.map(|ends| (ends, self.leaves(ends))).collect();
        let pairs = self.pairs.as_mut().expect("the graph has pairs");
        for (ends, row) in changed {
            pairs.set(&self.store, ends, row);
        }
        let moved = self.moved_edges(&was_left_out, edges);
        edges.retain(|key, _| !self.of_pairs().plan.relations().contains(&key.0));
        self.move_edges(moved, edges);
        self.check_removed_pairs(changes, nodes)
    }

    /// Notes which edges are left out, and adds the changes of the others to `edges`.
    fn move_edges(&mut self, moved: MovedEdges, edges: &mut BTreeMap<EdgeKey, EdgeChange>) {
        let pairs = self.pairs.as_mut().expect("the graph has pairs");
        let messages = moved.messages.iter();
        let messages = messages.map(|(&key, change)| (key, change.edges.clone()));
        pairs.messages.extend(messages);
        edges.extend(moved.messages);
        let mut left_out = moved.left_out;
        left_out.sort_unstable_by_key(|of| of.0);
        for of_dst in left_out.chunk_by(|(a, _), (b, _)| (a.0, a.1) == (b.0, b.1)) {
            let (relation, dst, _) = of_dst[0].0;
            let changed = of_dst.iter().map(|(key, left)| (key.2, left));
            let known = pairs.left_out.entry((relation, dst)).or_default();
            *known = Arc::new(known.with(&changed.collect::<Vec<_>>()));
        }
    }

    /// Finds the pairs that a night changes.
    fn changed_pairs(
        &self,
        changes: &Changes,
        (nodes, edges): (
            &BTreeMap<NodeIdx, NodeChange>,
            &BTreeMap<EdgeKey, EdgeChange>,
        ),
    ) -> Result<ChangedPairs, DeltaError> {
        let mut changed = ChangedPairs::new();
        let upserted = |pair: &Pair| {
            let (ends, row) = PairRow::of(pair);
            (ends, Some(row))
        };
        match &changes.pairs {
            None => {}
            Some(PairChanges::Whole(all)) => {
                changed = self.of_pairs().differences(&self.store, all);
            }
            Some(PairChanges::OfEdges(upserts)) => {
                let relation = self.of_pairs().from_edges;
                let of_edges = edges.keys().filter(|key| Some(key.0) == relation);
                let of_edges = of_edges.map(|&(_, dst, src)| (src, dst));
                let gone = of_edges.filter(|&ends| self.pair_split(ends).is_some());
                changed.extend(gone.map(|ends| (ends, None)));
                changed.extend(self.read(upserts.as_deref())?.iter().map(upserted));
            }
            Some(PairChanges::Table(table)) => {
                self.delete_pairs(table, nodes, &mut changed)?;
                self.empty_upserts(table, &mut changed)?;
                let upserts = self.read(table.upserts.as_ref())?;
                changed.extend(upserts.iter().map(upserted));
            }
        }
        Ok(changed)
    }

    fn read(&self, upserts: Option<&PairsPlan>) -> Result<Vec<Pair>, StoreError> {
        upserts.map_or(Ok(Vec::new()), |plan| read_pairs(plan, self))
    }

    /// Gives the changed pairs their splits by time, and adds the pairs whose split changes with
    /// them: a new test pair makes the oldest one a val pair, and so on.
    fn split_by_time(&self, changed: &mut ChangedPairs) {
        let of_pairs = self.of_pairs();
        let plan = &of_pairs.plan;
        let key_of =
            |(src, dst): PairEnds, time| time_key(time, plan.hash(self.hash(src), self.hash(dst)));
        let stands = |ends: &PairEnds| !changed.contains_key(ends);
        // The pairs that have not changed, with their splits.
        let mut standing: Vec<(u128, PairEnds, Split)> = Vec::new();
        for (_, pairs) in all_stored(&self.store) {
            let times = pairs.time.as_ref();
            let times = times.expect("the store keeps the times of pairs");
            let all = (0..pairs.len()).into_par_iter();
            let all = all.map(|at| (at, (pairs.src[at], pairs.dst[at])));
            let left = all.filter(|(_, ends)| !of_pairs.edits.contains_key(ends) && stands(ends));
            standing.par_extend(
                left.map(|(at, ends)| (key_of(ends, times[at]), ends, pairs.split[at])),
            );
        }
        for (&ends, row) in of_pairs.edits.iter().filter(|(ends, _)| stands(ends)) {
            standing.extend(
                row.iter()
                    .map(|row| (key_of(ends, row.time), ends, row.split)),
            );
        }
        let rows = changed
            .iter()
            .filter_map(|(&ends, row)| Some((ends, row.as_ref()?)));
        let keys = standing.iter().map(|of| of.0);
        let keys = keys.chain(rows.map(|(ends, row)| key_of(ends, row.time)));
        let shares = plan.shares().expect("splits by time have shares");
        let splits = TimeSplits::of(shares, keys.collect());
        for (&ends, row) in changed.iter_mut() {
            row.iter_mut()
                .for_each(|row| row.split = splits.split(key_of(ends, row.time)));
        }
        for (key, ends, was_in) in standing {
            let split = splits.split(key);
            if split != was_in {
                let row = of_pairs.row(&self.store, ends);
                changed.insert(ends, row.map(|row| PairRow { split, ..row }));
            }
        }
    }

    /// Tells whether a row of the table of pairs may be in no split, so that it is not kept.
    fn may_be_in_no_split(&self, (src, dst): PairEnds) -> bool {
        if self.of_pairs().has_times() {
            return false; // all pairs are kept
        }
        let plan = &self.of_pairs().plan;
        let drawn = |shares: &SplitShares| {
            shares.draw(plan.hash(self.hash(src), self.hash(dst))) == Split::None
        };
        plan.shares().is_none_or(drawn)
    }

    /// Notes the pairs that a table of changes deletes.
    fn delete_pairs(
        &self,
        table: &PairTable,
        nodes: &BTreeMap<NodeIdx, NodeChange>,
        changed: &mut ChangedPairs,
    ) -> Result<(), DeltaError> {
        // The pairs of a node are deleted in the night that removes it.
        let was_there = |node: &NodeIdx| {
            let is_removed_now = matches!(nodes.get(node), Some(NodeChange::Removed(..)));
            !self.removed.contains(node) || is_removed_now
        };
        let mut unknown = Vec::new();
        for rows in &table.deletes {
            let all_ends = self.find_ends(self.of_pairs().types(), rows, was_there);
            for (at, found) in all_ends.into_iter().enumerate() {
                let place = || table.all.locate(rows.rows.row(at));
                let [src, dst] = found_ends(&table.all, (rows, at), found)?;
                let is_known = self.pair_split((src, dst)).is_some();
                if !is_known && self.may_be_in_no_split((src, dst)) {
                    // The hash of shares tells; a column of splits does not.
                    let is_certain = self.of_pairs().plan.shares().is_some();
                    unknown.extend((!is_certain).then(place));
                    continue;
                }
                let [from, to] = [src, dst].map(|node| self.display(node));
                let problem = match (is_known, changed.insert((src, dst), None)) {
                    (true, None) => continue,
                    (true, Some(_)) => "the pair is deleted twice".to_owned(),
                    (false, _) => format!("there is no pair of {from} and {to} to delete"),
                };
                return Err(row_error(place(), problem));
            }
        }
        if let Some((file, row)) = unknown.first() {
            tracing::warn!(
                "{} pairs to delete are in no split, or not there; the first is that of {row} of {}",
                unknown.len(),
                file.display()
            );
        }
        Ok(())
    }

    /// Notes that upserted rows replace pairs: they may be in no split.
    fn empty_upserts(
        &self,
        table: &PairTable,
        changed: &mut ChangedPairs,
    ) -> Result<(), DeltaError> {
        let mut replaced = ChangedPairs::new();
        for rows in &table.upserted {
            let is_there = |node: &NodeIdx| !self.removed.contains(node);
            let found = self.find_ends(self.of_pairs().types(), rows, is_there);
            for (at, ends) in found.into_iter().enumerate() {
                // A row that is in a split is checked when it is read.
                let [Some(src), Some(dst)] = ends else {
                    continue;
                };
                if changed.contains_key(&(src, dst)) {
                    let problem = "the pair is upserted and deleted in one table";
                    let place = table.all.locate(rows.rows.row(at));
                    return Err(row_error(place, problem.to_owned()));
                }
                if self.pair_split((src, dst)).is_some() {
                    replaced.insert((src, dst), None);
                }
            }
        }
        changed.extend(replaced);
        Ok(())
    }

    /// Finds which changed edges carry messages, and which are left out. `was_left_out` tells whether
    /// the edges of changed pairs were left out before.
    fn moved_edges(
        &self,
        was_left_out: &BTreeMap<PairEnds, bool>,
        edges: &BTreeMap<EdgeKey, EdgeChange>,
    ) -> MovedEdges {
        let (plan, graph) = (&self.of_pairs().plan, &self.store.meta().graph);
        let mut moved = MovedEdges::default();
        for (&key, change) in edges {
            if plan.relations().contains(&key.0) {
                self.move_changed((key, change), &mut moved);
            }
        }
        for (&(a, b), was_before) in was_left_out {
            let is_left_out = self.leaves((a, b));
            let relations = plan.relations().iter();
            let keys = relations.flat_map(|&relation| [(relation, a, b), (relation, b, a)]);
            let keys = keys.filter(|&(relation, dst, src)| {
                let of = &graph.relations[relation];
                (of.from, of.to) == (self.type_of(src), self.type_of(dst))
            });
            for key in keys.filter(|key| !edges.contains_key(key)) {
                if is_left_out != *was_before {
                    self.move_as_they_are(key, is_left_out, &mut moved);
                }
            }
        }
        moved
    }

    /// Divides a change of edges between those that carry messages and those that are left out.
    fn move_changed(&self, (key, change): (EdgeKey, &EdgeChange), moved: &mut MovedEdges) {
        let (_, dst, src) = key;
        let (messages, left_out) = (self.message_edges(key), self.left_out_edges(key));
        if messages.is_empty() && left_out.is_empty() && change.edges.is_empty() {
            // There is no such edge: the change is refused with the others.
            moved.messages.insert(key, change.clone());
            return;
        }
        let (new_messages, new_left_out) = match self.leaves((src, dst)) {
            true => (Vec::new(), change.edges.clone()),
            false => (change.edges.clone(), Vec::new()),
        };
        if !(messages.is_empty() && new_messages.is_empty()) {
            let of_messages = EdgeChange {
                edges: new_messages,
                row: change.row,
            };
            moved.messages.insert(key, of_messages);
        }
        if !(left_out.is_empty() && new_left_out.is_empty()) {
            moved.left_out.push((key, new_left_out));
        }
    }

    /// Moves edges that a pair leaves out from now on, or no longer does.
    fn move_as_they_are(&self, key: EdgeKey, is_left_out: bool, moved: &mut MovedEdges) {
        let moving = match is_left_out {
            true => self.message_edges(key),
            false => self.left_out_edges(key),
        };
        if moving.is_empty() {
            return;
        }
        let (messages, left_out) = match is_left_out {
            true => (Vec::new(), moving),
            false => (moving, Vec::new()),
        };
        // No row is at fault: edges that are there can be taken.
        let change = EdgeChange {
            edges: messages,
            row: (0, 0),
        };
        moved.messages.insert(key, change);
        moved.left_out.push((key, left_out));
    }

    /// Checks that no pair has a removed node.
    fn check_removed_pairs(
        &self,
        changes: &Changes,
        nodes: &BTreeMap<NodeIdx, NodeChange>,
    ) -> Result<(), DeltaError> {
        let removed = |node: &NodeIdx| match nodes.get(node) {
            Some(&NodeChange::Removed(type_idx, row)) => Some((*node, type_idx, row)),
            _ => None,
        };
        if !nodes.keys().any(|node| removed(node).is_some()) {
            return Ok(());
        }
        let mut first = None;
        self.of_pairs().visit(&self.store, |(src, dst), row| {
            let all = [src, dst].into_iter().chain(row.negatives.iter().copied());
            let found = all.filter_map(|node| removed(&node)).min();
            let found = found.map(|of| (of, (src, dst)));
            first = [first, found].into_iter().flatten().min();
        });
        let Some(((node, type_idx, row), (src, dst))) = first else {
            return Ok(());
        };
        let [id, from, to] = [node, src, dst].map(|of| self.display(of));
        let what = match self.of_pairs().from_edges {
            Some(_) => "its edges",
            None => "the pair",
        };
        let problem = match [src, dst].contains(&node) {
            true => format!(
                "node {id} is deleted, but the pair of {from} and {to} has it; delete {what} in the \
                 same night"
            ),
            false => format!(
                "node {id} is deleted, but it is a hard negative of the pair of {from} and {to}; \
                 delete the pair, or upsert it without the node, in the same night"
            ),
        };
        Err(changes.node_error(type_idx, row, problem))
    }

    /// Returns the in-edges of a node that the store leaves out because they equal a pair, by source;
    /// none if it keeps no such edges.
    pub(crate) fn stored_left_out(&self, (relation, dst): (usize, NodeIdx)) -> Option<InEdges<'_>> {
        let to = self.store.meta().graph.relations[relation].to;
        let is_stored = self.pairs.is_some() && self.is_stored(dst) && self.type_of(dst) == to;
        let (owner, local) = is_stored.then(|| self.placement().owner_and_local(dst))?;
        self.store.partition(owner).left_out(relation, local)
    }
}
