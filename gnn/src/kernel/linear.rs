//! Linear maps of rows, split over threads by rows.

use std::ops::Range;

use super::product::{Matrix, multiply};
use super::split::{even_pieces, map, run, split_mut, sum_in_order};
use super::{Float, Forward, Kernel, Saved};

/// Computes `x[..rows] * weight^T` for one pair of inputs, and the sum of both products for two.
///
/// A pair is `x: [rows or more, cols_in]` and `weight: [cols, cols_in]`. The two pairs may have
/// different `cols_in`.
///
/// A row of the output has the same bits whatever the other rows of `x` are.
#[derive(Clone, Debug)]
pub struct Linear {
    /// Number of output rows.
    pub rows: usize,
    /// Number of output columns.
    pub cols: usize,
}

/// Rows of one product. The matrix library's order of summation may depend on the shape, so every
/// product has the same shape: the last block is padded with zeros.
const BLOCK: usize = 256;

/// Blocks of one partial sum of weight gradients, unless [`SUMS_MAX`] sums need more blocks each.
const SUM_BLOCKS: usize = 2;

/// Largest number of partial sums of weight gradients.
const SUMS_MAX: usize = 64;

impl Linear {
    fn num_blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK)
    }

    /// Returns the first row of a block, which is the end of the block before it.
    fn row(&self, block: usize) -> usize {
        (block * BLOCK).min(self.rows)
    }

    /// Returns a block's rows of `x`; fewer than `BLOCK` rows are padded with zeros in `scratch`.
    fn block<'a, F: Float>(
        &self,
        x: &'a [F],
        cols: usize,
        block: usize,
        scratch: &'a mut Vec<F>,
    ) -> &'a [F] {
        let rows = &x[self.row(block) * cols..self.row(block + 1) * cols];
        if rows.len() == BLOCK * cols {
            return rows;
        }
        scratch.clear();
        scratch.extend_from_slice(rows);
        scratch.resize(BLOCK * cols, F::ZERO);
        scratch
    }

    /// Runs `product` on memory for a whole block. A shorter `out` gets the first rows of the
    /// result.
    fn on_block<F: Float>(cols: usize, out: &mut [F], product: impl FnOnce(&mut [F])) {
        if out.len() == BLOCK * cols {
            product(out);
        } else {
            let mut whole = vec![F::ZERO; BLOCK * cols];
            product(&mut whole);
            out.copy_from_slice(&whole[..out.len()]);
        }
    }

    /// Computes some blocks of the output.
    fn forward_blocks<F: Float>(&self, inputs: &[&[F]], blocks: Range<usize>, out: &mut [F]) {
        let mut scratch = Vec::new();
        for (block, out) in blocks.zip(out.chunks_mut(BLOCK * self.cols)) {
            Self::on_block(self.cols, out, |out| {
                for (term, pair) in inputs.chunks_exact(2).enumerate() {
                    let (x, weight) = (pair[0], pair[1]);
                    let cols_in = weight.len() / self.cols;
                    let x = Matrix::new(self.block(x, cols_in, block, &mut scratch), cols_in);
                    let weight = Matrix::new(weight, cols_in).transposed();
                    multiply(x, weight, out, term > 0);
                }
            });
        }
    }

    /// Computes the gradients of one pair of inputs. A gradient that is not needed stays empty.
    fn backward_pair<F: Float>(
        &self,
        (x, weight): (&[F], &[F]),
        grad: &[F],
        (x_needed, weight_needed): (bool, bool),
    ) -> [Vec<F>; 2] {
        let cols_in = weight.len() / self.cols;
        let mut d_x = vec![F::ZERO; if x_needed { x.len() } else { 0 }];
        let sums = self.num_blocks().div_ceil(SUM_BLOCKS).clamp(1, SUMS_MAX);
        let ranges: Vec<Range<usize>> = (0..sums)
            .map(|at| at * self.num_blocks() / sums..(at + 1) * self.num_blocks() / sums)
            .collect();
        let width = if x_needed { cols_in } else { 0 };
        let parts = split_mut(&mut d_x, &ranges, |block| self.row(block) * width);
        let tasks = ranges.into_iter().zip(parts).collect();
        let partial = map::<F, _, _>(tasks, |(blocks, d_x): (Range<usize>, &mut [F])| {
            let mut d_weight = vec![F::ZERO; if weight_needed { weight.len() } else { 0 }];
            let (mut scratch_g, mut scratch_x) = (Vec::new(), Vec::new());
            for block in blocks.clone() {
                let g = self.block(grad, self.cols, block, &mut scratch_g);
                let g = Matrix::new(g, self.cols);
                if weight_needed {
                    let x = Matrix::new(self.block(x, cols_in, block, &mut scratch_x), cols_in);
                    multiply(g.transposed(), x, &mut d_weight, true);
                }
                if x_needed {
                    let start = self.row(blocks.start);
                    let rows = self.row(block) - start..self.row(block + 1) - start;
                    let out = &mut d_x[rows.start * cols_in..rows.end * cols_in];
                    Self::on_block(cols_in, out, |out| {
                        multiply(g, Matrix::new(weight, cols_in), out, false);
                    });
                }
            }
            d_weight
        });
        [d_x, sum_in_order(partial)]
    }
}

impl Kernel for Linear {
    fn forward<F: Float>(&self, inputs: &[&[F]]) -> Forward<F> {
        let mut out = vec![F::ZERO; self.rows * self.cols];
        let work: usize = inputs.iter().skip(1).step_by(2).map(|w| w.len()).sum();
        let ranges = even_pieces(self.num_blocks(), BLOCK * work);
        let parts = split_mut(&mut out, &ranges, |block| self.row(block) * self.cols);
        run::<F, _>(ranges.into_iter().zip(parts).collect(), |(blocks, part)| {
            self.forward_blocks(inputs, blocks, part);
        });
        Forward::of(out, self.cols)
    }

    fn backward<F: Float>(
        &self,
        inputs: &[&[F]],
        _saved: &Saved<F>,
        grad: &[F],
        needed: &[bool],
    ) -> Vec<Vec<F>> {
        let pairs = inputs.chunks_exact(2).zip(needed.chunks_exact(2));
        let slopes = pairs.flat_map(|(input, needed)| {
            self.backward_pair((input[0], input[1]), grad, (needed[0], needed[1]))
        });
        slopes.collect()
    }
}
