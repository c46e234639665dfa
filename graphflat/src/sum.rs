//! A sum of 32-bit floats that does not depend on the order of its terms.

use serde::{Deserialize, Serialize};

/// Adds `f32` values exactly, so that any split of the terms over workers gives the same sum.
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

    /// Adds finite values.
    pub(crate) fn add_all(&mut self, values: &[f32]) {
        values.iter().for_each(|&value| self.add(value));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[f32]) -> f32 {
        let mut sum = ExactSum::default();
        values.iter().for_each(|&v| sum.add(v));
        sum.value()
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
