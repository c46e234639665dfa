//! The two number types of kernels: f32 for models, f64 for checking gradients.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use super::instruction_set;

/// A floating-point number a kernel can compute with.
pub trait Float:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + Neg<Output = Self>
    + Sum
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;

    /// Converts without loss.
    fn from_f32(value: f32) -> Self;

    /// Rounds to this type.
    fn from_f64(value: f64) -> Self;

    /// Converts without loss.
    fn to_f64(self) -> f64;

    /// Returns e to the power of `self`.
    #[must_use]
    fn exp(self) -> Self;

    /// Runs `work`, compiled for the instruction set in use: see [`super::instruction_set`]. In f64,
    /// which only tests use, it is compiled for the smallest set alone.
    fn run<R>(work: impl FnOnce() -> R) -> R;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }

    #[expect(clippy::cast_possible_truncation, reason = "this function rounds")]
    #[inline(always)]
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    /// Evaluates a polynomial. The compiler turns loops over it into vector code, and all platforms
    /// compute the same bits.
    ///
    /// The relative error is below 2e-7 from -87 to 88. Lower inputs give 0, and higher ones give
    /// the value at 88.
    #[inline(always)]
    fn exp(self) -> f32 {
        /// 1.5 * 2^23. Adding it to a number rounds the number and puts it into the low bits.
        const ROUND: f32 = 12_582_912.0;
        /// ln 2 in two parts, the first with trailing zeros so that products with it are exact.
        const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
        let clamped = self.clamp(-87.0, 88.0);
        let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
        let whole = rounded - ROUND;
        let x = clamped - whole * LN_2.0 - whole * LN_2.1; // |x| <= ln(2) / 2
        let mut sum = 1.987_569_1e-4;
        for coefficient in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            0.166_666_66,
            0.5,
            1.0,
            1.0,
        ] {
            sum = sum * x + coefficient;
        }
        let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3F80_0000));
        if self < -87.0 { 0.0 } else { sum * power }
    }

    #[inline(always)]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        instruction_set::run(work)
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn from_f32(value: f32) -> f64 {
        f64::from(value)
    }

    #[inline(always)]
    fn from_f64(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    fn exp(self) -> f64 {
        f64::exp(self)
    }

    #[inline(always)]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four units in the last place of an f32.
    const TOLERANCE: f64 = 4.8e-7;

    #[test]
    fn exp_is_right_to_the_last_places() {
        let mut x = -87.0_f32;
        while x < 88.0 {
            let (got, wanted) = (f64::from(Float::exp(x)), f64::from(x).exp());
            assert!(
                (got / wanted - 1.0).abs() < TOLERANCE,
                "exp({x}) is {wanted}, not {got}"
            );
            x += 0.003_1;
        }
        assert_eq!(Float::exp(0.0_f32), 1.0);
        assert_eq!(Float::exp(f32::NEG_INFINITY), 0.0);
        assert!(Float::exp(f32::NAN).is_nan());
    }
}
