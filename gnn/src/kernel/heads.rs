//! Sums and products of rows, head by head, in an order that the compiler makes vector code of.

use super::{Float, Stored};

/// Returns one row of a matrix.
#[inline(always)]
pub(super) fn row<F>(x: &[F], v: usize, width: usize) -> &[F] {
    &x[v * width..(v + 1) * width]
}

/// Features handled at a time: one vector of eight f32.
const LANES: usize = 8;

/// Returns the dot product, added up in an order that suits vector code.
#[inline(always)]
pub(super) fn dot<F: Float, S: Stored<F>>(a: &[F], b: &[S]) -> F {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [F::ZERO; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for at in 0..LANES {
            lanes[at] += a[at] * b[at].load();
        }
    }
    let (low, high) = lanes.split_at(LANES / 2);
    let mut sum = (low[0] + high[0]) + (low[1] + high[1]);
    sum += (low[2] + high[2]) + (low[3] + high[3]);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum += a * b.load();
    }
    sum
}

/// Adds `factor * x` to `out`.
#[inline(always)]
pub(super) fn add_scaled<F: Float, S: Stored<F>>(out: &mut [F], factor: F, x: &[S]) {
    let (out_lanes, out_rest) = out.as_chunks_mut::<LANES>();
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    for (out, x) in out_lanes.iter_mut().zip(x_lanes) {
        for at in 0..LANES {
            out[at] += factor * x[at].load();
        }
    }
    for (out, &x) in out_rest.iter_mut().zip(x_rest) {
        *out += factor * x.load();
    }
}

/// Adds rows of one number for each head to `out`.
#[inline(always)]
pub(super) fn add_each<'a, F: Float>(out: &mut [F], rows: impl Iterator<Item = &'a [F]>) {
    // If the compiler knows the number of heads, it keeps the sums in registers.
    match out.len() {
        1 => add_fixed::<F, 1>(out, rows),
        2 => add_fixed::<F, 2>(out, rows),
        4 => add_fixed::<F, 4>(out, rows),
        8 => add_fixed::<F, 8>(out, rows),
        _ => rows.for_each(|row| add_scaled(out, F::ONE, row)),
    }
}

/// Does the work of [`add_each`] for `HEADS` heads.
#[inline(always)]
fn add_fixed<'a, F: Float, const HEADS: usize>(out: &mut [F], rows: impl Iterator<Item = &'a [F]>) {
    let Some(out) = out.first_chunk_mut::<HEADS>() else {
        return;
    };
    let mut sums = *out;
    for row in rows.filter_map(|row| row.first_chunk::<HEADS>()) {
        for head in 0..HEADS {
            sums[head] += row[head];
        }
    }
    *out = sums;
}

/// Adds to each head of `out` that head of `x`, scaled by its factor; a head is `dim` wide.
#[inline(always)]
pub(super) fn add_heads<F: Float, S: Stored<F>>(out: &mut [F], factor: &[F], x: &[S], dim: usize) {
    let (mut out, mut x) = (out, x);
    for &factor in factor {
        let (out_head, out_rest) = out.split_at_mut(dim);
        let (x_head, x_rest) = x.split_at(dim);
        add_scaled(out_head, factor, x_head);
        (out, x) = (out_rest, x_rest);
    }
}

/// Sets `out` to the sum of rows of `x`, each head of a row times its factor, in the order of `terms`.
#[inline(always)]
pub(super) fn sum_heads<'a, F: Float, S: Stored<F>>(
    out: &mut [F],
    heads: usize,
    x: &[S],
    terms: impl Iterator<Item = (&'a [F], usize)> + Clone,
) {
    let (width, dim) = (out.len(), out.len() / heads);
    let mut head = 0;
    // Sum as many heads at a time as fill the registers, then the rest one by one.
    match dim {
        8 => head = sum_tiles::<F, S, 8, 8>(out, (0, heads), x, &terms),
        16 => head = sum_fours::<F, S, 16>(out, (0, heads), x, &terms),
        32 => head = sum_tiles::<F, S, 2, 32>(out, (0, heads), x, &terms),
        64 => head = sum_tiles::<F, S, 1, 64>(out, (0, heads), x, &terms),
        _ => {}
    }
    match dim {
        8 => head = sum_tiles::<F, S, 1, 8>(out, (head, heads), x, &terms),
        16 => head = sum_tiles::<F, S, 1, 16>(out, (head, heads), x, &terms),
        32 => head = sum_tiles::<F, S, 1, 32>(out, (head, heads), x, &terms),
        _ => {}
    }
    if head < heads {
        let out = &mut out[head * dim..];
        out.fill(F::ZERO);
        for (factor, u) in terms {
            add_heads(out, &factor[head..], &row(x, u, width)[head * dim..], dim);
        }
    }
}

/// Sums `H` heads of `DIM` features at a time in registers; returns the first head not summed.
#[inline(always)]
fn sum_tiles<'a, F: Float, S: Stored<F>, const H: usize, const DIM: usize>(
    out: &mut [F],
    (first, heads): (usize, usize),
    x: &[S],
    terms: &(impl Iterator<Item = (&'a [F], usize)> + Clone),
) -> usize {
    let (width, mut head) = (out.len(), first);
    while head + H <= heads {
        let mut sum = [[F::ZERO; DIM]; H];
        for (factor, u) in terms.clone() {
            let start = u * width + head * DIM;
            let x = x[start..start + H * DIM].as_chunks::<DIM>().0;
            let factor = &factor[head..head + H];
            for h in 0..H {
                for at in 0..DIM {
                    sum[h][at] += factor[h] * x[h][at].load();
                }
            }
        }
        out[head * DIM..(head + H) * DIM].copy_from_slice(sum.as_flattened());
        head += H;
    }
    head
}

/// Does the work of [`sum_tiles`] for four heads at a time.
///
/// The sums have a name each: of an array of four with 16 features each, the compiler makes gathers
/// and scatters over the heads for AVX-512, which are several times slower.
#[inline(always)]
fn sum_fours<'a, F: Float, S: Stored<F>, const DIM: usize>(
    out: &mut [F],
    (first, heads): (usize, usize),
    x: &[S],
    terms: &(impl Iterator<Item = (&'a [F], usize)> + Clone),
) -> usize {
    let (width, mut head) = (out.len(), first);
    while head + 4 <= heads {
        let [mut a, mut b, mut c, mut d] = [[F::ZERO; DIM]; 4];
        for (factor, u) in terms.clone() {
            let start = u * width + head * DIM;
            let x = x[start..start + 4 * DIM].as_chunks::<DIM>().0;
            let factor = &factor[head..head + 4];
            add_fixed_scaled(&mut a, factor[0], &x[0]);
            add_fixed_scaled(&mut b, factor[1], &x[1]);
            add_fixed_scaled(&mut c, factor[2], &x[2]);
            add_fixed_scaled(&mut d, factor[3], &x[3]);
        }
        let own = out[head * DIM..(head + 4) * DIM].as_chunks_mut::<DIM>().0;
        for (own, sum) in own.iter_mut().zip([a, b, c, d]) {
            *own = sum;
        }
        head += 4;
    }
    head
}

/// Adds `factor * x` to `sum`.
#[inline(always)]
fn add_fixed_scaled<F: Float, S: Stored<F>, const DIM: usize>(
    sum: &mut [F; DIM],
    factor: F,
    x: &[S; DIM],
) {
    for at in 0..DIM {
        sum[at] += factor * x[at].load();
    }
}

/// Sets `out` to the dot product of each head of `a` and `b`; a head is `dim` wide.
#[inline(always)]
pub(super) fn dot_heads<F: Float, S: Stored<F>>(out: &mut [F], a: &[F], b: &[S], dim: usize) {
    match dim {
        8 => dot_each(out, a.as_chunks::<8>().0, b.as_chunks::<8>().0),
        16 => dot_each(out, a.as_chunks::<16>().0, b.as_chunks::<16>().0),
        32 => dot_each(out, a.as_chunks::<32>().0, b.as_chunks::<32>().0),
        64 => dot_each(out, a.as_chunks::<64>().0, b.as_chunks::<64>().0),
        _ => {
            let heads = a.chunks_exact(dim).zip(b.chunks_exact(dim));
            for (out, (a, b)) in out.iter_mut().zip(heads) {
                *out = dot(a, b);
            }
        }
    }
}

/// Sets each of `out` to the dot product of two vectors of a width known to the compiler.
#[inline(always)]
fn dot_each<F: Float, S: Stored<F>, const DIM: usize>(
    out: &mut [F],
    a: &[[F; DIM]],
    b: &[[S; DIM]],
) {
    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *out = dot(a, b);
    }
}

/// Adds to each head of `out` the sum of whole rows of `x`, each times the head's factor, in the
/// order of `terms`: all heads read the same features.
#[inline(always)]
pub(super) fn add_whole_rows<'a, F: Float>(
    out: &mut [F],
    heads: usize,
    x: &[F],
    terms: impl Iterator<Item = (&'a [F], usize)> + Clone,
) {
    let dim = out.len() / heads;
    let mut done = 0;
    for four in out.chunks_exact_mut(4 * dim) {
        let mut at = 0;
        while at + 32 <= dim {
            add_whole_fours::<F, 32>(four, (done, at), x, &terms);
            at += 32;
        }
        while at + 16 <= dim {
            add_whole_fours::<F, 16>(four, (done, at), x, &terms);
            at += 16;
        }
        if at < dim {
            for (factor, u) in terms.clone() {
                let x = &row(x, u, dim)[at..];
                for (out, &factor) in four.chunks_exact_mut(dim).zip(&factor[done..]) {
                    add_scaled(&mut out[at..], factor, x);
                }
            }
        }
        done += 4;
    }
    for (head, out) in (done..).zip(out[done * dim..].chunks_exact_mut(dim)) {
        for (factor, u) in terms.clone() {
            add_scaled(out, factor[head], row(x, u, dim));
        }
    }
}

/// Does the work of [`add_whole_rows`] for four heads, the first of which is `first`, and `N`
/// features from `at` on. The sums have a name each, as in [`sum_fours`].
#[inline(always)]
fn add_whole_fours<'a, F: Float, const N: usize>(
    out: &mut [F],
    (first, at): (usize, usize),
    x: &[F],
    terms: &(impl Iterator<Item = (&'a [F], usize)> + Clone),
) {
    let dim = out.len() / 4;
    let mut heads = out.chunks_exact_mut(dim).map(|head| {
        let part = head[at..].first_chunk_mut::<N>();
        part.expect("a head has the features of a tile")
    });
    let mut next = || heads.next().expect("there are four heads");
    let (a_out, b_out, c_out, d_out) = (next(), next(), next(), next());
    let (mut a, mut b, mut c, mut d) = (*a_out, *b_out, *c_out, *d_out);
    for (factor, u) in terms.clone() {
        let (x, factor) = (&x[u * dim + at..][..N], &factor[first..first + 4]);
        let x = x.first_chunk::<N>().expect("the slice has this length");
        add_fixed_scaled(&mut a, factor[0], x);
        add_fixed_scaled(&mut b, factor[1], x);
        add_fixed_scaled(&mut c, factor[2], x);
        add_fixed_scaled(&mut d, factor[3], x);
    }
    (*a_out, *b_out, *c_out, *d_out) = (a, b, c, d);
}

/// Features that [`dot_whole_rows`] multiplies at a time: one vector of 16 f32.
const WIDE_LANES: usize = 16;

/// Rows whose products [`dot_whole_rows`] keeps in vectors at a time.
const ROWS_AT_ONCE: usize = 32;

/// Sets `out`, `[rows, heads]`, to the dot products of each head of `a` with whole rows of `x`.
///
/// The products are first added up in vectors, which `lanes` keeps, and the lanes of each vector
/// afterwards. In one loop, the compiler puts several heads into the lanes of one vector, and
/// spends most of the time on moving features between lanes.
#[inline(always)]
pub(super) fn dot_whole_rows<F: Float>(
    out: &mut [F],
    a: &[F],
    (x, rows): (&[F], impl Iterator<Item = usize>),
    (heads, lanes): (usize, &mut Vec<[F; WIDE_LANES]>),
) {
    let (dim, mut rows) = (a.len() / heads, rows);
    for out in out.chunks_mut(ROWS_AT_ONCE * heads) {
        lanes.clear();
        lanes.resize(out.len(), [F::ZERO; WIDE_LANES]);
        for (lanes, u) in lanes.chunks_exact_mut(heads).zip(rows.by_ref()) {
            let x = row(x, u, dim);
            let (fours, rest) = lanes.as_chunks_mut::<4>();
            let (a_fours, a_rest) = a.split_at(fours.len() * 4 * dim);
            for (lanes, a) in fours.iter_mut().zip(a_fours.chunks_exact(4 * dim)) {
                multiply_fours(lanes, a, x);
            }
            for (lanes, a) in rest.iter_mut().zip(a_rest.chunks_exact(dim)) {
                add_products(lanes, a.as_chunks().0, x.as_chunks().0);
                add_last_products(lanes, a, x);
            }
        }
        for (out, lanes) in out.iter_mut().zip(&*lanes) {
            // Hides the loop from the compiler, which otherwise handles 16 of `out` at a time, lane
            // by lane.
            let lanes = std::hint::black_box(lanes);
            let (low, high) = lanes.split_at(WIDE_LANES / 2);
            let mut half = [F::ZERO; WIDE_LANES / 2];
            for (half, (&low, &high)) in half.iter_mut().zip(low.iter().zip(high)) {
                *half = low + high;
            }
            let [a, b, c, d, e, f, g, h] = half;
            *out = ((a + e) + (b + f)) + ((c + g) + (d + h));
        }
    }
}

/// Adds the products of four heads, side by side in `a`, with `x`. The sums have a name each, as in
/// [`sum_fours`].
#[inline(always)]
fn multiply_fours<F: Float>(lanes: &mut [[F; WIDE_LANES]; 4], a: &[F], x: &[F]) {
    let dim = x.len();
    let [mut a_sum, mut b_sum, mut c_sum, mut d_sum] = [[F::ZERO; WIDE_LANES]; 4];
    let (left, right) = a.split_at(2 * dim);
    let ((a, b), (c, d)) = (left.split_at(dim), right.split_at(dim));
    let heads = (a.as_chunks().0.iter().zip(b.as_chunks().0))
        .zip(c.as_chunks().0.iter().zip(d.as_chunks().0));
    for (((a, b), (c, d)), x) in heads.zip(x.as_chunks().0) {
        add_product(&mut a_sum, a, x);
        add_product(&mut b_sum, b, x);
        add_product(&mut c_sum, c, x);
        add_product(&mut d_sum, d, x);
    }
    *lanes = [a_sum, b_sum, c_sum, d_sum];
    for (lanes, a) in lanes.iter_mut().zip([a, b, c, d]) {
        add_last_products(lanes, a, x);
    }
}

/// Adds the products of vectors to `sum`.
#[inline(always)]
fn add_products<F: Float>(sum: &mut [F; WIDE_LANES], a: &[[F; WIDE_LANES]], b: &[[F; WIDE_LANES]]) {
    for (a, b) in a.iter().zip(b) {
        add_product(sum, a, b);
    }
}

/// Adds the products of the features after the last whole vector.
#[inline(always)]
fn add_last_products<F: Float>(sum: &mut [F; WIDE_LANES], a: &[F], b: &[F]) {
    let rest = a
        .as_chunks::<WIDE_LANES>()
        .1
        .iter()
        .zip(b.as_chunks::<WIDE_LANES>().1);
    for (sum, (&a, &b)) in sum.iter_mut().zip(rest) {
        *sum += a * b;
    }
}

/// Adds the product of two vectors to `sum`.
#[inline(always)]
fn add_product<F: Float>(sum: &mut [F; WIDE_LANES], a: &[F; WIDE_LANES], b: &[F; WIDE_LANES]) {
    for at in 0..WIDE_LANES {
        sum[at] += a[at] * b[at];
    }
}
