//! Scores of pairs from the hidden layers of their ends: the last map of a perceptron.

use std::iter;

use super::Float;

/// Sums of a score that are added up side by side; decides the bits of a score.
const LANES: usize = 8;

/// Dst rows that are scored side by side.
const SIDE: usize = 32;

/// The weight and the bias of the last map. The score of a pair is the sum of
/// `weight * max(0, src + dst)`, plus the bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastMap<'a, F> {
    /// `[dim]`.
    pub(crate) weight: &'a [F],
    pub(crate) bias: F,
}

impl<F: Float> LastMap<'_, F> {
    /// Scores a pair of rows.
    pub(crate) fn score(&self, src: &[F], dst: &[F]) -> F {
        let mut sums = [F::ZERO; LANES];
        let ends = src.chunks(LANES).zip(dst.chunks(LANES));
        for ((src, dst), weight) in ends.zip(self.weight.chunks(LANES)) {
            for (at, sum) in sums.iter_mut().enumerate().take(src.len()) {
                *sum += weight[at] * positive(src[at] + dst[at]);
            }
        }
        sums.into_iter().sum::<F>() + self.bias
    }

    /// Sets `out` to the scores of each of some src rows with each of some dst rows,
    /// `[num_src, num_dst]`; the bits are those of [`score`](Self::score).
    pub(crate) fn score_all_into(&self, src: &[F], dst: &[F], out: &mut [F]) {
        F::run(
            #[inline(always)]
            || self.score_sides(src, dst, out),
        );
    }

    #[inline(always)]
    fn score_sides(&self, src: &[F], dst: &[F], out: &mut [F]) {
        let dim = self.weight.len();
        let num_dst = dst.len() / dim;
        // One column for each dst row, so that one vector has numbers of several dst rows.
        let mut columns = vec![[F::ZERO; SIDE]; dim]; // [dim, SIDE]
        for (side, rows) in dst.chunks(SIDE * dim).enumerate() {
            for (column, row) in rows.chunks_exact(dim).enumerate() {
                let cells = columns.iter_mut().map(|all| &mut all[column]);
                cells.zip(row).for_each(|(cell, &x)| *cell = x);
            }
            let (first, count) = (side * SIDE, rows.len() / dim);
            let out = out.chunks_exact_mut(num_dst);
            for (out, src) in out.zip(src.chunks_exact(dim)) {
                let scores = self.side(src, &columns);
                out[first..first + count].copy_from_slice(&scores[..count]);
            }
        }
    }

    /// Scores a src row with each column.
    #[inline(always)]
    fn side(&self, src: &[F], columns: &[[F; SIDE]]) -> [F; SIDE] {
        let dim = self.weight.len();
        assert!(src.len() == dim && columns.len() == dim);
        // As a sum over an iterator starts.
        let mut scores = [iter::empty().sum::<F>(); SIDE];
        for lane in 0..LANES {
            let mut sums = [F::ZERO; SIDE];
            for at in (lane..dim).step_by(LANES) {
                for (sum, &dst) in sums.iter_mut().zip(&columns[at]) {
                    *sum += self.weight[at] * positive(src[at] + dst);
                }
            }
            let both = scores.iter_mut().zip(sums);
            both.for_each(|(score, sum)| *score += sum);
        }
        scores.iter_mut().for_each(|score| *score += self.bias);
        scores
    }
}

#[inline(always)]
fn positive<F: Float>(x: F) -> F {
    if x > F::ZERO { x } else { F::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::mix;

    /// Draws numbers between -1 and 1; some are 0.
    fn numbers(seed: u64, len: usize) -> Vec<f32> {
        let draw = |at: usize| {
            let drawn = mix(seed ^ mix(at as u64)) >> 40;
            match drawn % 5 {
                0 => 0.0,
                _ => drawn as f32 / (1 << 23) as f32 - 1.0,
            }
        };
        (0..len).map(draw).collect()
    }

    #[test]
    fn all_scores_have_the_bits_of_single_ones() {
        for (dim, num_src, num_dst) in [
            (1, 2, 1),
            (3, 1, 31),
            (8, 4, 32),
            (13, 3, 33),
            (64, 5, 100),
            (67, 1, 64),
        ] {
            let (src, dst) = (numbers(1, num_src * dim), numbers(2, num_dst * dim));
            let map = LastMap {
                weight: &numbers(3, dim)[..],
                bias: 0.25,
            };
            let mut found = vec![f32::NAN; num_src * num_dst];
            map.score_all_into(&src, &dst, &mut found);
            let pairs = src.chunks(dim).flat_map(|src| {
                let pairs = dst.chunks(dim).map(move |dst| (src, dst));
                pairs.map(|(src, dst)| map.score(src, dst).to_bits())
            });
            let found = found.iter().map(|score| score.to_bits());
            assert!(found.eq(pairs), "{dim} wide, {num_src} by {num_dst}");
        }
    }

    #[test]
    fn a_score_is_that_of_the_formula() {
        let map = LastMap {
            weight: &[2.0, 3.0, 5.0],
            bias: 7.0,
        };
        // Hidden: 1 + 2, max(0, 1 - 2), 4 + 0.
        let score = map.score(&[1.0, 1.0, 4.0], &[2.0, -2.0, 0.0]);
        assert_eq!(score, 2.0 * 3.0 + 5.0 * 4.0 + 7.0);
    }

    #[test]
    fn no_rows_have_no_scores() {
        let map = LastMap {
            weight: &[1.0, 1.0],
            bias: 0.0,
        };
        map.score_all_into(&[1.0, 2.0], &[], &mut []);
    }
}
