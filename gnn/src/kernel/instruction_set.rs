//! The instruction sets that the kernels are compiled for, and the choice of one at run time.
//!
//! The program is compiled for the oldest processors that it supports. The compiler makes further
//! versions of the code that runs inside `run`, for processors that have more instructions. All
//! versions execute the same operations in the same order, and the compiler never fuses a product
//! with a sum, so they give the same bits.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Instructions that the kernels use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum InstructionSet {
    /// What every supported processor has: x86-64-v2 (SSE4.2), or NEON on arm64.
    Base = 1,
    /// x86-64-v3: AVX2.
    V3 = 2,
    /// x86-64-v4: AVX-512.
    V4 = 3,
}

/// Why an instruction set cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InstructionSetError {
    /// There is no set of this name for this kind of processor.
    #[error("there is no instruction set \"{name}\"; allowed are {}", allowed())]
    Unknown {
        /// The name.
        name: String,
    },
    /// This processor does not have the set.
    #[error(
        "this processor does not have {set}; it has {}",
        InstructionSet::best()
    )]
    Absent {
        /// The set.
        set: InstructionSet,
    },
}

/// The set in use, or 0 as long as none was chosen.
static IN_USE: AtomicU8 = AtomicU8::new(0);

/// The sets of this kind of processor, the smallest first.
#[cfg(target_arch = "x86_64")]
const SETS: [InstructionSet; 3] = [InstructionSet::Base, InstructionSet::V3, InstructionSet::V4];
#[cfg(not(target_arch = "x86_64"))]
const SETS: [InstructionSet; 1] = [InstructionSet::Base];

fn allowed() -> String {
    SETS.map(InstructionSet::name).join(", ")
}

impl InstructionSet {
    /// Returns the sets that this processor has, the smallest first.
    #[must_use]
    pub fn available() -> Vec<InstructionSet> {
        SETS.into_iter().filter(|set| set.is_available()).collect()
    }

    /// Returns the largest set that this processor has.
    #[must_use]
    pub fn best() -> InstructionSet {
        let found = SETS.into_iter().rev().find(|set| set.is_available());
        found.unwrap_or(InstructionSet::Base)
    }

    /// Returns the set that the kernels use: the best one, unless [`use_set`] chose another.
    #[must_use]
    #[inline]
    pub fn in_use() -> InstructionSet {
        match IN_USE.load(Ordering::Relaxed) {
            1 => InstructionSet::Base,
            2 => InstructionSet::V3,
            3 => InstructionSet::V4,
            _ => {
                let best = InstructionSet::best();
                IN_USE.store(best as u8, Ordering::Relaxed);
                best
            }
        }
    }

    /// Returns the name that [`InstructionSet::named`] takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Base if cfg!(target_arch = "x86_64") => "v2",
            InstructionSet::Base => "base",
            InstructionSet::V3 => "v3",
            InstructionSet::V4 => "v4",
        }
    }

    /// Returns the set of a name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn named(name: &str) -> Result<InstructionSet, InstructionSetError> {
        let set = SETS.into_iter().find(|set| set.name() == name);
        let name = name.to_owned();
        set.ok_or(InstructionSetError::Unknown { name })
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            InstructionSet::Base => true,
            InstructionSet::V3 => pulp::x86::V3::is_available(),
            InstructionSet::V4 => pulp::x86::V4::is_available(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == InstructionSet::Base
    }
}

/// Writes the set as `--version` shows it.
impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InstructionSet::Base if cfg!(target_arch = "x86_64") => "x86-64-v2: SSE4.2",
            InstructionSet::Base if cfg!(target_arch = "aarch64") => "arm64: NEON",
            InstructionSet::Base => std::env::consts::ARCH,
            InstructionSet::V3 => "x86-64-v3: AVX2",
            InstructionSet::V4 => "x86-64-v4: AVX-512",
        })
    }
}

/// Makes all kernels of this process use `set`, for tests.
///
/// # Errors
///
/// If this processor does not have the set.
pub fn use_set(set: InstructionSet) -> Result<(), InstructionSetError> {
    if !set.is_available() {
        return Err(InstructionSetError::Absent { set });
    }
    IN_USE.store(set as u8, Ordering::Relaxed);
    Ok(())
}

/// Runs `work`, compiled for the instruction set in use.
///
/// Only code that is inlined into `work` is compiled for the set. So `work` and the functions that
/// have its loops are `#[inline(always)]`. Each call costs a few nanoseconds and prevents inlining
/// into the caller: call it once for many rows.
#[inline(always)]
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match InstructionSet::in_use() {
        InstructionSet::Base => {}
        InstructionSet::V3 => {
            if let Some(v3) = pulp::x86::V3::try_new() {
                return v3.vectorize(work);
            }
        }
        InstructionSet::V4 => {
            if let Some(v4) = pulp::x86::V4::try_new() {
                return v4.vectorize(work);
            }
        }
    }
    work()
}

/// Returns the instructions that this program needs and this processor does not have.
///
/// The program ends with SIGILL at the first of them, so it calls this function first.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        // The macro `is_x86_feature_detected` is true without a check for what the program is
        // compiled for.
        let found = std::arch::x86_64::__cpuid(1).ecx;
        let needed = [
            ("SSE3", 0),
            ("SSSE3", 9),
            ("CMPXCHG16B", 13),
            ("SSE4.1", 19),
            ("SSE4.2", 20),
            ("POPCNT", 23),
        ];
        let missing = needed.into_iter().filter(|(_, bit)| found >> bit & 1 == 0);
        missing.map(|(name, _)| name).collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_sets() {
        for set in SETS {
            assert_eq!(InstructionSet::named(set.name()), Ok(set));
        }
        let error = InstructionSet::named("v5").unwrap_err().to_string();
        let wanted = "there is no instruction set \"v5\"; allowed are ";
        assert!(error.starts_with(wanted), "{error}");
        assert!(error.ends_with(SETS[SETS.len() - 1].name()), "{error}");
    }

    #[test]
    fn the_set_in_use_is_one_that_the_processor_has() {
        assert!(missing().is_empty());
        assert!(InstructionSet::available().contains(&InstructionSet::in_use()));
        assert_eq!(
            InstructionSet::available().last(),
            Some(&InstructionSet::best())
        );
    }
}
