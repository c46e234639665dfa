//! Draws that are pure functions of a seed, a purpose and a row.

use store::sample::mix;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The purpose of a draw; draws for different purposes are independent.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Edge = 1,
    Weight,
    Class,
    ClassCentre,
    Feature,
    EdgeOrder,
    Ids,
    HubSources,
    Type,
    Relation,
    Ends,
    SameClass,
}

/// A permutation of the numbers below `len`, applied without a table.
///
/// A round permutes the numbers below the next power of two; rounds repeat until the result is
/// below `len`.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    len: u64,
    mask: u64,
    shift: u32,
    keys: [u64; 4],
}

impl Permutation {
    pub(super) fn new(len: u64, key: u64) -> Self {
        let bits = bits_below(len);
        let mut draws = Draws { state: key };
        Self {
            len,
            mask: (1 << bits) - 1,
            shift: bits / 2 + 1,
            keys: [(); 4].map(|()| draws.next()),
        }
    }

    pub(super) fn apply(&self, mut number: u64) -> u64 {
        debug_assert!(number < self.len, "the number is below `len`");
        loop {
            for key in self.keys {
                number = number.wrapping_add(key).wrapping_mul(GOLDEN) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.len {
                return number;
            }
        }
    }
}

/// SplitMix64: a sequence of draws that depends only on its state.
pub(super) struct Draws {
    state: u64,
}

impl Draws {
    /// Starts the draws for a row.
    pub(super) fn new(key: u64, row: u64) -> Self {
        Self {
            state: mix(key ^ mix(row.wrapping_add(GOLDEN))),
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }
}

pub(super) fn stream(seed: u64, purpose: Purpose) -> u64 {
    mix(seed ^ mix((purpose as u64).wrapping_mul(GOLDEN)))
}

/// Returns the number of bits of the numbers below `len`.
pub(super) fn bits_below(len: u64) -> u32 {
    u64::BITS - len.saturating_sub(1).leading_zeros()
}

/// Turns bits into a number in (0, 1] of 24 bits.
pub(super) fn unit(bits: u64) -> f32 {
    ((bits >> 40) + 1) as f32 / (1 << 24) as f32
}

/// Turns bits into a number in (-1, 1].
pub(super) fn signed(bits: u64) -> f32 {
    2.0 * unit(bits) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_hit_every_number_once() {
        for len in [1, 2, 3, 7, 8, 9, 1000, 1024, 1025] {
            let permutation = Permutation::new(len, 99);
            let mut hit: Vec<u64> = (0..len).map(|n| permutation.apply(n)).collect();
            hit.sort_unstable();
            assert!(hit.into_iter().eq(0..len), "{len}");
        }
    }
}
