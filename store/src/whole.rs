//! The partitions of all processes, in each of them: versions read the whole graph.

use std::path::Path;

use cluster::{Cluster, copy_files, gather_processes};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::dataset::DirLock;

use crate::meta::{StoreFiles, verify};
use crate::open::{completed, is_enough};
use crate::partition::Partition;
use crate::{Store, StoreError, StoreMeta, StorePlan, input_fingerprint};

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

/// Opens the store of one of several processes in one process, with the copies of the other
/// partitions that [`open_whole`] has left beside it; the workers of all processes are its threads.
/// None if it does not fit the plan, or a partition is missing or damaged. `plan.workers` is
/// ignored.
///
/// # Errors
///
/// If the input cannot be read, or another run uses the directory.
pub fn open_copies(plan: &StorePlan) -> Result<Option<Store>, StoreError> {
    let plan = &completed(plan);
    if StoreMeta::read(&plan.dir)?.is_none() {
        return Ok(None);
    }
    let _lock = DirLock::take(&plan.dir)?;
    let Some(meta) = StoreMeta::read(&plan.dir)? else {
        return Ok(None);
    };
    let own = (&meta.input, meta.seed, meta.sampling, meta.samples);
    let input = input_fingerprint(&plan.graph)?;
    let is_same = own == (&input, plan.seed, plan.sampling, plan.samples);
    if !is_same || !is_enough(&meta, plan) {
        return Ok(None);
    }
    let others = plan.dir.join(OTHERS);
    let is_in = |dir: &Path, worker| {
        let files = StoreFiles {
            dir,
            is_typed: meta.graph.is_typed(),
        };
        files.nodes(0, worker).exists()
    };
    let dirs = (0..meta.workers).map(|worker| {
        let mut dirs = [&*plan.dir, &*others].into_iter();
        dirs.find(|dir| is_in(dir, worker))
    });
    let Some(dirs) = dirs.collect::<Option<Vec<&Path>>>() else {
        return Ok(None);
    };
    let all = Cluster::of_threads(meta.workers);
    let opened = Store::open_in(&all, plan, meta, |worker| dirs[worker]);
    // A run that was killed while it copied has left a part of a file; the next one copies again.
    Ok(opened.ok())
}

/// Removes the partitions of other processes.
pub(crate) fn remove_others(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir.join(OTHERS)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
