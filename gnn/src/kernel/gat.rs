//! Attention whose score is a sum of one number per end and one per edge.

use std::ops::Range;

use super::attention::{add_scaled, dot, leaky, leaky_slope};
use super::split::{pieces, run, split_mut};
use super::{Attention, Float, Forward, Kernel, Saved};

/// `out[v] = sum over edges of a[e] * h[col[e]]`, with
/// `a = softmax over v's edges of leaky(s_src[u] + s_dst[v] + z[e])`, for each head.
///
/// Inputs are `h: [num_cols, heads * dim]`, `s: [num_cols, 2 * heads]` (each node's score as src,
/// then as dst) and `z: [num_edges, heads]`, or anything if there are no edge scores. The added
/// self-loop's `z` is the mean over the row's other edges.
#[derive(Clone, Debug)]
pub struct Gat {
    /// Edges, heads and factors.
    pub attention: Attention,
    /// Whether edges have scores of their own.
    pub edge_scores: bool,
}

/// The inputs, and what a thread writes on while it works on a row.
struct Work<'a, F> {
    op: &'a Gat,
    h: &'a [F],
    s: &'a [F],
    z: Option<&'a [F]>,
    /// Per head: a sum, a factor, the added self-loop's edge score.
    sums: Vec<F>,
    factor: Vec<F>,
    own_score: Vec<F>,
}

impl<'a, F: Float> Work<'a, F> {
    fn new(op: &'a Gat, inputs: &[&'a [F]]) -> Work<'a, F> {
        let zeros = vec![F::ZERO; op.attention.heads];
        Work {
            op,
            h: inputs[0],
            s: inputs[1],
            z: op.edge_scores.then_some(inputs[2]),
            sums: zeros.clone(),
            factor: zeros.clone(),
            own_score: zeros,
        }
    }

    /// Returns the features of one node, all heads.
    fn row<'b>(&self, x: &'b [F], v: usize) -> &'b [F] {
        let width = self.h.len() / self.op.attention.csr.num_cols;
        &x[v * width..(v + 1) * width]
    }

    /// Sets the edge score of the added self-loop and returns one over the number it is a mean of.
    fn mean_score(&mut self, v: usize) -> F {
        let (mut count, heads) = (F::ZERO, self.op.attention.heads);
        self.own_score.fill(F::ZERO);
        let Some(z) = self.z else { return F::ZERO };
        for edge in self.op.attention.others(v).filter_map(|term| term.edge) {
            add_scaled(
                &mut self.own_score,
                F::ONE,
                &z[edge * heads..(edge + 1) * heads],
            );
            count += F::ONE;
        }
        let share = if count > F::ZERO {
            F::ONE / count
        } else {
            F::ZERO
        };
        self.own_score.iter_mut().for_each(|score| *score *= share);
        share
    }

    /// Returns the score of an edge before the non-linearity.
    fn score(&self, v: usize, col: usize, edge: Option<usize>, head: usize) -> F {
        let heads = self.op.attention.heads;
        let ends = self.s[col * 2 * heads + head] + self.s[(v * 2 + 1) * heads + head];
        match (self.z, edge) {
            (Some(z), Some(edge)) => ends + z[edge * heads + head],
            (Some(_), None) => ends + self.own_score[head],
            (None, _) => ends,
        }
    }

    /// Computes one output row and its coefficients.
    fn forward(&mut self, v: usize, out: &mut [F], alpha: &mut [F]) {
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        self.mean_score(v);
        alpha.fill(F::NEG_INFINITY);
        for term in attention.terms(v) {
            for head in 0..heads {
                let score = self.score(v, term.col, term.edge, head);
                alpha[(term.slot - start) * heads + head] = leaky(score);
            }
        }
        attention.softmax(alpha, &mut self.sums);
        let dim = out.len() / heads;
        for term in attention.terms(v) {
            attention.factors(v, term, &mut self.factor);
            let h = self.row(self.h, term.col);
            let alpha = &alpha[(term.slot - start) * heads..][..heads];
            for head in 0..heads {
                let part = head * dim..(head + 1) * dim;
                add_scaled(
                    &mut out[part.clone()],
                    alpha[head] * self.factor[head],
                    &h[part],
                );
            }
        }
    }

    /// Computes the slopes of one row's scores, and from them those of its dst and edge scores.
    fn backward_row(&mut self, v: usize, grad: &[F], alpha: &[F], row: RowSlopes<'_, F>) {
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        let g = self.row(grad, v);
        let dim = g.len() / heads;
        let share = self.mean_score(v);
        for term in attention.terms(v) {
            attention.factors(v, term, &mut self.factor);
            let h = self.row(self.h, term.col);
            for head in 0..heads {
                let part = head * dim..(head + 1) * dim;
                let slope = self.factor[head] * dot(&g[part.clone()], &h[part]);
                row.score[(term.slot - start) * heads + head] = slope;
            }
        }
        attention.softmax_backward(alpha, row.score, &mut self.sums);
        for term in attention.terms(v) {
            for head in 0..heads {
                let slope = &mut row.score[(term.slot - start) * heads + head];
                *slope *= leaky_slope(self.score(v, term.col, term.edge, head));
                row.dst[head] += *slope;
            }
        }
        if self.z.is_none() {
            return;
        }
        let (edges, own) = row.score.split_at(row.score.len() - heads);
        for term in attention.others(v) {
            let at = (term.slot - start) * heads;
            for head in 0..heads {
                row.edge[at + head] = edges[at + head] + share * own[head];
            }
        }
    }

    /// Collects the slopes of one node's features and of its score as src.
    fn backward_col(&mut self, u: usize, grad: &[F], back: &Slopes<F>, h: &mut [F], s: &mut [F]) {
        let attention = &self.op.attention;
        let heads = attention.heads;
        let dim = h.len() / heads;
        for (v, term) in attention.terms_out(u) {
            attention.factors(v, term, &mut self.factor);
            let (g, at) = (self.row(grad, v), term.slot * heads);
            for head in 0..heads {
                let part = head * dim..(head + 1) * dim;
                let coefficient = back.alpha[at + head] * self.factor[head];
                add_scaled(&mut h[part.clone()], coefficient, &g[part]);
                s[head] += back.score[at + head];
            }
        }
        if let Some(dst) = back.dst.get(u * heads..(u + 1) * heads) {
            s[heads..].copy_from_slice(dst);
        }
    }
}

/// The slopes of one row: of its scores, of its dst score and of its edges' scores.
struct RowSlopes<'a, F> {
    score: &'a mut [F],
    dst: &'a mut [F],
    edge: &'a mut [F],
}

/// What the walk over rows leaves to the walk over columns.
struct Slopes<'a, F> {
    alpha: &'a [F],
    score: Vec<F>,
    dst: Vec<F>,
}

impl Gat {
    fn width<F>(&self, h: &[F]) -> usize {
        h.len() / self.attention.csr.num_cols
    }

    fn row_pieces(&self, width: usize) -> Vec<Range<usize>> {
        let csr = &self.attention.csr;
        pieces(&csr.offset, csr.partitioning, width)
    }

    /// Walks the rows: slopes of scores, dst scores and edge scores.
    fn backward_rows<'a, F: Float>(
        &self,
        inputs: &[&[F]],
        alpha: &'a [F],
        grad: &[F],
    ) -> (Slopes<'a, F>, Vec<F>) {
        let (attention, csr) = (&self.attention, &*self.attention.csr);
        let heads = attention.heads;
        let mut score = vec![F::ZERO; attention.num_slots() * heads];
        let mut dst = vec![F::ZERO; csr.num_rows() * heads];
        let edge_width = if self.edge_scores { heads } else { 0 };
        let mut edge = vec![F::ZERO; csr.num_edges() * edge_width];
        let ranges = self.row_pieces(self.width(inputs[0]));
        let scores = split_mut(&mut score, &ranges, |v| attention.slot_start(v) * heads);
        let dsts = split_mut(&mut dst, &ranges, |v| v * heads);
        let edges = split_mut(&mut edge, &ranges, |v| csr.offset[v] as usize * edge_width);
        let parts = scores.into_iter().zip(dsts).zip(edges);
        run(
            ranges.into_iter().zip(parts).collect(),
            |(range, ((scores, dsts), edges))| {
                let mut work = Work::new(self, inputs);
                let (first, first_edge) = (
                    attention.slot_start(range.start),
                    csr.offset[range.start] as usize,
                );
                for (v, dst) in range.zip(dsts.chunks_exact_mut(heads)) {
                    let (slots, row) = (attention.slots(v), csr.row(v));
                    let alpha = &alpha[slots.start * heads..slots.end * heads];
                    let score =
                        &mut scores[(slots.start - first) * heads..(slots.end - first) * heads];
                    let edge = &mut edges[(row.start - first_edge) * edge_width
                        ..(row.end - first_edge) * edge_width];
                    work.backward_row(v, grad, alpha, RowSlopes { score, dst, edge });
                }
            },
        );
        (Slopes { alpha, score, dst }, edge)
    }
}

impl Kernel for Gat {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let (attention, csr) = (&self.attention, &*self.attention.csr);
        let (width, heads) = (self.width(inputs[0]), attention.heads);
        let mut out = vec![F::ZERO; csr.num_rows() * width];
        let mut alpha = vec![F::ZERO; attention.num_slots() * heads];
        let ranges = self.row_pieces(width);
        let outs = split_mut(&mut out, &ranges, |v| v * width);
        let alphas = split_mut(&mut alpha, &ranges, |v| attention.slot_start(v) * heads);
        run(
            ranges
                .into_iter()
                .zip(outs.into_iter().zip(alphas))
                .collect(),
            |task| {
                let (range, (outs, alphas)) = task;
                let mut work = Work::new(self, inputs);
                let first = attention.slot_start(range.start);
                for (v, out) in range.zip(outs.chunks_exact_mut(width)) {
                    let slots = attention.slots(v);
                    let alpha =
                        &mut alphas[(slots.start - first) * heads..(slots.end - first) * heads];
                    work.forward(v, out, alpha);
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

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, heads) = (&*self.attention.csr, self.attention.heads);
        let width = self.width(inputs[0]);
        let (back, edge) = self.backward_rows(inputs, &saved.values, grad);
        let mut h = vec![F::ZERO; inputs[0].len()];
        let mut s = vec![F::ZERO; inputs[1].len()];
        let ranges = pieces(&csr.transposed().offset, csr.partitioning, width);
        let parts_h = split_mut(&mut h, &ranges, |u| u * width);
        let parts_s = split_mut(&mut s, &ranges, |u| u * 2 * heads);
        run(
            ranges
                .into_iter()
                .zip(parts_h.into_iter().zip(parts_s))
                .collect(),
            |task| {
                let (range, (part_h, part_s)) = task;
                let mut work = Work::new(self, inputs);
                let rows = part_h
                    .chunks_exact_mut(width)
                    .zip(part_s.chunks_exact_mut(2 * heads));
                for (u, (h, s)) in range.zip(rows) {
                    work.backward_col(u, grad, &back, h, s);
                }
            },
        );
        vec![h, s, edge]
    }
}
