//! Numbers in JSON, bit by bit: with `#[serde(with = "exact")]`, also those that are not finite.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Numbers that can be written as whole numbers.
pub(crate) trait Exact: Sized {
    /// Their bits.
    type Bits: Serialize + for<'de> Deserialize<'de>;

    fn to_bits(&self) -> Self::Bits;

    fn from_bits(bits: Self::Bits) -> Self;
}

impl Exact for f64 {
    type Bits = u64;

    fn to_bits(&self) -> u64 {
        f64::to_bits(*self)
    }

    fn from_bits(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

impl Exact for f32 {
    type Bits = u32;

    fn to_bits(&self) -> u32 {
        f32::to_bits(*self)
    }

    fn from_bits(bits: u32) -> Self {
        Self::from_bits(bits)
    }
}

/// A score and whether it is of a positive.
impl Exact for (f32, bool) {
    type Bits = (u32, bool);

    fn to_bits(&self) -> (u32, bool) {
        (self.0.to_bits(), self.1)
    }

    fn from_bits((score, truth): (u32, bool)) -> Self {
        (f32::from_bits(score), truth)
    }
}

impl<T: Exact> Exact for Vec<T> {
    type Bits = Vec<T::Bits>;

    fn to_bits(&self) -> Self::Bits {
        self.iter().map(T::to_bits).collect()
    }

    fn from_bits(bits: Self::Bits) -> Self {
        bits.into_iter().map(T::from_bits).collect()
    }
}

impl<const N: usize> Exact for [f64; N]
where
    [u64; N]: Serialize + for<'de> Deserialize<'de>,
{
    type Bits = [u64; N];

    fn to_bits(&self) -> [u64; N] {
        self.map(f64::to_bits)
    }

    fn from_bits(bits: [u64; N]) -> Self {
        bits.map(f64::from_bits)
    }
}

pub(crate) fn serialize<T: Exact, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.to_bits().serialize(to)
}

pub(crate) fn deserialize<'de, T: Exact, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::Bits::deserialize(from).map(T::from_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Numbers {
        #[serde(with = "super")]
        all: [f64; 4],
        #[serde(with = "super")]
        scores: Vec<Vec<(f32, bool)>>,
    }

    #[test]
    fn numbers_cross_bit_by_bit() {
        let numbers = Numbers {
            all: [0.1 + 0.2, f64::NAN, f64::INFINITY, -0.0],
            scores: vec![vec![(f32::NAN, true), (1e-42, false)], Vec::new()],
        };
        let text = serde_json::to_string(&numbers).unwrap();
        let read: Numbers = serde_json::from_str(&text).unwrap();
        assert_eq!(Exact::to_bits(&read.all), Exact::to_bits(&numbers.all));
        assert_eq!(
            Exact::to_bits(&read.scores),
            Exact::to_bits(&numbers.scores)
        );
    }
}
