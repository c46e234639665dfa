//! A sum of 32-bit floats that does not depend on the order of its terms.

use serde::{Deserialize, Serialize};

/// Exact sum of `f32` values: any split of the terms over workers gives the same sum.
///
/// Each finite value is an integer multiple of 2^-149; eight limbs of 32 exponents each hold
/// the sum of the multiples (a small superaccumulator, after Kulisch). 2^72 terms fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExactSum {
    limbs: [i128; 8],
}

impl ExactSum {
    /// Adds a finite value.
    pub(crate) fn add(&mut self, value: f32) {
        let bits = value.to_bits();
        let exponent = (bits >> 23) & 0xff;
        let fraction = i128::from(bits & 0x007f_ffff);
        let (mantissa, shift) = match exponent {
            0 => (fraction, 0),
            e => (fraction | 0x0080_0000, e - 1),
        };
        let magnitude = mantissa << (shift % 32);
        self.limbs[(shift / 32) as usize] += if bits >> 31 == 1 {
            -magnitude
        } else {
            magnitude
        };
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (limb, &more) in self.limbs.iter_mut().zip(&other.limbs) {
            *limb += more;
        }
    }

    /// Returns the sum, rounded.
    pub(crate) fn value(&self) -> f32 {
        // Largest limb first: the order is fixed, so the rounding is too.
        let scaled = self.limbs.iter().enumerate().rev().map(|(i, &limb)| {
            let exponent = 32 * i32::try_from(i).expect("eight limbs") - 149;
            limb as f64 * 2f64.powi(exponent)
        });
        let sum: f64 = scaled.sum();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounding to f32 is the purpose"
        )]
        let rounded = sum as f32;
        rounded
    }
}

/// A sum of finite `f32` values that does not depend on their order.
pub(crate) trait WeightSum: Default {
    fn of(values: impl Iterator<Item = f32> + Clone) -> Self;
}

impl WeightSum for ExactSum {
    fn of(values: impl Iterator<Item = f32>) -> Self {
        let mut sum = Self::default();
        values.for_each(|value| sum.add(value));
        sum
    }
}

/// Gives the same sum as [`ExactSum::value`]; uses plain addition if that is exact.
impl WeightSum for f32 {
    fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        short_sum(values.clone()).unwrap_or_else(|| ExactSum::of(values).value())
    }
}

/// Returns the sum of finite weights, rounded once; it does not depend on their order.
pub fn exact_sum(values: &[f32]) -> f32 {
    f32::of(values.iter().copied())
}

fn short_sum(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (mut sum, mut count, mut least, mut greatest) = (0f64, 0u64, u32::MAX, 0);
    for value in values {
        sum += f64::from(value);
        count += 1;
        let magnitude = value.to_bits() & 0x7fff_ffff;
        greatest = greatest.max(magnitude);
        // Zeros are ignored.
        least = least.min(magnitude.wrapping_sub(1));
    }
    // Each term is a multiple of 2^(least exponent), and below 2^(24 + greatest exponent).
    let exponent = |magnitude: u32| (magnitude >> 23).max(1);
    let spread = exponent(greatest).saturating_sub(exponent(least.wrapping_add(1)));
    let is_exact = spread < 29 && count <= 1 << (29 - spread);
    // If the sum is exact, each partial sum is a multiple of that power of two, and at most 2^53
    // times it: no step has rounded.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding to f32 is the purpose"
    )]
    let rounded = sum as f32;
    is_exact.then_some(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::mix;

    fn sum(values: &[f32]) -> f32 {
        let sum = ExactSum::of(values.iter().copied()).value();
        let short = f32::of(values.iter().copied());
        assert_eq!(short.to_bits(), sum.to_bits(), "{values:?}");
        sum
    }

    #[test]
    fn sums_are_exact() {
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(sum(&[1.5, -0.25, 3.0]), 4.25);
        assert_eq!(sum(&[1e30, 1.0, -1e30]), 1.0);
        assert_eq!(
            sum(&[f32::MIN_POSITIVE / 2.0, f32::MIN_POSITIVE / 2.0]),
            f32::MIN_POSITIVE
        );
        assert_eq!(sum(&[f32::MAX, -f32::MAX]), 0.0);
        assert_eq!(sum(&[0.1; 1000]), 100.0);
    }

    #[test]
    fn the_short_way_gives_the_same_bits() {
        for seed in 0..2000u64 {
            let bits = |i: u64| mix(seed << 32 | i);
            let spread = i32::try_from(seed % 40).unwrap();
            let value = |i: u64| {
                let exponent = i32::try_from(bits(i) >> 40).unwrap() % (spread + 1);
                let mantissa = f32::from(u16::try_from(bits(i) & 0xffff).unwrap()) - 3e4;
                let low = f32::from(u8::try_from(bits(i) >> 16 & 0xff).unwrap());
                (mantissa + low / 256.0) * 2f32.powi(exponent - 60)
            };
            let values: Vec<f32> = (0..bits(99) % 200).map(value).collect();
            sum(&values);
        }
        sum(&[0.0, -0.0]);
        sum(&[f32::MIN_POSITIVE, 1e-45, -1e-45, 0.0]);
        sum(&[16_777_216.0, 1.0, 1.0, -0.5, 1e-3, 1e-9]);
        assert_eq!(sum(&[1e10, 1.0, 1e-3, -1e10, -1.0]), 1e-3);
    }

    #[test]
    fn parts_merge_to_the_same_sum() {
        let values: Vec<f32> = (0..999u32).map(|i| (i as f32 - 400.0) * 1.37e-3).collect();
        let (mut left, mut right) = (ExactSum::default(), ExactSum::default());
        values.iter().enumerate().for_each(|(i, &v)| {
            if i % 3 == 0 {
                left.add(v)
            } else {
                right.add(v)
            }
        });
        right.merge(&left);
        assert_eq!(right.value().to_bits(), sum(&values).to_bits());
    }
}
