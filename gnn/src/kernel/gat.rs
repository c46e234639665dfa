//! GAT's attention: a score is the sum of one number per end and one per edge.

use std::borrow::Cow;

use super::attention::{leaky, leaky_slope};
use super::heads::{add_each, add_heads, add_scaled, dot_heads, row, sum_heads};
use super::prefetch::{AHEAD, prefetch};
use super::split::{
    even_pieces, fixed_pieces, for_rows, map, pieces, run, split_mut, sum_in_order,
};
use super::{Attention, Float, Forward, Gather, Kernel, Saved, Stored};

/// `out[v] = sum over edges of a[e] * h[col[e]]`, with
/// `a = softmax over v's edges of leaky(s_src[u] + s_dst[v] + z[e])`, for each head,
/// where `s_src[u]` and `s_dst[u]` are the products of `h[u]` with `att_src` and `att_dst`.
///
/// Inputs are `h: [num_cols, heads * dim]`, `att_src` and `att_dst: [heads, dim]`, and
/// `z: [num_edges, heads]`, which is not read without edge scores. The added self-loop's `z` is the
/// mean over the row's other edges.
#[derive(Clone, Debug)]
pub struct Gat {
    /// Edges, heads and factors.
    pub attention: Attention,
    /// Whether edges have scores of their own.
    pub edge_scores: bool,
    /// Whether scores of nodes, computed by [`node_scores`], take the place of `att_src`; there is
    /// no gradient then.
    pub scored: bool,
}

/// The inputs, and the buffers that a thread reuses for each row.
pub(super) struct GatScratch<'a, F, S> {
    op: &'a Gat,
    h: &'a [S],
    /// `[num_cols, 2 * heads]`: each node's score as src, then as dst.
    s: &'a [F],
    z: Option<&'a [F]>,
    /// Widths of all heads and of one.
    width: usize,
    dim: usize,
    /// Per head: sums, and the edge score of the added self-loop.
    sums: Vec<F>,
    own_score: Vec<F>,
    /// Per edge of a row, and head.
    scratch: Vec<F>,
}

impl<'a, F: Float, S: Stored<F>> GatScratch<'a, F, S> {
    pub(super) fn new(
        op: &'a Gat,
        h: &'a [S],
        inputs: &[&'a [F]],
        s: &'a [F],
    ) -> GatScratch<'a, F, S> {
        let zeros = vec![F::ZERO; op.attention.heads];
        GatScratch {
            op,
            h,
            s,
            z: op.edge_scores.then_some(inputs[3]),
            width: op.width(h),
            dim: op.width(h) / op.attention.heads,
            sums: zeros.clone(),
            own_score: zeros,
            scratch: Vec::new(),
        }
    }

    /// Sets the edge score of the added self-loop; returns 1 / number of edges in its mean.
    #[inline(always)]
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

    /// Sets the scores of a row's edges before the non-linearity, the added self-loop's last.
    #[inline(always)]
    fn read_scores(&self, v: usize, out: &mut [F]) {
        let (attention, heads) = (&self.op.attention, self.op.attention.heads);
        match heads {
            4 => self.read_ends::<4>(v, out),
            8 => self.read_ends::<8>(v, out),
            _ => self.read_ends::<1>(v, out),
        }
        let Some(z) = self.z else { return };
        let edges = attention.csr.row(v);
        let (others, own) = out.split_at_mut(edges.len() * heads);
        add_scaled(others, F::ONE, &z[edges.start * heads..edges.end * heads]);
        add_scaled(own, F::ONE, &self.own_score);
    }

    /// Adds up the scores of both ends of a row's edges, `HEADS` heads at a time; the number of
    /// heads is a multiple of `HEADS`.
    #[inline(always)]
    fn read_ends<const HEADS: usize>(&self, v: usize, out: &mut [F]) {
        let (attention, heads) = (&self.op.attention, self.op.attention.heads);
        let ahead = attention.csr.offset[v] as usize + AHEAD;
        let dst = &self.s[(attention.csr.own(v) * 2 + 1) * heads..][..heads];
        let dst = dst.as_chunks::<HEADS>().0;
        for (at, (out, u)) in out
            .chunks_exact_mut(heads)
            .zip(attention.cols(v))
            .enumerate()
        {
            prefetch(self.s, attention.csr.col.get(ahead + at), 2 * heads);
            let src = &self.s[u * 2 * heads..][..heads];
            let ends = src.as_chunks::<HEADS>().0.iter().zip(dst);
            for (out, (src, dst)) in out.as_chunks_mut::<HEADS>().0.iter_mut().zip(ends) {
                for head in 0..HEADS {
                    out[head] = src[head] + dst[head];
                }
            }
        }
    }

    /// Computes one output row and its coefficients.
    #[inline(always)]
    fn forward(&mut self, v: usize, out: &mut [F], alpha: &mut [F]) {
        self.coefficients(v, alpha);
        let attention = &self.op.attention;
        attention.sum_rows(v, alpha, &mut self.scratch, (self.h, out));
    }

    /// Computes the coefficients of one row.
    #[inline(always)]
    pub(super) fn coefficients(&mut self, v: usize, alpha: &mut [F]) {
        let attention = &self.op.attention;
        let heads = attention.heads;
        self.mean_score(v);
        self.read_scores(v, alpha);
        alpha.iter_mut().for_each(|score| *score = leaky(*score));
        let edges = attention.csr.row(v);
        for (at, &u) in attention.csr.col[edges].iter().enumerate() {
            if u as usize == attention.csr.own(v) {
                alpha[at * heads..(at + 1) * heads].fill(F::NEG_INFINITY);
            }
        }
        attention.softmax(alpha, &mut self.sums);
    }
}

impl<F: Float> GatScratch<'_, F, F> {
    /// Computes the slopes of one row's scores, of its dst score and of its edge scores.
    #[inline(always)]
    fn backward_row(&mut self, v: usize, grad: &[F], alpha: &[F], slopes: RowSlopes<'_, F>) {
        let g = row(grad, v, self.width);
        let attention = &self.op.attention;
        attention.score_slopes(v, alpha, &mut self.sums, (self.h, g), slopes.score);
        self.end_slopes(v, slopes);
    }

    /// Computes the slopes of one row's scores, of its dst score and of its edge scores, from the
    /// slopes of its coefficients.
    #[inline(always)]
    pub(super) fn slopes_of_coefficients(
        &mut self,
        v: usize,
        alpha: &[F],
        slopes: RowSlopes<'_, F>,
    ) {
        let attention = &self.op.attention;
        attention.finish_slopes(v, alpha, &mut self.sums, slopes.score);
        self.end_slopes(v, slopes);
    }

    /// Turns slopes of a row's scores after the non-linearity into those before it, and computes
    /// those of its dst score and of its edge scores.
    #[inline(always)]
    fn end_slopes(&mut self, v: usize, slopes: RowSlopes<'_, F>) {
        let share = self.mean_score(v);
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        let mut scores = std::mem::take(&mut self.scratch);
        scores.resize(slopes.score.len(), F::ZERO);
        self.read_scores(v, &mut scores);
        for (slope, &score) in slopes.score.iter_mut().zip(&scores) {
            *slope *= leaky_slope(score);
        }
        self.scratch = scores;
        add_each(slopes.dst, slopes.score.chunks_exact(heads));
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

    /// Collects the slopes of one node's features and of its scores as src and as dst.
    #[inline(always)]
    fn backward_col(&mut self, u: usize, back: &Slopes<'_, F>, h: &mut [F], s: &mut [F]) {
        let attention = &self.op.attention;
        let heads = attention.heads;
        let transposed = attention.csr.transposed();
        let others = transposed.col(u).map(|at| {
            let row = transposed.row[at] as usize;
            (transposed.edge[at] as usize + row, row)
        });
        let own = attention.csr.own_row(u);
        let own = own.and_then(|v| Some((attention.own(v)?.slot, v)));
        let slots = others.chain(own);
        let terms = slots
            .clone()
            .map(|(slot, v)| (row(&back.factor, slot, heads), v));
        sum_heads(h, heads, back.grad, terms);
        s.fill(F::ZERO);
        let scores = slots.map(|(slot, _)| row(&back.score, slot, heads));
        add_each(&mut s[..heads], scores);
        if let Some(dst) = back.dst.get(u * heads..(u + 1) * heads) {
            s[heads..].copy_from_slice(dst);
        }
    }
}

/// The slopes of one row: of its scores, of its dst score and of its edges' scores.
pub(super) struct RowSlopes<'a, F> {
    pub(super) score: &'a mut [F],
    pub(super) dst: &'a mut [F],
    pub(super) edge: &'a mut [F],
}

/// The slopes that the walk over rows computes for the walk over columns.
struct Slopes<'a, F: Float> {
    grad: &'a [F],
    /// `[num_slots, heads]`: coefficients times weight and dropout.
    factor: Cow<'a, [F]>,
    score: Vec<F>,
    dst: Vec<F>,
}

/// Computes the scores of nodes by each scoring vector: `[rows of h, vectors * heads]`.
///
/// # Shapes
///
/// - `h`: `[any number, heads * dim]`
/// - `att`: the scoring vectors, `[heads, dim]` each
pub fn node_scores<F: Float>(h: &[F], att: &[&[F]], heads: usize) -> Vec<F> {
    let width = att[0].len();
    let num_rows = h.len() / width;
    let cols = att.len() * heads;
    let mut s = vec![F::ZERO; num_rows * cols];
    let ranges = even_pieces(num_rows, att.len() * width);
    for_rows::<F, _, _>(
        &mut s,
        cols,
        ranges,
        || (),
        #[inline(always)]
        |(), u, s| {
            let h = row(h, u, width);
            for (s, att) in s.chunks_exact_mut(heads).zip(att) {
                dot_heads(s, h, att, width / heads);
            }
        },
    );
    s
}

impl Gat {
    /// Computes the output from rows and the scores of their nodes.
    fn forward_from<F: Float, S: Stored<F>>(
        &self,
        (h, s): (&[S], &[F]),
        inputs: &[&[F]],
    ) -> Forward<F> {
        let dim = self.width(h) / self.attention.heads;
        let work = || GatScratch::new(self, h, inputs, s);
        self.attention.forward_rows(
            dim,
            work,
            // A path in its place would be compiled for the oldest processors alone.
            #[inline(always)]
            |work: &mut GatScratch<'_, F, S>, v, out: &mut [F], alpha: &mut [F]| {
                work.forward(v, out, alpha);
            },
        )
    }

    /// Walks the columns: slopes of the features and of the two scoring vectors.
    fn backward_cols<F: Float>(
        &self,
        inputs: &[&[F]],
        s: &[F],
        back: &Slopes<'_, F>,
    ) -> [Vec<F>; 3] {
        let (csr, heads) = (&*self.attention.csr, self.attention.heads);
        let width = self.width(inputs[0]);
        let mut h = vec![F::ZERO; inputs[0].len()];
        let ranges = fixed_pieces(&csr.transposed().offset);
        let parts = split_mut(&mut h, &ranges, |u| u * width);
        let partial = map::<F, _, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let mut work = GatScratch::new(self, inputs[0], inputs, s);
                let (mut src, mut dst) = (vec![F::ZERO; width], vec![F::ZERO; width]);
                let mut slope = vec![F::ZERO; 2 * heads];
                let range: std::ops::Range<usize> = range;
                for (u, out) in range.zip(part.chunks_exact_mut(width)) {
                    work.backward_col(u, back, out, &mut slope);
                    let (x, (of_src, of_dst)) = (row(inputs[0], u, width), slope.split_at(heads));
                    add_heads(out, of_src, inputs[1], work.dim);
                    add_heads(out, of_dst, inputs[2], work.dim);
                    add_heads(&mut src, of_src, x, work.dim);
                    add_heads(&mut dst, of_dst, x, work.dim);
                }
                (src, dst)
            },
        );
        let (src, dst): (Vec<_>, Vec<_>) = partial.into_iter().unzip();
        [h, sum_in_order(src), sum_in_order(dst)]
    }

    /// Returns the number of scores that an edge has of its own.
    pub(super) fn edge_width(&self) -> usize {
        if self.edge_scores {
            self.attention.heads
        } else {
            0
        }
    }

    fn width<F>(&self, h: &[F]) -> usize {
        h.len() / self.attention.csr.num_cols
    }

    /// Walks the rows: slopes of scores, dst scores and edge scores.
    fn backward_rows<'a, F: Float>(
        &self,
        inputs: &[&[F]],
        (alpha, s): (&'a [F], &[F]),
        grad: &'a [F],
    ) -> (Slopes<'a, F>, Vec<F>) {
        let (attention, csr) = (&self.attention, &*self.attention.csr);
        let heads = attention.heads;
        let mut score = vec![F::ZERO; attention.num_slots() * heads];
        let mut dst = vec![F::ZERO; csr.num_rows() * heads];
        let edge_width = self.edge_width();
        let mut edge = vec![F::ZERO; csr.num_edges() * edge_width];
        let ranges = pieces(&csr.offset, csr.partitioning, self.width(inputs[0]));
        let scores = split_mut(&mut score, &ranges, |v| attention.slot_start(v) * heads);
        let dsts = split_mut(&mut dst, &ranges, |v| v * heads);
        let edges = split_mut(&mut edge, &ranges, |v| csr.offset[v] as usize * edge_width);
        let parts = scores.into_iter().zip(dsts).zip(edges);
        run::<F, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, ((scores, dsts), edges))| {
                let mut work = GatScratch::new(self, inputs[0], inputs, s);
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
        let slopes = Slopes {
            grad,
            factor: attention.scaled(alpha),
            score,
            dst,
        };
        (slopes, edge)
    }
}

impl Gather for Gat {
    const GATHERED: usize = 0;

    /// Computes the output from the scores of nodes, which `inputs` has.
    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], inputs: &[&[F]]) -> Forward<F> {
        assert!(
            self.scored,
            "scores are computed from rows before these are rounded"
        );
        self.forward_from((x, inputs[1]), inputs)
    }
}

impl Kernel for Gat {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let own;
        let s = if self.scored {
            inputs[1]
        } else {
            own = node_scores(inputs[0], &inputs[1..3], self.attention.heads);
            &own
        };
        let mut done = self.forward_from((inputs[0], s), inputs);
        if !self.scored {
            done.saved.values.extend_from_slice(s);
        }
        done
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let num_alpha = self.attention.num_slots() * self.attention.heads;
        let (alpha, s) = saved.values.split_at(num_alpha);
        let (back, edge) = self.backward_rows(inputs, (alpha, s), grad);
        let [h, src, dst] = self.backward_cols(inputs, s, &back);
        vec![h, src, dst, edge]
    }
}
