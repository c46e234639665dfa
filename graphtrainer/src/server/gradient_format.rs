//! The format of gradients on the wire: as computed, or rounded to 16 bits.

use half::bf16;
use half::slice::HalfFloatSliceExt as _;
use serde::{Deserialize, Serialize};

use super::wire;

/// The format of gradients on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientFormat {
    /// 32 bits, as computed.
    #[default]
    F32,
    /// The upper 16 bits, rounded to nearest, ties to even.
    Bf16,
}

impl GradientFormat {
    /// Rounds values to the precision of the format.
    ///
    /// A worker rounds its own gradient for every kind of server, so threads and processes train
    /// the same model.
    pub(crate) fn round(self, values: &mut [f32]) {
        if self == Self::Bf16 {
            let mut narrow = vec![bf16::ZERO; values.len()];
            narrow.convert_from_f32_slice(values);
            narrow.convert_to_f32_slice(values);
        }
    }

    /// Appends values in the format of the wire.
    pub(super) fn encode(self, values: &[f32], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        match self {
            Self::F32 => {
                bytes.resize(start + 4 * values.len(), 0);
                let places = bytes[start..].as_chunks_mut().0.iter_mut();
                places
                    .zip(values)
                    .for_each(|(place, value)| *place = value.to_le_bytes());
            }
            Self::Bf16 => {
                bytes.resize(start + 2 * values.len(), 0);
                let places = bytes[start..].as_chunks_mut().0.iter_mut();
                places
                    .zip(values)
                    .for_each(|(place, value)| *place = bf16::from_f32(*value).to_le_bytes());
            }
        }
    }

    /// Reads values; none if the bytes end within a value.
    pub(super) fn decode(self, bytes: &[u8]) -> Option<Vec<f32>> {
        match self {
            Self::F32 => wire::decode(bytes),
            Self::Bf16 => {
                let (values, rest) = bytes.as_chunks::<2>();
                let values = values
                    .iter()
                    .map(|value| bf16::from_le_bytes(*value).to_f32());
                rest.is_empty().then(|| values.collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        for (bits, expected) in [
            (0x3f80_0000, 0x3f80_0000),
            (0x3f80_7fff, 0x3f80_0000),
            (0x3f80_8000, 0x3f80_0000),
            (0x3f81_8000, 0x3f82_0000),
            (0x3f80_8001, 0x3f81_0000),
            (0xbf81_8000, 0xbf82_0000),
            (0x7f7f_ffff, 0x7f80_0000),
            (0x8000_0000, 0x8000_0000),
        ] {
            let mut values = [f32::from_bits(bits)];
            GradientFormat::Bf16.round(&mut values);
            assert_eq!(values[0].to_bits(), expected, "{bits:x}");
            let mut wire = Vec::new();
            GradientFormat::Bf16.encode(&[f32::from_bits(bits)], &mut wire);
            assert_eq!(
                GradientFormat::Bf16.decode(&wire).unwrap()[0].to_bits(),
                expected
            );
        }
        let mut nan = [f32::NAN];
        GradientFormat::Bf16.round(&mut nan);
        assert!(nan[0].is_nan());
        let mut same = [0.1];
        GradientFormat::F32.round(&mut same);
        assert_eq!(same[0].to_bits(), 0.1_f32.to_bits());
    }

    #[test]
    fn values_that_are_cut_off_are_none() {
        assert_eq!(GradientFormat::F32.decode(&[0; 6]), None);
        assert_eq!(GradientFormat::Bf16.decode(&[0; 3]), None);
    }
}
