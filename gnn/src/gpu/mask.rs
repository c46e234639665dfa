//! Dropout masks: the function of `kernel::Mask` bit for bit, in 32-bit arithmetic.

use cubecl::prelude::*;

use crate::kernel::Mask;

/// The constants of a mask.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Draw {
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    scale: f32,
}

/// A 64-bit number in two halves.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Wide {
    low: u32,
    high: u32,
}

/// Passes a mask to a kernel; without a mask, one that drops nothing.
pub(super) fn draw(mask: Option<&Mask>) -> DrawLaunch {
    let (seed, threshold, scale) = mask.map_or((0, 0, 1.0), Mask::parts);
    let [low, high] = halves(seed);
    DrawLaunch::new(low, high, threshold, scale)
}

/// Splits 64 bits, the lower half first.
fn halves(bits: u64) -> [u32; 2] {
    bytemuck::cast(bits)
}

#[cube]
fn add(a: Wide, b: Wide) -> Wide {
    let low = a.low + b.low;
    let mut high = a.high + b.high;
    if low < a.low {
        high += 1;
    }
    Wide { low, high }
}

#[cube]
fn multiply(a: Wide, b: Wide) -> Wide {
    let high = u32::mul_hi(a.low, b.low) + a.low * b.high + a.high * b.low;
    Wide {
        low: a.low * b.low,
        high,
    }
}

/// Returns `a ^ (a >> by)`.
#[cube]
fn fold(a: Wide, #[comptime] by: u32) -> Wide {
    Wide {
        low: a.low ^ ((a.low >> by) | (a.high << comptime!(32 - by))),
        high: a.high ^ (a.high >> by),
    }
}

/// Splitmix64's finaliser after its increment: `kernel::mix`.
#[cube]
fn mix(state: Wide) -> Wide {
    let z = add(state, wide(0x7F4A_7C15u32, 0x9E37_79B9u32));
    let z = multiply(fold(z, 30u32), wide(0x1CE4_E5B9u32, 0xBF58_476Du32));
    let z = multiply(fold(z, 27u32), wide(0x1331_11EBu32, 0x94D0_49BBu32));
    fold(z, 31u32)
}

#[cube]
fn wide(#[comptime] low: u32, #[comptime] high: u32) -> Wide {
    Wide {
        low: low.runtime(),
        high: high.runtime(),
    }
}

/// Reads the key of a node.
#[cube]
fn key_of(key: &[u32], v: usize) -> Wide {
    Wide {
        low: key[2 * v],
        high: key[2 * v + 1],
    }
}

/// Returns the factor of feature `at` of a node's row.
#[cube]
pub(super) fn node_factor(draw: &Draw, key: &[u32], v: usize, at: u32) -> f32 {
    factor(draw, key_of(key, v), at)
}

/// Returns the factor of one head of an edge; `ordinal` tells parallel edges apart.
#[cube]
pub(super) fn edge_factor(
    draw: &Draw,
    key: &[u32],
    v: usize,
    u: usize,
    ordinal: Wide,
    head: u32,
) -> f32 {
    let src = mix(add(mix(key_of(key, u)), ordinal));
    factor(draw, add(mix(key_of(key, v)), src), head)
}

/// Makes the ordinal of an edge; an added self-loop's has all bits set.
#[cube]
pub(super) fn ordinal(place: u32, is_own: bool) -> Wide {
    let mut low = place;
    let mut high = 0u32.runtime();
    if is_own {
        low = u32::MAX.runtime();
        high = u32::MAX.runtime();
    }
    Wide { low, high }
}

/// Makes the ordinal of an edge among edges of several relations.
#[cube]
pub(super) fn ordinal_of_relation(rank: u32, relation: u32) -> Wide {
    Wide {
        low: rank,
        high: relation,
    }
}

#[cube]
fn factor(draw: &Draw, key: Wide, at: u32) -> f32 {
    let key = mix(key);
    let row = mix(Wide {
        low: draw.seed_low ^ key.low,
        high: draw.seed_high ^ key.high,
    });
    let mut bits = row.low + at * 0x9E37_79B1u32;
    bits ^= bits >> 16;
    bits *= 0x7FEB_352Du32;
    bits ^= (bits >> 15) ^ row.high;
    bits *= 0x846C_A68Bu32;
    bits ^= bits >> 16;
    let mut factor = 0.0f32.runtime();
    if bits >= draw.threshold {
        factor = draw.scale;
    }
    factor
}
