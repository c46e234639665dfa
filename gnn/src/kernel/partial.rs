//! Aggregates some of a node's in-edges to a state. Merging the states of all in-edges gives
//! the aggregate of the node.
//!
//! The sums equal those of the kernels that read all in-edges of a node at once, but are added in
//! another order. The kernels of this file keep nothing for a backward pass.

use super::Float;
use super::attention::leaky;
use super::edge_projection::EdgeProjection;
use super::heads::{dot_heads, sum_heads};
use super::instruction_set;
use super::prefetch::{AHEAD, prefetch};
use super::spmm::weighted_sum;
use super::stored::Stored;
use crate::Dense;

/// Sets `out` to the sum of `factor[e] * x[src[e]]`.
pub(crate) fn sum_rows<S: Stored<f32>>(x: &[S], src: &[u32], factor: &[f32], out: &mut [f32]) {
    instruction_set::run(
        #[inline(always)]
        || {
            let terms = factor.iter().copied().zip(src.iter().map(|&u| u as usize));
            let dim = out.len();
            let first = terms.clone().enumerate().map(|(e, term)| {
                prefetch(x, src.get(e + AHEAD), dim);
                term
            });
            out.fill(0.0);
            weighted_sum(out, x, first, terms);
        },
    )
}

/// Sets `out` to the largest `factor[e] * x[src[e]]` of each column.
pub(crate) fn max_rows<S: Stored<f32>>(
    x: &[S],
    src: &[u32],
    factor: Option<&[f32]>,
    out: &mut [f32],
) {
    instruction_set::run(
        #[inline(always)]
        || {
            let dim = out.len();
            out.fill(f32::NEG_INFINITY);
            for (e, &u) in src.iter().enumerate() {
                prefetch(x, src.get(e + AHEAD), dim);
                let factor = factor.map_or(1.0, |factor| factor[e]);
                for (out, x) in out.iter_mut().zip(row(x, u, dim)) {
                    let value = factor * x.load();
                    *out = if value > *out { value } else { *out };
                }
            }
        },
    )
}

/// Sets `out` to the sum of `factor[e] * relu(x[src[e]] + weight * feature[e] + bias)`, with
/// `weight: [dim, edge_dim]`.
pub(crate) fn gine_rows<S: Stored<f32>>(
    (x, src): (&[S], &[u32]),
    factor: &[f32],
    (feature, weight, bias): (&Dense, &[f32], &[f32]),
    out: &mut [f32],
) {
    instruction_set::run(
        #[inline(always)]
        || {
            let dim = out.len();
            let projection = EdgeProjection::new(feature, weight);
            let mut message = vec![0.0; dim];
            out.fill(0.0);
            for (e, (&u, &factor)) in src.iter().zip(factor).enumerate() {
                prefetch(x, src.get(e + AHEAD), dim);
                let own = row(x, u, dim).iter().zip(bias);
                for (message, (x, &bias)) in message.iter_mut().zip(own) {
                    *message = x.load() + bias;
                }
                projection.add(feature.row(e), &mut message);
                for (out, &message) in out.iter_mut().zip(&message) {
                    *out += if message > 0.0 { factor * message } else { 0.0 };
                }
            }
        },
    )
}

/// Returns GAT's scores of in-edges: `leaky(s[src[e]] + dst + z[e])` for each head.
///
/// A row of `s` has `scores_dim` values; the `heads` from column `first` on are the scores of the
/// node as a source.
pub(crate) fn gat_scores(
    (s, scores_dim, first): (&[f32], usize, usize),
    src: &[u32],
    dst: &[f32],
    z: Option<&[f32]>,
) -> Vec<f32> {
    instruction_set::run(
        #[inline(always)]
        || {
            let heads = dst.len();
            let mut scores = Vec::with_capacity(src.len() * heads);
            for (e, &u) in src.iter().enumerate() {
                prefetch(s, src.get(e + AHEAD), scores_dim);
                let of_edge = |head| z.map_or(0.0, |z| z[e * heads + head]);
                let ends = row(s, u, scores_dim)[first..].iter().zip(dst).enumerate();
                scores.extend(ends.map(|(head, (&src, &dst))| leaky(src + dst + of_edge(head))));
            }
            scores
        },
    )
}

/// Returns GATv2's scores of in-edges: `att . leaky(l[src[e]] + r + weight * feature[e])` for each
/// head, with `weight: [heads * dim, edge_dim]`.
pub(crate) fn gatv2_scores<S: Stored<f32>>(
    (l, src): (&[S], &[u32]),
    (r, att, heads): (&[f32], &[f32], usize),
    edge: Option<(&Dense, &[f32])>,
) -> Vec<f32> {
    instruction_set::run(
        #[inline(always)]
        || {
            let width = r.len();
            let projection =
                edge.map(|(feature, weight)| (feature, EdgeProjection::new(feature, weight)));
            let mut scores = vec![0.0; src.len() * heads];
            let mut inner = vec![0.0; width];
            for (e, (&u, scores)) in src.iter().zip(scores.chunks_exact_mut(heads)).enumerate() {
                prefetch(l, src.get(e + AHEAD), width);
                for (inner, (l, &r)) in inner.iter_mut().zip(row(l, u, width).iter().zip(r)) {
                    *inner = l.load() + r;
                }
                if let Some((feature, projection)) = &projection {
                    projection.add(feature.row(e), &mut inner);
                }
                inner.iter_mut().for_each(|x| *x = leaky(*x));
                dot_heads(scores, &inner, att, width / heads);
            }
            scores
        },
    )
}

/// Returns the scores of in-edges that are products: `key[src[e]] . query` for each head.
pub(crate) fn dot_scores<S: Stored<f32>>(
    key: &[S],
    src: &[u32],
    query: &[f32],
    heads: usize,
) -> Vec<f32> {
    instruction_set::run(
        #[inline(always)]
        || {
            let width = query.len();
            let mut scores = vec![0.0; src.len() * heads];
            for (e, (&u, scores)) in src.iter().zip(scores.chunks_exact_mut(heads)).enumerate() {
                prefetch(key, src.get(e + AHEAD), width);
                dot_heads(scores, query, row(key, u, width), width / heads);
            }
            scores
        },
    )
}

/// Sets `out` to the state of a softmax over in-edges.
///
/// The state is the largest score `m` of each head, then the sum of `exp(score - m)` of each head,
/// then the sum of `exp(score - m) * factor[e] * x[src[e]]` of each head.
pub(crate) fn softmax_rows<S: Stored<f32>>(
    (x, src): (&[S], &[u32]),
    mut scores: Vec<f32>,
    factor: Option<&[f32]>,
    out: &mut [f32],
    heads: usize,
) {
    instruction_set::run(
        #[inline(always)]
        || {
            let (greatest, rest) = out.split_at_mut(heads);
            let (sums, rows) = rest.split_at_mut(heads);
            softmax_shares(&mut scores, factor, (greatest, sums));
            let width = rows.len();
            let cols = src.iter().enumerate().map(|(e, &u)| {
                prefetch(x, src.get(e + AHEAD), width);
                u as usize
            });
            let terms = scores.chunks_exact(heads).zip(cols);
            sum_heads(rows, heads, x, terms);
        },
    )
}

/// Turns scores of in-edges into `exp(score - m) * factor[e]`; sets the largest score `m` of each
/// head, and the sum of `exp(score - m)`.
pub(crate) fn softmax_shares(
    scores: &mut [f32],
    factor: Option<&[f32]>,
    (greatest, sums): (&mut [f32], &mut [f32]),
) {
    instruction_set::run(
        #[inline(always)]
        || {
            let heads = sums.len();
            greatest.fill(f32::NEG_INFINITY);
            for scores in scores.chunks_exact(heads) {
                for (greatest, &score) in greatest.iter_mut().zip(scores) {
                    *greatest = if score > *greatest { score } else { *greatest };
                }
            }
            sums.fill(0.0);
            for (e, scores) in scores.chunks_exact_mut(heads).enumerate() {
                let factor = factor.map_or(1.0, |factor| factor[e]);
                for (score, (greatest, sum)) in
                    scores.iter_mut().zip(greatest.iter().zip(&mut *sums))
                {
                    let share = Float::exp(*score - *greatest);
                    *sum += share;
                    *score = factor * share;
                }
            }
        },
    )
}

/// Merges states of [`softmax_rows`]; returns the output row of the node.
///
/// The output of a head is its weighted sum divided by its sum of exponentials.
pub(crate) fn merge_softmax(states: &[&[f32]], heads: usize) -> Vec<f32> {
    let width = states[0].len() - 2 * heads;
    let mut merged = vec![0.0; states[0].len()];
    merge_states(states, heads, &mut merged);
    let mut out = merged.split_off(2 * heads);
    let sums = &merged[heads..];
    for (out, sum) in out.chunks_exact_mut(width / heads).zip(sums) {
        out.iter_mut().for_each(|x| *x /= sum);
    }
    out
}

/// Merges states of [`softmax_rows`] to one state. Without states, the sums are 0 and the largest
/// score is that of no in-edge.
pub(crate) fn merge_states(states: &[&[f32]], heads: usize, out: &mut [f32]) {
    instruction_set::run(
        #[inline(always)]
        || {
            let (greatest, rest) = out.split_at_mut(heads);
            let (sums, rows) = rest.split_at_mut(heads);
            let dim = rows.len() / heads;
            rows.fill(0.0);
            for (head, rows) in rows.chunks_exact_mut(dim).enumerate() {
                let of_head = states.iter().map(|state| state[head]);
                greatest[head] = of_head.fold(f32::NEG_INFINITY, f32::max);
                sums[head] = 0.0;
                for state in states {
                    if state[head] == f32::NEG_INFINITY {
                        continue; // a state of no in-edge
                    }
                    let share = Float::exp(state[head] - greatest[head]);
                    sums[head] += share * state[heads + head];
                    let row = &state[2 * heads + head * dim..];
                    for (out, &x) in rows.iter_mut().zip(row) {
                        *out += share * x;
                    }
                }
            }
        },
    )
}

#[inline(always)]
fn row<S>(x: &[S], u: u32, width: usize) -> &[S] {
    super::heads::row(x, u as usize, width)
}
