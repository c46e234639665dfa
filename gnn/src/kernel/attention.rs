//! Shared parts of GAT and GATv2: the edges of a row, their factors and the softmax over them.
//!
//! Self-loops of the edge list have coefficient 0; one self-loop is added to every row. The
//! coefficients are `[num_slots, heads]`, where a row has one slot for each in-edge, then one for
//! the added self-loop: `num_slots = num_edges + num_rows`. Rows of a [bipartite](Csr::bipartite)
//! list have no self-loops, and no slot for one.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::heads::{dot_heads, row, sum_heads};
use super::prefetch::{AHEAD, prefetch};
use super::split::{pieces, run, split_mut};
use super::{Csr, Float, Forward, Mask, Saved, Shared, Stored};

/// Slope of the leaky non-linearity below 0, as in `PyG`.
const SLOPE: f32 = 0.2;

/// The edges that attention runs over, and the factors of its coefficients.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which rows of the input each output row reads.
    pub csr: Arc<Csr>,
    /// Number of heads, whose features are concatenated.
    pub heads: usize,
    /// `[num_edges]`: factor of each coefficient, after the softmax; the added self-loop's is 1.
    pub weight: Option<Shared<f32>>,
    /// Dropout of coefficients: its mask, and the keys of the nodes, as a block holds them.
    pub dropout: Option<(Mask, Shared<u64>)>,
}

/// One edge of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// Slot of its coefficients.
    pub(super) slot: usize,
    /// Input row that it reads.
    pub(super) col: usize,
    /// Its position among the edges; none for the added self-loop.
    pub(super) edge: Option<usize>,
}

impl Attention {
    /// Returns the slots of output row `v`.
    #[inline(always)]
    pub(super) fn slots(&self, v: usize) -> Range<usize> {
        self.slot_start(v)..self.slot_start(v + 1)
    }

    /// Returns the first slot of output row `v`.
    #[inline(always)]
    pub(super) fn slot_start(&self, v: usize) -> usize {
        self.csr.offset[v] as usize + v * self.loops()
    }

    /// Returns the number of self-loops added to each row.
    #[inline(always)]
    pub(crate) fn loops(&self) -> usize {
        usize::from(!self.csr.bipartite)
    }

    /// Returns the number of slots.
    pub(crate) fn num_slots(&self) -> usize {
        self.csr.num_edges() + self.csr.num_rows() * self.loops()
    }

    /// Returns the self-loop added to row `v`, if there is one.
    #[inline(always)]
    pub(super) fn own(&self, v: usize) -> Option<Term> {
        let col = self.csr.own_col(v)?;
        Some(Term {
            slot: self.slot_start(v + 1) - 1,
            col,
            edge: None,
        })
    }

    /// Returns the edges of row `v` without self-loops.
    #[inline(always)]
    pub(super) fn others(&self, v: usize) -> impl Iterator<Item = Term> {
        let loops_before = v * self.loops();
        let edges = self.csr.row(v).map(move |edge| Term {
            slot: edge + loops_before,
            col: self.csr.col[edge] as usize,
            edge: Some(edge),
        });
        let own = self.csr.own_col(v);
        edges.filter(move |term| Some(term.col) != own)
    }

    /// Returns the edges of row `v`, the added self-loop last.
    #[inline(always)]
    pub(super) fn terms(&self, v: usize) -> impl Iterator<Item = Term> {
        self.others(v).chain(self.own(v))
    }

    /// Returns the edges that leave column `u` as (row, edge), the added self-loop last.
    #[inline(always)]
    pub(super) fn terms_out(&self, u: usize) -> impl Iterator<Item = (usize, Term)> {
        let (transposed, loops) = (self.csr.transposed(), self.loops());
        let others = transposed.col(u).map(move |at| {
            let (edge, row) = (transposed.edge[at] as usize, transposed.row[at] as usize);
            (
                row,
                Term {
                    slot: edge + row * loops,
                    col: u,
                    edge: Some(edge),
                },
            )
        });
        let row = self.csr.own_row(u);
        let own = row.and_then(|row| Some((row, self.own(row)?)));
        others.filter(move |(v, _)| Some(*v) != row).chain(own)
    }

    /// Multiplies the value of each head by weight and dropout of an edge of row `v`.
    #[inline(always)]
    pub(super) fn scale<F: Float>(&self, v: usize, term: Term, values: &mut [F]) {
        if let (Some(weight), Some(edge)) = (&self.weight, term.edge) {
            let weight = F::from_f32(weight[edge]);
            values.iter_mut().for_each(|value| *value *= weight);
        }
        let Some((mask, key)) = &self.dropout else {
            return;
        };
        // A row's edges are in rank order, so an edge has the same place in every batch.
        let ordinal = term
            .edge
            .map_or(u64::MAX, |edge| (edge - self.csr.offset[v] as usize) as u64);
        let mask = mask.edge(key[self.csr.own_key(v)], key[term.col], ordinal);
        for (value, head) in values.iter_mut().zip(0_u32..) {
            *value *= mask.factor(head);
        }
    }

    /// Returns the input row that each slot of row `v` reads, the added self-loop's last.
    #[inline(always)]
    pub(super) fn cols(&self, v: usize) -> impl Iterator<Item = usize> + Clone {
        let others = self.csr.col[self.csr.row(v)].iter();
        others.map(|&col| col as usize).chain(self.csr.own_col(v))
    }

    /// Tells whether coefficients are multiplied by weights or dropout.
    #[inline(always)]
    pub(crate) fn is_scaled(&self) -> bool {
        self.weight.is_some() || self.dropout.is_some()
    }

    /// Returns all coefficients times weight and dropout.
    pub(super) fn scaled<'a, F: Float>(&self, alpha: &'a [F]) -> Cow<'a, [F]> {
        if !self.is_scaled() {
            return Cow::Borrowed(alpha);
        }
        let (csr, heads, mut factors) = (&*self.csr, self.heads, alpha.to_vec());
        let ranges = pieces(&csr.offset, csr.partitioning, heads);
        let parts = split_mut(&mut factors, &ranges, |v| self.slot_start(v) * heads);
        run::<F, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, part)| {
                let first = self.slot_start(range.start);
                for v in range {
                    for term in self.terms(v) {
                        self.scale(v, term, &mut part[(term.slot - first) * heads..][..heads]);
                    }
                }
            },
        );
        Cow::Owned(factors)
    }

    /// Returns the coefficients of row `v` times weight and dropout; writes to `scratch` if they
    /// change.
    #[inline(always)]
    pub(super) fn factors<'a, F: Float>(
        &self,
        v: usize,
        alpha: &'a [F],
        scratch: &'a mut Vec<F>,
    ) -> &'a [F] {
        if !self.is_scaled() {
            return alpha;
        }
        scratch.clear();
        scratch.extend_from_slice(alpha);
        let start = self.slot_start(v);
        for term in self.terms(v) {
            let own = (term.slot - start) * self.heads..(term.slot - start + 1) * self.heads;
            self.scale(v, term, &mut scratch[own]);
        }
        scratch
    }

    /// Computes every output row, `heads * dim` wide, and its coefficients.
    ///
    /// `forward` computes one row and its coefficients. Each piece of the rows has its own `work`.
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
        run::<F, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
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

    /// Sets `out` to the sum of the rows of `x` that row `v` reads, each times its coefficients.
    #[inline(always)]
    pub(super) fn sum_rows<F: Float, S: Stored<F>>(
        &self,
        v: usize,
        alpha: &[F],
        scratch: &mut Vec<F>,
        (x, out): (&[S], &mut [F]),
    ) {
        // The coefficient of a self-loop of the edge list is 0.
        let factors = self.factors(v, alpha, scratch).chunks_exact(self.heads);
        let (csr, width) = (&*self.csr, out.len());
        let others = csr.row(v).map(|edge| {
            prefetch(x, csr.col.get(edge + AHEAD), width);
            csr.col[edge] as usize
        });
        let cols = others.chain(csr.own_col(v));
        sum_heads(out, self.heads, x, factors.zip(cols));
    }

    /// Sets the slopes of row `v`'s scores from `grad`, the slope of its output.
    #[inline(always)]
    pub(super) fn score_slopes<F: Float>(
        &self,
        v: usize,
        alpha: &[F],
        sums: &mut [F],
        (x, grad): (&[F], &[F]),
        slopes: &mut [F],
    ) {
        let width = grad.len();
        let ahead = self.csr.offset[v] as usize + AHEAD;
        let ends = slopes.chunks_exact_mut(self.heads).zip(self.cols(v));
        for (at, (slope, u)) in ends.enumerate() {
            prefetch(x, self.csr.col.get(ahead + at), width);
            dot_heads(slope, grad, row(x, u, width), width / self.heads);
        }
        self.finish_slopes(v, alpha, sums, slopes);
    }

    /// Turns slopes of row `v`'s coefficients, after weight and dropout, into slopes of its scores.
    #[inline(always)]
    pub(super) fn finish_slopes<F: Float>(
        &self,
        v: usize,
        alpha: &[F],
        sums: &mut [F],
        slopes: &mut [F],
    ) {
        let start = self.slot_start(v);
        if self.is_scaled() {
            for term in self.terms(v) {
                let slope = &mut slopes[(term.slot - start) * self.heads..][..self.heads];
                self.scale(v, term, slope);
            }
        }
        self.softmax_backward(alpha, slopes, sums);
    }

    /// Turns the scores of a row into coefficients that add up to 1 for each head.
    #[inline(always)]
    pub(super) fn softmax<F: Float>(&self, scores: &mut [F], sums: &mut [F]) {
        match self.heads {
            // If the compiler knows the number of heads, it makes vector code of these loops.
            4 => softmax_of(scores, &mut [F::ZERO; 4]),
            8 => softmax_of(scores, &mut [F::ZERO; 8]),
            heads => softmax_of(scores, &mut sums[..heads]),
        }
    }

    /// Turns slopes by coefficient into slopes by score: `a (d - sum of a d)` for each head.
    #[inline(always)]
    pub(super) fn softmax_backward<F: Float>(&self, alpha: &[F], slopes: &mut [F], sums: &mut [F]) {
        match self.heads {
            1 => slopes_of::<F, 1>(alpha, slopes),
            2 => slopes_of::<F, 2>(alpha, slopes),
            4 => slopes_of::<F, 4>(alpha, slopes),
            8 => slopes_of::<F, 8>(alpha, slopes),
            heads => slopes_of_any(alpha, slopes, &mut sums[..heads]),
        }
    }
}

/// Does the work of [`Attention::softmax_backward`] for `HEADS` heads, with the sums in registers.
#[inline(always)]
fn slopes_of<F: Float, const HEADS: usize>(alpha: &[F], slopes: &mut [F]) {
    let alpha = alpha.as_chunks::<HEADS>().0;
    let slopes = slopes.as_chunks_mut::<HEADS>().0;
    let mut sums = [F::ZERO; HEADS];
    for (alpha, slope) in alpha.iter().zip(&*slopes) {
        for head in 0..HEADS {
            sums[head] += alpha[head] * slope[head];
        }
    }
    for (alpha, slope) in alpha.iter().zip(slopes) {
        for head in 0..HEADS {
            slope[head] = alpha[head] * (slope[head] - sums[head]);
        }
    }
}

/// Does the work of [`Attention::softmax_backward`] for any number of heads.
#[inline(always)]
fn slopes_of_any<F: Float>(alpha: &[F], slopes: &mut [F], sums: &mut [F]) {
    let heads = sums.len();
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

/// Turns the scores of a row's edges into coefficients that add up to 1 for each head.
#[inline(always)]
pub(super) fn softmax<F: Float>(scores: &mut [F], heads: usize) {
    match heads {
        _ if scores.is_empty() => {}
        1 => softmax_of(scores, &mut [F::ZERO; 1]),
        2 => softmax_of(scores, &mut [F::ZERO; 2]),
        4 => softmax_of(scores, &mut [F::ZERO; 4]),
        8 => softmax_of(scores, &mut [F::ZERO; 8]),
        _ => softmax_of(scores, &mut vec![F::ZERO; heads]),
    }
}

/// Does the work of [`Attention::softmax`], for `sums.len()` heads.
#[inline(always)]
fn softmax_of<F: Float>(scores: &mut [F], sums: &mut [F]) {
    let heads = sums.len();
    sums.fill(F::NEG_INFINITY);
    for row in scores.chunks_exact(heads) {
        for (max, &score) in sums.iter_mut().zip(row) {
            *max = if score > *max { score } else { *max };
        }
    }
    for row in scores.chunks_exact_mut(heads) {
        for (max, score) in sums.iter().zip(row) {
            *score = *score - *max;
        }
    }
    // A loop of its own becomes vector code for any number of heads.
    scores.iter_mut().for_each(|score| *score = score.exp());
    sums.fill(F::ZERO);
    for row in scores.chunks_exact(heads) {
        for (sum, &score) in sums.iter_mut().zip(row) {
            *sum += score;
        }
    }
    sums.iter_mut().for_each(|sum| *sum = F::ONE / *sum);
    for row in scores.chunks_exact_mut(heads) {
        for (share, score) in sums.iter().zip(row) {
            *score *= *share;
        }
    }
}

/// Returns `x` above 0 and 0.2 `x` below.
#[inline(always)]
pub(super) fn leaky<F: Float>(x: F) -> F {
    if x > F::ZERO {
        x
    } else {
        F::from_f32(SLOPE) * x
    }
}

/// Returns the slope of [`leaky`].
#[inline(always)]
pub(super) fn leaky_slope<F: Float>(x: F) -> F {
    if x > F::ZERO {
        F::ONE
    } else {
        F::from_f32(SLOPE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const HEADS: usize>() {
        for edges in [1, 2, 7, 100] {
            let count = u16::try_from(edges * HEADS).unwrap();
            let scores = (0..count).map(|at| f32::from(at * 37 % 101) / 9.0 - 5.0);
            let mut scores: Vec<f32> = scores.collect();
            scores[0] = f32::NEG_INFINITY;
            let mut expected = scores.clone();
            softmax_of(&mut expected, &mut vec![0.0; HEADS]);
            softmax_of(&mut scores, &mut [0.0; HEADS]);
            let bits =
                |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
            assert_eq!(
                bits(&scores),
                bits(&expected),
                "{HEADS} heads, {edges} edges"
            );
        }
    }

    #[test]
    fn a_softmax_has_the_same_bits_whatever_the_compiler_knows() {
        check::<4>();
        check::<8>();
    }
}
