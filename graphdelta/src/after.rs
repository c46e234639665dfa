//! The graph after changes, of a store and an overlay, for nodes without types.

use std::sync::Arc;

use schemas::{Features, Ids, NodeIdx};
use store::Store;

use crate::in_edges::{KeptEdge, KeptEdges, kept_edge};
use crate::numbers::Numbers;
use crate::{DeltaError, Overlay};

/// Nodes and in-edges of a version. Nodes keep their numbers from version to version.
#[derive(Clone, Debug)]
pub struct After {
    numbers: Arc<Numbers>,
    overlay: Overlay,
}

impl After {
    /// Returns the graph that [`reach`](crate::reach) leaves: its numbers and its overlay.
    ///
    /// # Errors
    ///
    /// If nodes have types.
    pub fn new(numbers: &Arc<Numbers>, overlay: Overlay) -> Result<Self, DeltaError> {
        let graph = &numbers.store().meta().graph;
        if graph.types.len() > 1 || graph.relations.len() != 1 {
            return Err(DeltaError::Unsupported("nodes have types".to_owned()));
        }
        Ok(Self {
            numbers: Arc::clone(numbers),
            overlay,
        })
    }

    /// Returns the store that the overlay changes.
    pub fn store(&self) -> &Store {
        self.numbers.store()
    }

    /// Returns the number that the next new node gets: numbers of nodes are below it.
    pub fn end(&self) -> usize {
        self.numbers.num_stored() + self.overlay.added.len()
    }

    /// Lists the nodes in the order of their ids, without removed ones.
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

    /// Returns a node's id as people write it.
    pub fn display(&self, node: NodeIdx) -> String {
        self.numbers.display(node)
    }

    /// Sorts nodes by their ids.
    pub fn sort(&self, nodes: &mut [NodeIdx]) {
        nodes.sort_unstable_by_key(|&node| self.numbers.order(node));
    }

    /// Returns the ids of some nodes, removed or not.
    pub fn ids(&self, nodes: &[NodeIdx]) -> Ids {
        let mut ids = Ids::new(self.store().meta().graph.types[0].id_type);
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

    /// Returns what changes have made of the store.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Returns the number of a node's in-edges.
    pub fn in_degree(&self, node: NodeIdx) -> u64 {
        let changed = self.changed(node);
        let stored = || self.numbers.stored_in_degree(0, node);
        changed.map_or_else(stored, |kept| kept.in_degree)
    }

    /// Returns the number of a node's self-loops.
    pub fn self_loops(&self, node: NodeIdx) -> u64 {
        if let Some(kept) = self.changed(node) {
            return kept.self_loops;
        }
        if !self.numbers.is_stored(node) {
            return 0;
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        let loops = self.store().partition(owner).self_loops(0, local);
        loops.map_or(0, u64::from)
    }

    /// Returns the first in-edges of a node, in rank order: at most `limit`.
    pub fn in_edges(&self, node: NodeIdx, limit: usize) -> Vec<KeptEdge> {
        if let Some(kept) = self.changed(node) {
            return kept.edges.iter().take(limit).cloned().collect();
        }
        if !self.numbers.is_stored(node) {
            return Vec::new();
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        let list = self.store().partition(owner).in_edges(0, 0, local, limit);
        (0..list.src.len()).map(|at| kept_edge(&list, at)).collect()
    }

    /// Tells whether a source of the first in-edges of a node, at most `limit`, is among some nodes.
    pub fn has_source(
        &self,
        node: NodeIdx,
        limit: usize,
        is_among: impl Fn(NodeIdx) -> bool,
    ) -> bool {
        if let Some(kept) = self.changed(node) {
            let mut first = kept.edges.iter().take(limit);
            return first.any(|edge| is_among(edge.src));
        }
        if !self.numbers.is_stored(node) {
            return false;
        }
        let (owner, local) = self.store().placement().owner_and_local(node);
        let list = self.store().partition(owner).in_edges(0, 0, local, limit);
        list.src.iter().any(|&src| is_among(src))
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

    /// Returns the in-edges of a node that differ from those in the store.
    fn changed(&self, node: NodeIdx) -> Option<&KeptEdges> {
        self.overlay.kept.get(&(0, node))
    }
}
