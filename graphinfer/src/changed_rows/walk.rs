//! The nodes whose rows a version computes, layer by layer.

use super::Version;
use crate::InferError;
use crate::threads::Threads;
use graphdelta::{Degrees, Reach};
use schemas::NodeIdx;

/// Nodes that a thread looks at together.
const LISTED_PIECE: usize = 1 << 13;

/// The nodes that changes reach, layer by layer.
pub(super) struct Walk<'a> {
    reach: &'a Reach,
    /// By number: in-edges or degrees of the node differ.
    seeds: Vec<bool>,
    /// By number: what the layer reads of the node's rows differs.
    changed: Vec<bool>,
    degrees: Degrees,
    /// A layer reads the rows of all earlier layers, not only of the one before.
    reads_earlier: bool,
    /// Hubs are cut into other segments.
    moves_segments: bool,
    /// Rows of such hubs were computed in this layer or an earlier one.
    has_moved: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(version: &Version<'_>, reach: &'a Reach) -> Self {
        let marked = |nodes: &mut dyn Iterator<Item = NodeIdx>| {
            let mut marks = vec![false; version.after.end()];
            nodes.for_each(|node| marks[node.index()] = true);
            marks
        };
        Self {
            reach,
            seeds: marked(&mut reach.in_edges.iter().map(|of| of.dst)),
            changed: marked(&mut reach.layers[0].iter().copied()),
            degrees: version.model.degrees(),
            reads_earlier: version.model.reads_earlier_rows(),
            moves_segments: reach.moves_ids,
            has_moved: false,
        }
    }

    /// Goes on to the next layer; `changed` has by number whether a row of this layer differs.
    pub(super) fn step(&mut self, mut changed: Vec<bool>) {
        if self.reads_earlier {
            let both = changed.iter_mut().zip(&self.changed);
            both.for_each(|(of_layer, before)| *of_layer |= before);
        }
        self.changed = changed;
    }

    /// Tells whether the in-edges or degrees of a node that a layer reads differ.
    fn is_seed(&self, version: &Version<'_>, node: NodeIdx, layer: usize) -> bool {
        let in_edges = &self.reach.in_edges;
        let differs = |(relation, limit): (usize, usize)| {
            let found =
                in_edges.binary_search_by_key(&(relation, node), |of| (of.relation, of.dst));
            found.is_ok_and(|at| in_edges[at].first.is_some_and(|first| first < limit))
        };
        self.seeds[node.index()]
            && (self.degrees != Degrees::None || version.reads(node, layer).any(differs))
    }

    /// Lists the nodes whose rows a layer computes.
    pub(super) fn listed(
        &mut self,
        version: &Version<'_>,
        layer: usize,
        threads: &Threads,
    ) -> Result<Vec<NodeIdx>, InferError> {
        let after = version.after;
        let is_moved = |node| self.moves_segments && version.is_hub(node, layer);
        // The reached nodes leave out what such hubs reach, in this layer and all later ones.
        self.has_moved |= self.moves_segments && version.nodes.iter().any(|&node| is_moved(node));
        let some = match self.has_moved {
            true => &version.nodes,
            false => &self.reach.layers[layer],
        };
        let reads = |node: NodeIdx| {
            let at = node.index();
            self.changed[at] || (self.degrees == Degrees::Sources && self.seeds[at])
        };
        let is_listed = |&node: &NodeIdx| {
            let own = || self.is_seed(version, node, layer) || reads(node) || is_moved(node);
            let has_source = |(relation, limit)| {
                let edges = after.in_edges(relation, node, limit);
                edges.src.iter().any(|&src| reads(src))
            };
            version.is_computed(node, layer)
                && (own() || version.reads(node, layer).any(has_source))
        };
        let pieces: Vec<&[NodeIdx]> = some.chunks(LISTED_PIECE).collect();
        let listed = threads.map(&pieces, |piece| {
            let nodes = piece.iter().copied();
            nodes.filter(is_listed).collect::<Vec<NodeIdx>>()
        });
        Ok(listed?.concat())
    }
}
