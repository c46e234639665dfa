//! What GAT and GATv2 share: the edges of a row, their factors and the softmax over them.
//!
//! Self-loops of the edge list count nothing; exactly one is added to every row. Per row and head
//! the coefficients stand side by side, the in-edges' first and the added self-loop's last:
//! `[num_edges + num_rows, heads]` in all.

use std::ops::Range;
use std::sync::Arc;

use super::split::{pieces, run, split_mut};
use super::{Csr, Float, Forward, Mask, Saved};

/// Slope of the leaky non-linearity below 0, as in `PyG`.
const SLOPE: f32 = 0.2;

/// The edges attention runs over, and what multiplies its coefficients.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which rows of the input each output row reads.
    pub csr: Arc<Csr>,
    /// Number of heads, whose features stand side by side.
    pub heads: usize,
    /// `[num_edges]`: factor of each coefficient, after the softmax; the added self-loop's is 1.
    pub weight: Option<Vec<f32>>,
    /// `[num_cols]`: draws dropout of coefficients, with the key of each node.
    pub dropout: Option<(Mask, Arc<Vec<u64>>)>,
}

/// One edge of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// Row of the coefficients that belongs to it.
    pub(super) slot: usize,
    /// Input row it reads.
    pub(super) col: usize,
    /// Its position among the edges; none for the added self-loop.
    pub(super) edge: Option<usize>,
}

impl Attention {
    /// Returns the rows of coefficients that belong to output row `v`.
    pub(super) fn slots(&self, v: usize) -> Range<usize> {
        self.slot_start(v)..self.slot_start(v + 1)
    }

    /// Returns where the coefficients of output row `v` start.
    pub(super) fn slot_start(&self, v: usize) -> usize {
        self.csr.offset[v] as usize + v
    }

    /// Returns the number of rows of coefficients.
    pub(super) fn num_slots(&self) -> usize {
        self.csr.num_edges() + self.csr.num_rows()
    }

    /// Returns the self-loop added to row `v`.
    pub(super) fn own(&self, v: usize) -> Term {
        Term {
            slot: self.slot_start(v + 1) - 1,
            col: v,
            edge: None,
        }
    }

    /// Returns the edges of row `v` without self-loops.
    pub(super) fn others(&self, v: usize) -> impl Iterator<Item = Term> {
        let edges = self.csr.row(v).map(move |edge| Term {
            slot: edge + v,
            col: self.csr.col[edge] as usize,
            edge: Some(edge),
        });
        edges.filter(move |term| term.col != v)
    }

    /// Returns the edges of row `v`, the added self-loop last.
    pub(super) fn terms(&self, v: usize) -> impl Iterator<Item = Term> {
        self.others(v).chain(std::iter::once(self.own(v)))
    }

    /// Returns the edges that leave column `u` as (row, edge), the added self-loop last.
    pub(super) fn terms_out(&self, u: usize) -> impl Iterator<Item = (usize, Term)> {
        let transposed = self.csr.transposed();
        let others = transposed.col(u).map(move |at| {
            let (edge, row) = (transposed.edge[at] as usize, transposed.row[at] as usize);
            (
                row,
                Term {
                    slot: edge + row,
                    col: u,
                    edge: Some(edge),
                },
            )
        });
        let own = (u < self.csr.num_rows()).then(|| (u, self.own(u)));
        others.filter(move |(row, _)| *row != u).chain(own)
    }

    /// Multiplies the value of each head by weight and dropout of an edge.
    #[inline]
    pub(super) fn scale<F: Float>(&self, v: usize, term: Term, values: &mut [F]) {
        if let (Some(weight), Some(edge)) = (&self.weight, term.edge) {
            let weight = F::from_f32(weight[edge]);
            values.iter_mut().for_each(|value| *value *= weight);
        }
        let Some((mask, key)) = &self.dropout else {
            return;
        };
        // A row's edges are in rank order, so an edge's place in it belongs to the edge.
        let ordinal = term
            .edge
            .map_or(u64::MAX, |edge| (edge + v - self.slot_start(v)) as u64);
        let mask = mask.edge(key[v], key[term.col], ordinal);
        for (value, head) in values.iter_mut().zip(0_u32..) {
            *value *= mask.factor(head);
        }
    }

    /// Adds row `x` to `out`, each head times its coefficient, weight and dropout.
    #[inline]
    pub(super) fn add_row<F: Float>(
        &self,
        (v, term): (usize, Term),
        alpha: &[F],
        factor: &mut [F],
        (x, out): (&[F], &mut [F]),
        dim: usize,
    ) {
        for (factor, &alpha) in factor.iter_mut().zip(alpha) {
            *factor = alpha;
        }
        self.scale(v, term, factor);
        add_heads(out, factor, x, dim);
    }

    /// Computes every output row, `heads * dim` wide, with its coefficients. Each piece of the rows has
    /// a `work` of its own, on which `forward` computes one row and its coefficients.
    pub(super) fn forward_rows<F: Float, W>(
        &self,
        dim: usize,
        work: impl Fn() -> W + Sync,
        forward: impl Fn(&mut W, usize, &mut [F], &mut [F]) + Sync,
    ) -> Forward<F> {
        let (csr, heads) = (&*self.csr, self.heads);
        let width = heads * dim;
        let mut out = vec![F::ZERO; csr.num_rows() * width];
        let mut alpha = vec![F::ZERO; self.num_slots() * heads];
        let ranges = pieces(&csr.offset, csr.partitioning, width);
        let outs = split_mut(&mut out, &ranges, |v| v * width);
        let alphas = split_mut(&mut alpha, &ranges, |v| self.slot_start(v) * heads);
        let parts = outs.into_iter().zip(alphas);
        run(
            ranges.into_iter().zip(parts).collect(),
            |(range, (outs, alphas))| {
                let mut work = work();
                let first = self.slot_start(range.start);
                for (v, out) in range.zip(outs.chunks_exact_mut(width)) {
                    let slots = self.slots(v);
                    let own = (slots.start - first) * heads..(slots.end - first) * heads;
                    forward(&mut work, v, out, &mut alphas[own]);
                }
            },
        );
        Forward {
            out,
            cols: width,
            saved: Saved {
                values: alpha,
                positions: Vec::new(),
            },
        }
    }

    /// Adds to `out` the rows of `x` that row `v` reads, each times its coefficients.
    pub(super) fn add_rows<F: Float>(
        &self,
        v: usize,
        alpha: &[F],
        factor: &mut [F],
        (x, out): (&[F], &mut [F]),
    ) {
        let (width, start) = (out.len(), self.slot_start(v));
        for term in self.terms(v) {
            let alpha = row(alpha, term.slot - start, self.heads);
            let x = row(x, term.col, width);
            self.add_row((v, term), alpha, factor, (x, &mut *out), width / self.heads);
        }
    }

    /// Sets the slopes of row `v`'s scores, given `grad`, the slope of its output.
    pub(super) fn score_slopes<F: Float>(
        &self,
        v: usize,
        alpha: &[F],
        sums: &mut [F],
        (x, grad): (&[F], &[F]),
        slopes: &mut [F],
    ) {
        let (width, start) = (grad.len(), self.slot_start(v));
        for term in self.terms(v) {
            let slope = &mut slopes[(term.slot - start) * self.heads..][..self.heads];
            dot_heads(slope, grad, row(x, term.col, width), width / self.heads);
            self.scale(v, term, slope);
        }
        self.softmax_backward(alpha, slopes, sums);
    }

    /// Turns the scores of a row into coefficients that add up to 1 for each head.
    pub(super) fn softmax<F: Float>(&self, scores: &mut [F], sums: &mut [F]) {
        let heads = self.heads;
        sums.fill(F::NEG_INFINITY);
        for row in scores.chunks_exact(heads) {
            for (max, &score) in sums.iter_mut().zip(row) {
                *max = if score > *max { score } else { *max };
            }
        }
        for row in scores.chunks_exact_mut(heads) {
            for (max, score) in sums.iter().zip(row) {
                *score = (*score - *max).exp();
            }
        }
        sums.fill(F::ZERO);
        for row in scores.chunks_exact(heads) {
            for (sum, &score) in sums.iter_mut().zip(row) {
                *sum += score;
            }
        }
        for row in scores.chunks_exact_mut(heads) {
            for (sum, score) in sums.iter().zip(row) {
                *score = *score / *sum;
            }
        }
    }

    /// Turns slopes by coefficient into slopes by score: `a (d - sum of a d)` for each head.
    pub(super) fn softmax_backward<F: Float>(&self, alpha: &[F], slopes: &mut [F], sums: &mut [F]) {
        let heads = self.heads;
        sums.fill(F::ZERO);
        for (alpha, slope) in alpha.chunks_exact(heads).zip(slopes.chunks_exact(heads)) {
            for (sum, (&alpha, &slope)) in sums.iter_mut().zip(alpha.iter().zip(slope)) {
                *sum += alpha * slope;
            }
        }
        for (alpha, slope) in alpha
            .chunks_exact(heads)
            .zip(slopes.chunks_exact_mut(heads))
        {
            for (slope, (&alpha, &sum)) in slope.iter_mut().zip(alpha.iter().zip(&*sums)) {
                *slope = alpha * (*slope - sum);
            }
        }
    }
}

/// Returns `x` above 0 and 0.2 `x` below.
#[inline]
pub(super) fn leaky<F: Float>(x: F) -> F {
    if x > F::ZERO {
        x
    } else {
        F::from_f32(SLOPE) * x
    }
}

/// Returns the slope of [`leaky`].
#[inline]
pub(super) fn leaky_slope<F: Float>(x: F) -> F {
    if x > F::ZERO {
        F::ONE
    } else {
        F::from_f32(SLOPE)
    }
}

/// Returns one row of a matrix.
#[inline]
pub(super) fn row<F>(x: &[F], v: usize, width: usize) -> &[F] {
    &x[v * width..(v + 1) * width]
}

/// Features handled at a time: one vector of 8 f32.
const LANES: usize = 8;

/// Returns the sum of products, in an order that lends itself to vectors.
#[inline]
pub(super) fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [F::ZERO; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for at in 0..LANES {
            lanes[at] += a[at] * b[at];
        }
    }
    let (low, high) = lanes.split_at(LANES / 2);
    let mut sum = (low[0] + high[0]) + (low[1] + high[1]);
    sum += (low[2] + high[2]) + (low[3] + high[3]);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum += a * b;
    }
    sum
}

/// Adds `factor * x` to `out`.
#[inline]
pub(super) fn add_scaled<F: Float>(out: &mut [F], factor: F, x: &[F]) {
    let (out_lanes, out_rest) = out.as_chunks_mut::<LANES>();
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    for (out, x) in out_lanes.iter_mut().zip(x_lanes) {
        for at in 0..LANES {
            out[at] += factor * x[at];
        }
    }
    for (out, &x) in out_rest.iter_mut().zip(x_rest) {
        *out += factor * x;
    }
}

/// Adds to each head of `out` that head of `x`, scaled by its factor; a head is `dim` wide.
#[inline]
pub(super) fn add_heads<F: Float>(out: &mut [F], factor: &[F], x: &[F], dim: usize) {
    let (mut out, mut x) = (out, x);
    for &factor in factor {
        let (out_head, out_rest) = out.split_at_mut(dim);
        let (x_head, x_rest) = x.split_at(dim);
        add_scaled(out_head, factor, x_head);
        (out, x) = (out_rest, x_rest);
    }
}

/// Sets `out` to the sum of products of each head of `a` and `b`; a head is `dim` wide.
#[inline]
pub(super) fn dot_heads<F: Float>(out: &mut [F], a: &[F], b: &[F], dim: usize) {
    let (mut a, mut b) = (a, b);
    for out in out {
        let (a_head, a_rest) = a.split_at(dim);
        let (b_head, b_rest) = b.split_at(dim);
        *out = dot(a_head, b_head);
        (a, b) = (a_rest, b_rest);
    }
}
