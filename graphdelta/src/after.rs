//! The graph after changes, of a store and an overlay.

use std::sync::Arc;

use schemas::{Features, Ids, Labels, NodeIdx, Split};
use store::{InEdges, Pairs, Store, exact_sum};

use crate::in_edges::{Draws, KeptEdges};
use crate::numbers::Numbers;
use crate::walked::Walked;
use crate::{DeltaError, Overlay};

/// Nodes and in-edges of a version. Nodes keep their numbers from version to version, until one
/// writes a store.
#[derive(Clone, Debug)]
pub struct After {
    numbers: Arc<Numbers>,
    overlay: Overlay,
    /// By number of a node: whether first in-edges of it are in [`Overlay::kept`]. Those of most
    /// nodes are not, and need no search there.
    is_changed: Vec<bool>,
}

impl After {
    /// Returns the graph that [`reach`](crate::reach) leaves: its numbers and its overlay.
    pub fn new(numbers: &Arc<Numbers>, overlay: Overlay) -> Self {
        let end = numbers.num_stored() + overlay.added.len();
        let mut is_changed = vec![false; end];
        for (_, node) in overlay.kept.keys() {
            is_changed[node.index()] = true;
        }
        Self {
            numbers: Arc::clone(numbers),
            overlay,
            is_changed,
        }
    }

    /// Returns the store that the overlay changes.
    pub fn store(&self) -> &Store {
        self.numbers.store()
    }

    /// Returns the number that the next new node gets: numbers of nodes are below it.
    pub fn end(&self) -> usize {
        self.is_changed.len()
    }

    /// Lists the nodes type by type, in the order of their ids, without removed ones.
    pub fn nodes(&self) -> Vec<NodeIdx> {
        let all = (0..self.end()).map(NodeIdx::from_index);
        let mut nodes: Vec<NodeIdx> = all.filter(|&node| !self.is_removed(node)).collect();
        self.sort(&mut nodes);
        nodes
    }

    /// Tells whether a node is removed.
    pub fn is_removed(&self, node: NodeIdx) -> bool {
        self.overlay.removed.contains(&node)
    }

    /// Returns the type of a node.
    pub fn type_of(&self, node: NodeIdx) -> usize {
        self.numbers.type_of(node)
    }

    /// Returns a node's id as people write it.
    pub fn display(&self, node: NodeIdx) -> String {
        self.numbers.display(node)
    }

    /// Sorts nodes by their types, and those of one type by their ids.
    pub fn sort(&self, nodes: &mut [NodeIdx]) {
        nodes.sort_unstable_by_key(|&node| self.numbers.order(node));
    }

    /// Returns the ids of some nodes of a type, removed or not.
    pub fn ids(&self, type_idx: usize, nodes: &[NodeIdx]) -> Ids {
        let mut ids = Ids::new(self.store().meta().graph.types[type_idx].id_type);
        for &node in nodes {
            let (of, row) = self.numbers.id(node);
            ids.push_from(of, row);
        }
        ids
    }

    /// Lists the nodes that the parent has removed, added again or not.
    pub fn removed_before(&self) -> impl Iterator<Item = NodeIdx> {
        self.numbers.parent().removed()
    }

    /// Lists the nodes of the parent that are not there any more.
    pub fn removed_now(&self) -> Vec<NodeIdx> {
        let parent = self.numbers.parent();
        let end = self.numbers.num_stored() + parent.added.len();
        let of_parent = |node: &NodeIdx| node.index() < end && !parent.removed.contains(node);
        self.overlay.removed().filter(of_parent).collect()
    }

    /// Returns the supervision pairs, in the order of those of a full run; none if the graph has none.
    /// Walks are walked anew.
    ///
    /// # Errors
    ///
    /// If there are walks, and none gets to another node.
    pub fn pairs(&self) -> Result<Option<Pairs>, DeltaError> {
        let plan = self.numbers.plan_of_pairs();
        let of_tables = self.numbers.all_pairs();
        let (Some(plan), Some(of_tables)) = (plan, of_tables) else {
            return Ok(None);
        };
        let Some(walks) = plan.walks() else {
            return Ok(Some(of_tables));
        };
        let visits = Walked::new(&self.numbers, &self.overlay, plan).visits(walks);
        match visits.is_empty() {
            true => Err(plan.no_visits().into()),
            false => Ok(Some(of_tables.with_walks(&visits))),
        }
    }

    /// Returns what changes have made of the store.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Returns the number of a node's in-edges of a relation.
    pub fn in_degree(&self, relation: usize, node: NodeIdx) -> u64 {
        let changed = self.changed(relation, node);
        let stored = || self.numbers.stored_in_degree(relation, node);
        changed.map_or_else(stored, |kept| kept.in_degree)
    }

    /// Returns the number of a node's self-loops in a relation.
    pub fn self_loops(&self, relation: usize, node: NodeIdx) -> u64 {
        if let Some(kept) = self.changed(relation, node) {
            return kept.self_loops;
        }
        if !self.numbers.is_stored(node) {
            return 0;
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        let loops = self.store().partition(owner).self_loops(relation, local);
        loops.map_or(0, u64::from)
    }

    /// Returns the first in-edges of a relation of a node, in rank order: at most `limit`.
    pub fn in_edges(&self, relation: usize, node: NodeIdx, limit: usize) -> InEdges<'_> {
        if let Some(kept) = self.changed(relation, node) {
            return kept.first(limit);
        }
        if !self.numbers.is_stored(node) {
            return InEdges {
                src: &[],
                weight: None,
                feature: None,
            };
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        let partition = self.store().partition(owner);
        partition.in_edges(relation, 0, local, limit)
    }

    /// Returns the sum of the weights of a node's in-edges of a relation, and that of its
    /// self-loops. It reads all in-edges of nodes whose in-edges were edited since the store was
    /// written.
    pub fn weights(&self, relation: usize, node: NodeIdx) -> [f32; 2] {
        if let Some(edits) = self.overlay.edits.get(&(relation, node)) {
            let (mut all, mut loops) = (Vec::new(), Vec::new());
            let draws = Draws::new(&self.numbers, relation, 0);
            draws.visit_edited(node, Some(edits), |src, weight, _| {
                all.push(weight);
                loops.extend((src == node).then_some(weight));
            });
            return [exact_sum(&all), exact_sum(&loops)];
        }
        if !self.numbers.is_stored(node) {
            return [0.0; 2];
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        let partition = self.store().partition(owner);
        let of_node = [
            partition.in_weight(relation, local),
            partition.self_weight(relation, local),
        ];
        of_node.map(Option::unwrap_or_default)
    }

    /// Lists the relations and nodes whose in-edges were edited since the store was written.
    pub fn edited(&self) -> impl Iterator<Item = (usize, NodeIdx)> {
        self.overlay.edits.keys().copied()
    }

    /// Lists the relations and nodes whose in-edges were edited since the first run.
    pub fn ever_edited(&self) -> impl Iterator<Item = (usize, NodeIdx)> {
        let before = self.overlay.edited_before.iter().copied();
        self.edited().chain(before)
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Returns ids that hold that of a node, and its row there.
    pub fn id(&self, node: NodeIdx) -> (&Ids, usize) {
        self.numbers.id(node)
    }

    /// Appends the features of a node.
    pub fn features_into(&self, node: NodeIdx, out: &mut Features) {
        if let Some(features) = self.overlay.inputs.get(&node) {
            out.extend(features);
            return;
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        self.store().partition(owner).features_into(local, out);
    }

    /// Appends the label of a node. Where changes are read without labels, it is that of the store,
    /// and new nodes have none.
    pub fn label_into(&self, node: NodeIdx, out: &mut Labels) {
        match self.numbers.new_target(node) {
            Some((label, _)) => out.extend(label),
            None if !self.numbers.is_stored(node) => out.push_none(),
            None => {
                let (owner, local) = self.store().placement().owner_and_local(node);
                self.store().partition(owner).label_into(local, out);
            }
        }
    }

    /// Returns the split of a node. Where changes are read without splits, it is that of the store,
    /// and new nodes have none.
    pub fn split(&self, node: NodeIdx) -> Split {
        match self.numbers.new_target(node) {
            Some((_, split)) => *split,
            None if !self.numbers.is_stored(node) => Split::None,
            None => {
                let (owner, local) = self.store().placement().owner_and_local(node);
                self.store().partition(owner).split(local)
            }
        }
    }

    /// Finds a node of a type by its id.
    pub fn find(&self, type_idx: usize, ids: &Ids, row: usize) -> Option<NodeIdx> {
        self.numbers.find_living(type_idx, ids, row)
    }

    /// Returns the dense features of a node, `[dim]`; none if features are not dense.
    pub fn dense(&self, node: NodeIdx) -> &[f32] {
        match self.overlay.inputs.get(&node) {
            Some(Features::Dense { values, .. }) => values,
            Some(Features::None | Features::Sparse { .. }) => &[],
            None => {
                let (owner, local) = self.store().placement().owner_and_local(node);
                self.store().partition(owner).dense(local)
            }
        }
    }

    /// Returns the split of a node in the parent; none if it has no such node.
    pub fn split_before(&self, node: NodeIdx) -> Option<Split> {
        let parent = self.numbers.parent();
        let is_there = !parent.removed.contains(&node);
        is_there.then(|| self.numbers.parent_split(node)).flatten()
    }

    /// Lists the nodes that were ever added or replaced by changes with labels or splits, and are
    /// not removed.
    pub fn upserted(&self) -> impl Iterator<Item = NodeIdx> {
        self.overlay.targets.keys().copied()
    }

    /// Lists the nodes whose label or split differs from that in the parent.
    pub fn relabelled(&self) -> impl Iterator<Item = NodeIdx> {
        self.numbers.relabelled()
    }

    /// Returns the in-edges of a relation of a node that differ from those in the store.
    fn changed(&self, relation: usize, node: NodeIdx) -> Option<&KeptEdges> {
        if !self.is_changed[node.index()] {
            return None;
        }
        self.overlay.kept.get(&(relation, node)).map(|kept| &**kept)
    }
}
