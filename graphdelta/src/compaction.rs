//! Compaction of a version: the output that is read, the one that is written, and what is kept of
//! them.

use std::path::{Path, PathBuf};

use schemas::path::overlap;
use schemas::{Manifest, Opened, Output, SchemaError, read_manifest};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{DeltaError, KeptVersions, NoRows, VersionRecord, find_kept};

/// A compaction of one output to another.
#[derive(Debug)]
pub struct Compaction<'a> {
    /// The output that is read, a version or not.
    pub from: &'a Path,
    /// The output that is written; it keeps rows of no other one.
    pub to: &'a Path,
    /// Working directories in which later versions find what they need, one for each process; none
    /// if no version is to continue the output.
    work_dirs: Vec<&'a Path>,
    /// Manifest of the output that is read.
    pub source: Manifest,
    /// Fingerprint of the output that is written.
    pub fingerprint: String,
}

impl<'a> Compaction<'a> {
    /// Reads the manifest of an output. It is kept in some of `work_dirs`, one for each process that
    /// wrote it, unless there are none. `engine` must change when the same version gives other bytes
    /// than before.
    ///
    /// # Errors
    ///
    /// If the output is not finished.
    pub fn new(
        (from, to): (&'a Path, &'a Path),
        work_dirs: &'a [PathBuf],
        engine: u32,
    ) -> Result<Self, DeltaError> {
        let source = read_manifest(from)?;
        let own = json!({ "engine": engine, "compact": source.fingerprint });
        let fingerprint = schemas::xxh::fingerprint(own.to_string().as_bytes());
        let is_kept = |dir: &&Path| {
            let versions = KeptVersions::unlocked(dir);
            let mut names = [&source.fingerprint, &fingerprint].into_iter();
            names.any(|name| versions.record::<NoRows>(name).is_some())
        };
        let dirs = || work_dirs.iter().map(PathBuf::as_path);
        let mut kept_in: Vec<&Path> = dirs().filter(is_kept).collect();
        if kept_in.is_empty() {
            // The error names the first one.
            kept_in.extend(dirs().next());
        }
        Ok(Self {
            from,
            to,
            work_dirs: kept_in,
            fingerprint,
            source,
        })
    }

    /// Returns the manifest of a compaction that is finished; the outputs that it was made of may
    /// be gone.
    ///
    /// # Errors
    ///
    /// If the directory holds another output, or a working directory lacks what versions of the
    /// finished one need.
    pub fn done<R: DeserializeOwned>(&self) -> Result<Option<Manifest>, DeltaError> {
        let done = Output::done(self.to, &self.source.stage, &self.fingerprint);
        let Some(manifest) = done.map_err(|error| self.taken(error))? else {
            return Ok(None);
        };
        let is_kept = |dir: &Path| {
            let record = find_kept::<R>(dir, &self.fingerprint);
            let versions = KeptVersions::unlocked(dir);
            record.is_some_and(|of| versions.has_graph(&self.fingerprint, &of))
        };
        match self.work_dirs.iter().copied().find(|dir| !is_kept(dir)) {
            None => Ok(Some(manifest)),
            Some(dir) => Err(not_kept(dir, self.to)),
        }
    }

    /// Refuses an output that overlaps one that has rows of the version.
    ///
    /// # Errors
    ///
    /// Names that output.
    pub fn check_apart(&self) -> Result<(), DeltaError> {
        let version = self.source.version.iter();
        for kept in version.flat_map(|version| &version.kept) {
            let dir = kept.checked_dir(self.from)?;
            if overlap(self.to, &dir) {
                let problem = format!("it overlaps an output of the version, {}", dir.display());
                return Err(self.wrong_output(problem));
            }
        }
        Ok(())
    }

    /// Locks the kept versions of each working directory, and returns what is kept of the output
    /// that is read.
    ///
    /// # Errors
    ///
    /// If its rows or its graph are not kept, or another run has locked a directory.
    pub fn lock<R: DeserializeOwned>(
        &self,
    ) -> Result<Vec<(KeptVersions, VersionRecord<R>)>, DeltaError> {
        self.work_dirs.iter().map(|dir| self.lock_in(dir)).collect()
    }

    fn lock_in<R: DeserializeOwned>(
        &self,
        work_dir: &Path,
    ) -> Result<(KeptVersions, VersionRecord<R>), DeltaError> {
        let name = &self.source.fingerprint;
        let is_there = || find_kept::<R>(work_dir, name);
        is_there().ok_or_else(|| not_kept(work_dir, self.from))?;
        let versions = KeptVersions::lock(work_dir)?;
        let record = is_there().ok_or_else(|| self.not_kept(&versions))?;
        match versions.has_graph(name, &record) {
            true => Ok((versions, record)),
            false => Err(DeltaError::Key {
                key: "--work-dir",
                value: work_dir.display().to_string(),
                allowed: format!(
                    "it keeps the graphs of the last version and of its parent alone, not that of \
                     {}; compact a later one",
                    self.from.display()
                ),
            }),
        }
    }

    /// Opens the output that is written.
    ///
    /// # Errors
    ///
    /// If the directory holds another output.
    pub fn open(&self) -> Result<Opened, DeltaError> {
        let opened = Output::open(self.to, &self.source.stage, &self.fingerprint, false);
        opened.map_err(|error| self.taken(error))
    }

    /// Returns the error of a working directory that does not keep all rows of the output.
    pub fn not_kept(&self, versions: &KeptVersions) -> DeltaError {
        not_kept(versions.work_dir(), self.from)
    }

    /// Finishes the output and returns its manifest; `report` has entries besides the ones of all
    /// compactions.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn finish(self, output: Output, report: &[(&str, Value)]) -> Result<Manifest, DeltaError> {
        let mut all = json!({
            "mode": "compacted",
            "of": { "path": self.from.to_string_lossy(), "fingerprint": self.source.fingerprint },
        });
        for (name, value) in report {
            all[*name] = value.clone();
        }
        let manifest = Manifest {
            fingerprint: self.fingerprint,
            parts: output.parts(),
            version: None,
            report: all,
            ..self.source
        };
        output.finish(&manifest)?;
        Ok(manifest)
    }

    /// Names the argument in place of the key of a job.
    fn taken(&self, error: SchemaError) -> DeltaError {
        match error {
            SchemaError::OutputTaken { .. } => self.wrong_output(
                "it holds another output or other files; name another directory".to_owned(),
            ),
            other => other.into(),
        }
    }

    fn wrong_output(&self, problem: String) -> DeltaError {
        DeltaError::Key {
            key: "--output",
            value: self.to.display().to_string(),
            allowed: problem,
        }
    }
}

/// Returns the error of a working directory that lacks what versions of an output need.
fn not_kept(work_dir: &Path, output: &Path) -> DeltaError {
    DeltaError::Key {
        key: "--work-dir",
        value: work_dir.display().to_string(),
        allowed: format!(
            "it does not keep all rows of {}; name the `work_dir` of the job that wrote it",
            output.display()
        ),
    }
}
