//! Sums over the rows of a matrix, on a GPU.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::memory::{arg, cols, count, empty, launch, rows};

/// Rows that one unit adds up.
pub(super) const PIECE: usize = 64;

/// Adds up the rows of each piece.
#[cube(launch)]
fn sum_pieces(x: &[f32], out: &mut [f32], rows: u32, cols: u32, #[comptime] piece: u32) {
    if ABSOLUTE_POS >= out.len() {
        terminate!();
    }
    let cols = cols as usize;
    let first = (ABSOLUTE_POS / cols) * piece as usize;
    let last = u32::min(rows, first as u32 + piece) as usize;
    let mut sum = 0.0f32.runtime();
    for row in first..last {
        sum += x[row * cols + ABSOLUTE_POS % cols];
    }
    out[ABSOLUTE_POS] = sum;
}

/// Returns the sum of the rows of a matrix, piece by piece in their order: `[1, cols]`.
pub(super) fn sum_rows(matrix: &CubeTensor) -> CubeTensor {
    let (mut sums, width) = (matrix.clone(), cols(matrix));
    while rows(&sums) != 1 {
        let num_rows = rows(&sums);
        let out = empty(&sums, num_rows.div_ceil(PIECE).max(1), width);
        launch!(
            sum_pieces,
            rows(&out) * width,
            sums,
            arg(&sums),
            arg(&out),
            count(num_rows),
            count(width),
            count(PIECE)
        );
        sums = out;
    }
    sums
}
