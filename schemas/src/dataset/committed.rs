//! Notes on committed parts, by which a later run continues.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{PROGRESS, PartEntry, read_json, verify_sizes};
use crate::error::Result;
use crate::storage::entries;

/// One committed part; `_progress/part-00000.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Committed {
    pub(super) index: usize,
    pub(super) part: PartEntry,
}

/// Reads the parts a killed run committed; one whose files are not there counts as not committed.
pub(super) fn committed_parts(dir: &Path) -> Result<BTreeMap<usize, PartEntry>> {
    let progress = dir.join(PROGRESS);
    let mut parts = BTreeMap::new();
    for name in entries(&progress)? {
        if !(name.starts_with("part-") && name.ends_with(".json")) {
            continue;
        }
        if let Some(Committed { index, part }) = read_json(&progress.join(name))?
            && verify_sizes(dir, std::slice::from_ref(&part)).is_ok()
        {
            parts.insert(index, part);
        }
    }
    Ok(parts)
}
