//! The writing side of an output directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::lock::{DirLock, LOCK};
use super::{
    FileEntry, MANIFEST, Manifest, PartEntry, SUCCESS, part_name, read_manifest, verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::xxh::Hashed;

const PROGRESS: &str = "_progress";
const PLAN: &str = "plan.json";
const TMP: &str = "tmp";
/// Folders of parts, beside the directory itself.
const TABLES: [&str; 2] = ["nodes", "edges"];

/// An output directory that one run writes; threads may share it.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    owner: Owner,
    committed: Mutex<BTreeMap<usize, PartEntry>>,
    _lock: DirLock,
}

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
    temporary: PathBuf,
    /// None once finished.
    writer: Option<Hashed<BufWriter<File>>>,
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
        fs::create_dir_all(dir).map_err(SchemaError::io("create", dir))?;
        let lock = DirLock::take(dir)?;
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
        remove_dir(&tmp)?;
        fs::create_dir_all(&tmp).map_err(SchemaError::io("create", &tmp))?;
        write_whole(&progress.join(PLAN), &json(&wanted))?;
        let committed = Mutex::new(committed_parts(dir)?);
        let dir = dir.to_owned();
        Ok(Opened::Open(Self {
            dir,
            owner: wanted,
            committed,
            _lock: lock,
        }))
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
        let file = File::create(&temporary).map_err(SchemaError::io("create", &temporary))?;
        Ok(PartFile {
            name: name.to_owned(),
            path: self.dir.join(name),
            temporary,
            writer: Some(Hashed::new(BufWriter::with_capacity(1 << 18, file))),
        })
    }

    /// Forces a finished file to the disk, ahead of [`Output::commit_part`].
    ///
    /// # Errors
    ///
    /// If the file system refuses.
    pub fn sync(&self, file: &FileEntry) -> Result<()> {
        let path = self.dir.join(&file.path);
        let written = File::open(&path).map_err(SchemaError::io("open", &path))?;
        written.sync_all().map_err(SchemaError::io("write", &path))
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
            sync_dir(path.parent().expect("it lies in the output directory"))?;
        }
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
        write_whole(&self.dir.join(MANIFEST), &json(manifest))?;
        write_whole(&self.dir.join(SUCCESS), b"")?;
        remove_dir(&self.dir.join(PROGRESS))
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
    /// Writes what is left and gives the file its name; [`Output::commit_part`] makes it durable.
    ///
    /// # Errors
    ///
    /// If the file system refuses.
    pub fn finish(mut self) -> Result<FileEntry> {
        let mut writer = self.writer.take().expect("a file is finished once");
        writer
            .flush()
            .map_err(SchemaError::io("write", &self.temporary))?;
        let (bytes, checksum) = (writer.num_bytes(), writer.checksum());
        drop(writer);
        let parent = self.path.parent().expect("it lies in the output directory");
        fs::create_dir_all(parent).map_err(SchemaError::io("create", parent))?;
        fs::rename(&self.temporary, &self.path).map_err(SchemaError::io("rename", &self.path))?;
        Ok(FileEntry {
            path: std::mem::take(&mut self.name),
            bytes,
            checksum,
        })
    }

    fn writer_mut(&mut self) -> &mut Hashed<BufWriter<File>> {
        self.writer
            .as_mut()
            .expect("a finished file is not written")
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // If this fails, the next run clears the folder of temporary files.
            fs::remove_file(&self.temporary).ok();
        }
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer_mut().flush()
    }
}

/// Returns the manifest of a finished output; one of another plan is an error.
fn finished(dir: &Path, wanted: &Owner) -> Result<Option<Manifest>> {
    if !dir.join(SUCCESS).is_file() {
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

/// Removes what a run has left that was killed after `_SUCCESS`; it harms nobody where it cannot.
fn remove_left(dir: &Path) {
    let progress = dir.join(PROGRESS);
    if progress.exists()
        && let Ok(_lock) = DirLock::take(dir)
    {
        remove_dir(&progress).ok();
    }
}

/// Tells whose output a directory without `_SUCCESS` holds.
fn half_finished(dir: &Path) -> Result<Option<Owner>> {
    if let Some(found) = read_json::<Owner>(&dir.join(PROGRESS).join(PLAN))? {
        return Ok(Some(found));
    }
    Ok(read_json::<Manifest>(&dir.join(MANIFEST))?
        .as_ref()
        .map(Owner::of))
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
    if !dir.is_dir() {
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
    let is_foreign = |name: &String| !(name.starts_with('.') || name == LOCK || name == PROGRESS);
    let mut foreign: Vec<String> = entries(dir)?.into_iter().filter(is_foreign).collect();
    let progress = dir.join(PROGRESS);
    if progress.is_dir() {
        let names = entries(&progress)?.into_iter();
        let unknown = names.filter(|name| !(name.starts_with('.') || name == TMP));
        foreign.extend(unknown.map(|name| format!("{PROGRESS}/{name}")));
    }
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
    let manifest = match dir.join(SUCCESS).is_file() {
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
    let manifest = read_json::<Manifest>(&dir.join(MANIFEST));
    matches!(plan, Ok(Some(_))) || matches!(manifest, Ok(Some(_)))
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
    let manifest = read_json::<Manifest>(&dir.join(MANIFEST)).unwrap_or_default();
    let mut parts: Vec<PartEntry> = manifest.map(|manifest| manifest.parts).unwrap_or_default();
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
        if below.is_dir() {
            remove_parts(&below)?;
            // Fails, as it should, where something else lies in it.
            fs::remove_dir(&below).ok();
        }
    }
    let progress = dir.join(PROGRESS);
    if progress.is_dir() {
        for name in entries(&progress)?.iter().filter(|name| *name != PLAN) {
            let path = progress.join(name);
            if path.is_dir() {
                remove_dir(&path)?
            } else {
                remove_file(&path)?
            }
        }
    }
    remove_file(&dir.join(MANIFEST))?;
    remove_dir(&progress)
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
    if !progress.is_dir() {
        return Ok(parts);
    }
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

fn entries(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(SchemaError::io("list", dir))? {
        let entry = entry.map_err(SchemaError::io("list", dir))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| SchemaError::Json {
                path: path.to_owned(),
                source,
            }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SchemaError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).expect("it holds string keys only");
    text.push(b'\n');
    text
}

/// Writes a small file so that it is there whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path
        .file_name()
        .expect("it is a file in the output directory");
    let temporary = path.with_file_name(format!(".{}.tmp", name.to_string_lossy()));
    let write = |file: io::Result<File>| {
        let mut file = file?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write(File::create(&temporary)).map_err(SchemaError::io("write", &temporary))?;
    fs::rename(&temporary, path).map_err(SchemaError::io("rename", path))?;
    sync_dir(path.parent().expect("it lies in the output directory"))
}

/// Makes renames into a directory durable.
fn sync_dir(dir: &Path) -> Result<()> {
    if cfg!(unix) {
        let file = File::open(dir).map_err(SchemaError::io("open", dir))?;
        file.sync_all().map_err(SchemaError::io("write", dir))?;
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SchemaError::Io {
            action: "remove",
            path: path.to_owned(),
            source: error,
        }),
        _ => Ok(()),
    }
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SchemaError::Io {
            action: "remove",
            path: path.to_owned(),
            source: error,
        }),
        _ => Ok(()),
    }
}
