//! Parts that are written to learn how many bytes they take.

use crate::FlattenError;
use schemas::cleanup::remove_at_early_end;
use schemas::{FileEntry, Opened, Output, PartEntry, SchemaError};
use std::path::Path;

/// Writes part 0 of an output in a temporary directory in `at`; returns its files, which are gone.
pub(crate) fn probe_files(
    at: &Path,
    write: impl FnOnce(&Output) -> Result<PartEntry, FlattenError>,
) -> Result<Vec<FileEntry>, FlattenError> {
    let dir = tempfile::TempDir::with_prefix_in("graphflat-check-", at).map_err(|source| {
        SchemaError::Io {
            action: "create a directory in",
            path: at.to_owned(),
            source,
        }
    })?;
    let _cleanup = remove_at_early_end(dir.path());
    match Output::open(dir.path(), "flatten", "check", true)? {
        Opened::Open(output) => Ok(write(&output)?.files),
        Opened::Done(_) => unreachable!("a fresh output is open"),
    }
}
