//! Splits rows into pieces that threads work on in parallel.

use std::ops::Range;

use rayon::prelude::*;

use super::{Float, Partitioning};

/// Below this many multiply-adds, work stays on one thread.
const WORK_MIN: usize = 1 << 15;

/// Pieces per thread, so that a thread that finishes early takes over pieces of others.
const PIECES_PER_THREAD: usize = 4;

/// Edges plus rows in a piece of [`fixed_pieces`].
const FIXED_PIECE: usize = 1 << 12;

/// Largest number of pieces of [`fixed_pieces`]; each costs one partial sum.
const FIXED_PIECES_MAX: usize = 64;

/// Splits rows for independent work of `width` multiply-adds an edge.
///
/// The pieces depend on the thread count, so results must not depend on the pieces.
pub(super) fn pieces(
    offset: &[u32],
    partitioning: Partitioning,
    width: usize,
) -> Vec<Range<usize>> {
    let num_rows = offset.len() - 1;
    let work = (offset[num_rows] as usize + num_rows) * width;
    let threads = rayon::current_num_threads();
    if threads == 1 || work < WORK_MIN {
        return one(num_rows);
    }
    let count = (threads * PIECES_PER_THREAD).min(num_rows.max(1));
    match partitioning {
        Partitioning::EdgeBalanced => balanced(offset, count),
        Partitioning::Off => even(num_rows, count),
    }
}

/// Splits rows for sums over all edges: the pieces depend on the edges alone, so that partial
/// sums, added in order, do not depend on the thread count.
pub(super) fn fixed_pieces(offset: &[u32]) -> Vec<Range<usize>> {
    wide_pieces(offset, FIXED_WIDTH)
}

/// Multiply-adds an edge that [`fixed_pieces`] are made for.
const FIXED_WIDTH: usize = 1 << 6;

/// Splits rows as [`fixed_pieces`] does, into more pieces if an edge takes more than
/// [`FIXED_WIDTH`] multiply-adds. The pieces depend on edges and `width` alone.
pub(super) fn wide_pieces(offset: &[u32], width: usize) -> Vec<Range<usize>> {
    let num_rows = offset.len() - 1;
    let size = (offset[num_rows] as usize + num_rows) * width.div_ceil(FIXED_WIDTH);
    balanced(offset, (size / FIXED_PIECE).clamp(1, FIXED_PIECES_MAX))
}

/// Splits `num_rows` rows of `width` values each.
pub(super) fn even_pieces(num_rows: usize, width: usize) -> Vec<Range<usize>> {
    let threads = rayon::current_num_threads();
    if threads == 1 || num_rows * width < WORK_MIN {
        return one(num_rows);
    }
    even(num_rows, (threads * PIECES_PER_THREAD).min(num_rows.max(1)))
}

/// Rows in a piece of [`fixed_rows`].
const FIXED_ROWS: usize = 1 << 9;

/// Splits rows for sums over all rows: the pieces depend on the number of rows alone.
pub(super) fn fixed_rows(num_rows: usize) -> Vec<Range<usize>> {
    even(num_rows, (num_rows / FIXED_ROWS).clamp(1, FIXED_PIECES_MAX))
}

fn one(num_rows: usize) -> Vec<Range<usize>> {
    std::iter::once(0..num_rows).collect()
}

fn even(num_rows: usize, count: usize) -> Vec<Range<usize>> {
    (0..count)
        .map(|at| at * num_rows / count..(at + 1) * num_rows / count)
        .collect()
}

/// Cuts where edges plus rows so far reach each multiple of an equal share.
fn balanced(offset: &[u32], count: usize) -> Vec<Range<usize>> {
    let num_rows = offset.len() - 1;
    let total = offset[num_rows] as usize + num_rows;
    let cut = |at: usize| {
        let share = at * total / count;
        let (mut low, mut high) = (0, num_rows);
        while low < high {
            let middle = (low + high) / 2;
            if offset[middle] as usize + middle < share {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if at == count { num_rows } else { low }
    };
    (0..count).map(|at| cut(at)..cut(at + 1)).collect()
}

/// Cuts `values` where the rows of each piece end; `start` returns where a row's values start.
pub(super) fn split_mut<'a, T>(
    mut values: &'a mut [T],
    pieces: &[Range<usize>],
    start: impl Fn(usize) -> usize,
) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (part, rest) = values.split_at_mut(start(piece.end) - start(piece.start));
        parts.push(part);
        values = rest;
    }
    parts
}

/// Runs `work` on every task, on several threads if there are several tasks.
///
/// What is inlined into `work` is compiled for each instruction set.
pub(super) fn run<F: Float, T: Send>(tasks: Vec<T>, work: impl Fn(T) + Send + Sync) {
    let work = |task| {
        F::run(
            #[inline(always)]
            || work(task),
        )
    };
    if tasks.len() == 1 {
        tasks.into_iter().for_each(work);
    } else {
        tasks.into_par_iter().with_max_len(1).for_each(work);
    }
}

/// Runs `row` on every row of `out`, each `width` values long. The rows of a piece run on one
/// thread and share one value of `work`.
///
/// What is inlined into `row` is compiled for each instruction set.
pub(super) fn for_rows<F: Float, T: Send, W>(
    out: &mut [T],
    width: usize,
    pieces: Vec<Range<usize>>,
    work: impl Fn() -> W + Send + Sync,
    row: impl Fn(&mut W, usize, &mut [T]) + Send + Sync,
) {
    let parts = split_mut(out, &pieces, |row| row * width);
    run::<F, _>(
        pieces.into_iter().zip(parts).collect(),
        #[inline(always)]
        |(piece, part)| {
            let piece: Range<usize> = piece;
            let mut work = work();
            for (v, out) in piece.zip(part.chunks_exact_mut(width)) {
                row(&mut work, v, out);
            }
        },
    );
}

/// Runs `work` on every task and returns the results in the order of the tasks.
///
/// What is inlined into `work` is compiled for each instruction set.
pub(super) fn map<F: Float, T: Send, R: Send>(
    tasks: Vec<T>,
    work: impl Fn(T) -> R + Send + Sync,
) -> Vec<R> {
    let work = |task| {
        F::run(
            #[inline(always)]
            || work(task),
        )
    };
    if tasks.len() == 1 {
        tasks.into_iter().map(work).collect()
    } else {
        tasks.into_par_iter().with_max_len(1).map(work).collect()
    }
}

/// Adds up vectors in their order.
pub(super) fn sum_in_order<F: Float>(partial: Vec<Vec<F>>) -> Vec<F> {
    let mut partial = partial.into_iter();
    let mut sum = partial.next().unwrap_or_default();
    for next in partial {
        for (sum, x) in sum.iter_mut().zip(next) {
            *sum += x;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(offset: &[u32], count: usize, expected: &[Range<usize>]) {
        assert_eq!(balanced(offset, count), expected);
    }

    #[test]
    fn pieces_have_equal_edges_and_cover_every_row_once() {
        check(&[0, 2, 4, 6, 8], 2, &[0..2, 2..4]);
        check(&[0, 97, 98, 99, 100], 2, &[0..1, 1..4]);
        check(&[0, 0, 0, 0], 3, &[0..1, 1..2, 2..3]);
        check(&[0], 1, std::slice::from_ref(&(0..0)));
        check(&[0, 1], 3, &[0..0, 0..1, 1..1]);
    }
}
