//! In-edges of changed destinations: all in-edges of the store with the edits, drawn again.

use std::ops::Range;

use hashbrown::HashMap;
use schemas::NodeIdx;
use serde::{Deserialize, Serialize};
use store::InEdges;
use store::sample::{edge_hash, priority, relation_salt};

use crate::numbers::{NewEdge, Numbers};

/// The edits of one destination's in-edges of a relation since the store was built: the edges of
/// each source, in the order of sources. Most destinations have one or two, for which a vector
/// takes a quarter of the memory of a map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Edits(Vec<(NodeIdx, Vec<NewEdge>)>);

impl Edits {
    /// Returns the edges of a source; none if they were not edited.
    pub(crate) fn get(&self, src: NodeIdx) -> Option<&Vec<NewEdge>> {
        let found = self.0.binary_search_by_key(&src, |of| of.0);
        found.ok().map(|at| &self.0[at].1)
    }

    /// Returns the number of edited sources.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, src: NodeIdx) -> bool {
        self.get(src).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeIdx, &Vec<NewEdge>)> {
        self.0.iter().map(|(src, edges)| (*src, edges))
    }

    /// Appends the edges of a source; none if it does not come after all others.
    pub(crate) fn push(&mut self, src: NodeIdx, edges: Vec<NewEdge>) -> Option<()> {
        if self.0.last().is_some_and(|last| last.0 >= src) {
            return None;
        }
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(self.0.len().max(1));
        }
        self.0.push((src, edges));
        Some(())
    }

    /// Returns the edits after more of them; `changed` has each source once, in their order.
    pub(crate) fn with(&self, changed: &[(NodeIdx, &Vec<NewEdge>)]) -> Self {
        let mut all = Vec::with_capacity(self.0.len() + changed.len());
        let mut known = self.0.iter().peekable();
        for &(src, edges) in changed {
            while let Some(of) = known.next_if(|of| of.0 < src) {
                all.push(of.clone());
            }
            known.next_if(|of| of.0 == src);
            all.push((src, edges.clone()));
        }
        all.extend(known.cloned());
        Self(all)
    }
}

/// The first in-edges of a destination and of a relation, by rank, and its in-degree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptEdges {
    /// `[n]`: sources.
    pub src: Vec<NodeIdx>,
    /// `[n]`: 1 where the input has no weights.
    pub weight: Vec<f32>,
    /// `[n * dim]`: features, where the input has them.
    pub feature: Vec<f32>,
    /// Number of all in-edges.
    pub in_degree: u64,
    /// Number of all in-edges that come from the node itself.
    pub self_loops: u64,
}

/// Tells whether two rows of numbers have the same bits.
pub(crate) fn has_bits(a: &[f32], b: &[f32]) -> bool {
    bytemuck::cast_slice::<f32, u8>(a) == bytemuck::cast_slice::<f32, u8>(b)
}

impl KeptEdges {
    /// Returns the first in-edges, at most `limit`.
    pub fn first(&self, limit: usize) -> InEdges<'_> {
        let count = limit.min(self.src.len());
        InEdges {
            src: &self.src[..count],
            weight: Some(&self.weight[..count]),
            feature: Some(&self.feature[..count * self.dim()]),
        }
    }

    /// Returns the number of features of an edge.
    fn dim(&self) -> usize {
        self.feature.len() / self.src.len().max(1)
    }

    /// Copies a list of in-edges.
    fn of(list: &InEdges<'_>) -> Self {
        let mut kept = Self::with_capacity(list.src.len());
        (0..list.src.len()).for_each(|at| kept.push_from(list, at));
        kept
    }

    fn with_capacity(count: usize) -> Self {
        Self {
            src: Vec::with_capacity(count),
            weight: Vec::with_capacity(count),
            ..Self::default()
        }
    }

    /// Appends edge `at` of a list.
    fn push_from(&mut self, list: &InEdges<'_>, at: usize) {
        let dim = list.feature.map_or(0, |of| of.len() / list.src.len());
        let feature = list.feature.unwrap_or_default();
        self.src.push(list.src[at]);
        self.weight.push(list.weight.map_or(1.0, |of| of[at]));
        self.feature
            .extend_from_slice(&feature[at * dim..(at + 1) * dim]);
    }

    fn push_new(&mut self, src: NodeIdx, edge: &NewEdge) {
        self.src.push(src);
        self.weight.push(edge.weight);
        self.feature.extend_from_slice(&edge.feature);
    }

    /// Tells whether as many in-edges and self-loops are there.
    pub(crate) fn has_degree_of(&self, other: &Self) -> bool {
        (self.in_degree, self.self_loops) == (other.in_degree, other.self_loops)
    }

    /// Tells whether edge `at` has the same source and bits in both lists.
    fn is_same_at(&self, other: &Self, at: usize) -> bool {
        let feature = |of: &Self| at * of.dim()..(at + 1) * of.dim();
        self.src[at] == other.src[at]
            && self.weight[at].to_bits() == other.weight[at].to_bits()
            && has_bits(&self.feature[feature(self)], &other.feature[feature(other)])
    }

    /// Returns the first rank at which two lists differ; none if they are the same.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<usize> {
        let longest = self.src.len().max(other.src.len());
        let shortest = self.src.len().min(other.src.len());
        let has_features = !self.feature.is_empty() || !other.feature.is_empty();
        let differs = if has_features {
            (0..shortest).find(|&at| !self.is_same_at(other, at))
        } else {
            let both = self.src.iter().zip(&other.src);
            let weights = self.weight.iter().zip(&other.weight);
            let mut pairs = both.zip(weights);
            pairs.position(|((src, theirs), (weight, of_theirs))| {
                src != theirs || weight.to_bits() != of_theirs.to_bits()
            })
        };
        differs.or((shortest < longest).then_some(shortest))
    }
}

/// Priority, order of the source and ordinal of an in-edge: they compare as ranks do.
type Rank = (u64, u64, u32);

/// The ranks of the in-edges that the store keeps of a node, computed where they are asked for.
struct KeptRanks<'a> {
    draws: &'a Draws<'a>,
    dst: NodeIdx,
    /// Sources, by rank.
    kept: &'a [NodeIdx],
    /// For each of them, how many edges of its source come before; empty until one has parallels.
    before: Vec<u32>,
    /// Ranks of the parallel edges of a source, ascending.
    parallel: HashMap<NodeIdx, Vec<Rank>>,
}

impl KeptRanks<'_> {
    fn get(&mut self, at: usize) -> Rank {
        let (draws, dst, src) = (self.draws, self.dst, self.kept[at]);
        let all = draws
            .stored(dst)
            .expect("the store keeps edges of the node");
        let places = places(all.src, src);
        let weight = |place: usize| all.weight.map_or(1.0, |of| of[place]);
        if places.len() == 1 {
            return draws.rank(draws.hash(src, dst), src, 0, weight(places.start));
        }
        if self.before.is_empty() {
            let mut counts: HashMap<NodeIdx, u32> = HashMap::new();
            let before = self.kept.iter().map(|&of| {
                let count = counts.entry(of).or_insert(0);
                *count += 1;
                *count - 1
            });
            self.before = before.collect();
        }
        // Of parallel edges, those of least rank are kept.
        let ranks = self.parallel.entry(src).or_insert_with(|| {
            let hash = draws.hash(src, dst);
            let ranks = (0..).zip(places.map(weight));
            let ranks = ranks.map(|(ordinal, of)| draws.rank(hash, src, ordinal, of));
            let mut ranks: Vec<Rank> = ranks.collect();
            ranks.sort_unstable();
            ranks
        });
        ranks[self.before[at] as usize]
    }
}

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

    /// Returns what was edited of a node's in-edges in the parent since the store was built: of those
    /// that carry messages, and of those that are left out because they equal a pair.
    fn edits(&self, dst: NodeIdx) -> [Option<&'a Edits>; 2] {
        let (parent, key) = (self.numbers.parent(), (self.relation, dst));
        [parent.edits.get(&key), parent.left_out.get(&key)].map(|of| of.map(|edits| &**edits))
    }

    /// Returns the sources of all in-edges of a node in the parent's table, ascending: of those that
    /// carry messages, and of those that are left out. None if some were edited since the store was
    /// built.
    pub(crate) fn unedited(&self, dst: NodeIdx) -> Option<[&'a [NodeIdx]; 2]> {
        let stored = self
            .stored(dst)
            .filter(|_| self.edits(dst) == [None, None])?;
        let left_out = self.numbers.stored_left_out((self.relation, dst));
        Some([stored.src, left_out.map_or(&[], |of| of.src)])
    }

    /// Calls `visit` with source, weight and features of all in-edges of a node in the parent's table,
    /// those included that are left out because they equal a pair. Parallel edges come one after the
    /// other, in their order; sources ascend where no edge was edited.
    pub(crate) fn visit_table(&self, dst: NodeIdx, mut visit: impl FnMut(NodeIdx, f32, &[f32])) {
        let left_out = self.numbers.stored_left_out((self.relation, dst));
        match (self.edits(dst), self.stored(dst), left_out) {
            ([None, None], Some(stored), Some(left_out)) => {
                let mut from = 0;
                for (at, src) in left_out.src.iter().enumerate() {
                    let end = from + stored.src[from..].partition_point(|of| of < src);
                    visit_range(&stored, from..end, &mut visit);
                    visit_range(&left_out, at..at + 1, &mut visit);
                    from = end;
                }
                visit_range(&stored, from..stored.src.len(), &mut visit);
            }
            ([edits, of_left_out], stored, left_out) => {
                visit_after(stored, edits, &mut visit);
                visit_after(left_out, of_left_out, &mut visit);
            }
        }
    }

    /// Calls `visit` with source, weight and features of all in-edges of a node that carry messages
    /// after some edits of the store's; parallel edges come one after the other, in their order.
    pub(crate) fn visit_edited(
        &self,
        dst: NodeIdx,
        edits: Option<&Edits>,
        mut visit: impl FnMut(NodeIdx, f32, &[f32]),
    ) {
        visit_after(self.stored(dst), edits, &mut visit);
    }

    /// Calls `visit` as [`Self::visit_edited`] does, with the in-edges that are left out because
    /// they equal a pair.
    pub(crate) fn visit_left_out(
        &self,
        dst: NodeIdx,
        edits: Option<&Edits>,
        mut visit: impl FnMut(NodeIdx, f32, &[f32]),
    ) {
        let stored = self.numbers.stored_left_out((self.relation, dst));
        visit_after(stored, edits, &mut visit);
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
            in_degree: u64::from(partition.in_degree(self.relation, local)),
            self_loops: partition
                .self_loops(self.relation, local)
                .map_or(0, u64::from),
            ..KeptEdges::of(&first)
        }
    }

    /// Returns the number of a node's self-loops after some edits.
    fn self_loops(&self, dst: NodeIdx, edits: &Edits) -> u64 {
        let edited = edits.get(dst).map(Vec::len);
        edited.unwrap_or_else(|| self.num_stored(dst, dst)) as u64
    }

    /// Returns the first in-edges of a node after some edits; `stored` are those in the store.
    pub(crate) fn edited(&mut self, dst: NodeIdx, stored: &KeptEdges, edits: &Edits) -> KeptEdges {
        let merged = self.merged(dst, stored, edits);
        merged.unwrap_or_else(|| self.drawn(dst, edits))
    }

    /// Merges the new in-edges with those that the store keeps; none if more of the others may come
    /// to be among the first.
    fn merged(&self, dst: NodeIdx, stored: &KeptEdges, edits: &Edits) -> Option<KeptEdges> {
        let (mut new, mut in_degree) = (Vec::new(), stored.in_degree);
        for (src, edges) in edits.iter() {
            in_degree -= self.num_stored(dst, src) as u64;
            in_degree += edges.len() as u64;
            let hash = self.hash(src, dst);
            for (ordinal, edge) in (0..).zip(edges) {
                new.push((self.rank(hash, src, ordinal, edge.weight), src, edge));
            }
        }
        new.sort_unstable_by_key(|(rank, ..)| *rank);
        let mut ranks = KeptRanks {
            draws: self,
            dst,
            kept: &stored.src,
            before: Vec::new(),
            parallel: HashMap::new(),
        };
        let is_gone: Vec<bool> = stored.src.iter().map(|&src| edits.contains(src)).collect();
        let num_staying = is_gone.iter().filter(|gone| !**gone).count();
        if (stored.src.len() as u64) < stored.in_degree {
            // The other edges in the store come after all that it keeps.
            let last = stored.src.len().checked_sub(1);
            let beyond = last.map(|last| ranks.get(last));
            let is_known = |rank: Rank| beyond.is_some_and(|beyond| rank <= beyond);
            let num_new = new.partition_point(|(rank, ..)| is_known(*rank));
            if beyond.is_some() && num_staying + num_new < self.keep {
                return None;
            }
        }
        let mut kept = KeptEdges {
            in_degree,
            self_loops: self.self_loops(dst, edits),
            ..KeptEdges::with_capacity(self.keep.min(num_staying + new.len()))
        };
        let list = stored.first(usize::MAX);
        let push_stored = |to: &mut KeptEdges, places: Range<usize>| {
            for at in places.filter(|&at| !is_gone[at]) {
                if to.src.len() < self.keep {
                    to.push_from(&list, at);
                }
            }
        };
        let mut from = 0;
        for (rank, src, edge) in new {
            let mut places = from..list.src.len();
            while !places.is_empty() {
                let middle = places.start + places.len() / 2;
                match ranks.get(middle) < rank {
                    true => places.start = middle + 1,
                    false => places.end = middle,
                }
            }
            push_stored(&mut kept, from..places.start);
            if kept.src.len() < self.keep {
                kept.push_new(src, edge);
            }
            from = places.start;
        }
        push_stored(&mut kept, from..list.src.len());
        Some(kept)
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
        let new = new.flat_map(|(src, edges)| edges.iter().map(move |edge| (src, edge)));
        let new: Vec<(NodeIdx, &NewEdge)> = new.collect();
        self.least.clear();
        let mut in_degree = 0;
        if let Some(all) = stored {
            let weights = |at| all.weight.map_or(1.0, |of| of[at]);
            let edges = (0..num_stored).map(|at| (all.src[at], weights(at), at));
            in_degree += self.draw(dst, edges, |src| !edits.contains(src));
        }
        let edges = new.iter().enumerate();
        let edges = edges.map(|(at, (src, edge))| (*src, edge.weight, num_stored + at));
        in_degree += self.draw(dst, edges, |_| true);
        self.least.sort_unstable();
        self.least.truncate(self.keep);
        let mut kept = KeptEdges {
            in_degree,
            self_loops: self.self_loops(dst, edits),
            ..KeptEdges::with_capacity(self.least.len())
        };
        for &(_, at) in &self.least {
            match (at.checked_sub(num_stored), &stored) {
                (None, Some(all)) => kept.push_from(all, at),
                (place, _) => {
                    let (src, edge) = new[place.expect("without stored edges, all are new")];
                    kept.push_new(src, edge);
                }
            }
        }
        kept
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

/// Visits some in-edges of a list.
pub(crate) fn visit_range(
    all: &InEdges<'_>,
    range: Range<usize>,
    visit: &mut impl FnMut(NodeIdx, f32, &[f32]),
) {
    let dim = all.feature.map_or(0, |of| of.len() / all.src.len().max(1));
    let feature = all.feature.unwrap_or_default();
    for at in range {
        let weight = all.weight.map_or(1.0, |of| of[at]);
        visit(all.src[at], weight, &feature[at * dim..(at + 1) * dim]);
    }
}

/// Visits the in-edges of a list, by source, whose sources were not edited, and the edited ones
/// after them.
fn visit_after(
    list: Option<InEdges<'_>>,
    edits: Option<&Edits>,
    visit: &mut impl FnMut(NodeIdx, f32, &[f32]),
) {
    if let Some(all) = list {
        let mut from = 0;
        for (src, _) in edits.into_iter().flat_map(Edits::iter) {
            let edited = places(&all.src[from..], src);
            visit_range(&all, from..from + edited.start, visit);
            from += edited.end;
        }
        visit_range(&all, from..all.src.len(), visit);
    }
    for (src, edges) in edits.into_iter().flat_map(Edits::iter) {
        for edge in edges {
            visit(src, edge.weight, &edge.feature);
        }
    }
}

/// Returns the positions of a source among ascending ones.
pub(crate) fn places(all: &[NodeIdx], src: NodeIdx) -> Range<usize> {
    let start = all.partition_point(|&node| node < src);
    let count = all[start..].iter().take_while(|&&node| node == src).count();
    start..start + count
}
