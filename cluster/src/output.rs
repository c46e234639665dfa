//! Opens the output of a stage that several processes write.

use crate::{Cluster, WorkerError, gather_processes};
use schemas::{Opened, Output, SchemaError};
use std::path::Path;

/// Opens an output, given its directory, stage and fingerprint. The leader opens it first, keeps it
/// locked and finishes it. The followers then join it and write parts.
///
/// # Errors
///
/// Those of [`Output::open`] in the leader and of [`Output::join`] in the followers, and if another
/// process fails.
pub fn open_output<E>(
    cluster: &Cluster,
    (dir, stage, fingerprint): (&Path, &str, &str),
    fresh: bool,
) -> Result<Opened, E>
where
    E: From<SchemaError> + WorkerError,
{
    let opened = cluster
        .leads()
        .then(|| Output::open(dir, stage, fingerprint, fresh))
        .transpose()?;
    let told = match &opened {
        Some(Opened::Done(manifest)) => (Some(manifest.clone()), None, None),
        Some(Opened::Open(output)) => (None, output.lock_token(), Some(output.committed_parts())),
        None => (None, None, None),
    };
    let told = gather_processes(cluster, told)?;
    let (done, lock, committed) = told.into_iter().next().expect("there is a leader");
    match (opened, done) {
        (Some(opened), _) => Ok(opened),
        (None, Some(manifest)) => Ok(Opened::Done(manifest)),
        (None, None) => {
            let committed = committed.unwrap_or_default();
            let output = Output::join(dir, stage, fingerprint, lock, committed)?;
            Ok(Opened::Open(output))
        }
    }
}
