//! Sampling that merges: each in-edge has a priority of its own, and the least are the sample.
//!
//! The least `f` of a union are the least `f` of the parts' least `f`, so combiners may cut
//! early and hubs may be split without any trace in the result (bottom-k sampling; for the
//! weighted case Efraimidis & Spirakis, "Weighted random sampling with a reservoir", 2006).

use crate::NodeIdx;
use schemas::Sampling;

/// Mixes 64 bits so that each input bit moves each output bit (the finaliser of SplitMix64).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes an edge by the hashes of its ends' raw ids; the direction counts.
pub fn edge_hash(src_hash: u64, dst_hash: u64) -> u64 {
    mix(src_hash ^ mix(dst_hash.wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// Returns an in-edge's priority, as bits that compare as the priority does: least is kept first.
///
/// It depends on nothing but the seed, the edge's raw ids and its ordinal among parallel edges
/// (for `weighted` and `top` on its weight too).
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

/// Maps 64 random bits into the open interval (0, 1): 52 of them, so that the half added to keep
/// off 0 is not rounded up to 1.
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

/// An in-edge on its way into a node's ranked list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InEdge {
    /// The edge's source.
    pub src: NodeIdx,
    /// The edge's place in the input: twice the row of the edge table, plus one if reversed.
    pub row: u64,
    /// [`edge_hash`] of the ends.
    pub hash: u64,
    /// The edge's weight; 1 where the input has none.
    pub weight: f32,
    /// Where the edge's features stand in the columns at hand.
    pub slot: u32,
}

/// An in-edge with its place in the order of the sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedEdge {
    /// [`priority`] of the edge.
    pub priority: u64,
    /// Ordinal among the parallel edges of the same source, by input row.
    pub ordinal: u32,
    /// The edge.
    pub edge: InEdge,
}

/// Numbers parallel edges by input row: sorts `in_edges` by source and row.
///
/// All parallel edges of a pair must be at hand.
pub fn sort_parallel(in_edges: &mut [InEdge]) {
    in_edges.sort_unstable_by_key(|e| (e.src, e.row));
}

/// Ranks the in-edges of one node and keeps the first `keep`, ties by (source, ordinal).
///
/// # Shapes
///
/// - `in_edges`: `[in_degree]`, as [`sort_parallel`] leaves them
/// - `ranked`: `[min(in_degree, keep)]`, overwritten
pub fn rank_in_edges(
    in_edges: &[InEdge],
    sampling: Sampling,
    seed: u64,
    keep: usize,
    ranked: &mut Vec<RankedEdge>,
) {
    ranked.clear();
    let mut ordinal = 0;
    for (i, &edge) in in_edges.iter().enumerate() {
        ordinal = if i > 0 && in_edges[i - 1].src == edge.src {
            ordinal + 1
        } else {
            0
        };
        let priority = priority(sampling, seed, edge.hash, ordinal, edge.weight);
        ranked.push(RankedEdge {
            priority,
            ordinal,
            edge,
        });
    }
    keep_least(ranked, keep);
}

/// Sorts by rank and cuts to the first `keep`.
pub fn keep_least(ranked: &mut Vec<RankedEdge>, keep: usize) {
    let order = |e: &RankedEdge| (e.priority, e.edge.src, e.ordinal);
    if keep < ranked.len() / 2 {
        ranked.select_nth_unstable_by_key(keep, order);
        ranked.truncate(keep);
    }
    ranked.sort_unstable_by_key(order);
    ranked.truncate(keep);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(num: u32) -> Vec<InEdge> {
        let edge = |i: u32| InEdge {
            src: i / 2,
            row: u64::from(i),
            hash: edge_hash(u64::from(i / 2), 99),
            weight: 1.0 + (i % 5) as f32,
            slot: i,
        };
        (0..num).map(edge).collect()
    }

    #[test]
    fn the_least_of_a_union_are_the_least_of_the_parts() {
        for sampling in [Sampling::Uniform, Sampling::Weighted, Sampling::Top] {
            let all = edges(60);
            let mut whole = Vec::new();
            rank_in_edges(&all, sampling, 7, 12, &mut whole);
            let mut merged = Vec::new();
            // Parallel edges stay together, as hub re-indexing keeps them.
            for part in 0..3 {
                let mine: Vec<_> = all.iter().copied().filter(|e| e.src % 3 == part).collect();
                let mut ranked = Vec::new();
                rank_in_edges(&mine, sampling, 7, 12, &mut ranked);
                merged.extend(ranked);
            }
            keep_least(&mut merged, 12);
            assert_eq!(merged, whole);
        }
    }

    #[test]
    fn a_smaller_fanout_keeps_a_prefix() {
        let (mut long, mut short) = (Vec::new(), Vec::new());
        rank_in_edges(&edges(40), Sampling::Uniform, 3, usize::MAX, &mut long);
        rank_in_edges(&edges(40), Sampling::Uniform, 3, 5, &mut short);
        assert_eq!(long.len(), 40);
        assert_eq!(short, long[..5]);
    }

    #[test]
    fn top_keeps_the_heaviest_and_breaks_ties_by_source() {
        let mut ranked = Vec::new();
        rank_in_edges(&edges(20), Sampling::Top, 3, 6, &mut ranked);
        let kept: Vec<_> = ranked.iter().map(|r| (r.edge.weight, r.edge.src)).collect();
        assert_eq!(
            kept,
            [(5.0, 2), (5.0, 4), (5.0, 7), (5.0, 9), (4.0, 1), (4.0, 4)]
        );
    }

    #[test]
    fn an_edge_of_weight_zero_comes_last() {
        let mut all = edges(10);
        all[3].weight = 0.0;
        let mut ranked = Vec::new();
        rank_in_edges(&all, Sampling::Weighted, 11, usize::MAX, &mut ranked);
        assert_eq!(ranked[9].edge.slot, 3);
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
