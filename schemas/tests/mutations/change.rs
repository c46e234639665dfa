//! Changes of a file's bytes, drawn by number.

use std::ops::Range;

/// Bytes at the end of a file, where a table has its footer; half of all changes hit them.
const TAIL: usize = 1500;

/// The only source of random numbers: a 64-bit mix of a seed and a counter.
pub(crate) struct Chance {
    seed: u64,
    draws: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, draws: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.draws += 1;
        let mut z = (self.seed << 16).wrapping_add(self.draws.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }

    /// Draws a position in a file, half of the time near its end.
    fn place(&mut self, len: usize) -> usize {
        let tail = len.min(TAIL);
        match self.below(2) {
            0 => self.below(len),
            _ => len - tail + self.below(tail),
        }
    }

    fn range(&mut self, len: usize, longest: usize) -> Range<usize> {
        let start = self.place(len);
        start..len.min(start + 1 + self.below(longest))
    }
}

/// Numbers that are wrong as most lengths and offsets.
const EXTREMES: [i32; 8] = [-1, i32::MIN, i32::MAX, 0, 1, 1 << 30, 1 << 24, -2];

/// Changes a file; returns its bytes and a description of the change.
pub(crate) fn change(whole: &[u8], chance: &mut Chance) -> (Vec<u8>, String) {
    let mut bytes = whole.to_vec();
    if bytes.is_empty() {
        return (vec![chance.byte()], "a byte in place of none".to_owned());
    }
    let what = match chance.below(10) {
        0..3 => {
            let (at, bit) = (chance.place(bytes.len()), chance.below(8));
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        3 => {
            let (at, byte) = (chance.place(bytes.len()), chance.byte());
            bytes[at] = byte;
            format!("byte {at} set to {byte}")
        }
        4 | 5 => {
            let at = chance.place(bytes.len());
            let byte = [0, 1, 0x7f, 0x80, 0xff, 0x15, 0x0f, 0xfe][chance.below(8)];
            bytes[at] = byte;
            format!("byte {at} set to {byte}")
        }
        6 => {
            let at = chance.place(bytes.len());
            let number = EXTREMES[chance.below(EXTREMES.len())];
            let end = bytes.len().min(at + 4);
            bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            format!("bytes {at}..{end} set to those of {number}")
        }
        7 => {
            let len = chance.below(bytes.len());
            bytes.truncate(len);
            format!("a cut after {len} bytes")
        }
        8 => {
            let range = chance.range(bytes.len(), 64);
            bytes.drain(range.clone());
            format!("bytes {range:?} taken out")
        }
        _ => {
            let range = chance.range(bytes.len(), 64);
            let from = chance.below(bytes.len() - range.len() + 1);
            bytes.copy_within(from..from + range.len(), range.start);
            format!("bytes {range:?} overwritten by those at {from}")
        }
    };
    (bytes, what)
}
