//! Mergeable sampling: each in-edge has a priority, and the in-edges of least priority are the
//! sample.
//!
//! The least `f` of a union are the least `f` of the parts' least `f`, so each part can be cut
//! early and hubs can be split without any change of the result (bottom-k sampling; for the
//! weighted case Efraimidis & Spirakis, "Weighted random sampling with a reservoir", 2006).

use schemas::{NodeIdx, Sampling};

/// Mixes 64 bits so that each input bit affects each output bit (the finaliser of SplitMix64).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the salt of a relation's edge hashes; 0 for the relation without a name.
pub fn relation_salt(name: &str) -> u64 {
    match name {
        "" => 0,
        _ => schemas::xxh::hash_bytes(name.as_bytes()),
    }
}

/// Hashes an edge, given the [`relation_salt`] of its relation and the hashes of its ends' raw ids;
/// the reverse edge has another hash.
pub fn edge_hash(salt: u64, src_hash: u64, dst_hash: u64) -> u64 {
    let hash = mix(src_hash ^ mix(dst_hash.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    if salt == 0 { hash } else { mix(hash ^ salt) }
}

/// Returns an in-edge's priority, as bits that compare as the priority does; the least is kept
/// first.
///
/// It depends only on the seed, the edge's raw ids and its ordinal among parallel edges (for
/// `weighted` and `top` on its weight too).
#[inline]
pub fn priority(sampling: Sampling, seed: u64, edge: u64, ordinal: u32, weight: f32) -> u64 {
    match sampling {
        Sampling::Uniform => draw(seed, edge, ordinal),
        // An exponential clock of rate w rings at -ln(r)/w; one of rate 0 never does, and adding
        // +0 makes a rate of -0 one of 0.
        Sampling::Weighted => {
            ascending_bits(-unit(draw(seed, edge, ordinal)).ln() / (f64::from(weight) + 0.0))
        }
        Sampling::Top => ascending_bits(-f64::from(weight)),
    }
}

fn draw(seed: u64, edge: u64, ordinal: u32) -> u64 {
    let salt = mix(seed.wrapping_add(0x2545_f491_4f6c_dd1d));
    mix(edge ^ salt.wrapping_add(u64::from(ordinal).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Maps 64 random bits into the open interval (0, 1): 52 of them are used, so that adding a half,
/// which avoids 0, never rounds up to 1.
fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// Bits whose unsigned order is the order of the floats; -0 equals +0, NaN never occurs.
fn ascending_bits(x: f64) -> u64 {
    let bits = (x + 0.0).to_bits();
    if bits >> 63 == 1 {
        !bits
    } else {
        bits | (1 << 63)
    }
}

/// An in-edge of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InEdge {
    /// [`edge_hash`] of the ends.
    pub(crate) hash: u64,
    pub(crate) src: NodeIdx,
    /// 1 where the input has no weights.
    pub(crate) weight: f32,
}

/// An in-edge with its rank in a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranked {
    /// [`priority`] of the edge.
    pub(crate) priority: u64,
    /// Source.
    pub(crate) src: NodeIdx,
    /// Ordinal among the parallel edges of the same source, by input row.
    pub(crate) ordinal: u32,
    pub(crate) weight: f32,
    /// Position of the edge, and of its features, among the edges that are ranked.
    pub(crate) at: u32,
}

/// Order of a node's in-edges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// By the priority that a sampling and a seed give them.
    Rank(Sampling, u64),
    /// By source and ordinal, from which samples of any seed can be drawn.
    Source,
}

impl Order {
    fn priority(self, edge: &InEdge, ordinal: u32) -> u64 {
        match self {
            Self::Rank(sampling, seed) => priority(sampling, seed, edge.hash, ordinal, edge.weight),
            Self::Source => 0,
        }
    }
}

/// Ranks the in-edges of one node after the other.
#[derive(Debug, Default)]
pub(crate) struct Ranker {
    /// Positions of the first edges, in rank order.
    first: Vec<u32>,
    /// The high bits of a draw and the position of its edge in one number.
    keys: Vec<u64>,
    /// Whether `ordinals` are those of the node.
    has_ordinals: bool,
    /// `[in_degree]`, ordinal of each edge among the edges of its source.
    ordinals: Vec<u32>,
    /// A hash table by source: the position of its last edge.
    last: Vec<u32>,
    /// Priority, source and position of edges in one number, whose order is the rank: positions of
    /// parallel edges follow input rows, and so ordinals.
    least: Least,
}

/// Collects the least of some draws, in memory for about twice the number that is kept.
#[derive(Debug, Default)]
struct Least {
    draws: Vec<u128>,
    keep: usize,
    /// Number of draws at which the greater ones are removed.
    enough: usize,
    /// Draws from this one on are not among the least.
    beyond: u128,
}

impl Least {
    /// Removes all draws, to keep the first `keep` of the next ones.
    fn start(&mut self, keep: usize) {
        self.draws.clear();
        self.keep = keep;
        self.enough = keep.saturating_mul(2).saturating_add(1);
        self.beyond = u128::MAX;
    }

    #[inline]
    fn push(&mut self, draw: u128) {
        if draw >= self.beyond {
            return;
        }
        self.draws.push(draw);
        if self.draws.len() == self.enough {
            self.beyond = *self.draws.select_nth_unstable(self.keep).1;
            self.draws.truncate(self.keep);
        }
    }

    /// Returns the least, ascending.
    fn finish(&mut self) -> &[u128] {
        self.draws.sort_unstable();
        self.draws.truncate(self.keep);
        &self.draws
    }
}

/// In-edges whose sources' hashes are fetched before any of them is drawn.
const DRAWN_AT_ONCE: usize = 64;

/// Draws samples of the in-edges of one node after the other; the in-edges are sorted by source.
#[derive(Debug, Default)]
pub struct Drawer {
    /// Priority and position of edges; positions are in the order of (source, ordinal).
    least: Least,
    /// Hashes of the sources of the edges of a run.
    hashes: Vec<u64>,
}

impl Drawer {
    /// Draws the first `keep` in-edges of a node and of one relation as `Ranker::rank` does; returns
    /// their positions in rank order. `salt` is the [`relation_salt`] of the relation.
    ///
    /// # Shapes
    ///
    /// - `src`: `[in_degree]`, all sources, ascending
    /// - `weight`: `[in_degree]`, parallel edges by ordinal; 1 each if there are none
    /// - `hashes`: `[num_nodes]`, of the raw ids
    pub fn draw(
        &mut self,
        (sampling, seed): (Sampling, u64),
        salt: u64,
        dst: NodeIdx,
        (src, weight): (&[NodeIdx], Option<&[f32]>),
        hashes: &[u64],
        keep: usize,
    ) -> impl Iterator<Item = usize> {
        self.least.start(keep);
        let dst_hash = hashes[dst.index()];
        let (mut before, mut ordinal) = (None, 0);
        let mut at = 0u32;
        for run in src.chunks(DRAWN_AT_ONCE) {
            // The hashes are scattered in memory: fetching many in one loop overlaps the cache
            // misses.
            self.hashes.clear();
            let of_run = run.iter().map(|&node| hashes[node.index()]);
            self.hashes.extend(of_run);
            for (&node, &src_hash) in run.iter().zip(&self.hashes) {
                ordinal = if before == Some(node) { ordinal + 1 } else { 0 };
                before = Some(node);
                let edge = edge_hash(salt, src_hash, dst_hash);
                let of_edge = weight.map_or(1.0, |weight| weight[at as usize]);
                let drawn = priority(sampling, seed, edge, ordinal, of_edge);
                self.least.push(u128::from(drawn) << 64 | u128::from(at));
                at += 1;
            }
        }
        let least = self.least.finish().iter();
        least.map(|&draw| low_32(draw) as usize)
    }
}

/// An empty slot of a [`Ranker`]'s hash table.
const NO_EDGE: u32 = u32::MAX;

impl Ranker {
    /// Starts with the edges of another node.
    pub(crate) fn start(&mut self) {
        self.has_ordinals = false;
    }

    /// Returns the positions of the first `keep` edges of a node, ties by (source, ordinal); `edges`
    /// must hold all of them.
    pub(crate) fn first(&mut self, edges: &[InEdge], order: Order, keep: usize) -> &[u32] {
        if keep < edges.len() || !self.sort_all(edges, order) {
            self.rank_all(edges, order, keep);
            let least = self.least.finish().iter();
            self.first.clear();
            self.first.extend(least.map(|&draw| low_32(draw)));
        }
        &self.first
    }

    /// Sorts all edges without numbering the parallel ones; tells whether that gave their order.
    fn sort_all(&mut self, edges: &[InEdge], order: Order) -> bool {
        let count = edges.len() as u64;
        let places = count.next_power_of_two().max(2) - 1; // the bits of positions
        let (keys, numbered) = (&mut self.keys, (0u64..).zip(edges));
        keys.clear();
        match order {
            // By source and position, which follows the input rows.
            Order::Source => {
                keys.extend(numbered.map(|(at, edge)| u64::from(edge.src.raw()) << 32 | at));
            }
            // Parallel edges have one hash, so with the same ordinal they draw the same.
            Order::Rank(Sampling::Uniform, seed) => {
                let key = |(at, edge): (u64, &InEdge)| draw(seed, edge.hash, 0) & !places | at;
                keys.extend(numbered.map(key));
            }
            Order::Rank(Sampling::Weighted | Sampling::Top, _) => return false,
        }
        keys.sort_unstable();
        let is_tie = |pair: &[u64]| (pair[0] ^ pair[1]) & !places == 0;
        if order != Order::Source && keys.windows(2).any(is_tie) {
            return false;
        }
        let places = match order {
            Order::Source => u64::from(u32::MAX),
            Order::Rank(..) => places,
        };
        self.first.clear();
        let positions = self.keys.iter().map(|key| low_32((key & places).into()));
        self.first.extend(positions);
        true
    }

    /// Numbers the parallel edges of a node by input row.
    fn load(&mut self, edges: &[InEdge]) {
        if self.has_ordinals {
            return;
        }
        self.has_ordinals = true;
        self.ordinals.clear();
        self.last.clear();
        self.last
            .resize((2 * edges.len()).next_power_of_two(), NO_EDGE);
        let mask = self.last.len() - 1;
        for (at, edge) in (0..).zip(edges) {
            // Edges of one source and one `dst` have one hash.
            let mut slot = low_32(edge.hash.into()) as usize & mask;
            let ordinal = loop {
                let other = self.last[slot];
                if other == NO_EDGE {
                    break 0;
                }
                if edges[other as usize].src == edge.src {
                    break self.ordinals[other as usize] + 1;
                }
                slot = (slot + 1) & mask;
            };
            self.last[slot] = at;
            self.ordinals.push(ordinal);
        }
    }

    /// Draws all edges of a node, to keep the first `keep`, ties by (source, ordinal).
    fn rank_all(&mut self, edges: &[InEdge], order: Order, keep: usize) {
        self.load(edges);
        self.least.start(keep);
        for (at, (edge, &ordinal)) in (0u64..).zip(edges.iter().zip(&self.ordinals)) {
            let place = u64::from(edge.src.raw()) << 32 | at;
            let priority = order.priority(edge, ordinal);
            self.least
                .push(u128::from(priority) << 64 | u128::from(place));
        }
    }

    /// Ranks the edges of a node as [`Ranker::first`] does.
    ///
    /// # Shapes
    ///
    /// - `ranked`: `[min(in_degree, keep)]`, overwritten
    pub(crate) fn rank(
        &mut self,
        edges: &[InEdge],
        order: Order,
        keep: usize,
        ranked: &mut Vec<Ranked>,
    ) {
        self.rank_all(edges, order, keep);
        ranked.clear();
        ranked.extend(self.least.finish().iter().map(|&draw| {
            let at = low_32(draw);
            Ranked {
                priority: (draw >> 64) as u64,
                src: edges[at as usize].src,
                ordinal: self.ordinals[at as usize],
                weight: edges[at as usize].weight,
                at,
            }
        }));
    }
}

fn low_32(bits: u128) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "only the low 32 bits are wanted"
    )]
    let low = bits as u32;
    low
}

/// Sorts by rank and cuts to the first `keep`.
pub(crate) fn keep_least(ranked: &mut Vec<Ranked>, keep: usize) {
    ranked.sort_unstable_by_key(|e| (e.priority, e.src, e.ordinal));
    ranked.truncate(keep);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `num` edges, two from each source.
    fn edges(num: u32) -> Vec<InEdge> {
        let edge = |i: u32| InEdge {
            hash: edge_hash(0, u64::from(i / 2), 99),
            src: NodeIdx::from_raw(i / 2),
            weight: 1.0 + (i % 5) as f32,
        };
        (0..num).map(edge).collect()
    }

    fn rank(edges: &[InEdge], sampling: Sampling, seed: u64, keep: usize) -> Vec<Ranked> {
        let (mut ranker, mut ranked) = (Ranker::default(), Vec::new());
        ranker.start();
        let order = Order::Rank(sampling, seed);
        ranker.rank(edges, order, keep, &mut ranked);
        ranked
    }

    fn without_place(ranked: &[Ranked]) -> Vec<(u64, u32, u32)> {
        ranked
            .iter()
            .map(|r| (r.priority, r.src.raw(), r.ordinal))
            .collect()
    }

    #[test]
    fn the_least_of_a_union_are_the_least_of_the_parts() {
        for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
            let all = edges(60);
            let whole = rank(&all, sampling, 7, 12);
            // Parallel edges stay together, as hub re-indexing keeps them.
            let parts = (0..3).flat_map(|part| {
                let mut mine = all.clone();
                mine.retain(|edge| edge.src.raw() % 3 == part);
                rank(&mine, sampling, 7, 12)
            });
            let mut merged: Vec<Ranked> = parts.collect();
            keep_least(&mut merged, 12);
            assert_eq!(without_place(&merged), without_place(&whole));
        }
    }

    #[test]
    fn a_sample_drawn_later_is_the_one_that_was_ranked() {
        // Sources in any order, some of them up to four times, hashed as their ids are.
        let hashes: Vec<u64> = (0..100).map(|node| mix(node + 5)).collect();
        let salt = relation_salt("cites");
        let drawn_edge = |i: u64| {
            let src = NodeIdx::from_raw(u32::try_from(mix(i) % 30).unwrap());
            InEdge {
                hash: edge_hash(salt, hashes[src.index()], hashes[99]),
                src,
                weight: (mix(i + 1000) % 3) as f32,
            }
        };
        let edges: Vec<InEdge> = (0..50).map(drawn_edge).collect();
        let (mut ranker, mut all, mut drawer) = (Ranker::default(), Vec::new(), Drawer::default());
        ranker.start();
        ranker.rank(&edges, Order::Source, usize::MAX, &mut all);
        let (src, weight): (Vec<NodeIdx>, Vec<f32>) =
            all.iter().map(|edge| (edge.src, edge.weight)).unzip();
        assert!(src.is_sorted() && src.len() == 50);
        for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
            for (seed, keep) in [(3, 0), (3, 1), (4, 7), (5, 24), (6, 25), (7, usize::MAX)] {
                let columns = (&src[..], Some(&weight[..]));
                let drawn = drawer.draw(
                    (sampling, seed),
                    salt,
                    NodeIdx::from_raw(99),
                    columns,
                    &hashes,
                    keep,
                );
                let drawn: Vec<_> = drawn
                    .map(|at| (all[at].src, all[at].ordinal, all[at].at))
                    .collect();
                let expected = rank(&edges, sampling, seed, keep);
                let expected: Vec<_> = expected
                    .iter()
                    .map(|edge| (edge.src, edge.ordinal, edge.at))
                    .collect();
                assert_eq!(drawn, expected, "{sampling:?} {seed} {keep}");
            }
        }
    }

    /// Samples must never change: they decide on which neighbourhoods a model is trained.
    #[test]
    fn relations_hash_their_edges_with_salts_of_their_own() {
        assert_eq!(relation_salt(""), 0);
        assert_eq!(edge_hash(0, 1, 2), 0xf282_6f98_653e_9e57);
        assert_eq!(
            edge_hash(relation_salt("cites"), 1, 2),
            0x00a0_a774_b8a4_b95c
        );
        assert_ne!(
            edge_hash(relation_salt("cites"), 1, 2),
            edge_hash(relation_salt("cited"), 1, 2)
        );
    }

    #[test]
    fn the_first_positions_are_those_of_the_ranks() {
        let (mut ranker, mut ranked) = (Ranker::default(), Vec::new());
        let samplings = [Sampling::Uniform, Sampling::Weighted, Sampling::Top];
        let orders = samplings.map(|sampling| Order::Rank(sampling, 5));
        for (num, num_srcs) in [(0, 1), (1, 1), (2, 1), (2, 9), (40, 7), (300, 1 << 30)] {
            let edges: Vec<InEdge> = (0..num)
                .map(|at| {
                    let src = u32::try_from(mix(at) % num_srcs).unwrap();
                    InEdge {
                        hash: edge_hash(0, src.into(), 99),
                        src: NodeIdx::from_raw(src),
                        weight: (at % 3) as f32,
                    }
                })
                .collect();
            ranker.start();
            for order in orders.into_iter().chain([Order::Source]) {
                for keep in [0, 1, 5, 40, usize::MAX] {
                    let first = ranker.first(&edges, order, keep).to_vec();
                    ranker.rank(&edges, order, keep, &mut ranked);
                    let expected: Vec<u32> = ranked.iter().map(|edge| edge.at).collect();
                    assert_eq!(first, expected, "{num} {num_srcs} {order:?} {keep}");
                }
            }
        }
    }

    #[test]
    fn a_smaller_fanout_keeps_a_prefix() {
        let long = rank(&edges(40), Sampling::Uniform, 3, usize::MAX);
        let short = rank(&edges(40), Sampling::Uniform, 3, 5);
        assert_eq!(long.len(), 40);
        assert_eq!(short, long[..5]);
    }

    #[test]
    fn top_keeps_the_heaviest_and_breaks_ties_by_source() {
        let ranked = rank(&edges(20), Sampling::Top, 3, 6);
        let kept: Vec<_> = ranked.iter().map(|r| (r.weight, r.src.raw())).collect();
        assert_eq!(
            kept,
            [(5.0, 2), (5.0, 4), (5.0, 7), (5.0, 9), (4.0, 1), (4.0, 4)]
        );
    }

    #[test]
    fn an_edge_of_weight_zero_comes_last() {
        let mut edges = edges(10);
        edges[3].weight = 0.0;
        let ranked = rank(&edges, Sampling::Weighted, 11, usize::MAX);
        assert_eq!(ranked[9].at, 3);
    }

    #[test]
    fn draws_stay_between_zero_and_one() {
        assert!(unit(0) > 0.0 && unit(u64::MAX) < 1.0);
        assert!((unit(u64::MAX / 2) - 0.5).abs() < 1e-15);
    }

    #[test]
    fn a_weight_of_minus_zero_is_a_weight_of_zero() {
        for sampling in [Sampling::Weighted, Sampling::Top] {
            let [plus, minus] = [0.0, -0.0].map(|weight| priority(sampling, 5, 6, 0, weight));
            assert_eq!(plus, minus);
            assert!(plus > priority(sampling, 5, 6, 0, 1e-30));
        }
    }

    #[test]
    fn float_order_is_kept_in_the_bits() {
        let sorted = [
            f64::NEG_INFINITY,
            -2.0,
            -0.5,
            0.0,
            1e-300,
            3.0,
            f64::INFINITY,
        ];
        assert!(
            sorted
                .windows(2)
                .all(|w| ascending_bits(w[0]) < ascending_bits(w[1]))
        );
        assert_eq!(ascending_bits(-0.0), ascending_bits(0.0));
    }
}
