//! Finds out which run wrote the files of an output directory.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::lease::is_lock_aside;
use super::{
    ASIDE, LOCK, MANIFEST, Manifest, PLAN, PROGRESS, SUCCESS, TMP, load_manifest, read_json,
    read_manifest, verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::storage::{self, entries};

/// Stage and fingerprint (of plan and input) of the run that writes a directory, as stored in
/// `_progress/plan.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    stage: String,
    fingerprint: String,
}

impl Owner {
    pub(super) fn new(stage: &str, fingerprint: &str) -> Self {
        Self {
            stage: stage.to_owned(),
            fingerprint: fingerprint.to_owned(),
        }
    }

    pub(super) fn of(manifest: &Manifest) -> Self {
        Self::new(&manifest.stage, &manifest.fingerprint)
    }
}

/// Returns the manifest of a finished output, or none if the output is not finished.
///
/// A finished output of another stage, plan or input is an error.
pub(super) fn finished(dir: &Path, wanted: &Owner) -> Result<Option<Manifest>> {
    if !storage::is_file(&dir.join(SUCCESS))? {
        return Ok(None);
    }
    let manifest = read_manifest(dir)?;
    let found = Owner::of(&manifest);
    if found != *wanted {
        return Err(other_plan(dir, &found, wanted));
    }
    verify_sizes(dir, &manifest.parts)?;
    Ok(Some(manifest))
}

/// Returns which run began to write a directory without `_SUCCESS`.
pub(super) fn half_finished(dir: &Path) -> Result<Option<Owner>> {
    if let Some(found) = read_json::<Owner>(&dir.join(PROGRESS).join(PLAN))? {
        return Ok(Some(found));
    }
    let manifest = load_manifest(dir)?;
    Ok(manifest.map(|(_path, manifest)| Owner::of(&manifest)))
}

/// Returns stage and fingerprint of the output that a run has begun to write in place of a finished
/// one.
pub(super) fn begun_aside(dir: &Path) -> Result<Option<Owner>> {
    read_json(&dir.join(ASIDE).join(PROGRESS).join(PLAN))
}

/// Tells whether a run has begun and not finished an output, new or in place of a finished one.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn is_begun(dir: &Path) -> Result<bool> {
    if begun_aside(dir)?.is_some() || storage::is_file(&dir.join(ASIDE).join(SUCCESS))? {
        return Ok(true);
    }
    let plan = read_json::<Owner>(&dir.join(PROGRESS).join(PLAN))?;
    Ok(plan.is_some() && !storage::is_file(&dir.join(SUCCESS))?)
}

pub(super) fn other_plan(dir: &Path, found: &Owner, wanted: &Owner) -> SchemaError {
    let of = if found.stage == wanted.stage {
        "another plan or input".to_owned()
    } else {
        format!("stage `{}`", found.stage)
    };
    SchemaError::OutputTaken {
        dir: dir.to_owned(),
        problem: format!(
            "holds the output of {of}; name another `output`, or start over with --fresh"
        ),
    }
}

/// Tells whether this program wrote a directory: it holds a plan or a manifest that can be read.
pub(super) fn is_ours(dir: &Path) -> bool {
    let plan = read_json::<Owner>(&dir.join(PROGRESS).join(PLAN));
    matches!(plan, Ok(Some(_))) || matches!(load_manifest(dir), Ok(Some(_)))
}

/// Refuses a directory that holds files of other programs.
///
/// A manifest or a plan that can be read proves that this program wrote the directory. `_SUCCESS`,
/// `manifest.json` and `part-*.parquet` prove nothing, because other programs write them too.
///
/// # Errors
///
/// Names a file that this program did not write, the file in the place of the directory, or the
/// manifest that cannot be read.
pub fn refuse_foreign(dir: &Path) -> Result<()> {
    let taken = |problem: String| SchemaError::OutputTaken {
        dir: dir.to_owned(),
        problem: format!("{problem}; name another `output`"),
    };
    if !storage::is_dir(dir)? {
        if storage::is_remote(dir) {
            return Ok(());
        }
        return match dir.ancestors().find(|path| path.exists()) {
            Some(path) if path == dir => Err(taken("is a file, not a directory".to_owned())),
            Some(path) if !path.is_dir() => {
                Err(taken(format!("lies below {}, a file", path.display())))
            }
            _ => Ok(()),
        };
    }
    if is_ours(dir) || is_ours(&dir.join(ASIDE)) {
        return Ok(());
    }
    // No other program writes `_manifest.json`, so one that cannot be read is damaged.
    match read_json::<Manifest>(&dir.join(MANIFEST)) {
        Err(SchemaError::Json { source, .. }) => {
            return Err(taken(format!(
                "holds a {MANIFEST} that cannot be read ({source}): remove the directory, or {}",
                "restore that file"
            )));
        }
        other => drop(other?),
    }
    // A run that was killed before it wrote its plan may leave only files with these names.
    let is_foreign = |name: &String| {
        let is_own = [LOCK, PROGRESS, ASIDE].contains(&name.as_str());
        !(name.starts_with('.') || is_own || is_lock_aside(name))
    };
    let mut foreign: Vec<String> = entries(dir)?.into_iter().filter(is_foreign).collect();
    for begun in [PROGRESS.to_owned(), format!("{ASIDE}/{PROGRESS}")] {
        let names = entries(&dir.join(&begun))?.into_iter();
        let unknown = names.filter(|name| !(name.starts_with('.') || name == TMP));
        foreign.extend(unknown.map(|name| format!("{begun}/{name}")));
    }
    // The error names a file like `_SUCCESS` last: other names tell more about the program.
    foreign.sort_by_key(|name| name.starts_with('_'));
    for name in foreign {
        // HDFS keeps the directories of removed files.
        if !storage::is_remote(dir) || storage::exists(&dir.join(&name))? {
            return Err(taken(format!(
                "holds files that are not of an output, such as {name}"
            )));
        }
    }
    Ok(())
}

/// Refuses a directory that a run without `--fresh` would refuse.
///
/// `fingerprint` is that of the run, if it is known; then the verdict is that of the run. Without
/// it, `same_plan` tells whether a finished output of the stage is the one that the run would write,
/// and an unfinished output of the same stage is accepted.
///
/// # Errors
///
/// Names the content of the directory.
pub fn refuse_taken(
    dir: &Path,
    stage: &str,
    fingerprint: Option<&str>,
    same_plan: impl FnOnce(&Manifest) -> bool,
) -> Result<()> {
    refuse_foreign(dir)?;
    let may_be_own = |found: &Owner| {
        found.stage == stage && fingerprint.is_none_or(|wanted| found.fingerprint == wanted)
    };
    // A run of this stage began to replace the output, and this run may be its continuation.
    if half_finished(&dir.join(ASIDE))?.is_some_and(|begun| may_be_own(&begun)) {
        return Ok(());
    }
    let manifest = match storage::is_file(&dir.join(SUCCESS))? {
        true => Some(read_manifest(dir)?),
        false => None,
    };
    let found = match &manifest {
        Some(manifest) => Some(Owner::of(manifest)),
        None => half_finished(dir)?,
    };
    let Some(found) = found else { return Ok(()) };
    let is_known = fingerprint.is_some();
    let is_same = may_be_own(&found) && (is_known || manifest.as_ref().is_none_or(same_plan));
    if is_same {
        Ok(())
    } else {
        let wanted = Owner::new(stage, &found.fingerprint);
        Err(other_plan(dir, &found, &wanted))
    }
}
