//! Numbers as a matrix of gathered rows holds them.

use super::{Float, Forward, instruction_set};
use half::bf16;

/// A number of a matrix whose rows a kernel gathers and adds up in `F`.
pub trait Stored<F>: Copy + Send + Sync + 'static {
    /// Converts without loss.
    fn load(self) -> F;
}

impl<F: Float> Stored<F> for F {
    #[inline(always)]
    fn load(self) -> F {
        self
    }
}

impl Stored<f32> for bf16 {
    #[inline(always)]
    fn load(self) -> f32 {
        // The bits are the high half of those of the f32. Unlike `to_f32`, this has no branch.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// A kernel that gathers rows of one of its inputs, which may hold them in 16 bits.
pub(crate) trait Gather {
    /// Position of the input whose rows are gathered.
    const GATHERED: usize;

    /// Computes the output from the gathered matrix `x` and the other inputs; the entry of
    /// `inputs` at [`GATHERED`](Self::GATHERED) is not read.
    fn gather<F: Float, S: Stored<F>>(&self, x: &[S], inputs: &[&[F]]) -> Forward<F>;
}

/// Rounds to the nearest number of 16 bits, of two equally near ones to the one whose last bit is 0.
///
/// Numbers whose nearest multiple is above the largest number of 16 bits become infinite.
#[inline(always)]
#[must_use]
pub fn round_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // The sum would carry the bits of a NaN into its sign.
    let bits = if value.is_nan() {
        bits | 0x0040_0000
    } else {
        rounded
    };
    bf16::from_bits((bits >> 16) as u16)
}

/// Converts each number without loss.
#[must_use]
pub fn widen<S: Stored<f32>>(values: &[S]) -> Vec<f32> {
    instruction_set::run(
        #[inline(always)]
        || values.iter().map(|x| x.load()).collect(),
    )
}

/// [Rounds](round_to_bf16) each number.
#[must_use]
pub fn round_all_to_bf16(values: &[f32]) -> Vec<bf16> {
    instruction_set::run(
        #[inline(always)]
        || values.iter().map(|&value| round_to_bf16(value)).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_the_even_one() {
        let mut bits = 0_u32;
        loop {
            let value = f32::from_bits(bits);
            let (got, wanted) = (round_to_bf16(value), bf16::from_f32(value));
            assert_eq!(got.to_bits(), wanted.to_bits(), "{value} ({bits:#x})");
            assert_eq!(
                Stored::<f32>::load(got).to_bits(),
                wanted.to_f32().to_bits(),
                "{value}"
            );
            let Some(next) = bits.checked_add(0x3fff) else {
                break;
            };
            bits = next;
        }
        for (value, wanted) in [
            (0x3f80_8000, 0x3f80), // a tie, down to the even one
            (0x3f81_8000, 0x3f82), // a tie, up to the even one
            (0x3f80_8001, 0x3f81),
            (0x3f80_7fff, 0x3f80),
            (0x7f7f_ffff, 0x7f80), // above the largest number
            (0x8000_0001, 0x8000),
        ] {
            assert_eq!(round_to_bf16(f32::from_bits(value)).to_bits(), wanted);
        }
        assert!(round_to_bf16(f32::from_bits(0x7fff_ffff)).is_nan());
    }
}
