//! Numbers nodes and edges of changes: new nodes get numbers after those of the store.

mod pairs;
mod run;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use hashbrown::HashSet;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use schemas::{
    Dangling, EdgeRows, EdgesPlan, Features, GraphPlan, Ids, Labels, NodeIdx, RelationPlan,
    RowPlace, Split,
};
use serde::{Deserialize, Serialize};
use store::{Partition, Placement, Store};

use crate::DeltaError;
use crate::Overlay;
use crate::changes::{Changes, EdgeChanges, NodeChanges};
use crate::in_edges::has_bits;
use pairs::OfPairs;

pub(crate) use pairs::{PairEnds, PairRow, relation_of_pairs, tables_of_pairs};
pub(crate) use run::Run;
pub(crate) use targets::TargetRow;

/// The nodes of a store, and those that changes have added or removed since.
#[derive(Clone, Debug)]
pub struct Numbers {
    store: Store,
    /// By type, the nodes of the store if their ids are integers without gaps.
    runs: Vec<Option<Run>>,
    /// The version that is changed.
    parent: Arc<Overlay>,
    /// Features of nodes that were added or replaced since the store was built.
    inputs: BTreeMap<NodeIdx, Features>,
    /// Label and split of such nodes, where they are read.
    targets: BTreeMap<NodeIdx, (Labels, Split)>,
    /// Nodes of the parent whose label or split has changed.
    relabelled: BTreeSet<NodeIdx>,
    /// Added nodes, by number minus the number of nodes of the store.
    added: Vec<Added>,
    /// Numbers of added nodes, by type and id.
    by_id: BTreeMap<(usize, Vec<u8>), NodeIdx>,
    removed: BTreeSet<NodeIdx>,
    /// By relation, the relation of its reverse edges.
    reverses: Vec<Option<usize>>,
    /// Supervision pairs, where the task is one of links.
    pairs: Option<OfPairs>,
}

#[derive(Clone, Debug)]
struct Added {
    type_idx: usize,
    /// One id.
    id: Ids,
    /// Of the id.
    hash: u64,
    /// Place of the id among those of all nodes, as [`Numbers::order`] returns it.
    order: u64,
}

/// The changes of one night, with nodes as numbers.
#[derive(Debug)]
pub struct Night {
    /// Ascending by node.
    pub(crate) nodes: Vec<(NodeIdx, NodeChange)>,
    /// Ascending by key, each key once; the edges between two nodes are replaced by these.
    pub(crate) edges: Vec<(EdgeKey, EdgeChange)>,
    changes: Arc<Changes>,
}

/// Relation, destination and source of edges.
pub(crate) type EdgeKey = (usize, NodeIdx, NodeIdx);

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeChange {
    /// It is new, or its features have other bits.
    Input,
    /// Its features stay.
    Same,
    /// It is removed; the position of its type, and its row in the table of changes.
    Removed(usize, u64),
}

/// The new edges between two nodes, in the order of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EdgeChange {
    pub(crate) edges: Vec<NewEdge>,
    /// Row of the table of changes, and its position in [`Changes::edges`].
    pub(crate) row: (usize, u64),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NewEdge {
    /// 1 where the input has no weights.
    pub(crate) weight: f32,
    pub(crate) feature: Vec<f32>,
}

impl Numbers {
    /// Starts with the nodes of a version: those of a store, which was built from the tables of
    /// `graph`, and those of an overlay.
    ///
    /// # Errors
    ///
    /// If changes cannot be applied to such a graph or store.
    pub fn of(store: &Store, graph: &GraphPlan, parent: Overlay) -> Result<Self, DeltaError> {
        check(store, graph)?;
        let reverse = |of: &RelationPlan| {
            let mut relations = graph.relations.iter();
            let is_reverse = |other: &RelationPlan| {
                other.reversed && !of.reversed && Arc::ptr_eq(&other.edges, &of.edges)
            };
            relations.position(is_reverse)
        };
        let types = 0..store.placement().num_types();
        let mut numbers = Self {
            store: store.clone(),
            runs: types.map(|type_idx| Run::of(store, type_idx)).collect(),
            inputs: parent.inputs.clone(),
            targets: parent.targets.clone(),
            relabelled: BTreeSet::new(),
            added: Vec::new(),
            by_id: BTreeMap::new(),
            removed: parent.removed.clone(),
            reverses: graph.relations.iter().map(reverse).collect(),
            pairs: OfPairs::new(graph, &parent),
            parent: Arc::new(parent),
        };
        for (type_idx, id) in &Arc::clone(&numbers.parent).added {
            numbers.add(*type_idx, id, 0);
        }
        numbers.sort_added();
        Ok(numbers)
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the version that is changed.
    pub(crate) fn parent(&self) -> &Overlay {
        &self.parent
    }

    /// Returns the nodes after the changes; in-edges are those of the parent.
    pub(crate) fn overlay(&self) -> Overlay {
        let added = self
            .added
            .iter()
            .map(|added| (added.type_idx, added.id.clone()));
        let pairs = self.pairs.as_ref();
        Overlay {
            pairs: pairs.map(|of| of.edits.clone()).unwrap_or_default(),
            left_out: pairs.map(|of| of.left_out.clone()).unwrap_or_default(),
            added: added.collect(),
            removed: self.removed.clone(),
            inputs: self.inputs.clone(),
            targets: self.targets.clone(),
            ..self.parent.as_ref().clone()
        }
    }

    /// Tells whether nodes were added to the parent or removed from it.
    pub(crate) fn moves_ids(&self) -> bool {
        self.added.len() > self.parent.added.len() || self.removed != self.parent.removed
    }

    /// Returns a node's in-degree in the parent.
    pub(crate) fn in_degree(&self, relation: usize, node: NodeIdx) -> u64 {
        let changed = self.parent.kept.get(&(relation, node));
        changed.map_or_else(
            || self.stored_in_degree(relation, node),
            |kept| kept.in_degree,
        )
    }

    /// Returns a node's in-degree in the store.
    pub(crate) fn stored_in_degree(&self, relation: usize, node: NodeIdx) -> u64 {
        if !self.is_stored(node) {
            return 0;
        }
        let (owner, local) = self.placement().owner_and_local(node);
        u64::from(self.store.partition(owner).in_degree(relation, local))
    }

    pub(crate) fn placement(&self) -> &Placement {
        self.store.placement()
    }

    /// Returns the number of nodes of the store.
    pub(crate) fn num_stored(&self) -> usize {
        self.placement().num_nodes()
    }

    /// Returns the number of nodes after the changes.
    pub fn num_nodes(&self) -> usize {
        self.num_stored() + self.added.len() - self.removed.len()
    }

    /// Returns the number of nodes of each type after the changes.
    pub(crate) fn num_nodes_of_types(&self) -> Vec<usize> {
        let types = 0..self.store.meta().graph.types.len();
        let ranges = types.map(|of| self.stored_of_type(of));
        let mut num: Vec<usize> = ranges
            .map(|range| range.end.index() - range.start.index())
            .collect();
        self.added.iter().for_each(|added| num[added.type_idx] += 1);
        self.removed
            .iter()
            .for_each(|&node| num[self.type_of(node)] -= 1);
        num
    }

    /// Returns an added node; none if the store has it.
    fn added(&self, node: NodeIdx) -> Option<&Added> {
        let at = node.index().checked_sub(self.num_stored())?;
        Some(&self.added[at])
    }

    /// Returns the number that the next new node gets.
    pub(crate) fn end(&self) -> usize {
        self.num_stored() + self.added.len()
    }

    /// Returns the numbers of the store's nodes of a type.
    pub(crate) fn stored_of_type(&self, type_idx: usize) -> Range<NodeIdx> {
        self.placement().type_range(type_idx)
    }

    /// Tells whether the store has the node.
    pub(crate) fn is_stored(&self, node: NodeIdx) -> bool {
        node.index() < self.num_stored()
    }

    /// Returns the worker of a node.
    pub(crate) fn owner(&self, node: NodeIdx) -> usize {
        match node.index().checked_sub(self.num_stored()) {
            None => self.placement().owner(node),
            Some(at) => at % self.placement().workers(),
        }
    }

    /// Returns the position of a node among those of its worker; added nodes come last.
    pub(crate) fn slot(&self, node: NodeIdx) -> u32 {
        let Some(at) = node.index().checked_sub(self.num_stored()) else {
            return self.placement().local(node).raw();
        };
        let workers = self.placement().workers();
        let slot = self.placement().num_local(at % workers) + at / workers;
        u32::try_from(slot).expect("there are fewer nodes than numbers")
    }

    /// Returns the type of a node.
    pub fn type_of(&self, node: NodeIdx) -> usize {
        let added = self.added(node).map(|added| added.type_idx);
        added.unwrap_or_else(|| self.placement().type_of(node))
    }

    /// Returns a node's id as people write it.
    pub fn display(&self, node: NodeIdx) -> String {
        let (ids, row) = self.id(node);
        ids.display(row)
    }

    /// Returns ids and the row in them that holds a node's.
    pub(crate) fn id(&self, node: NodeIdx) -> (&Ids, usize) {
        match self.added(node) {
            Some(added) => (&added.id, 0),
            None => self.stored_id(node),
        }
    }

    fn stored_id(&self, node: NodeIdx) -> (&Ids, usize) {
        let (owner, local) = self.placement().owner_and_local(node);
        self.store.partition(owner).id(local)
    }

    /// Returns the hash of a node's id.
    pub(crate) fn hash(&self, node: NodeIdx) -> u64 {
        match self.added(node) {
            Some(added) => added.hash,
            None => match &self.runs[self.placement().type_of(node)] {
                Some(run) => run.hash(node),
                None => {
                    let (ids, row) = self.stored_id(node);
                    ids.hash(row)
                }
            },
        }
    }

    /// Returns the nodes of a type in the store if their ids are integers without gaps.
    pub(crate) fn run(&self, type_idx: usize) -> Option<&Run> {
        self.runs[type_idx].as_ref()
    }

    /// Returns a key by which nodes of one type compare as their ids do.
    pub(crate) fn order(&self, node: NodeIdx) -> u64 {
        let added = self.added(node).map(|added| added.order);
        added.unwrap_or_else(|| (u64::from(node.raw()) + 1) << 32)
    }

    /// Tells whether a node is removed.
    pub fn is_removed(&self, node: NodeIdx) -> bool {
        self.removed.contains(&node)
    }

    /// Applies the changes of the next night; the edges are only numbered.
    ///
    /// # Errors
    ///
    /// If a change names a node that is not there, or two changes name one node or edge: names file
    /// and row. Then these numbers must not be used any more.
    pub fn apply(&mut self, mut changes: Changes) -> Result<Night, DeltaError> {
        let mut nodes = BTreeMap::new();
        for of_type in &changes.nodes {
            self.apply_nodes(of_type, &mut nodes)?;
        }
        self.sort_added();
        let mut edges = Vec::new();
        for (table, of_table) in changes.edges.iter().enumerate() {
            self.apply_edges(table, of_table, (&nodes, &mut edges))?;
        }
        let mut edges = by_key(edges);
        if self.pairs.is_some() {
            let mut of_keys = edges.into_iter().collect();
            self.apply_pairs(&changes, &nodes, &mut of_keys)?;
            edges = of_keys.into_iter().collect();
        }
        // They may be all pairs of a day, which no error names later.
        changes.pairs = None;
        Ok(Night {
            nodes: nodes.into_iter().collect(),
            edges,
            changes: Arc::new(changes),
        })
    }

    /// Finds a node, removed or not.
    fn find(&self, type_idx: usize, ids: &Ids, row: usize) -> Option<NodeIdx> {
        let stored = match self.run(type_idx) {
            Some(run) => run.find(ids, row),
            None => self.search(type_idx, ids, row),
        };
        stored.or_else(|| self.find_added(type_idx, ids, row))
    }

    /// Searches the ids of the store's nodes.
    fn search(&self, type_idx: usize, ids: &Ids, row: usize) -> Option<NodeIdx> {
        let range = self.placement().type_range(type_idx);
        let (mut low, mut high) = (range.start.raw(), range.end.raw());
        // Integer ids with few gaps are near the place that the first guess gives.
        let mut guess = self.guess(type_idx, ids, row);
        while low < high {
            let middle = guess.take().filter(|at| (low..high).contains(at));
            let middle = middle.unwrap_or(low + (high - low) / 2);
            let node = NodeIdx::from_raw(middle);
            let (stored, at) = self.stored_id(node);
            match stored.cmp(at, ids, row) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(node),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Finds a node that the store does not have, removed or not.
    pub(crate) fn find_added(&self, type_idx: usize, ids: &Ids, row: usize) -> Option<NodeIdx> {
        match self.by_id.is_empty() {
            true => None,
            false => self.by_id.get(&(type_idx, id_key(ids, row))).copied(),
        }
    }

    /// Guesses the number of an integer id: as if ids had no gaps.
    fn guess(&self, type_idx: usize, ids: &Ids, row: usize) -> Option<u32> {
        let range = self.placement().type_range(type_idx);
        let (first, at) = (range.start < range.end).then(|| self.stored_id(range.start))?;
        let from = first.as_int(at)?;
        let step = ids.as_int(row)?.checked_sub(from)?;
        range.start.raw().checked_add(u32::try_from(step).ok()?)
    }

    pub(crate) fn find_living(&self, type_idx: usize, ids: &Ids, row: usize) -> Option<NodeIdx> {
        let found = self.find(type_idx, ids, row);
        found.filter(|node| !self.removed.contains(node))
    }

    fn apply_nodes(
        &mut self,
        changes: &NodeChanges,
        nodes: &mut BTreeMap<NodeIdx, NodeChange>,
    ) -> Result<(), DeltaError> {
        let type_idx = changes.type_idx;
        let problem = |row: u64, problem: String| row_error(changes.plan.locate(row), problem);
        let twice = |row: u64, ids: &Ids, at: usize| {
            problem(row, format!("node {} is changed twice", ids.display(at)))
        };
        let deletes = &changes.deletes;
        for (at, &row) in deletes.rows.iter().enumerate() {
            let Some(node) = self.find_living(type_idx, &deletes.ids, at) else {
                let id = deletes.ids.display(at);
                return Err(problem(row, format!("no node has the id {id} to delete")));
            };
            if nodes
                .insert(node, NodeChange::Removed(type_idx, row))
                .is_some()
            {
                return Err(twice(row, &deletes.ids, at));
            }
        }
        let upserts = &changes.upserts;
        for (at, &row) in upserts.rows.iter().enumerate() {
            let found = self.find(type_idx, &upserts.ids, at);
            let node = found.unwrap_or_else(|| self.add(type_idx, &upserts.ids, at));
            let mut features = Features::empty(changes.features.meta());
            let place = u32::try_from(at).expect("rows are fewer than nodes");
            features.push_from(&changes.features, place);
            let change = match self.has_features(node, (&features, 0)) {
                true => NodeChange::Same,
                false => NodeChange::Input,
            };
            if nodes.insert(node, change).is_some() {
                return Err(twice(row, &upserts.ids, at));
            }
            self.set_target(node, changes, at);
            self.removed.remove(&node);
            self.inputs.insert(node, features);
        }
        for (&node, change) in nodes.iter() {
            if matches!(change, NodeChange::Removed(..)) {
                self.removed.insert(node);
                self.inputs.remove(&node);
                self.targets.remove(&node);
                self.relabelled.remove(&node);
            }
        }
        Ok(())
    }

    /// Tells whether the parent has the node, and its features there have the bits of those in row
    /// `at`.
    pub(crate) fn has_features(&self, node: NodeIdx, (new, at): (&Features, usize)) -> bool {
        let known = self.parent.inputs.get(&node);
        let is_there = known.is_some() || self.is_stored(node);
        if self.parent.removed.contains(&node) || !is_there {
            return false;
        }
        let partition = || {
            let (owner, local) = self.placement().owner_and_local(node);
            (self.store.partition(owner), local)
        };
        if let Features::Dense { dim, values: rows } = new {
            let own = match known {
                Some(Features::Dense { values, .. }) => values,
                _ => {
                    let (partition, local) = partition();
                    partition.dense(local)
                }
            };
            return has_bits(own, &rows[at * dim..(at + 1) * dim]);
        }
        let (mut own, mut row) = (Features::empty(new.meta()), Features::empty(new.meta()));
        row.push_from(new, u32::try_from(at).expect("rows are fewer than nodes"));
        match known {
            Some(features) => own.extend(features),
            None => {
                let (partition, local) = partition();
                partition.features_into(local, &mut own);
            }
        }
        match (&own, &row) {
            (
                Features::Sparse {
                    index: own_index,
                    value: own,
                    ..
                },
                Features::Sparse { index, value, .. },
            ) => own_index == index && has_bits(own, value),
            _ => true,
        }
    }

    fn add(&mut self, type_idx: usize, ids: &Ids, row: usize) -> NodeIdx {
        let node = NodeIdx::from_index(self.num_stored() + self.added.len());
        let place = u32::try_from(row).expect("rows are fewer than nodes");
        self.added.push(Added {
            type_idx,
            id: ids.gather(&[place]),
            hash: ids.hash(row),
            order: 0,
        });
        self.by_id.insert((type_idx, id_key(ids, row)), node);
        node
    }

    /// Gives added nodes their places among all nodes.
    fn sort_added(&mut self) {
        let mut sorted: Vec<usize> = (0..self.added.len()).collect();
        sorted.sort_by(|&a, &b| {
            let (a, b) = (&self.added[a], &self.added[b]);
            let of_type = a.type_idx.cmp(&b.type_idx);
            of_type.then_with(|| a.id.cmp(0, &b.id, 0))
        });
        for (place, at) in (1u64..).zip(sorted) {
            let added = &self.added[at];
            let range = self.placement().type_range(added.type_idx);
            let (mut low, mut high) = (range.start.raw(), range.end.raw());
            while low < high {
                let middle = low + (high - low) / 2;
                let (stored, row) = self.stored_id(NodeIdx::from_raw(middle));
                match stored.cmp(row, &added.id, 0) {
                    std::cmp::Ordering::Less => low = middle + 1,
                    _ => high = middle,
                }
            }
            // The node stands before stored node `low`, whose key is `(low + 1) << 32`.
            self.added[at].order = (u64::from(low) << 32) + place;
        }
    }

    /// Finds source and destination of edges or pairs, whose types are given; none if no node that
    /// `is_there` has the id.
    ///
    /// The search among the ids waits for memory, so all threads do it.
    fn find_ends(
        &self,
        (from, to): (usize, usize),
        rows: &EdgeRows,
        is_there: impl Fn(&NodeIdx) -> bool + Sync,
    ) -> Vec<[Option<NodeIdx>; 2]> {
        let find = |type_idx, ids, at| self.find(type_idx, ids, at).filter(&is_there);
        let found = (0..rows.src.len()).into_par_iter();
        let found = found.map(|at| [find(from, &rows.src, at), find(to, &rows.dst, at)]);
        found.collect()
    }

    /// Appends the changes of a table of edges. A new edge is a change of its own: [`by_key`] joins
    /// parallel ones.
    fn apply_edges(
        &self,
        table: usize,
        changes: &EdgeChanges,
        (nodes, edges): (
            &BTreeMap<NodeIdx, NodeChange>,
            &mut Vec<(EdgeKey, EdgeChange)>,
        ),
    ) -> Result<(), DeltaError> {
        let base = (changes.relation, self.reverses[changes.relation]);
        let own = &self.store.meta().graph.relations[changes.relation];
        let types = (own.from, own.to);
        let problem = |row: u64, problem: String| row_error(changes.plan.locate(row), problem);
        let is_undirected = changes.plan.undirected();
        // The edges of a node are deleted in the night that removes it.
        let is_removed_now =
            |node: &NodeIdx| matches!(nodes.get(node), Some(NodeChange::Removed(..)));
        let keys = |[src, dst]: [NodeIdx; 2]| -> Vec<EdgeKey> {
            let mut keys = vec![(base.0, dst, src)];
            keys.extend(base.1.map(|reverse| (reverse, src, dst)));
            keys.extend((is_undirected).then_some((base.0, src, dst)));
            keys
        };
        let mut deleted = HashSet::new();
        for rows in &changes.deletes {
            let was_there = |node: &NodeIdx| !self.removed.contains(node) || is_removed_now(node);
            let all_ends = self.find_ends(types, rows, was_there);
            for (at, found) in all_ends.into_iter().enumerate() {
                let row = rows.rows.row(at);
                let of_row = found_ends(&changes.plan, (rows, at), found)?;
                for (nth, key) in keys(of_row).into_iter().enumerate() {
                    let is_new = deleted.insert(key);
                    // Both directions of an undirected self-loop have one key.
                    let is_loop = nth > 0 && of_row[0] == of_row[1];
                    if !(is_new || is_loop) {
                        return Err(problem(row, "the edge is deleted twice".to_owned()));
                    }
                    let none = EdgeChange {
                        edges: Vec::new(),
                        row: (table, row),
                    };
                    if is_new {
                        edges.push((key, none));
                    }
                }
            }
        }
        for rows in &changes.upserts {
            let dim = changes_dim(rows);
            let is_there = |node: &NodeIdx| !self.removed.contains(node);
            let all_ends = self.find_ends(types, rows, is_there);
            for (at, found) in all_ends.into_iter().enumerate() {
                let row = rows.rows.row(at);
                for key in keys(found_ends(&changes.plan, (rows, at), found)?) {
                    if deleted.contains(&key) {
                        let what = "the edge is upserted and deleted in one table";
                        return Err(problem(row, what.to_owned()));
                    }
                    let feature = rows.feature.as_ref();
                    let feature = feature.map_or(&[][..], |of| &of[at * dim..(at + 1) * dim]);
                    let new = NewEdge {
                        weight: rows.weight.as_ref().map_or(1.0, |of| of[at]),
                        feature: feature.to_vec(),
                    };
                    let change = EdgeChange {
                        edges: vec![new],
                        row: (table, row),
                    };
                    edges.push((key, change));
                }
            }
        }
        Ok(())
    }
}

/// Sorts changes of edges by key, and joins those of one key in their order.
fn by_key(mut changes: Vec<(EdgeKey, EdgeChange)>) -> Vec<(EdgeKey, EdgeChange)> {
    changes.par_sort_by_key(|of| of.0);
    changes.dedup_by(|(key, change), (of_key, joined)| {
        let is_same = key == of_key;
        if is_same {
            joined.edges.append(&mut change.edges);
            joined.row = change.row;
        }
        is_same
    });
    changes
}

/// Checks that changes can be applied to a graph.
///
/// # Errors
///
/// Says which of its tables prevents it.
pub fn check_graph(graph: &GraphPlan) -> Result<(), DeltaError> {
    let drops = |of: &RelationPlan| of.edges.dangling() == Dangling::Drop;
    let problem = match () {
        () if graph.in_graph.is_some() => "graphs are the targets",
        () if graph.relations.iter().any(drops) => {
            "with `dangling = \"drop\"`, a new node may have edges that were left out before"
        }
        () => return Ok(()),
    };
    Err(DeltaError::Unsupported(problem.to_owned()))
}

/// Checks that changes can be applied to a graph and its store; reads the times of pairs.
fn check(store: &Store, graph: &GraphPlan) -> Result<(), DeltaError> {
    check_graph(graph)?;
    let meta = store.meta();
    let pairs = graph.pairs.as_ref();
    let has_times = pairs.is_some_and(|of| of.spec().time.is_some());
    let problem = match () {
        () if meta.samples != 1 => "the store has several samples",
        () if !meta.redraw => "the store does not hold all in-edges",
        () if graph.pairs.is_some() && !meta.keeps_left_out => {
            "the store does not hold the edges that pairs leave out"
        }
        () if has_times && !meta.keeps_times => "the store does not hold the times of all pairs",
        () if !store.is_whole() => "the store does not hold the nodes of other processes",
        () => {
            let mut partitions = store.partitions().iter();
            return Ok(partitions.try_for_each(Partition::read_timed_pairs)?);
        }
    };
    Err(DeltaError::Unsupported(problem.to_owned()))
}

/// Returns source and destination of an edge or a pair of a table; an error if one was not found.
fn found_ends(
    plan: &EdgesPlan,
    (rows, at): (&EdgeRows, usize),
    [src, dst]: [Option<NodeIdx>; 2],
) -> Result<[NodeIdx; 2], DeltaError> {
    let missing = |column: &str, ids: &Ids| no_node(plan, column, (ids, rows), at);
    let names = plan.spec();
    let src = src.ok_or_else(|| missing(&names.src, &rows.src))?;
    let dst = dst.ok_or_else(|| missing(&names.dst, &rows.dst))?;
    Ok([src, dst])
}

/// Returns the error of an end of an edge in `column`, whose id no node has.
pub(crate) fn no_node(
    plan: &EdgesPlan,
    column: &str,
    (ids, rows): (&Ids, &EdgeRows),
    at: usize,
) -> DeltaError {
    let id = ids.display(at);
    let problem = format!("column `{column}`: no node has the id {id}");
    row_error(plan.locate(rows.rows.row(at)), problem)
}

/// Number of features of an edge.
fn changes_dim(rows: &EdgeRows) -> usize {
    let values = rows.feature.as_ref().map_or(0, Vec::len);
    values / rows.src.len().max(1)
}

/// Bytes of an id, for lookups among ids of one type.
pub(crate) fn id_key(ids: &Ids, row: usize) -> Vec<u8> {
    match ids.key_bytes(row) {
        Some(text) => text.to_vec(),
        None => ids.display(row).into_bytes(),
    }
}

pub(crate) fn row_error((file, row): (PathBuf, RowPlace), problem: String) -> DeltaError {
    DeltaError::Row { file, row, problem }
}

impl Night {
    /// Tells whether no node and no edge has changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.edges.is_empty()
    }

    /// Returns the error of the row that changes some edges.
    pub(crate) fn edge_error(&self, change: &EdgeChange, problem: String) -> DeltaError {
        let (table, row) = change.row;
        row_error(self.changes.edges[table].plan.locate(row), problem)
    }

    /// Returns the error of the row that removes a node.
    pub(crate) fn node_error(&self, type_idx: usize, row: u64, problem: String) -> DeltaError {
        self.changes.node_error(type_idx, row, problem)
    }
}
