//! The writing side of an output directory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::lease::{Fence, OtherLock, is_lock_aside};
use super::lock::{LOCK, OutputLock};
use super::{
    FileEntry, MANIFEST, Manifest, OLD_MANIFEST, PartEntry, SUCCESS, load_manifest, part_name,
    read_json, read_manifest, verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::storage::{self, NewFile, Pending, entries, remove_dir_all, remove_file, write_whole};
use crate::xxh::Hashed;

const PROGRESS: &str = "_progress";
const PLAN: &str = "plan.json";
const TMP: &str = "tmp";
/// Files that a store may be finishing at a time.
const UNFINISHED_MAX: usize = 8;
/// Folders of parts, beside the directory itself.
const TABLES: [&str; 2] = ["nodes", "edges"];

/// An output directory that one run writes; threads may share it.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    owner: Owner,
    committed: Mutex<BTreeMap<usize, PartEntry>>,
    unfinished: Arc<Unfinished>,
    lock: OutputLock,
}

/// Files that a store is still finishing, by name.
type Unfinished = Mutex<BTreeMap<String, Pending<()>>>;

/// What [`Output::open`] found.
#[derive(Debug)]
pub enum Opened {
    /// The output is there already.
    Done(Box<Manifest>),
    /// The output is to be written, or to be continued.
    Open(Output),
}

/// A file being written, invisible under its name until [`PartFile::finish`].
///
/// Dropped without that, it is removed.
pub struct PartFile {
    name: String,
    path: PathBuf,
    writer: Hashed<NewFile>,
    unfinished: Arc<Unfinished>,
    fence: Option<Fence>,
}

/// Whose parts stand in a directory; `_progress/plan.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    stage: String,
    fingerprint: String,
}

/// One committed part; `_progress/part-00000.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Committed {
    index: usize,
    part: PartEntry,
}

impl Output {
    /// Returns the manifest of a finished output of the same fingerprint, before any work for it.
    ///
    /// # Errors
    ///
    /// If the directory holds the finished output of another plan, or foreign files.
    pub fn done(dir: &Path, stage: &str, fingerprint: &str) -> Result<Option<Manifest>> {
        let wanted = Owner {
            stage: stage.to_owned(),
            fingerprint: fingerprint.to_owned(),
        };
        refuse_foreign(dir)?;
        let found = finished(dir, &wanted)?;
        if found.is_some() {
            remove_left(dir);
        }
        Ok(found)
    }

    /// Opens an output directory for a stage, creating it where it is missing.
    ///
    /// A finished output of the same fingerprint is [`Opened::Done`]; a half-finished one is
    /// continued: its committed parts stay, everything else of it goes. With `fresh`, whatever
    /// this program wrote into the directory is removed first.
    ///
    /// # Errors
    ///
    /// If the directory holds the output of another plan or foreign files, or another run is
    /// writing it.
    pub fn open(dir: &Path, stage: &str, fingerprint: &str, fresh: bool) -> Result<Opened> {
        let wanted = Owner {
            stage: stage.to_owned(),
            fingerprint: fingerprint.to_owned(),
        };
        if fresh {
            refuse_foreign(dir)?;
        } else if let Some(manifest) = Self::done(dir, stage, fingerprint)? {
            return Ok(Opened::Done(Box::new(manifest)));
        }
        storage::create_dir_all(dir)?;
        let lock = OutputLock::take(dir)?;
        remove_temporary(dir)?;
        if fresh {
            clear(dir)?;
        } else if let Some(manifest) = finished(dir, &wanted)? {
            // Another run finished while this one waited for the directory.
            return Ok(Opened::Done(Box::new(manifest)));
        }
        let progress = dir.join(PROGRESS);
        if let Some(found) = half_finished(dir)?
            && found != wanted
        {
            return Err(other_plan(dir, &found, &wanted));
        }
        let tmp = progress.join(TMP);
        remove_dir_all(&tmp)?;
        storage::create_dir_all(&tmp)?;
        write_whole(&progress.join(PLAN), &json(&wanted))?;
        let committed = Mutex::new(committed_parts(dir)?);
        let dir = dir.to_owned();
        Ok(Opened::Open(Self {
            dir,
            owner: wanted,
            committed,
            unfinished: Arc::default(),
            lock,
        }))
    }

    /// Opens an output that another process of the same run has opened and keeps locked, to write parts
    /// of it; only that process finishes it. `lock` and `committed` are what [`Self::lock_token`] and
    /// [`Self::committed_parts`] say there: which parts are left has to be the same everywhere.
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
        let owner = Owner {
            stage: stage.to_owned(),
            fingerprint: fingerprint.to_owned(),
        };
        if half_finished(dir)?.as_ref() != Some(&owner) {
            return Err(SchemaError::OutputTaken {
                dir: dir.to_owned(),
                problem:
                    "is not the directory that the first process of the job opened; all of them \
                          have to reach the same one, on S3, HDFS or a file system they share"
                        .to_owned(),
            });
        }
        let other = lock.map(|token| OtherLock::new(dir, token)).transpose()?;
        Ok(Self {
            dir: dir.to_owned(),
            owner,
            committed: Mutex::new(committed),
            unfinished: Arc::default(),
            lock: OutputLock::Elsewhere(other.map(Arc::new)),
        })
    }

    /// Returns what tells this run's lock from others, where the directory is of a store.
    pub fn lock_token(&self) -> Option<u64> {
        self.lock.token()
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the directory for a stage's own notes of progress, removed when it finishes.
    pub fn progress_dir(&self) -> PathBuf {
        self.dir.join(PROGRESS)
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

    /// Takes over parts that other processes of the run have committed.
    pub fn adopt_parts(&self, parts: BTreeMap<usize, PartEntry>) {
        self.committed_guard().extend(parts);
    }

    /// Starts a file; `name` is its path below the directory, with `/`.
    ///
    /// # Errors
    ///
    /// If it cannot be created.
    pub fn create(&self, name: &str) -> Result<PartFile> {
        let temporary = self
            .dir
            .join(PROGRESS)
            .join(TMP)
            .join(name.replace('/', "+"));
        let path = self.dir.join(name);
        Ok(PartFile {
            name: name.to_owned(),
            writer: Hashed::new(NewFile::create(&path, &temporary)?),
            path,
            unfinished: Arc::clone(&self.unfinished),
            fence: self.lock.fence(),
        })
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
        storage::sync_file(&self.dir.join(&file.path))
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
            let path = self.dir.join(&file.path);
            storage::sync_dir(path.parent().expect("it lies in the output directory"))?;
        }
        self.lock.check()?;
        let record = Committed { index, part };
        let path = self
            .dir
            .join(PROGRESS)
            .join(format!("part-{index:05}.json"));
        write_whole(&path, &json(&record))?;
        self.committed_guard().insert(index, record.part);
        Ok(())
    }

    /// Writes the manifest, then `_SUCCESS`, and removes the traces of progress.
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
        verify_sizes(&self.dir, &manifest.parts)?;
        self.lock.check()?;
        write_whole(&self.dir.join(MANIFEST), &json(manifest))?;
        write_whole(&self.dir.join(SUCCESS), b"")?;
        // Of a run of an older version that was killed between its manifest and `_SUCCESS`.
        if matches!(read_json::<Manifest>(&self.dir.join(OLD_MANIFEST)), Ok(Some(_))) {
            remove_file(&self.dir.join(OLD_MANIFEST))?;
        }
        remove_dir_all(&self.dir.join(PROGRESS))?;
        // Of requests whose answers were lost.
        remove_temporary(&self.dir)
    }

    fn committed_guard(&self) -> MutexGuard<'_, BTreeMap<usize, PartEntry>> {
        // Every change is one insertion, so a panic elsewhere leaves the map whole.
        self.committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    fn of(manifest: &Manifest) -> Self {
        Self {
            stage: manifest.stage.clone(),
            fingerprint: manifest.fingerprint.clone(),
        }
    }
}

impl std::fmt::Debug for PartFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl PartFile {
    /// Writes what is left and gives the file its name; [`Output::commit_part`] makes it durable, and
    /// waits for a store to have it.
    ///
    /// # Errors
    ///
    /// If the file system refuses.
    pub fn finish(self) -> Result<FileEntry> {
        let (bytes, checksum) = (self.writer.num_bytes(), self.writer.checksum());
        let fence = self.fence;
        let is_ours = move || fence.as_ref().map_or(Ok(()), Fence::check);
        if let Some(pending) = self.writer.into_inner().finish(is_ours)? {
            let mut unfinished = self
                .unfinished
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            unfinished.insert(self.name.clone(), pending);
            // Each holds what is left of its file.
            if unfinished.len() > UNFINISHED_MAX
                && let Some((_, first)) = unfinished.pop_first()
            {
                drop(unfinished);
                storage::wait(first)?;
            }
        }
        Ok(FileEntry {
            path: self.name,
            bytes,
            checksum,
        })
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Returns the manifest of a finished output; one of another plan is an error.
fn finished(dir: &Path, wanted: &Owner) -> Result<Option<Manifest>> {
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

/// Removes what requests to a store leave of which nothing came: files of HDFS under names for a
/// while, unfinished uploads of S3, the locks of dead runs.
fn remove_temporary(dir: &Path) -> Result<()> {
    if !storage::is_remote(dir) {
        return Ok(());
    }
    for name in entries(dir)?.iter().filter(|name| is_temporary(name)) {
        remove_file(&dir.join(name))?;
    }
    storage::abort_unfinished(dir)
}

/// Tells whether a file is one that [`remove_temporary`] removes.
fn is_temporary(name: &str) -> bool {
    let is_of = |file: &&str| {
        let rest = name
            .strip_prefix('.')
            .and_then(|name| name.strip_prefix(*file));
        rest.is_some_and(|rest| rest.starts_with(".tmp"))
    };
    [LOCK, MANIFEST, OLD_MANIFEST, SUCCESS].iter().any(is_of) || is_lock_aside(name)
}

/// Removes what a run has left that was killed after `_SUCCESS`; it harms nobody where it cannot.
fn remove_left(dir: &Path) {
    let progress = dir.join(PROGRESS);
    let is_there = |found: Result<bool>| found.is_ok_and(|is_there| is_there);
    if (is_there(storage::is_dir(&progress)) || is_there(storage::is_file(&dir.join(LOCK))))
        && let Ok(_lock) = OutputLock::take(dir)
    {
        remove_dir_all(&progress).ok();
    }
}

/// Tells whose output a directory without `_SUCCESS` holds.
fn half_finished(dir: &Path) -> Result<Option<Owner>> {
    if let Some(found) = read_json::<Owner>(&dir.join(PROGRESS).join(PLAN))? {
        return Ok(Some(found));
    }
    let manifest = load_manifest(dir)?;
    Ok(manifest.map(|(_path, manifest)| Owner::of(&manifest)))
}

fn other_plan(dir: &Path, found: &Owner, wanted: &Owner) -> SchemaError {
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

/// Refuses a directory with files in it that this program did not put there.
///
/// Other programs write `_SUCCESS`, `manifest.json` and `part-*.parquet` too: a directory is ours
/// if it holds a manifest or a plan that reads as one of ours.
///
/// # Errors
///
/// Names a file of something else, or the file that stands where the directory should.
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
    if is_ours(dir) {
        return Ok(());
    }
    // What a run that was killed before it wrote its plan may leave.
    let is_foreign = |name: &String| {
        !(name.starts_with('.') || name == LOCK || name == PROGRESS || is_lock_aside(name))
    };
    let mut foreign: Vec<String> = entries(dir)?.into_iter().filter(is_foreign).collect();
    let names = entries(&dir.join(PROGRESS))?.into_iter();
    let unknown = names.filter(|name| !(name.starts_with('.') || name == TMP));
    foreign.extend(unknown.map(|name| format!("{PROGRESS}/{name}")));
    // `_SUCCESS` says less about whose files they are than its neighbours.
    match foreign.iter().min_by_key(|name| name.starts_with('_')) {
        None => Ok(()),
        Some(name) => Err(taken(format!(
            "holds files of something else, such as {name}"
        ))),
    }
}

/// Refuses a directory that a run without `--fresh` would refuse, as far as can be told without
/// the fingerprint of the run.
///
/// `same_plan` tells whether a finished output of the stage is what the run would write.
///
/// # Errors
///
/// Says what the directory holds.
pub fn refuse_taken(
    dir: &Path,
    stage: &str,
    same_plan: impl FnOnce(&Manifest) -> bool,
) -> Result<()> {
    refuse_foreign(dir)?;
    let wanted = |found: &Owner| Owner {
        stage: stage.to_owned(),
        fingerprint: found.fingerprint.clone(),
    };
    let manifest = match storage::is_file(&dir.join(SUCCESS))? {
        true => Some(read_manifest(dir)?),
        false => None,
    };
    let found = match &manifest {
        Some(manifest) => Some(Owner::of(manifest)),
        None => half_finished(dir)?,
    };
    let Some(found) = found else { return Ok(()) };
    let is_same = found.stage == stage && manifest.as_ref().is_none_or(same_plan);
    if is_same {
        Ok(())
    } else {
        Err(other_plan(dir, &found, &wanted(&found)))
    }
}

fn is_ours(dir: &Path) -> bool {
    let plan = read_json::<Owner>(&dir.join(PROGRESS).join(PLAN));
    matches!(plan, Ok(Some(_))) || matches!(load_manifest(dir), Ok(Some(_)))
}

/// Removes what this program wrote into a directory of its own, `_SUCCESS` first.
///
/// That is what manifest and notes of progress list, and files named as parts, which a killed run
/// leaves without listing them. Until the end manifest or plan say whose the rest is.
fn clear(dir: &Path) -> Result<()> {
    if !is_ours(dir) {
        return Ok(());
    }
    remove_file(&dir.join(SUCCESS))?;
    // One broken note must not stop a fresh start.
    let manifest = load_manifest(dir).unwrap_or_default();
    let manifest = manifest.map(|(_path, manifest)| manifest.parts);
    let mut parts: Vec<PartEntry> = manifest.unwrap_or_default();
    parts.extend(committed_parts(dir).unwrap_or_default().into_values());
    let files = parts.iter().flat_map(|part| &part.files);
    for path in files
        .map(|file| Path::new(&file.path))
        .filter(|path| is_below(path))
    {
        remove_file(&dir.join(path))?;
    }
    remove_parts(dir)?;
    for below in TABLES.map(|table| dir.join(table)) {
        remove_parts(&below)?;
        storage::remove_empty_dir(&below);
    }
    let progress = dir.join(PROGRESS);
    for name in entries(&progress)?.iter().filter(|name| *name != PLAN) {
        let path = progress.join(name);
        if storage::is_dir(&path)? {
            remove_dir_all(&path)?
        } else {
            remove_file(&path)?
        }
    }
    for name in [MANIFEST, OLD_MANIFEST] {
        if matches!(read_json::<Manifest>(&dir.join(name)), Ok(Some(_))) {
            remove_file(&dir.join(name))?;
        }
    }
    remove_dir_all(&progress)
}

/// Whether a listed path stays in its directory.
fn is_below(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}

/// Removes files named exactly as parts.
fn remove_parts(dir: &Path) -> Result<()> {
    for name in entries(dir)? {
        let index = name
            .strip_prefix("part-")
            .and_then(|rest| rest.strip_suffix(".parquet"));
        if index.is_some_and(|index| index.parse().is_ok_and(|i| part_name(i)[5..] == *index)) {
            remove_file(&dir.join(name))?;
        }
    }
    Ok(())
}

/// Reads the parts a killed run committed; one whose files are not there counts as not committed.
fn committed_parts(dir: &Path) -> Result<BTreeMap<usize, PartEntry>> {
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

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("it holds string keys only");
    text.push(b'\n');
    text
}
