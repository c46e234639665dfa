//! The parent of a version: the output that changes are applied to.

use std::path::{Path, PathBuf};

use schemas::{KeptOutput, Manifest, VersionMeta, read_manifest};

use crate::DeltaError;

/// A finished output that changes are applied to.
#[derive(Clone, Debug)]
pub struct Parent {
    /// Its directory.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
}

impl Parent {
    /// Returns an error about the parent; `problem` completes a sentence that starts with it.
    pub fn problem(&self, problem: impl Into<String>) -> DeltaError {
        DeltaError::Parent {
            dir: self.dir.clone(),
            problem: problem.into(),
        }
    }

    /// Returns the error of a working directory that keeps nothing of the parent.
    pub fn is_not_kept(&self, work_dir: &Path) -> DeltaError {
        self.problem(format!(
            "cannot be continued: its rows are not kept in {}; versions need the `work_dir` of \
             their parent, which was run with [incremental], in one process if it was, else in \
             several; start with a run without a parent",
            work_dir.display()
        ))
    }

    /// Returns the outputs of which a version in `output` may keep rows, with the parent last;
    /// `earlier` are the fingerprints of those before the parent that were kept with its rows.
    ///
    /// # Errors
    ///
    /// If one of them was written again since, or the version would replace one.
    pub fn kept_outputs(
        &self,
        earlier: &[String],
        (output, key): (&Path, &'static str),
    ) -> Result<Vec<KeptOutput>, DeltaError> {
        let kept = VersionMeta::kept_by_child(output, &self.dir, &self.manifest);
        let expected = earlier.iter().chain([&self.manifest.fingerprint]);
        if !expected.eq(kept.iter().map(|of| &of.fingerprint)) {
            return Err(self.problem(
                "was computed again since its rows were kept; start with a run without a parent",
            ));
        }
        if kept.iter().any(|of| of.is_at(output)) {
            return Err(DeltaError::Key {
                key,
                value: output.display().to_string(),
                allowed: "the parent keeps rows of this output; name another one".to_owned(),
            });
        }
        Ok(kept)
    }
}

/// Returns the fingerprint of the parent in `dir` as a finished version in `output` names it; that
/// parent may be gone.
pub fn named_parent(output: &Path, dir: &Path) -> Option<String> {
    let version = read_manifest(output).ok()?.version?;
    let parent = version.parent;
    parent.is_at(output, dir).then_some(parent.fingerprint)
}
