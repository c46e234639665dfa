//! Removes work files that runs with another number of processes have left in `work_dir`.

use std::fs;
use std::path::{Path, PathBuf};

use graphdelta::{KeptVersions, NoRows, find_kept};
use schemas::dataset::DirLock;
use schemas::read_manifest;

use crate::job::CHECKSUMS;

/// Returns the name of the directory in `work_dir` of one of several processes.
pub(crate) fn own_dir(process: usize) -> String {
    format!("process-{process:03}")
}

/// Removes the directories of processes that a job in `num_processes` processes does not have; no
/// run reads them again.
///
/// A directory stays if versions can continue from it, if another run uses it, or if it holds
/// anything but directories of stores and rounds, and the checksums of tables. `num_processes` is 1 for a job in one process,
/// which works in `work_dir` itself.
pub(crate) fn remove_unused(work_dir: &Path, num_processes: usize) {
    let first = if num_processes > 1 { num_processes } else { 0 };
    for (number, dir) in process_dirs(work_dir) {
        if number >= first && !keeps_versions(&dir) {
            remove(&dir);
        }
    }
}

/// Returns `work_dir`, and the directories in it of the processes of a job.
pub(crate) fn with_processes(work_dir: &Path) -> Vec<PathBuf> {
    let of_processes = process_dirs(work_dir).into_iter().map(|(_, dir)| dir);
    std::iter::once(work_dir.to_owned())
        .chain(of_processes)
        .collect()
}

/// Lists the directories of processes in `work_dir`, each with its number.
fn process_dirs(work_dir: &Path) -> Vec<(usize, PathBuf)> {
    let entries = fs::read_dir(work_dir).into_iter().flatten().flatten();
    let dirs = entries.filter_map(|entry| {
        let name = entry.file_name();
        let digits = name.to_str()?.strip_prefix("process-")?;
        let number = digits.parse::<usize>().ok().filter(|_| digits.len() >= 3)?;
        (own_dir(number) == name.to_string_lossy()).then(|| (number, entry.path()))
    });
    let mut dirs: Vec<(usize, PathBuf)> = dirs.collect();
    dirs.sort_unstable();
    dirs
}

/// Tells whether a job in several processes keeps an output in `work_dir`, and none in one process
/// does.
pub(crate) fn is_kept_by_several(work_dir: &Path, output: &Path) -> bool {
    let Ok(manifest) = read_manifest(output) else {
        return false;
    };
    let is_kept = |dir: &Path| find_kept::<NoRows>(dir, &manifest.fingerprint).is_some();
    !is_kept(work_dir) && is_kept(&work_dir.join(own_dir(0)))
}

/// Tells whether versions can continue from the directory of a process.
fn keeps_versions(dir: &Path) -> bool {
    KeptVersions::unlocked(dir).are_there()
}

/// Removes the directory of a process, unless another run is using it.
fn remove(dir: &Path) {
    let Some(locks) = lock_all(dir) else {
        tracing::warn!(
            "{} was left by a run with another number of processes; it stays, because another run \
             uses it or it holds other files",
            dir.display()
        );
        return;
    };
    // If this fails, the next run tries again.
    match fs::remove_dir_all(dir) {
        Ok(()) => drop(locks),
        Err(error) => tracing::warn!("cannot remove {}: {error}", dir.display()),
    }
}

/// Takes the locks of all directories in a directory; none if a lock is taken, or an entry is neither
/// a directory nor the checksums of tables.
fn lock_all(dir: &Path) -> Option<Vec<DirLock>> {
    let entries = fs::read_dir(dir).ok()?;
    let paths = entries.map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Option<_>>()?;
    let checksums = dir.join(CHECKSUMS);
    paths.retain(|path| *path != checksums);
    let locks = paths.iter().map(|path| {
        let is_dir = path.is_dir() && !path.is_symlink();
        is_dir.then(|| DirLock::take(path).ok())?
    });
    locks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_other_numbers_of_processes_go() {
        let root = tempfile::tempdir().unwrap();
        let names = ["process-000", "process-001", "process-002", "process-1000"];
        let others = ["store", "process-02", "process-0002", "process-x"];
        let fill = || {
            for name in names.iter().chain(&others) {
                fs::create_dir_all(root.path().join(name).join("store")).unwrap();
            }
        };
        let left = || {
            let entries = fs::read_dir(root.path()).unwrap();
            let mut left: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| names.contains(&&**name))
                .collect();
            left.sort();
            left
        };
        fill();
        remove_unused(root.path(), 2);
        assert_eq!(left(), ["process-000", "process-001"]);
        fill();
        fs::write(root.path().join("process-002").join(CHECKSUMS), "{}").unwrap();
        remove_unused(root.path(), 1);
        assert_eq!(left(), [""; 0]);
        for name in others {
            assert!(root.path().join(name).exists(), "{name} must stay");
        }
        fill();
        let lock = DirLock::take(&root.path().join("process-002/store")).unwrap();
        fs::write(root.path().join("process-1000/notes.txt"), "kept").unwrap();
        remove_unused(root.path(), 2);
        drop(lock);
        let kept = ["process-000", "process-001", "process-002", "process-1000"];
        assert_eq!(left(), kept);
    }
}
