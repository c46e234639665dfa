//! Attention whose score is a sum of one number per end and one per edge.

use super::attention::{Term, add_scaled, leaky, leaky_slope, row};
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
    /// Widths of all heads and of one.
    width: usize,
    dim: usize,
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
            width: op.width(inputs[0]),
            dim: op.width(inputs[0]) / op.attention.heads,
            sums: zeros.clone(),
            factor: zeros.clone(),
            own_score: zeros,
        }
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

    /// Computes the scores of an edge before the non-linearity, for each head.
    #[inline]
    fn scores(&self, v: usize, term: Term, out: &mut [F]) {
        let heads = self.op.attention.heads;
        let src = &self.s[term.col * 2 * heads..][..heads];
        let dst = &self.s[(v * 2 + 1) * heads..][..heads];
        for (out, (&src, &dst)) in out.iter_mut().zip(src.iter().zip(dst)) {
            *out = src + dst;
        }
        match (self.z, term.edge) {
            (Some(z), Some(edge)) => add_scaled(out, F::ONE, &z[edge * heads..][..heads]),
            (Some(_), None) => add_scaled(out, F::ONE, &self.own_score),
            (None, _) => {}
        }
    }

    /// Computes one output row and its coefficients.
    fn forward(&mut self, v: usize, out: &mut [F], alpha: &mut [F]) {
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        self.mean_score(v);
        alpha.fill(F::NEG_INFINITY);
        for term in attention.terms(v) {
            let score = &mut alpha[(term.slot - start) * heads..][..heads];
            self.scores(v, term, score);
            score.iter_mut().for_each(|score| *score = leaky(*score));
        }
        attention.softmax(alpha, &mut self.sums);
        attention.add_rows(v, alpha, &mut self.factor, (self.h, out));
    }

    /// Computes the slopes of one row's scores, and from them those of its dst and edge scores.
    fn backward_row(&mut self, v: usize, grad: &[F], alpha: &[F], slopes: RowSlopes<'_, F>) {
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        let g = row(grad, v, self.width);
        let share = self.mean_score(v);
        attention.score_slopes(v, alpha, &mut self.sums, (self.h, g), slopes.score);
        let mut scores = std::mem::take(&mut self.factor);
        for term in attention.terms(v) {
            self.scores(v, term, &mut scores);
            let of_edge = &mut slopes.score[(term.slot - start) * heads..][..heads];
            for ((slope, &score), dst) in of_edge.iter_mut().zip(&scores).zip(&mut *slopes.dst) {
                *slope *= leaky_slope(score);
                *dst += *slope;
            }
        }
        self.factor = scores;
        if self.z.is_none() {
            return;
        }
        let (edges, own) = slopes.score.split_at(slopes.score.len() - heads);
        for term in attention.others(v) {
            let at = (term.slot - start) * heads;
            let out = &mut slopes.edge[at..at + heads];
            out.copy_from_slice(&edges[at..at + heads]);
            add_scaled(out, share, own);
        }
    }

    /// Collects the slopes of one node's features and of its score as src.
    fn backward_col(&mut self, u: usize, grad: &[F], back: &Slopes<F>, h: &mut [F], s: &mut [F]) {
        let attention = &self.op.attention;
        let heads = attention.heads;
        for (v, term) in attention.terms_out(u) {
            let slots = term.slot * heads..(term.slot + 1) * heads;
            let (alpha, g) = (&back.alpha[slots.clone()], row(grad, v, self.width));
            attention.add_row((v, term), alpha, &mut self.factor, (g, h), self.dim);
            add_scaled(&mut s[..heads], F::ONE, &back.score[slots]);
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
        let ranges = pieces(&csr.offset, csr.partitioning, self.width(inputs[0]));
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
        let dim = self.width(inputs[0]) / self.attention.heads;
        self.attention
            .forward_rows(dim, || Work::new(self, inputs), Work::forward)
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
