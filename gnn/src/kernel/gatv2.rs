//! GATv2's attention: a score is the product of a vector with a non-linear function of both ends
//! and the edge.

use std::sync::Arc;

use super::attention::{Term, leaky, leaky_slope};
use super::edge_projection::{EdgeProjection, transposed};
use super::heads::{add_heads, add_scaled, dot_heads, row};
use super::prefetch::{AHEAD, prefetch};
use super::split::{fixed_pieces, for_rows, map, pieces, split_mut, sum_in_order};
use super::{Attention, EdgeFeatures, Float, Forward, Gather, Kernel, Saved, Stored};

/// `out[v] = sum over edges of a[e] * l[col[e]]`, with
/// `a = softmax over v's edges of att . leaky(l[u] + r[v] + weight * feature[e])`, for each head.
///
/// Inputs are `l: [num_cols, heads * dim]`, `r: [num_rows, heads * dim]`, `att: [heads, dim]` and
/// `weight: [heads * dim, edge_dim]`, which is not read without edge features. The added
/// self-loop's feature is the mean over the row's other edges.
#[derive(Clone, Debug)]
pub struct GatV2 {
    /// Edges, heads and factors.
    pub attention: Attention,
    /// `[num_edges, edge_dim]`, if edge features are read.
    pub edge_feature: Option<Arc<EdgeFeatures>>,
}

/// The inputs, and the buffers that a thread reuses for each row.
struct GatV2Scratch<'a, F, S> {
    op: &'a GatV2,
    l: &'a [S],
    r: &'a [F],
    att: &'a [F],
    projection: Option<&'a EdgeProjection<'a, F>>,
    /// Widths of all heads and of one.
    width: usize,
    dim: usize,
    /// Per head.
    sums: Vec<F>,
    /// Per edge of a row, and head.
    factor: Vec<F>,
    /// Features of the current edge, and of the added self-loop of the current row.
    feature: Vec<F>,
    mean: Vec<F>,
    /// The vector inside the non-linearity, of the current edge.
    inner: Vec<F>,
}

impl<F: Float, S: Stored<F>> GatV2Scratch<'_, F, S> {
    /// Sets the edge features of the added self-loop.
    #[inline(always)]
    fn read_mean(&mut self, v: usize) {
        let Some(projection) = self.projection else {
            return;
        };
        let mut count = F::ZERO;
        self.mean.fill(F::ZERO);
        for edge in self.op.attention.others(v).filter_map(|term| term.edge) {
            projection.read(edge, &mut self.feature);
            add_scaled(&mut self.mean, F::ONE, &self.feature);
            count += F::ONE;
        }
        if count > F::ZERO {
            self.mean.iter_mut().for_each(|x| *x = *x / count);
        }
    }

    /// Computes the vector inside the non-linearity; needs `read_mean` of the row before.
    #[inline(always)]
    fn read_inner(&mut self, v: usize, term: Term) {
        let ends = row(self.l, term.col, self.width)
            .iter()
            .zip(row(self.r, v, self.width));
        for (inner, (&l, &r)) in self.inner.iter_mut().zip(ends) {
            *inner = l.load() + r;
        }
        let Some(projection) = self.projection else {
            return;
        };
        match term.edge {
            Some(edge) => projection.read(edge, &mut self.feature),
            None => self.feature.copy_from_slice(&self.mean),
        }
        projection.add(&self.feature, &mut self.inner);
    }

    /// Computes one output row and its coefficients.
    #[inline(always)]
    fn forward(&mut self, v: usize, out: &mut [F], alpha: &mut [F]) {
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        self.read_mean(v);
        alpha.fill(F::NEG_INFINITY);
        for term in attention.terms(v) {
            let ahead = term
                .edge
                .and_then(|edge| attention.csr.col.get(edge + AHEAD));
            prefetch(self.l, ahead, self.width);
            self.read_inner(v, term);
            self.inner.iter_mut().for_each(|x| *x = leaky(*x));
            let score = &mut alpha[(term.slot - start) * heads..][..heads];
            dot_heads(score, &self.inner, self.att, self.dim);
        }
        attention.softmax(alpha, &mut self.sums);
        attention.sum_rows(v, alpha, &mut self.factor, (self.l, out));
    }
}

impl<F: Float> GatV2Scratch<'_, F, F> {
    /// Replaces the inner vector of an edge by its slope, computed from the slopes of the scores.
    #[inline(always)]
    fn inner_slope(&mut self, score: &[F]) {
        let dim = self.dim;
        let parts = self
            .inner
            .chunks_exact_mut(dim)
            .zip(self.att.chunks_exact(dim));
        for ((inner, att), &score) in parts.zip(score) {
            for (inner, &att) in inner.iter_mut().zip(att) {
                *inner = score * att * leaky_slope(*inner);
            }
        }
    }

    /// Adds the slope of the scoring vector, computed from the slopes of an edge's scores.
    #[inline(always)]
    fn add_att_slope(&self, score: &[F], out: &mut [F]) {
        let dim = self.dim;
        let parts = out.chunks_exact_mut(dim).zip(self.inner.chunks_exact(dim));
        for ((out, inner), &score) in parts.zip(score) {
            for (out, &inner) in out.iter_mut().zip(inner) {
                *out += score * leaky(inner);
            }
        }
    }

    /// Computes the slopes of one row's scores and of `r[v]`, and adds to the slopes of the
    /// weights.
    #[inline(always)]
    fn backward_row(&mut self, v: usize, grad: &[F], alpha: &[F], slopes: RowSlopes<'_, F>) {
        let attention = &self.op.attention;
        let (heads, start) = (attention.heads, attention.slot_start(v));
        let g = row(grad, v, self.width);
        attention.score_slopes(v, alpha, &mut self.sums, (self.l, g), slopes.score);
        self.read_mean(v);
        for term in attention.terms(v) {
            self.read_inner(v, term);
            let score = &slopes.score[(term.slot - start) * heads..][..heads];
            self.add_att_slope(score, slopes.att);
            self.inner_slope(score);
            add_scaled(slopes.r, F::ONE, &self.inner);
            if let Some(projection) = self.projection {
                projection.add_slope(&self.feature, &self.inner, slopes.weight);
            }
        }
    }

    /// Collects the slope of `l[u]`, through the scores and through the weighted sums.
    #[inline(always)]
    fn backward_col(&mut self, u: usize, grad: &[F], (factor, score): (&[F], &[F]), out: &mut [F]) {
        let attention = &self.op.attention;
        let heads = attention.heads;
        for (v, term) in attention.terms_out(u) {
            if term.edge.is_none() {
                self.read_mean(v);
            }
            self.read_inner(v, term);
            let slots = term.slot * heads..(term.slot + 1) * heads;
            self.inner_slope(&score[slots.clone()]);
            add_scaled(out, F::ONE, &self.inner);
            let g = row(grad, v, self.width);
            add_heads(out, &factor[slots], g, self.dim);
        }
    }
}

/// The slopes of one row's scores and of `r[v]`, and the slopes of the weights so far.
struct RowSlopes<'a, F> {
    score: &'a mut [F],
    r: &'a mut [F],
    att: &'a mut [F],
    weight: &'a mut [F],
}

impl GatV2 {
    fn projection<F: Float>(&self, weight: &[F]) -> Option<EdgeProjection<'_, F>> {
        Some(EdgeProjection::new(self.edge_feature.as_ref()?, weight))
    }

    fn work<'a, F: Float, S: Stored<F>>(
        &'a self,
        l: &'a [S],
        inputs: &[&'a [F]],
        projection: Option<&'a EdgeProjection<'a, F>>,
    ) -> GatV2Scratch<'a, F, S> {
        let (heads, width) = (self.attention.heads, inputs[2].len());
        let edge_dim = projection.map_or(0, |projection| projection.weight.len() / width);
        GatV2Scratch {
            op: self,
            l,
            r: inputs[1],
            att: inputs[2],
            projection,
            width,
            dim: width / heads,
            sums: vec![F::ZERO; heads],
            factor: Vec::new(),
            feature: vec![F::ZERO; edge_dim],
            mean: vec![F::ZERO; edge_dim],
            inner: vec![F::ZERO; width],
        }
    }

    /// Walks the rows: slopes of the scores, of `r`, of `att` and of the transposed weight.
    fn backward_rows<F: Float>(
        &self,
        inputs: &[&[F]],
        projection: Option<&EdgeProjection<'_, F>>,
        alpha: &[F],
        grad: &[F],
    ) -> [Vec<F>; 4] {
        let (attention, csr) = (&self.attention, &*self.attention.csr);
        let (heads, width) = (attention.heads, inputs[2].len());
        let mut score = vec![F::ZERO; attention.num_slots() * heads];
        let mut r = vec![F::ZERO; inputs[1].len()];
        let weight_len = projection.map_or(0, |projection| projection.weight.len());
        let ranges = fixed_pieces(&csr.offset);
        let scores = split_mut(&mut score, &ranges, |v| attention.slot_start(v) * heads);
        let rs = split_mut(&mut r, &ranges, |v| v * width);
        let tasks = ranges.into_iter().zip(scores.into_iter().zip(rs)).collect();
        let partial = map::<F, _, _>(
            tasks,
            #[inline(always)]
            |(range, (scores, rs))| {
                let mut work = self.work(inputs[0], inputs, projection);
                let (mut att, mut weight) = (vec![F::ZERO; width], vec![F::ZERO; weight_len]);
                let first = attention.slot_start(range.start);
                for (v, r) in range.zip(rs.chunks_exact_mut(width)) {
                    let slots = attention.slots(v);
                    let alpha = &alpha[slots.start * heads..slots.end * heads];
                    let score =
                        &mut scores[(slots.start - first) * heads..(slots.end - first) * heads];
                    let row = RowSlopes {
                        score,
                        r,
                        att: &mut att,
                        weight: &mut weight,
                    };
                    work.backward_row(v, grad, alpha, row);
                }
                (att, weight)
            },
        );
        let (att, weight): (Vec<_>, Vec<_>) = partial.into_iter().unzip();
        [score, r, sum_in_order(att), sum_in_order(weight)]
    }
}

impl Gather for GatV2 {
    const GATHERED: usize = 0;

    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], inputs: &[&[F]]) -> Forward<F> {
        let dim = inputs[2].len() / self.attention.heads;
        let projection = self.projection(inputs[3]);
        let work = || self.work(x, inputs, projection.as_ref());
        self.attention.forward_rows(
            dim,
            work,
            // A path in its place would be compiled for the oldest processors alone.
            #[inline(always)]
            |work: &mut GatV2Scratch<'_, F, S>, v, out: &mut [F], alpha: &mut [F]| {
                work.forward(v, out, alpha);
            },
        )
    }
}

impl Kernel for GatV2 {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        self.gather(inputs[0], inputs)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        saved: &Saved<F>,
        grad: &[F],
        _needed: &[bool],
    ) -> Vec<Vec<F>> {
        let (csr, width) = (&*self.attention.csr, inputs[2].len());
        let projection = self.projection(inputs[3]);
        let [score, r, att, weight] =
            self.backward_rows(inputs, projection.as_ref(), &saved.values, grad);
        let weight = if weight.is_empty() {
            vec![F::ZERO; inputs[3].len()]
        } else {
            transposed(&weight, weight.len() / width)
        };
        let factor = self.attention.scaled(&saved.values);
        let mut l = vec![F::ZERO; inputs[0].len()];
        let ranges = pieces(&csr.transposed().offset, csr.partitioning, width);
        let work = || self.work(inputs[0], inputs, projection.as_ref());
        for_rows::<F, _, _>(
            &mut l,
            width,
            ranges,
            work,
            #[inline(always)]
            |work, u, out| {
                work.backward_col(u, grad, (&factor, &score), out);
            },
        );
        vec![l, r, att, weight]
    }
}
