//! The writing side of an output directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::committed::{Committed, committed_parts};
use super::lease::OtherLock;
use super::lock::OutputLock;
use super::owner::{Owner, begun_aside, finished, half_finished, other_plan, refuse_foreign};
use super::part_file::{PartFile, Unfinished};
use super::remove::{
    clear, remove_left, remove_old_manifest, remove_temporary, remove_unlisted, warn_if_left,
};
use super::replace;
use super::{
    ASIDE, FileEntry, MANIFEST, Manifest, PLAN, PROGRESS, PartEntry, SUCCESS, TMP, verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::storage::{self, remove_dir_all, write_whole};

/// An output directory that one run writes; threads may share it.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    /// Where files are written: the directory, or a folder of it while a finished output stays there.
    base: PathBuf,
    owner: Owner,
    committed: Mutex<BTreeMap<usize, PartEntry>>,
    unfinished: Arc<Unfinished>,
    lock: OutputLock,
}

/// Result of [`Output::open`].
#[derive(Debug)]
pub enum Opened {
    /// The output is there already.
    Done(Box<Manifest>),
    /// The output is to be written, or to be continued.
    Open(Output),
}

impl Output {
    /// Returns the manifest of a finished output of the same fingerprint, before any work for it;
    /// none if a run has begun to replace it by a new one of that fingerprint.
    ///
    /// # Errors
    ///
    /// If the directory holds the finished output of another plan that this one has not begun to
    /// replace, or foreign files.
    pub fn done(dir: &Path, stage: &str, fingerprint: &str) -> Result<Option<Manifest>> {
        let wanted = Owner::new(stage, fingerprint);
        refuse_foreign(dir)?;
        if replace::is_due(dir)? {
            let _lock = OutputLock::take(dir)?;
            replace::take_place(dir)?;
        }
        let found = finished_or_begun(dir, &wanted)?;
        if found.is_some() {
            remove_left(dir);
        }
        Ok(found)
    }

    /// Opens an output directory for a stage, creating it where it is missing.
    ///
    /// A finished output of the same fingerprint is [`Opened::Done`]; a half-finished one is
    /// continued, even if it will replace a finished one: its committed parts stay, its other files
    /// are removed. With `fresh`, a finished output is replaced when the new one is whole, and a
    /// half-finished one is removed first.
    ///
    /// # Errors
    ///
    /// If the directory holds the output of another plan or foreign files, or another run is
    /// writing it.
    pub fn open(dir: &Path, stage: &str, fingerprint: &str, fresh: bool) -> Result<Opened> {
        let wanted = Owner::new(stage, fingerprint);
        if fresh {
            refuse_foreign(dir)?;
        } else if let Some(manifest) = Self::done(dir, stage, fingerprint)? {
            return Ok(Opened::Done(Box::new(manifest)));
        }
        storage::create_dir_all(dir)?;
        let lock = OutputLock::take(dir)?;
        if replace::is_due(dir)? {
            replace::take_place(dir)?;
        }
        remove_temporary(dir)?;
        if !fresh && let Some(manifest) = finished_or_begun(dir, &wanted)? {
            // Another run finished while this one waited for the directory.
            return Ok(Opened::Done(Box::new(manifest)));
        }
        let base = replace::begin(dir)?;
        if fresh {
            clear(&base)?;
        }
        let progress = base.join(PROGRESS);
        if let Some(found) = half_finished(&base)?
            && found != wanted
        {
            return Err(other_plan(dir, &found, &wanted));
        }
        let tmp = progress.join(TMP);
        remove_dir_all(&tmp)?;
        storage::create_dir_all(&tmp)?;
        write_whole(&progress.join(PLAN), &json(&wanted))?;
        let committed = Mutex::new(committed_parts(&base)?);
        Ok(Opened::Open(Self {
            dir: dir.to_owned(),
            base,
            owner: wanted,
            committed,
            unfinished: Arc::default(),
            lock,
        }))
    }

    /// Opens an output that another process of the same run has opened and keeps locked, to write
    /// parts of it; only that process finishes it. `lock` and `committed` are the results of
    /// [`Self::lock_token`] and [`Self::committed_parts`] in that process, so that all processes
    /// agree which parts are left.
    ///
    /// # Errors
    ///
    /// If the directory is not the one that the other process opened.
    pub fn join(
        dir: &Path,
        stage: &str,
        fingerprint: &str,
        lock: Option<u64>,
        committed: BTreeMap<usize, PartEntry>,
    ) -> Result<Self> {
        let owner = Owner::new(stage, fingerprint);
        let aside = dir.join(ASIDE);
        let base = if half_finished(&aside)?.as_ref() == Some(&owner) {
            aside
        } else if half_finished(dir)?.as_ref() == Some(&owner) {
            dir.to_owned()
        } else {
            return Err(SchemaError::OutputTaken {
                dir: dir.to_owned(),
                problem:
                    "is not the directory that the first process of the job opened; all processes \
                          need the same one, on S3, HDFS or a file system that they share"
                        .to_owned(),
            });
        };
        let other = lock.map(|token| OtherLock::new(dir, token)).transpose()?;
        Ok(Self {
            dir: dir.to_owned(),
            base,
            owner,
            committed: Mutex::new(committed),
            unfinished: Arc::default(),
            lock: OutputLock::Elsewhere(other.map(Arc::new)),
        })
    }

    /// Returns the number that identifies this run's lock in a store; none for a local directory.
    pub fn lock_token(&self) -> Option<u64> {
        self.lock.token()
    }

    /// Returns the directory that files are written to: the output's, or a folder of it while a
    /// finished output stays there.
    pub fn parts_dir(&self) -> &Path {
        &self.base
    }

    /// Returns the directory for a stage's own records of progress, removed when the output is
    /// finished.
    pub fn progress_dir(&self) -> PathBuf {
        self.base.join(PROGRESS)
    }

    /// Returns a part that is committed already, by this run or by one that was killed.
    pub fn committed(&self, index: usize) -> Option<PartEntry> {
        self.committed_guard().get(&index).cloned()
    }

    /// Returns all committed parts in order of their index.
    pub fn parts(&self) -> Vec<PartEntry> {
        self.committed_guard().values().cloned().collect()
    }

    /// Returns all committed parts by their index.
    pub fn committed_parts(&self) -> BTreeMap<usize, PartEntry> {
        self.committed_guard().clone()
    }

    /// Adds parts that other processes of the run have committed.
    pub fn adopt_parts(&self, parts: BTreeMap<usize, PartEntry>) {
        self.committed_guard().extend(parts);
    }

    /// Starts a file; `name` is its path below the directory, with `/`.
    ///
    /// # Errors
    ///
    /// If it cannot be created.
    pub fn create(&self, name: &str) -> Result<PartFile> {
        let temporary = self.progress_dir().join(TMP).join(name.replace('/', "+"));
        let unfinished = Arc::clone(&self.unfinished);
        PartFile::create(&self.base, name, &temporary, unfinished, self.lock.fence())
    }

    /// Forces a finished file to the disk, ahead of [`Output::commit_part`].
    ///
    /// # Errors
    ///
    /// If the file system or store refuses.
    pub fn sync(&self, file: &FileEntry) -> Result<()> {
        let mut unfinished = self
            .unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let pending = unfinished.remove(&file.path);
        drop(unfinished);
        pending.map_or(Ok(()), storage::wait)?;
        storage::sync_file(&self.base.join(&file.path))
    }

    /// Makes the finished files of a part durable and records it; from now on no later run writes
    /// it again.
    ///
    /// This waits for the disk, so a thread of its own may do it while the next part is made.
    ///
    /// # Errors
    ///
    /// If a file cannot be forced to the disk, or the record cannot be written.
    pub fn commit_part(&self, index: usize, part: PartEntry) -> Result<()> {
        for file in &part.files {
            self.sync(file)?;
            // The file's folder, and the folders of tables that this one lies in.
            let path = Path::new(&file.path);
            let parent = path.parent().expect("it lies in the output directory");
            storage::sync_dir(&self.base.join(parent))?;
            let above = parent.ancestors().skip(1);
            for folder in above.filter(|folder| !folder.as_os_str().is_empty()) {
                storage::sync_dir(&self.base.join(folder))?;
            }
        }
        self.lock.check()?;
        let record = Committed { index, part };
        let path = self.progress_dir().join(format!("part-{index:05}.json"));
        write_whole(&path, &json(&record))?;
        self.committed_guard().insert(index, record.part);
        Ok(())
    }

    /// Writes the manifest, then `_SUCCESS`, replaces the previous output, if there is one, and
    /// removes the records of progress.
    ///
    /// # Errors
    ///
    /// If a file of a part is missing or something cannot be written.
    ///
    /// # Panics
    ///
    /// If the manifest is of another stage or fingerprint than the directory was opened for.
    pub fn finish(self, manifest: &Manifest) -> Result<()> {
        assert_eq!(
            Owner::of(manifest),
            self.owner,
            "the directory was opened for this plan"
        );
        verify_sizes(&self.base, &manifest.parts)?;
        self.lock.check()?;
        write_whole(&self.base.join(MANIFEST), &json(manifest))?;
        write_whole(&self.base.join(SUCCESS), b"")?;
        // From here on the output is whole; a run that is killed now leaves the rest to the next one.
        if self.base != self.dir {
            replace::take_place(&self.dir)?;
        }
        warn_if_left(remove_unlisted(&self.dir, &manifest.parts));
        warn_if_left(remove_old_manifest(&self.dir));
        warn_if_left(remove_dir_all(&self.dir.join(PROGRESS)));
        // Temporary files are left by requests whose answers were lost.
        warn_if_left(remove_temporary(&self.dir));
        Ok(())
    }

    /// Removes the records of an unfinished output, and its directory if it is empty; a finished
    /// output stays.
    pub fn abandon(self) {
        // Errors are ignored: the stage reports the one that ended it. A run with --fresh removes
        // the rest.
        remove_dir_all(&self.base.join(PROGRESS)).ok();
        storage::remove_empty_dir(&self.base);
        let dir = self.dir.clone();
        drop(self);
        storage::remove_empty_dir(&dir);
    }

    fn committed_guard(&self) -> MutexGuard<'_, BTreeMap<usize, PartEntry>> {
        // Every change is one insertion, so a panic elsewhere leaves the map whole.
        self.committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the manifest of a finished output, unless this plan has begun to replace it; one of
/// another plan is an error.
fn finished_or_begun(dir: &Path, wanted: &Owner) -> Result<Option<Manifest>> {
    match begun_aside(dir)?.as_ref() == Some(wanted) {
        true => Ok(None),
        false => finished(dir, wanted),
    }
}

pub(super) fn json<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("it holds string keys only");
    text.push(b'\n');
    text
}
