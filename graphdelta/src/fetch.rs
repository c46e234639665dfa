//! Fetches what is kept of a parent from the leader, for processes that have lost their disk or are
//! new.

use std::path::Path;

use cluster::{Cluster, copy_files, gather_processes};
use schemas::read_manifest;

use crate::kept::{failed, files_below};
use crate::{DeltaError, KeptVersions, NoRows, find_kept};

/// Name of the directory in which files arrive.
const FETCHED: &str = "fetched";

/// Copies what the leader keeps of an output, and of the earlier ones that it has rows of, to the
/// processes of a job that do not keep it. All processes make this call, each with its own
/// `work_dir`. Nothing is copied if the leader does not keep it either.
///
/// # Errors
///
/// If another run uses a working directory, a file cannot be read or written, or another process
/// fails.
pub fn fetch_kept(cluster: &Cluster, work_dir: &Path, output: &Path) -> Result<(), DeltaError> {
    if cluster.num_processes() == 1 {
        return Ok(());
    }
    // A stage reports what is wrong with the output.
    let name = read_manifest(output).ok().map(|of| of.fingerprint);
    let record = name
        .as_ref()
        .and_then(|name| find_kept::<NoRows>(work_dir, name));
    let lacking = gather_processes(cluster, record.is_none())?;
    if lacking[0] || !lacking.contains(&true) {
        return Ok(());
    }
    let versions = KeptVersions::lock(work_dir)?;
    let mut files = Vec::new();
    if let (Some(name), Some(record), true) = (name, record, cluster.leads()) {
        for kept in record.earlier.iter().chain([&name]) {
            files.extend(files_below(versions.dir(), &versions.path(kept))?);
        }
    }
    let arrived = versions.dir().join(FETCHED);
    remove(&arrived)?;
    copy_files(cluster, (versions.dir(), &files), &arrived, &lacking)?;
    if !lacking[cluster.process()] {
        return Ok(());
    }
    let entries = std::fs::read_dir(&arrived).map_err(failed("read", &arrived))?;
    for entry in entries {
        let entry = entry.map_err(failed("read", &arrived))?;
        let to = versions.dir().join(entry.file_name());
        // What a version has of its own output is the same in all processes.
        remove(&to)?;
        std::fs::rename(entry.path(), &to).map_err(failed("rename", &entry.path()))?;
    }
    remove(&arrived)
}

/// Removes a directory, if it is there.
fn remove(dir: &Path) -> Result<(), DeltaError> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", dir)(e)),
        _ => Ok(()),
    }
}
