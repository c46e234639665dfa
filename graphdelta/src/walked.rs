//! Random walks over a graph after changes: the pairs that a full run's walks give.

use std::collections::BTreeMap;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use schemas::{NodeIdx, PairsPlan, WalksSpec};
use store::{Visit, next_node};

use crate::Overlay;
use crate::in_edges::Draws;
use crate::numbers::Numbers;

/// What walks go over: all in-edges that carry messages.
///
/// The pairs of a start come from its own walks alone, so each is walked by itself. A full run moves
/// walkers between workers instead (`store/src/walks.rs`), since each has some in-edges.
pub(crate) struct Walked<'a> {
    numbers: &'a Numbers,
    plan: &'a PairsPlan,
    /// By node type, the relations that lead to it.
    relations: Vec<Vec<usize>>,
    /// Sources of in-edges that were ever edited, in the order of ids.
    edited: BTreeMap<(usize, NodeIdx), Vec<NodeIdx>>,
}

impl<'a> Walked<'a> {
    pub(crate) fn new(numbers: &'a Numbers, overlay: &Overlay, plan: &'a PairsPlan) -> Self {
        let graph = &numbers.store().meta().graph;
        let types = 0..graph.types.len();
        let edited = overlay.edits.iter().map(|(&(relation, dst), edits)| {
            let mut sources = Vec::new();
            let draws = Draws::new(numbers, relation, 0);
            draws.visit_edited(dst, Some(edits), |src, _, _| sources.push(src));
            // Sources whose edges were edited come last.
            sources.sort_by_key(|&src| numbers.order(src));
            ((relation, dst), sources)
        });
        Self {
            numbers,
            plan,
            relations: types.map(|of| graph.relations_to(of).collect()).collect(),
            edited: edited.collect(),
        }
    }

    /// Returns the distinct pairs of all walks, in the order of hash and of the ids of both ends.
    pub(crate) fn visits(&self, walks: WalksSpec) -> Vec<Visit> {
        let all = (0..self.numbers.end()).into_par_iter();
        let starts = all.map(NodeIdx::from_index).filter(|&node| {
            self.numbers.type_of(node) == self.plan.from() && !self.numbers.is_removed(node)
        });
        let mut visits: Vec<Visit> = starts
            .flat_map_iter(|start| self.visits_of(start, walks))
            .collect();
        let order = |node| self.numbers.order(node);
        visits.par_sort_unstable_by_key(|of| (of.hash, order(of.src), order(of.dst)));
        visits
    }

    /// Returns the distinct pairs of the walks of a node.
    fn visits_of(&self, start: NodeIdx, walks: WalksSpec) -> impl Iterator<Item = Visit> + '_ {
        let start_hash = self.numbers.hash(start);
        let mut times: BTreeMap<NodeIdx, u32> = BTreeMap::new();
        for walk in 0..walks.per_node {
            let (mut at, key) = (start, walks.key(start_hash, walk));
            for step in 0..walks.length {
                let Some(src) = self.source(at, (key, step)) else {
                    break;
                };
                at = src;
                if at != start && self.numbers.type_of(at) == self.plan.to() {
                    *times.entry(at).or_default() += 1;
                }
            }
        }
        times.into_iter().map(move |(dst, times)| Visit {
            hash: self.plan.hash(start_hash, self.numbers.hash(dst)),
            src: start,
            dst,
            times,
        })
    }

    /// Returns the src of one of a node's in-edges of all relations; all are equally likely.
    fn source(&self, node: NodeIdx, walk: (u64, u32)) -> Option<NodeIdx> {
        let relations = self.relations[self.numbers.type_of(node)].iter();
        next_node(relations.map(|&of| self.sources(of, node)), walk)
    }

    /// Returns the sources of a node's in-edges of a relation, in the order of ids.
    fn sources(&self, relation: usize, node: NodeIdx) -> &[NodeIdx] {
        if let Some(edited) = self.edited.get(&(relation, node)) {
            return edited;
        }
        if !self.numbers.is_stored(node) {
            return &[];
        }
        let store = self.numbers.store();
        let (owner, local) = store.placement().owner_and_local(node);
        store.partition(owner).unranked(relation, local).src
    }
}
