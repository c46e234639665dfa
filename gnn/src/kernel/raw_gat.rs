//! GAT's attention over raw rows, which are projected after they are summed.

use std::ops::Range;

use super::gat::{GatScratch, RowSlopes};
use super::heads::{add_whole_rows, dot_whole_rows};
use super::prefetch::{AHEAD, prefetch};
use super::product::{Matrix, multiply_into};
use super::split::{map, run, split_mut, sum_in_order, wide_pieces};
use super::{Float, Forward, Gat, Kernel, Linear, Saved};

/// The output of [`Gat`] for `h = x weight^T`, from rows `x` that need no gradient.
///
/// A sum of projected rows is the projected sum. So each head sums raw rows, and only the sums are
/// projected: one product for each dst row in place of one for each src row, and a backward pass
/// without the slopes of `h`. An edge costs `in_dim` for each head in place of `head_dim`.
///
/// # Shapes
///
/// - `x`: `[num_cols, in_dim]`
/// - `weight`: `[heads * head_dim, in_dim]`
/// - `maps`: `[2 * heads, in_dim]`, from a row to its node's score as src, then as dst, by head
/// - `z`: `[num_edges, heads]`, as [`Gat`] reads it
/// - returns: `[num_rows, heads * head_dim]`
///
/// [`Gat::scored`] is not read.
#[derive(Clone, Debug)]
pub struct RawGat(pub Gat);

/// Rows whose sums are projected at a time, so that the sums stay in the cache. No sum over rows in
/// a product is then longer than the matrix library adds up in one order on all processors.
const CHUNK: usize = 128;

/// Most sources of a row that are fetched before the first is read.
const FETCHED_MAX: usize = 2 * AHEAD;

/// Widest raw rows, in widths of a head, that take no more time than projected rows: measured with
/// all in-edges. With few in-edges a node, products count for more, and wider rows would pay too.
const WIDEST: usize = 8;

/// The inputs and widths of one pass.
struct Inputs<'a, F> {
    op: &'a Gat,
    x: &'a [F],
    weight: &'a [F],
    maps: &'a [F],
    heads: usize,
    in_dim: usize,
    head_dim: usize,
}

impl<'a, F: Float> Inputs<'a, F> {
    fn new(op: &'a Gat, inputs: &[&'a [F]]) -> Inputs<'a, F> {
        let (heads, weight, maps) = (op.attention.heads, inputs[1], inputs[2]);
        let in_dim = maps.len() / (2 * heads);
        Inputs {
            op,
            x: inputs[0],
            weight,
            maps,
            heads,
            in_dim,
            head_dim: weight.len() / (heads * in_dim),
        }
    }

    /// Returns the width of the output.
    fn wide(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the width of the sums of all heads.
    fn sum_width(&self) -> usize {
        self.heads * self.in_dim
    }

    /// Computes the scores of all nodes, `[num_cols, 2 * heads]`.
    fn scores(&self) -> Vec<F> {
        let (rows, cols) = (self.op.attention.csr.num_cols, 2 * self.heads);
        Linear { rows, cols }.forward(&[self.x, self.maps]).out
    }

    /// Returns the columns of a head among those of all heads, each `width` wide.
    fn head(head: usize, width: usize) -> Range<usize> {
        head * width..(head + 1) * width
    }

    /// Returns the map of a head, `[head_dim, in_dim]`.
    fn weight_of(&self, head: usize) -> Matrix<'a, F> {
        let values = &self.weight[Self::head(head, self.head_dim * self.in_dim)];
        Matrix::new(values, self.in_dim)
    }

    /// Returns the maps of all heads as `[in_dim, heads * head_dim]`. The matrix library adds up in
    /// another order if both factors lie along the inner axis, and the last chunk has few rows.
    fn turned_weight(&self) -> Vec<F> {
        let turned = (0..self.in_dim).flat_map(|at| {
            let rows = self.weight.chunks_exact(self.in_dim);
            rows.map(move |row| row[at])
        });
        turned.collect()
    }

    /// Adds to `sums`, `[heads * in_dim]`, the rows that row `v` reads times their coefficients.
    #[inline(always)]
    fn add_rows(&self, v: usize, alpha: &[F], factors: &mut Vec<F>, sums: &mut [F]) {
        let attention = &self.op.attention;
        for edge in attention.csr.row(v).take(FETCHED_MAX) {
            prefetch(self.x, attention.csr.col.get(edge + AHEAD), self.in_dim);
        }
        let factors = attention.factors(v, alpha, factors);
        let terms = factors.chunks_exact(self.heads).zip(attention.cols(v));
        add_whole_rows(sums, self.heads, self.x, terms);
    }

    /// Computes one piece of the output and its coefficients.
    #[inline(always)]
    fn forward_piece(
        &self,
        range: Range<usize>,
        (work, turned): (&mut GatScratch<'_, F, F>, &[F]),
        (outs, mut alphas): (&mut [F], &mut [F]),
    ) {
        let (attention, width) = (&self.op.attention, self.sum_width());
        let (mut sums, mut factors) = (Vec::new(), Vec::new());
        for (rows, out) in chunks(range).zip(outs.chunks_mut(CHUNK * self.wide())) {
            sums.clear();
            sums.resize(rows.len() * width, F::ZERO);
            for (v, sums) in rows.zip(sums.chunks_exact_mut(width)) {
                let (alpha, rest) = alphas.split_at_mut(attention.slots(v).len() * self.heads);
                work.coefficients(v, alpha);
                self.add_rows(v, alpha, &mut factors, sums);
                alphas = rest;
            }
            for head in 0..self.heads {
                let sums = Matrix::of_columns(&sums, width, Self::head(head, self.in_dim));
                let of_head = Self::head(head, self.head_dim);
                let map = Matrix::of_columns(turned, self.wide(), of_head.clone());
                multiply_into(sums, map, (&mut *out, self.wide(), of_head.start), false);
            }
        }
    }

    /// Computes the slopes of `weight` and `maps` by the rows of a piece, and of its edges' scores.
    #[inline(always)]
    fn backward_piece(
        &self,
        range: Range<usize>,
        work: &mut GatScratch<'_, F, F>,
        (alpha, grad): (&[F], &[F]),
        mut edges: &mut [F],
    ) -> (Vec<F>, Vec<F>) {
        let (attention, heads, width) = (&self.op.attention, self.heads, self.sum_width());
        let mut d_weight = vec![F::ZERO; self.weight.len()];
        let mut d_maps = vec![F::ZERO; self.maps.len()];
        let (mut sums, mut factors) = (Vec::new(), Vec::new());
        let (mut slopes, mut lanes) = (Vec::new(), Vec::new());
        let mut dst = vec![F::ZERO; heads];
        let alpha_of = |v: usize| {
            let slots = attention.slots(v);
            &alpha[slots.start * heads..slots.end * heads]
        };
        for rows in chunks(range) {
            sums.clear();
            sums.resize(rows.len() * width, F::ZERO);
            for (v, sums) in rows.clone().zip(sums.chunks_exact_mut(width)) {
                self.add_rows(v, alpha_of(v), &mut factors, sums);
            }
            let grad = &grad[rows.start * self.wide()..rows.end * self.wide()];
            for head in 0..heads {
                let g = Matrix::of_columns(grad, self.wide(), Self::head(head, self.head_dim));
                let of_head = Self::head(head, self.in_dim);
                let summed = Matrix::of_columns(&sums, width, of_head.clone());
                let d_weight = &mut d_weight[Self::head(head, self.head_dim * self.in_dim)];
                multiply_into(g.transposed(), summed, (d_weight, self.in_dim, 0), true);
                // The slopes of a head's sums take the place of the sums.
                let place = (&mut sums[..], width, of_head.start);
                multiply_into(g, self.weight_of(head), place, false);
            }
            for (v, of_sums) in rows.zip(sums.chunks_exact(width)) {
                slopes.resize(attention.slots(v).len() * heads, F::ZERO);
                let read = (self.x, attention.cols(v));
                dot_whole_rows(&mut slopes, of_sums, read, (heads, &mut lanes));
                let num_scores = attention.csr.row(v).len() * self.op.edge_width();
                let (edge, rest) = edges.split_at_mut(num_scores);
                edges = rest;
                dst.fill(F::ZERO);
                let to = RowSlopes {
                    score: &mut slopes,
                    dst: &mut dst,
                    edge,
                };
                work.slopes_of_coefficients(v, alpha_of(v), to);
                let (of_src, of_own) = d_maps.split_at_mut(width);
                let terms = slopes.chunks_exact(heads).zip(attention.cols(v));
                add_whole_rows(of_src, heads, self.x, terms);
                let own = std::iter::once((&dst[..], attention.csr.own(v)));
                add_whole_rows(of_own, heads, self.x, own);
            }
        }
        (d_weight, d_maps)
    }
}

/// Cuts the rows of a piece into chunks.
fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    let starts = range.step_by(CHUNK);
    starts.map(move |start| start..end.min(start + CHUNK))
}

impl RawGat {
    /// Tells whether a training step takes less time with raw rows than with projected ones.
    ///
    /// Depends on widths alone, so that it does not change from batch to batch.
    #[must_use]
    pub fn pays(in_dim: usize, head_dim: usize) -> bool {
        // Products with one row or column are added up in another order on each processor.
        head_dim > 1 && (2..=WIDEST * head_dim).contains(&in_dim)
    }
}

impl Kernel for RawGat {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let given = Inputs::new(&self.0, inputs);
        let (attention, csr) = (&self.0.attention, &*self.0.attention.csr);
        let (heads, wide) = (given.heads, given.wide());
        let scores = given.scores();
        let mut out = vec![F::ZERO; csr.num_rows() * wide];
        let mut alpha = vec![F::ZERO; attention.num_slots() * heads];
        let turned = given.turned_weight();
        let ranges = wide_pieces(&csr.offset, given.sum_width());
        let outs = split_mut(&mut out, &ranges, |v| v * wide);
        let alphas = split_mut(&mut alpha, &ranges, |v| attention.slot_start(v) * heads);
        let parts = outs.into_iter().zip(alphas);
        run::<F, _>(
            ranges.into_iter().zip(parts).collect(),
            #[inline(always)]
            |(range, parts)| {
                let mut work = GatScratch::new(&self.0, given.x, inputs, &scores);
                given.forward_piece(range, (&mut work, &turned), parts);
            },
        );
        alpha.extend_from_slice(&scores);
        Forward {
            out,
            cols: wide,
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
        needed: &[bool],
    ) -> Vec<Vec<F>> {
        assert!(!needed[0], "raw rows have no gradient");
        let given = Inputs::new(&self.0, inputs);
        let (attention, csr) = (&self.0.attention, &*self.0.attention.csr);
        let num_alpha = attention.num_slots() * given.heads;
        let (alpha, scores) = saved.values.split_at(num_alpha);
        let edge_width = self.0.edge_width();
        let mut edge = vec![F::ZERO; csr.num_edges() * edge_width];
        let ranges = wide_pieces(&csr.offset, given.sum_width());
        let edges = split_mut(&mut edge, &ranges, |v| csr.offset[v] as usize * edge_width);
        let partial = map::<F, _, _>(
            ranges.into_iter().zip(edges).collect(),
            #[inline(always)]
            |(range, edges)| {
                let mut work = GatScratch::new(&self.0, given.x, inputs, scores);
                given.backward_piece(range, &mut work, (alpha, grad), edges)
            },
        );
        let (weights, maps) = partial.into_iter().unzip();
        vec![Vec::new(), sum_in_order(weights), sum_in_order(maps), edge]
    }
}
