//! In-edges of changed destinations: all in-edges of the store with the edits, drawn again.

use std::collections::BTreeMap;
use std::ops::Range;

use schemas::NodeIdx;
use store::InEdges;
use store::sample::{edge_hash, priority, relation_salt};

use crate::numbers::{NewEdge, Numbers};

/// The edits of one destination's in-edges of a relation since the store was built: the edges of
/// each source.
pub(crate) type Edits = BTreeMap<NodeIdx, Vec<NewEdge>>;

/// A kept in-edge: source, and the bits of weight and features.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptEdge {
    /// Source.
    pub src: NodeIdx,
    /// 1 where the input has no weights.
    pub weight: f32,
    /// Features, where the input has them.
    pub feature: Vec<f32>,
}

/// The first in-edges of a destination and of a relation, and its in-degree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptEdges {
    /// By rank.
    pub edges: Vec<KeptEdge>,
    /// Number of all in-edges.
    pub in_degree: u64,
    /// Number of all in-edges that come from the node itself.
    pub self_loops: u64,
}

impl KeptEdge {
    pub(crate) fn new(src: NodeIdx, edge: &NewEdge) -> Self {
        Self {
            src,
            weight: edge.weight,
            feature: edge.feature.clone(),
        }
    }

    /// Tells whether another edge has the same source and bits.
    fn is_same(&self, other: &Self) -> bool {
        self.src == other.src
            && self.weight.to_bits() == other.weight.to_bits()
            && has_bits(&self.feature, &other.feature)
    }
}

/// Tells whether two rows of numbers have the same bits.
pub(crate) fn has_bits(a: &[f32], b: &[f32]) -> bool {
    bytemuck::cast_slice::<f32, u8>(a) == bytemuck::cast_slice::<f32, u8>(b)
}

impl KeptEdges {
    /// Tells whether as many in-edges and self-loops are there.
    pub(crate) fn has_degree_of(&self, other: &Self) -> bool {
        (self.in_degree, self.self_loops) == (other.in_degree, other.self_loops)
    }

    /// Returns the first rank at which two lists differ; none if they are the same.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<usize> {
        let mut both = self.edges.iter().zip(&other.edges);
        let differs = both.position(|(a, b)| !a.is_same(b));
        let longest = self.edges.len().max(other.edges.len());
        let shortest = self.edges.len().min(other.edges.len());
        differs.or((shortest < longest).then_some(shortest))
    }
}

/// Priority, order of the source and ordinal of an in-edge: they compare as ranks do.
type Rank = (u64, u64, u32);

/// Draws the in-edges of nodes of one relation.
pub(crate) struct Draws<'a> {
    pub(crate) numbers: &'a Numbers,
    pub(crate) relation: usize,
    salt: u64,
    /// In-edges kept of a node.
    keep: usize,
    /// Ranks and positions of the least edges.
    least: Vec<(Rank, usize)>,
}

impl<'a> Draws<'a> {
    pub(crate) fn new(numbers: &'a Numbers, relation: usize, keep: usize) -> Self {
        let graph = &numbers.store().meta().graph;
        Self {
            numbers,
            relation,
            salt: relation_salt(&graph.relations[relation].name),
            keep,
            least: Vec::new(),
        }
    }

    /// Returns the number of edges from `src` to `dst` in the store.
    pub(crate) fn num_stored(&self, dst: NodeIdx, src: NodeIdx) -> usize {
        let all = self.stored(dst).map_or(&[][..], |all| all.src);
        places(all, src).len()
    }

    /// Returns all in-edges of a node in the store, by source; none if the store has no such node,
    /// or the relation leads to nodes of another type.
    fn stored(&self, dst: NodeIdx) -> Option<InEdges<'a>> {
        let store = self.numbers.store();
        let to = store.meta().graph.relations[self.relation].to;
        let is_there = self.numbers.is_stored(dst) && self.numbers.type_of(dst) == to;
        is_there.then(|| {
            let (owner, local) = store.placement().owner_and_local(dst);
            store.partition(owner).unranked(self.relation, local)
        })
    }

    /// Calls `visit` with source, weight and features of all in-edges of a node in the parent;
    /// parallel edges come one after the other, in their order.
    pub(crate) fn visit_all(&self, dst: NodeIdx, mut visit: impl FnMut(NodeIdx, f32, &[f32])) {
        let edits = self.numbers.parent().edits.get(&(self.relation, dst));
        if let Some(all) = self.stored(dst) {
            let dim = all.feature.map_or(0, |of| of.len() / all.src.len().max(1));
            let feature = all.feature.unwrap_or_default();
            for (at, &src) in all.src.iter().enumerate() {
                if edits.is_none_or(|of| !of.contains_key(&src)) {
                    let weight = all.weight.map_or(1.0, |of| of[at]);
                    visit(src, weight, &feature[at * dim..(at + 1) * dim]);
                }
            }
        }
        for (&src, edges) in edits.into_iter().flatten() {
            for edge in edges {
                visit(src, edge.weight, &edge.feature);
            }
        }
    }

    /// Returns the first in-edges of a node in the store.
    pub(crate) fn kept(&self, dst: NodeIdx) -> KeptEdges {
        if !self.numbers.is_stored(dst) {
            return KeptEdges::default();
        }
        let store = self.numbers.store();
        let (owner, local) = store.placement().owner_and_local(dst);
        let partition = store.partition(owner);
        let first = partition.in_edges(self.relation, 0, local, self.keep);
        KeptEdges {
            edges: (0..first.src.len())
                .map(|at| kept_edge(&first, at))
                .collect(),
            in_degree: u64::from(partition.in_degree(self.relation, local)),
            self_loops: partition
                .self_loops(self.relation, local)
                .map_or(0, u64::from),
        }
    }

    /// Returns the number of a node's self-loops after some edits.
    fn self_loops(&self, dst: NodeIdx, edits: &Edits) -> u64 {
        let edited = edits.get(&dst).map(Vec::len);
        edited.unwrap_or_else(|| self.num_stored(dst, dst)) as u64
    }

    /// Returns the first in-edges of a node after some edits; `stored` are those in the store.
    pub(crate) fn edited(&mut self, dst: NodeIdx, stored: &KeptEdges, edits: &Edits) -> KeptEdges {
        let merged = self.merged(dst, stored, edits);
        merged.unwrap_or_else(|| self.drawn(dst, edits))
    }

    /// Merges the new in-edges with those that the store keeps; none if more of the others may come
    /// to be among the first.
    fn merged(&mut self, dst: NodeIdx, stored: &KeptEdges, edits: &Edits) -> Option<KeptEdges> {
        let ranked = self.ranks(dst, &stored.edges);
        let is_cut = (stored.edges.len() as u64) < stored.in_degree;
        let beyond = ranked.last().copied().filter(|_| is_cut);
        let stays = |edge: &KeptEdge| !edits.contains_key(&edge.src);
        let staying = ranked.into_iter().zip(&stored.edges);
        let staying = staying.filter(|(_, edge)| stays(edge));
        let mut all: Vec<(Rank, KeptEdge)> =
            staying.map(|(rank, edge)| (rank, edge.clone())).collect();
        let mut in_degree = stored.in_degree;
        for (&src, edges) in edits {
            in_degree -= self.num_stored(dst, src) as u64;
            in_degree += edges.len() as u64;
            let hash = self.hash(src, dst);
            for (ordinal, edge) in (0..).zip(edges) {
                let rank = self.rank(hash, src, ordinal, edge.weight);
                all.push((rank, KeptEdge::new(src, edge)));
            }
        }
        all.sort_by_key(|(rank, _)| *rank);
        // The other edges in the store come after all that it keeps.
        let known = beyond.map_or(all.len(), |beyond| {
            all.partition_point(|(rank, _)| *rank <= beyond)
        });
        if known < self.keep && beyond.is_some() {
            return None;
        }
        all.truncate(self.keep);
        let edges = all.into_iter().map(|(_, edge)| edge).collect();
        Some(KeptEdges {
            edges,
            in_degree,
            self_loops: self.self_loops(dst, edits),
        })
    }

    /// Returns the ranks of the in-edges that the store keeps of a node.
    fn ranks(&self, dst: NodeIdx, kept: &[KeptEdge]) -> Vec<Rank> {
        // Of parallel edges, those of least rank are kept.
        let mut parallel: BTreeMap<NodeIdx, std::vec::IntoIter<Rank>> = BTreeMap::new();
        let ranks = kept.iter().map(|edge| {
            let of_src = parallel.entry(edge.src).or_insert_with(|| {
                let all = self.stored(dst).expect("the store keeps edges of the node");
                let hash = self.hash(edge.src, dst);
                let places = places(all.src, edge.src);
                let weights = places.map(|at| all.weight.map_or(1.0, |of| of[at]));
                let ranks = (0..).zip(weights);
                let ranks = ranks.map(|(ordinal, of)| self.rank(hash, edge.src, ordinal, of));
                let mut ranks: Vec<Rank> = ranks.collect();
                ranks.sort_unstable();
                ranks.into_iter()
            });
            of_src.next().expect("the store keeps no edge twice")
        });
        ranks.collect()
    }

    fn hash(&self, src: NodeIdx, dst: NodeIdx) -> u64 {
        edge_hash(self.salt, self.numbers.hash(src), self.numbers.hash(dst))
    }

    fn rank(&self, hash: u64, src: NodeIdx, ordinal: u32, weight: f32) -> Rank {
        let store = self.numbers.store();
        let (sampling, seed) = (store.meta().sampling, store.meta().seed);
        let drawn = priority(sampling, seed, hash, ordinal, weight);
        (drawn, self.numbers.order(src), ordinal)
    }

    /// Draws all in-edges of a node again.
    fn drawn(&mut self, dst: NodeIdx, edits: &Edits) -> KeptEdges {
        let stored = self.stored(dst);
        let num_stored = stored.map_or(0, |all| all.src.len());
        let new = edits.iter();
        let new = new.flat_map(|(&src, edges)| edges.iter().map(move |edge| (src, edge)));
        let new: Vec<(NodeIdx, &NewEdge)> = new.collect();
        self.least.clear();
        let mut in_degree = 0;
        if let Some(all) = stored {
            let weights = |at| all.weight.map_or(1.0, |of| of[at]);
            let edges = (0..num_stored).map(|at| (all.src[at], weights(at), at));
            in_degree += self.draw(dst, edges, |src| !edits.contains_key(&src));
        }
        let edges = new.iter().enumerate();
        let edges = edges.map(|(at, (src, edge))| (*src, edge.weight, num_stored + at));
        in_degree += self.draw(dst, edges, |_| true);
        self.least.sort_unstable();
        self.least.truncate(self.keep);
        let kept = |&(_, at): &(Rank, usize)| match (at.checked_sub(num_stored), &stored) {
            (None, Some(all)) => kept_edge(all, at),
            (place, _) => {
                let (src, edge) = new[place.expect("without stored edges, all are new")];
                KeptEdge::new(src, edge)
            }
        };
        KeptEdges {
            edges: self.least.iter().map(kept).collect(),
            in_degree,
            self_loops: self.self_loops(dst, edits),
        }
    }

    /// Draws edges with source, weight and position, parallel ones one after the other; returns how
    /// many were taken.
    fn draw(
        &mut self,
        dst: NodeIdx,
        edges: impl Iterator<Item = (NodeIdx, f32, usize)>,
        takes: impl Fn(NodeIdx) -> bool,
    ) -> u64 {
        let (mut before, mut ordinal, mut hash, mut taken) = (None, 0, 0, 0);
        for (src, weight, at) in edges {
            ordinal = if before == Some(src) { ordinal + 1 } else { 0 };
            if before != Some(src) {
                hash = self.hash(src, dst);
            }
            before = Some(src);
            if takes(src) {
                taken += 1;
                self.push((self.rank(hash, src, ordinal, weight), at));
            }
        }
        taken
    }

    fn push(&mut self, edge: (Rank, usize)) {
        if self.least.len() == self.keep.saturating_mul(2).saturating_add(1) {
            self.least.select_nth_unstable(self.keep);
            self.least.truncate(self.keep);
        }
        self.least.push(edge);
    }
}

/// Returns the positions of a source among ascending ones.
fn places(all: &[NodeIdx], src: NodeIdx) -> Range<usize> {
    let start = all.partition_point(|&node| node < src);
    let count = all[start..].iter().take_while(|&&node| node == src).count();
    start..start + count
}

/// Returns edge `at` of a list in the store.
pub(crate) fn kept_edge(list: &InEdges<'_>, at: usize) -> KeptEdge {
    let dim = list.feature.map_or(0, |of| of.len() / list.src.len());
    let feature = list.feature.unwrap_or_default();
    KeptEdge {
        src: list.src[at],
        weight: list.weight.map_or(1.0, |of| of[at]),
        feature: feature[at * dim..(at + 1) * dim].to_vec(),
    }
}
