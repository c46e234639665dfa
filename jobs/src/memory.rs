//! The default memory budget and its limits, and how long the allocator keeps free memory.

use crate::error::JobError;
use bytesize::ByteSize;
use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};
use sysinfo::System;

/// Memory budget if the system does not report its memory.
const UNKNOWN: ByteSize = ByteSize::gib(2);

/// Least memory budget of a job.
pub(crate) const BUDGET_MIN: ByteSize = ByteSize::mib(64);

/// Returns half of the memory of the machine, or of the container that the program runs in.
pub(crate) fn default_budget() -> ByteSize {
    let mut system = System::new();
    system.refresh_memory();
    let machine = system.total_memory();
    let container = system.cgroup_limits().map(|limits| limits.total_memory);
    match container.map_or(machine, |limit| limit.min(machine)) {
        0 => UNKNOWN,
        total => ByteSize(total / 2).max(BUDGET_MIN),
    }
}

/// Environment variable with the bytes of files that the page cache can hold, for tests.
const PAGE_CACHE: &str = "GRAPHFLAT_PAGE_CACHE";

/// Returns the bytes of files that the page cache can hold, if the variable gives them.
pub(crate) fn page_cache() -> Result<Option<u64>, JobError> {
    let Some(given) = std::env::var_os(PAGE_CACHE) else {
        return Ok(None);
    };
    let size = given.to_string_lossy().parse::<ByteSize>();
    let size = size.map_err(|problem| JobError::Key {
        key: PAGE_CACHE.to_owned(),
        problem: format!("{problem}; it is a size such as \"512MiB\""),
    })?;
    Ok(Some(size.as_u64()))
}

/// Memory of the channels between two workers, and of the buffers that a worker keeps for another.
///
/// Measured: flattening Debian's graph takes 0.25 GB with 2 workers and 1.2 GB with 128.
const PAIR_BYTES: u64 = 64 << 10;

/// Greatest number of workers a core; a few more workers than cores hide the waiting of some.
const WORKERS_A_CORE: usize = 8;

/// Number of workers that every machine may have, to test a job with many workers.
const WORKERS_ANYWHERE: usize = 32;

/// Returns the greatest number of workers that cores and memory budget allow: the pairs of workers
/// may take a quarter of the budget.
pub(crate) fn workers_max(cores: usize, budget: ByteSize) -> usize {
    let pairs = budget.as_u64() / 4 / PAIR_BYTES;
    let by_budget = usize::try_from(pairs.isqrt()).unwrap_or(usize::MAX);
    let by_cores = WORKERS_ANYWHERE.max(WORKERS_A_CORE.saturating_mul(cores));
    by_budget.min(by_cores).max(1)
}

/// `mi_option_purge_delay`: milliseconds until free memory goes back to the system.
const PURGE_DELAY: mi_option_t = 15;

/// Least budget with which free memory is kept until a stage ends.
const AMPLE: ByteSize = ByteSize::gib(1);

/// Longer than a stage takes. With a negative delay, [`return_free_memory`] would return nothing.
const LATE: std::ffi::c_long = i32::MAX as std::ffi::c_long;

/// Milliseconds until free memory is returned, with a smaller budget.
const SOON: std::ffi::c_long = 10;

/// Milliseconds until free memory is returned in a job that writes a version and does not train.
const SOON_IN_VERSIONS: std::ffi::c_long = 100;

/// Makes the allocator keep free memory until [`return_free_memory`] if the budget is ample, and
/// return it soon if it is not, or if the job writes a version and does not train.
///
/// Memory that is returned and requested again is cleared by the system: a flatten spent a tenth of
/// its time there. But what was freed in the allocator's default delay of a second comes on top of
/// the budget: with 64 MiB, inference took up to 251 MiB on a busy machine, and 152 MiB since it
/// returns free memory soon. A version first searches what its changes reach; where it then
/// computes all rows, the memory of the search came on top of theirs
/// (`docs/benchmarks/versions.md`).
pub(crate) fn plan_free_memory(budget: ByteSize, only_writes_version: bool) {
    let delay = if budget < AMPLE {
        SOON
    } else if only_writes_version {
        SOON_IN_VERSIONS
    } else {
        LATE
    };
    #[expect(
        unsafe_code,
        reason = "the allocator has no other way to set an option"
    )]
    // SAFETY: the number is one of mimalloc's options; the only other thread handles signals and
    // sets no option.
    unsafe {
        mi_option_set(PURGE_DELAY, delay);
    }
    // Memory that was freed before has the default delay, and would take later one with it.
    return_free_memory();
}

/// Returns free memory to the system after a store is built, and after a stage.
///
/// What follows fills the page cache. A virtual machine takes longer to write files with memory
/// that its host first has to give (`docs/benchmarks/inference_memory.md`).
pub(crate) fn return_free_memory() {
    #[expect(unsafe_code, reason = "the allocator's own call")]
    // SAFETY: the call takes no pointer; all threads may use the allocator meanwhile.
    unsafe {
        mi_collect(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_follow_cores_and_budget() {
        for (cores, budget, most) in [
            (2, ByteSize::gib(12), 32),
            (2, BUDGET_MIN, 16),
            (64, ByteSize::gib(64), 512),
            (64, ByteSize::gib(1), 64),
            (1, ByteSize(1), 1),
        ] {
            assert_eq!(workers_max(cores, budget), most, "{cores} {budget}");
        }
    }

    #[test]
    fn half_of_the_machine_is_planned_with() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = total.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        let budget = default_budget();
        assert!(budget > ByteSize::mib(64), "{budget}");
        if let Some(kib) = kib {
            // A container may have less than its machine.
            assert!(budget.as_u64() <= kib * 1024 / 2, "{budget} of {kib} KiB");
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "the allocator's options are read")]
    fn the_option_is_the_delay_of_purging() {
        // Among the options with close numbers, only this one has such a default.
        // SAFETY: the number is one of mimalloc's options.
        let default = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert!([10, 1000].contains(&default), "{default}");
    }
}
