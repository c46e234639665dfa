//! Parts that are written to learn how many bytes they take.

use crate::FlattenError;
use schemas::{FileEntry, Opened, Output, PartEntry, SchemaError};

/// Writes part 0 of an output in a temporary directory; returns its files, which are gone.
pub(crate) fn probe_files(
    write: impl FnOnce(&Output) -> Result<PartEntry, FlattenError>,
) -> Result<Vec<FileEntry>, FlattenError> {
    let at = std::env::temp_dir();
    let dir = tempfile::TempDir::with_prefix_in("graphflat-check-", &at).map_err(|source| {
        SchemaError::Io {
            action: "create a directory in",
            path: at,
            source,
        }
    })?;
    match Output::open(dir.path(), "flatten", "check", true)? {
        Opened::Open(output) => Ok(write(&output)?.files),
        Opened::Done(_) => unreachable!("a fresh output is open"),
    }
}
