//! How several processes write a version: each has the whole graph and what is kept of the parent,
//! computes and writes a share of the rows, and keeps what the next version needs.

use std::path::Path;

use cluster::{Cluster, ClusterError, gather_processes};
use schemas::{Manifest, Output};

use crate::DeltaError;

/// Tells whether this process computes or writes piece `index` of some work.
pub fn is_own_part(cluster: &Cluster, index: usize) -> bool {
    index % cluster.num_processes() == cluster.process()
}

/// Returns the manifest of a finished version, given its directory, stage and fingerprint, which
/// the leader looks for; none if it is not finished or `fresh`.
///
/// # Errors
///
/// If the directory holds something else, or the processes see different changes or parents.
pub fn finished_version(
    cluster: &Cluster,
    (dir, stage, fingerprint): (&Path, &str, &str),
    fresh: bool,
) -> Result<Option<Manifest>, DeltaError> {
    let found = match cluster.leads() && !fresh {
        true => Output::done(dir, stage, fingerprint)?,
        false => None,
    };
    let mut told = gather_processes(cluster, (fingerprint.to_owned(), found))?;
    match told.iter().position(|(theirs, _)| *theirs != told[0].0) {
        Some(process) => Err(DeltaError::Unlike { process }),
        None => Ok(told.swap_remove(0).1),
    }
}

/// Adds the parts that other processes have written to those of this one.
///
/// # Errors
///
/// If another process fails.
pub fn join_parts(cluster: &Cluster, output: &Output) -> Result<(), ClusterError> {
    let parts = gather_processes(cluster, output.committed_parts())?;
    parts.into_iter().for_each(|of| output.adopt_parts(of));
    Ok(())
}

/// Finishes a version once all processes have kept what the next one needs; returns when it is
/// finished.
///
/// # Errors
///
/// If the manifest cannot be written, or another process fails.
pub fn finish_version(
    cluster: &Cluster,
    output: Output,
    manifest: &Manifest,
) -> Result<(), DeltaError> {
    gather_processes(cluster, ())?;
    if cluster.leads() {
        output.finish(manifest)?;
    }
    gather_processes(cluster, ())?;
    Ok(())
}
