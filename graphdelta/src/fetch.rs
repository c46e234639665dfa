//! Fetches what is kept of a parent from the leader, for processes that have lost their disk or are
//! new.

use std::path::Path;

use cluster::{Cluster, copy_files, gather_processes};
use schemas::read_manifest;

use crate::kept::{failed, files_below};
use crate::rebuilt::has_store;
use crate::{DeltaError, KeptVersions, NoRows, VersionRecord, find_kept};

/// Name of the directory in which files arrive.
const FETCHED: &str = "fetched";

/// Copies what the leader keeps of an output, and of the earlier ones that it has rows of, to the
/// processes that lack some of it. All processes make this call, each with its own `work_dir`.
/// Nothing is copied if the leader does not keep the output either.
///
/// # Errors
///
/// If another run uses a working directory, a file cannot be read or written, or another process
/// fails.
pub fn fetch_kept(cluster: &Cluster, work_dir: &Path, output: &Path) -> Result<(), DeltaError> {
    if cluster.num_processes() == 1 {
        return Ok(());
    }
    let readable = KeptVersions::unlocked(work_dir);
    // A stage reports what is wrong with the output.
    let parent = read_manifest(output).ok().map(|of| of.fingerprint);
    let names = parent.filter(|_| cluster.leads()).and_then(|parent| {
        let record = find_kept::<NoRows>(work_dir, &parent)?;
        let base = record.base.as_ref().map(|base| readable.base_dir(base));
        let is_whole = readable.has_graph(&parent, &record) && base.is_none_or(|of| has_store(&of));
        let needed = readable.needed_by(&record);
        is_whole.then(|| (record.base, [needed, vec![parent]].concat()))
    });
    let names = gather_processes(cluster, names)?.swap_remove(0);
    let (base, names) = names.unwrap_or_default();
    let dir_of_base = base.as_ref().map(|base| readable.base_dir(base));
    let lacks_base = dir_of_base.as_ref().map(|dir| !has_store(dir));
    let lacks = |name: &String| {
        let record = readable.record::<NoRows>(name);
        // Of earlier ones, the graph is not kept.
        let needs_graph = names.last() == Some(name);
        let has_graph =
            |of: &VersionRecord<NoRows>| readable.has_graph(name, of) && of.base == base;
        record.is_none_or(|of| needs_graph && !has_graph(&of))
    };
    let lacking: Vec<bool> = names.iter().map(lacks).chain(lacks_base).collect();
    let lacking = gather_processes(cluster, lacking)?;
    if lacking.iter().flatten().all(|is_lacking| !is_lacking) {
        return Ok(());
    }
    let versions = KeptVersions::lock(work_dir)?;
    let dirs = names
        .iter()
        .map(|name| versions.path(name))
        .chain(dir_of_base);
    for (at, dir) in dirs.enumerate() {
        let of_dir: Vec<bool> = lacking.iter().map(|of_process| of_process[at]).collect();
        if of_dir.contains(&true) {
            fetch(cluster, &versions, &dir, &of_dir)?;
        }
    }
    Ok(())
}

/// Copies a directory of the leader to the processes that lack it.
fn fetch(
    cluster: &Cluster,
    versions: &KeptVersions,
    own: &Path,
    lacking: &[bool],
) -> Result<(), DeltaError> {
    let arrived = versions.dir().join(FETCHED);
    remove(&arrived)?;
    let files = match cluster.leads() {
        true => files_below(own, own)?,
        false => Vec::new(),
    };
    copy_files(cluster, (own, &files), &arrived, lacking)?;
    if !lacking[cluster.process()] {
        return Ok(());
    }
    remove(own)?;
    std::fs::rename(&arrived, own).map_err(failed("rename", &arrived))
}

/// Removes a directory, if it is there.
fn remove(dir: &Path) -> Result<(), DeltaError> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", dir)(e)),
        _ => Ok(()),
    }
}
