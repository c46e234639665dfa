//! Dropout masks as pure functions of seed, node and feature.
//!
//! There is no generator with a state: every batch, worker and thread draws the same mask for an
//! element.

use super::Float;

/// A dropout mask, which decides which elements are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    seed: u64,
    threshold: u32,
    scale: f32,
}

/// The part of a mask that all elements of one row (a node, or an edge) share.
#[derive(Clone, Copy, Debug)]
pub struct RowMask {
    low: u32,
    high: u32,
    threshold: u32,
    scale: f32,
}

impl Mask {
    /// Makes a mask that drops with probability `rate` and scales kept elements by
    /// `1 / (1 - rate)`.
    ///
    /// # Panics
    ///
    /// If `rate` is not in `[0, 1)`.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rate < 1, so the product fits u32"
    )]
    #[expect(clippy::cast_sign_loss, reason = "rate >= 0")]
    pub fn new(seed: u64, rate: f32) -> Mask {
        assert!((0.0..1.0).contains(&rate), "the architecture was validated");
        let threshold = (f64::from(rate) * 4_294_967_296.0) as u32;
        Mask {
            seed,
            threshold,
            scale: 1.0 / (1.0 - rate),
        }
    }

    /// Returns the mask of a node's features.
    #[must_use]
    #[inline(always)]
    pub fn row(&self, key: u64) -> RowMask {
        let bits = mix(self.seed ^ mix(key));
        RowMask {
            low: lower(bits),
            high: lower(bits >> 32),
            threshold: self.threshold,
            scale: self.scale,
        }
    }

    /// Returns the seed, the smallest hash that is kept, and the scale of kept elements.
    #[cfg(feature = "gpu")]
    pub(crate) fn parts(&self) -> (u64, u32, f32) {
        (self.seed, self.threshold, self.scale)
    }

    /// Returns the mask of an edge's heads; `ordinal` tells parallel edges apart.
    #[must_use]
    #[inline(always)]
    pub fn edge(&self, dst_key: u64, src_key: u64, ordinal: u64) -> RowMask {
        self.row(mix(dst_key).wrapping_add(mix(mix(src_key).wrapping_add(ordinal))))
    }
}

impl RowMask {
    /// Returns 0 if element `at` is dropped, else the scale of kept elements.
    #[inline(always)]
    #[must_use]
    pub fn factor<F: Float>(&self, at: u32) -> F {
        let mut bits = self.low.wrapping_add(at.wrapping_mul(0x9E37_79B1));
        bits ^= bits >> 16;
        bits = bits.wrapping_mul(0x7FEB_352D);
        bits ^= (bits >> 15) ^ self.high;
        bits = bits.wrapping_mul(0x846C_A68B);
        bits ^= bits >> 16;
        if bits >= self.threshold {
            F::from_f32(self.scale)
        } else {
            F::ZERO
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
#[inline(always)]
fn lower(bits: u64) -> u32 {
    bits as u32
}

/// Splitmix64's finaliser after its increment.
#[must_use]
#[inline(always)]
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six standard deviations of a mean of 1e5 fair draws, and of the mean of their lag products.
    const TOLERANCE: f64 = 0.01;

    fn check_rate(rate: f32) {
        let mask = Mask::new(7, rate);
        let (mut kept, mut both, mut rows) = (0.0, 0.0, 0.0);
        for key in 0..1000 {
            let (row, below) = (mask.row(key), mask.row(key + 1));
            for at in 0..100 {
                let keep = f64::from(row.factor::<f32>(at) > 0.0);
                kept += keep;
                both += keep * f64::from(row.factor::<f32>(at + 1) > 0.0);
                rows += keep * f64::from(below.factor::<f32>(at) > 0.0);
            }
        }
        let expected = 1.0 - f64::from(rate);
        assert!(
            (kept / 1e5 - expected).abs() < TOLERANCE,
            "{rate}: kept {kept}"
        );
        assert!(
            (both / 1e5 - expected * expected).abs() < TOLERANCE,
            "{rate}: features"
        );
        assert!(
            (rows / 1e5 - expected * expected).abs() < TOLERANCE,
            "{rate}: nodes"
        );
    }

    #[test]
    fn the_kept_share_is_one_minus_the_rate_and_neighbours_are_independent() {
        [0.1, 0.5, 0.6, 0.9].into_iter().for_each(check_rate);
    }

    #[test]
    fn what_is_kept_makes_up_for_what_is_dropped() {
        let factor = (0..99).map(|at| Mask::new(1, 0.75).row(3).factor::<f64>(at));
        assert!(factor.clone().all(|factor| factor == 0.0 || factor == 4.0));
        assert!(factor.clone().any(|factor| factor == 0.0) && factor.sum::<f64>() > 0.0);
    }

    #[test]
    fn a_rate_of_zero_keeps_everything() {
        assert!((0..99).all(|at| Mask::new(1, 0.0).row(3).factor::<f32>(at) == 1.0));
    }
}
