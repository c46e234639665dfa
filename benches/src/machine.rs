//! The machine that the races run on.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sysinfo::System;

/// Load average, as a share of one core, from which others visibly use the machine.
const LOAD_MAX: f64 = 0.3;

/// What the report says about the machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    /// Such as `L3 32768K`, those of the first core.
    pub(crate) caches: Vec<String>,
    /// Instruction sets that the kernels choose between.
    pub(crate) instructions: Vec<String>,
    pub(crate) kernel: String,
    /// Start of the races, in UTC.
    pub(crate) date: String,
    /// Load average of the last minute at the start.
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let system = System::new_all();
        let processor = system
            .cpus()
            .first()
            .map(|cpu| cpu.brand().trim().to_owned());
        Self {
            processor: processor.unwrap_or_default(),
            cores: cores(),
            memory_bytes: system.total_memory(),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            instructions: instructions(),
            kernel: System::kernel_long_version(),
            date: chrono::Utc::now().format("%Y-%m-%d %H:%M UTC").to_string(),
            load: System::load_average().one,
        }
    }

    /// Returns a warning if other programs use the machine.
    pub(crate) fn warning(&self) -> Option<String> {
        let is_busy = self.load > LOAD_MAX;
        is_busy.then(|| {
            format!(
                "the machine was busy at the start (load average {:.2}), so the seconds are too \
                 long and vary; ratios are better",
                self.load
            )
        })
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reads the caches of a core from its folder in `/sys`; empty on other systems.
fn caches(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let one = |path: &Path| {
        let read = |name: &str| fs::read_to_string(path.join(name)).ok();
        let (level, kind, size) = (read("level")?, read("type")?, read("size")?);
        let letter = match kind.trim() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{letter} {}", level.trim(), size.trim()))
    };
    let mut caches: Vec<String> = entries.filter_map(|entry| one(&entry.path())).collect();
    caches.sort();
    caches
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<String> {
    let found = [
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("fma", std::is_x86_feature_detected!("fma")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
    ];
    let found = found.into_iter().filter(|(_, is_here)| *is_here);
    found.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_read_from_their_folders() {
        let dir = tempfile::tempdir().unwrap();
        for (at, level, kind, size) in [
            (0, "1", "Data", "48K"),
            (1, "1", "Instruction", "32K"),
            (2, "3", "Unified", "260M"),
        ] {
            let folder = dir.path().join(format!("index{at}"));
            fs::create_dir(&folder).unwrap();
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }
        fs::create_dir(dir.path().join("power")).unwrap();
        assert_eq!(caches(dir.path()), ["L1d 48K", "L1i 32K", "L3 260M"]);
        assert!(caches(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn this_machine_has_a_processor() {
        let machine = Machine::here();
        assert!(
            machine.cores >= 1 && machine.memory_bytes > 1 << 20,
            "{machine:?}"
        );
        assert!(
            !machine.processor.is_empty() && !machine.kernel.is_empty(),
            "{machine:?}"
        );
    }
}
