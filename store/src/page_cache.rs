//! Estimates how many bytes of files the page cache can hold.

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// Returns the memory that is free for the page cache when this process has taken its budget: of
/// the machine, or of the container that limits the process.
pub(crate) fn page_cache_bytes(memory_budget: usize) -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let mut free = system.available_memory();
    if let Ok(own) = sysinfo::get_current_pid() {
        system.refresh_processes_specifics(
            ProcessesToUpdate::Some(&[own]),
            false,
            ProcessRefreshKind::nothing(),
        );
        let limits = system
            .process(own)
            .and_then(|process| process.cgroup_limits());
        // The limit counts pages of files too, so what is used of it is no measure.
        free = limits.map_or(free, |limits| free.min(limits.total_memory));
    }
    match free {
        // Unknown.
        0 => u64::MAX,
        _ => free.saturating_sub(memory_budget as u64),
    }
}
