//! Labels and splits of nodes: in the store, in the parent and after the changes.

use schemas::{Labels, NodeIdx, Split};

use super::Numbers;
use crate::changes::NodeChanges;
use crate::in_edges::has_bits;

/// Label and split of a node in a table.
#[derive(Clone, Copy)]
pub(crate) struct TargetRow<'a> {
    pub(crate) labels: &'a Labels,
    pub(crate) split: &'a [Split],
    pub(crate) at: usize,
}

impl Numbers {
    /// Notes label and split of a node in row `at` of the changes, if they were read.
    pub(super) fn set_target(&mut self, node: NodeIdx, changes: &NodeChanges, at: usize) {
        if changes.split.is_empty() {
            return;
        }
        let target = TargetRow {
            labels: &changes.labels,
            split: &changes.split,
            at,
        };
        match self.has_target(node, target) {
            true => self.relabelled.remove(&node),
            false => self.relabelled.insert(node),
        };
        self.targets.insert(node, (target.label(), target.split()));
    }

    /// Tells whether the parent has the node, with this label and split.
    pub(crate) fn has_target(&self, node: NodeIdx, new: TargetRow<'_>) -> bool {
        if self.parent.removed.contains(&node) {
            return false;
        }
        match self.parent_target(node) {
            Some((labels, split)) => split == new.split() && is_same_label(&labels, &new.label()),
            None => false,
        }
    }

    /// Returns label and split of a node in the parent; none if it has no such node.
    fn parent_target(&self, node: NodeIdx) -> Option<(Labels, Split)> {
        if let Some(known) = self.parent.targets.get(&node) {
            return Some(known.clone());
        }
        self.is_stored(node).then(|| self.stored_target(node))
    }

    /// Returns label and split of a node in the store.
    fn stored_target(&self, node: NodeIdx) -> (Labels, Split) {
        let (owner, local) = self.placement().owner_and_local(node);
        let (partition, graph) = (self.store.partition(owner), &self.store.meta().graph);
        let label = graph.types[self.type_of(node)].label.as_ref();
        let mut labels = Labels::empty(label);
        partition.label_into(local, &mut labels);
        (labels, partition.split(local))
    }

    /// Returns label and split of a node after the changes; none if those of the store stand.
    pub(crate) fn new_target(&self, node: NodeIdx) -> Option<&(Labels, Split)> {
        self.targets.get(&node)
    }

    /// Returns the split of a node in the parent; none if it has no such node.
    pub(crate) fn parent_split(&self, node: NodeIdx) -> Option<Split> {
        if let Some((_, split)) = self.parent.targets.get(&node) {
            return Some(*split);
        }
        let (owner, local) = self
            .is_stored(node)
            .then(|| self.placement().owner_and_local(node))?;
        Some(self.store.partition(owner).split(local))
    }

    /// Lists the nodes whose label or split differs from that in the parent.
    pub(crate) fn relabelled(&self) -> impl Iterator<Item = NodeIdx> {
        self.relabelled.iter().copied()
    }
}

impl TargetRow<'_> {
    /// Returns the label as a column of one row; none where there are no labels.
    fn label(&self) -> Labels {
        match self.labels {
            Labels::None => Labels::None,
            labels => labels.slice(self.at..self.at + 1),
        }
    }

    fn split(&self) -> Split {
        self.split.get(self.at).copied().unwrap_or(Split::None)
    }
}

/// Tells whether two labels have the same bits.
fn is_same_label(a: &Labels, b: &Labels) -> bool {
    match (a, b) {
        (Labels::Number(a), Labels::Number(b)) => has_bits(a, b),
        _ => a == b,
    }
}
