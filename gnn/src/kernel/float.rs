//! The two number types kernels run in: f32 for work, f64 for checking gradients.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

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
    /// Below every number.
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
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    fn from_f32(value: f32) -> f32 {
        value
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounding is what this does"
    )]
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn exp(self) -> f32 {
        f32::exp(self)
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    fn from_f32(value: f32) -> f64 {
        f64::from(value)
    }

    fn from_f64(value: f64) -> f64 {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn exp(self) -> f64 {
        f64::exp(self)
    }
}
