//! The partitions of all processes, in each of them: versions read the whole graph.

use std::path::Path;

use cluster::{copy_files, gather_processes};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::dataset::DirLock;

use crate::meta::verify;
use crate::partition::Partition;
use crate::{Store, StoreError};

/// Name of the directory of other processes' partitions, in that of a store.
const OTHERS: &str = "others";

/// Opens the partitions of all processes in each of them. Those of other processes are copied to
/// this one once, unless an earlier run has copied them. `dir` is the directory of the store.
///
/// # Errors
///
/// If a file cannot be read or written, another run uses the directory, or another process fails.
pub fn open_whole(store: &Store, dir: &Path) -> Result<Store, StoreError> {
    let cluster = store.cluster();
    if store.is_whole() {
        return Ok(store.clone());
    }
    let _lock = DirLock::take(dir)?;
    let (own, others) = (&store.meta().files, dir.join(OTHERS));
    let all = gather_processes(cluster, own.clone())?;
    let of_others = || {
        let of_others = all.iter().enumerate();
        of_others.filter(|(process, _)| *process != cluster.process())
    };
    let is_there = of_others().all(|(_, files)| verify(&others, files).is_ok());
    let lacking = gather_processes(cluster, !is_there)?;
    if lacking.contains(&true) {
        if !is_there {
            // Another run may have mapped files: they are replaced, not changed.
            remove_others(dir).map_err(|e| StoreError::File {
                verb: "write",
                path: others.clone(),
                source: e.into(),
            })?;
        }
        let names: Vec<String> = own.iter().map(|file| file.path.clone()).collect();
        copy_files(cluster, (dir, &names), &others, &lacking)?;
        of_others().try_for_each(|(_, files)| verify(&others, files))?;
    }
    let first = cluster.first_worker();
    let is_own = |worker| (first..first + cluster.num_threads()).contains(&worker);
    let workers = (0..store.placement().workers()).into_par_iter();
    let opened = workers.map(|worker| {
        let of_worker = if is_own(worker) { dir } else { &others };
        Partition::open(of_worker, worker, store.placement(), store.meta())
    });
    // All are opened first, so that the error of the first one is returned.
    let opened: Vec<Result<Partition, StoreError>> = opened.collect();
    Ok(store.with_all(opened.into_iter().collect::<Result<_, _>>()?))
}

/// Removes the partitions of other processes.
pub(crate) fn remove_others(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir.join(OTHERS)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
