//! The parent of a version: the output that changes are applied to.

use crate::InferError;
use crate::kept_versions::{VersionRecord, find};
use crate::plan::InferPlan;
use schemas::{EmbeddingsDataset, Manifest, read_manifest};
use std::path::{Path, PathBuf};

/// A finished output of inference.
pub(crate) struct Parent {
    pub(crate) dir: PathBuf,
    pub(crate) manifest: Manifest,
}

impl Parent {
    pub(crate) fn open(dir: &Path) -> Result<Self, InferError> {
        let dataset = EmbeddingsDataset::open(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            manifest: dataset.manifest().clone(),
        })
    }

    /// Returns what is kept of it.
    pub(crate) fn kept(&self, plan: &InferPlan) -> Result<VersionRecord, InferError> {
        let found = find(&plan.work_dir, &self.manifest.fingerprint);
        found.ok_or_else(|| self.is_not_kept(&plan.work_dir))
    }

    pub(crate) fn problem(&self, problem: String) -> InferError {
        InferError::Parent {
            dir: self.dir.clone(),
            problem,
        }
    }

    pub(crate) fn is_not_kept(&self, work_dir: &Path) -> InferError {
        self.problem(format!(
            "cannot be continued: its rows are not kept in {}; versions need the `work_dir` of \
             their parent, which was run with [incremental]; start with a run without a parent",
            work_dir.display()
        ))
    }

    pub(crate) fn is_too_old(&self) -> InferError {
        self.problem(
            "cannot be continued: `work_dir` keeps the graphs of the last version and of its parent \
             alone; name a later parent, or start with a run without a parent"
                .to_owned(),
        )
    }
}

/// Returns the fingerprint of the parent in `dir` as a finished version in `output` names it; that
/// parent may be gone.
pub(crate) fn named_parent(output: &Path, dir: &Path) -> Option<String> {
    let version = read_manifest(output).ok()?.version?;
    let parent = version.parent;
    parent.is_at(output, dir).then_some(parent.fingerprint)
}
