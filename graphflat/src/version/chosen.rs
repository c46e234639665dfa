//! The targets of a version of graph features.

use std::collections::BTreeSet;

use graphdelta::{After, Reach};
use schemas::{NodeIdx, Split};
use store::Store;

use super::target_list;
use crate::{FlattenError, FlattenPlan, Targets};

/// The targets of a version.
pub(super) struct Chosen<'a> {
    after: &'a After,
    targets: &'a Targets,
    target_type: usize,
    /// Those that are listed, ascending, if they are.
    listed: Option<Vec<NodeIdx>>,
}

impl<'a> Chosen<'a> {
    pub(super) fn new(
        plan: &'a FlattenPlan,
        store: &Store,
        after: &'a After,
    ) -> Result<Self, FlattenError> {
        let target_type = store.meta().graph.target_type;
        let listed = target_list(plan, store)?.map(|list| {
            let ids = list.read()?;
            let nodes = (0..ids.len()).map(|row| {
                let node = after.find(target_type, &ids, row);
                node.ok_or_else(|| FlattenError::from(list.unknown(&ids, row)))
            });
            let nodes: BTreeSet<NodeIdx> = nodes.collect::<Result<_, _>>()?;
            Ok::<_, FlattenError>(nodes.into_iter().collect())
        });
        Ok(Self {
            listed: listed.transpose()?,
            targets: &plan.sample.targets,
            target_type,
            after,
        })
    }

    /// Tells whether a node is a target.
    fn is_target(&self, node: NodeIdx) -> bool {
        let is_one = || match &self.listed {
            Some(listed) => listed.binary_search(&node).is_ok(),
            None => self.targets.takes(self.after.split(node)),
        };
        self.after.type_of(node) == self.target_type && !self.after.is_removed(node) && is_one()
    }

    /// Tells whether a node was a target of the parent.
    fn was_target(&self, node: NodeIdx) -> bool {
        let takes = |split| match &self.listed {
            Some(listed) => listed.binary_search(&node).is_ok(),
            None => self.targets.takes(split),
        };
        let before = || self.after.split_before(node);
        self.after.type_of(node) == self.target_type && before().is_some_and(takes)
    }

    /// Lists all targets.
    pub(super) fn all(&self) -> Vec<NodeIdx> {
        match &self.listed {
            Some(listed) => listed.clone(),
            None => {
                let mut nodes = self.after.nodes();
                nodes.retain(|&node| self.is_target(node));
                nodes
            }
        }
    }

    /// Lists the nodes that changes may make targets, or whose rows they change: of all others,
    /// status and row are those of the parent.
    fn candidates(&self, reach: &Reach) -> Vec<NodeIdx> {
        let of_hops = reach.hops.last().into_iter().flatten().copied();
        let mut nodes: Vec<NodeIdx> = of_hops.chain(self.after.relabelled()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Lists the targets whose rows differ from the parent's.
    pub(super) fn reached(&self, reach: &Reach) -> Vec<NodeIdx> {
        let mut nodes = self.candidates(reach);
        nodes.retain(|&node| self.is_target(node));
        nodes
    }

    /// Returns the number of all targets; the parent has `before`.
    pub(super) fn count(&self, before: u64, reach: &Reach) -> u64 {
        let (mut new, mut gone) = (0, 0);
        for node in self.candidates(reach) {
            match (self.was_target(node), self.is_target(node)) {
                (false, true) => new += 1,
                (true, false) => gone += 1,
                _ => {}
            }
        }
        let removed = self.after.removed_now().into_iter();
        gone += removed.filter(|&node| self.was_target(node)).count() as u64;
        (before + new).saturating_sub(gone)
    }

    /// Lists the nodes whose label or split was read from changes since the store was written, and
    /// that are no targets. Any other node of a row is a target still: rows that were replaced when
    /// the store was written have no node.
    pub(super) fn left_out(&self) -> Vec<NodeIdx> {
        let mut nodes: Vec<NodeIdx> = self.after.upserted().collect();
        nodes.retain(|&node| !self.is_target(node));
        nodes
    }
}

impl Targets {
    /// Tells whether a node with this split is a target; any node if targets are listed.
    pub(super) fn takes(&self, split: Split) -> bool {
        match self {
            Self::All | Self::Listed(_) => true,
            Self::Labelled => split != Split::None,
            Self::Train => split == Split::Train,
        }
    }
}
