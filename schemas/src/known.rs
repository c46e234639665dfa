//! Checksums that are known: those of files that have not changed since they were hashed.
//!
//! The checksum of a table tells whether its store is still of the same rows, so a table that has not
//! changed need not be read again. The system notes when a file changed, and no program can set that
//! time back. So a file whose size and times are as before has the bytes of before, unless the disk
//! has a fault. A run with versions reads a few rows of large files, and hashing them would take most
//! of its time; other runs hash all files but tables, which finds such faults.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{Result, SchemaError};
use crate::storage;
use crate::xxh::fingerprint;

/// A file that changed less than this before its checksum was noted may have changed again without
/// another time: clocks of file systems have ticks.
const SETTLED_NS: i128 = 2_000_000_000;

/// Whose checksums are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remembered {
    /// Those of input tables.
    Tables,
    /// Also those of stores, outputs and kept rows.
    AllFiles,
}

/// The checksums of this process; none unless [`remember`] was called.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Checksums by the state of the files that were hashed.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    remembered: Remembered,
    /// Time at which the file in `path` was written, in nanoseconds.
    noted_ns: i128,
    read: BTreeMap<String, String>,
    used: BTreeMap<String, String>,
    /// Whether a file was hashed: it may be noted already, too early after its last change.
    has_hashed: bool,
}

/// State of some files, and the time of their last change in nanoseconds.
type State = (String, i128);

/// Uses checksums in a file from now on, and notes others for [`save`].
pub fn remember(path: &Path, remembered: Remembered) {
    let mut known = Known {
        path: path.to_owned(),
        remembered,
        noted_ns: 0,
        read: BTreeMap::new(),
        used: BTreeMap::new(),
        has_hashed: false,
    };
    let noted = File::open(path).ok().and_then(|file| changed_ns(&file));
    let text = fs::read(path).ok();
    let read = text.and_then(|text| serde_json::from_slice(&text).ok());
    if let (Some(noted_ns), Some(read)) = (noted, read) {
        (known.noted_ns, known.read) = (noted_ns, read);
    }
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
}

/// Writes the checksums that were used since [`remember`], if files were hashed, or others were used
/// than those in the file.
///
/// # Errors
///
/// If the file cannot be written.
pub fn save() -> Result<()> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(known) = known else { return Ok(()) };
    let is_read = |(state, checksum): (&String, &String)| known.read.get(state) == Some(checksum);
    if !known.has_hashed && known.used.iter().all(is_read) {
        return Ok(());
    }
    let temporary = known.path.with_extension("tmp");
    let text = serde_json::to_vec_pretty(&known.used).expect("it holds text only");
    let above = known.path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(above).map_err(SchemaError::io("create", above))?;
    fs::write(&temporary, text).map_err(SchemaError::io("write", &temporary))?;
    fs::rename(&temporary, &known.path).map_err(SchemaError::io("rename", &temporary))
}

/// Returns the checksum of the files of a table: the known one if they have not changed since, else
/// that of `hash`.
///
/// # Errors
///
/// As `hash`.
pub(crate) fn checksum_of_table<E>(
    names: &[&str],
    files: &[&Path],
    hash: impl FnOnce() -> std::result::Result<String, E>,
) -> std::result::Result<String, E> {
    let what = format!("table {names:?}");
    checksum_of((&what, Remembered::Tables), files, hash)
}

/// Returns a checksum of another file: the known one if those of all files are remembered and it has
/// not changed since, else that of `hash`. `what` names what `hash` computes.
///
/// # Errors
///
/// As `hash`.
pub fn checksum_of_file<E>(
    what: &str,
    file: &Path,
    hash: impl FnOnce() -> std::result::Result<String, E>,
) -> std::result::Result<String, E> {
    checksum_of((what, Remembered::AllFiles), &[file], hash)
}

/// Returns a checksum of files: the known one if such are remembered and they have not changed since,
/// else that of `hash`. `what` names what `hash` computes.
fn checksum_of<E>(
    (what, least): (&str, Remembered),
    files: &[&Path],
    hash: impl FnOnce() -> std::result::Result<String, E>,
) -> std::result::Result<String, E> {
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_on = lock()
        .as_ref()
        .is_some_and(|known| known.remembered >= least);
    let Some((before, changed_ns)) = is_on.then(|| state(what, files)).flatten() else {
        return hash();
    };
    if let Some(known) = lock().as_mut()
        && changed_ns + SETTLED_NS <= known.noted_ns
        && let Some(checksum) = known.read.get(&before).cloned()
    {
        known.used.insert(before, checksum.clone());
        return Ok(checksum);
    }
    let checksum = hash()?;
    // They may have changed meanwhile.
    if state(what, files).is_some_and(|(after, _)| after == before)
        && let Some(known) = lock().as_mut()
    {
        known.used.insert(before, checksum.clone());
        known.has_hashed = true;
    }
    Ok(checksum)
}

/// Returns the state of local files; none if one of them has none.
fn state(what: &str, files: &[&Path]) -> Option<State> {
    let mut text = format!("{what}\n");
    let mut last = i128::MIN;
    for path in files {
        if storage::is_remote(path) {
            return None;
        }
        // Opening a file of a network file system asks for its present state.
        let (of_file, changed_ns) = file_state(&File::open(path).ok()?)?;
        let path = std::path::absolute(path).ok()?;
        text.push_str(&format!("{path:?} {of_file}\n"));
        last = last.max(changed_ns);
    }
    Some((fingerprint(text.as_bytes()), last))
}

fn changed_ns(file: &File) -> Option<i128> {
    file_state(file).map(|(_, changed_ns)| changed_ns)
}

#[cfg(unix)]
fn file_state(file: &File) -> Option<State> {
    use std::os::unix::fs::MetadataExt as _;
    let of = file.metadata().ok()?;
    let nanoseconds =
        |seconds: i64, more: i64| i128::from(seconds) * 1_000_000_000 + i128::from(more);
    let changed_ns = nanoseconds(of.ctime(), of.ctime_nsec());
    let modified_ns = nanoseconds(of.mtime(), of.mtime_nsec());
    let text = format!(
        "{} {} {} {modified_ns} {changed_ns}",
        of.dev(),
        of.ino(),
        of.size()
    );
    Some((text, changed_ns))
}

/// Other systems have no time that programs cannot set.
#[cfg(not(unix))]
fn file_state(_file: &File) -> Option<State> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for the checksum of a file; tells whether it was hashed.
    fn is_hashed(path: &Path) -> bool {
        let mut hashed = false;
        let found = checksum_of_file("test", path, || {
            hashed = true;
            Ok::<_, SchemaError>("a checksum".to_owned())
        });
        assert_eq!(found.unwrap(), "a checksum");
        hashed
    }

    /// Has the checksums of a file noted at a time.
    fn note(path: &Path, noted_ns: impl Fn(i128) -> i128) {
        let [own, of_table] = ["test", TABLE].map(|what| state(what, &[path]).unwrap());
        let read = [&own, &of_table].map(|of| (of.0.clone(), "a checksum".to_owned()));
        *KNOWN.lock().unwrap() = Some(Known {
            path: PathBuf::new(),
            remembered: Remembered::AllFiles,
            noted_ns: noted_ns(own.1),
            read: BTreeMap::from(read),
            used: BTreeMap::new(),
            has_hashed: false,
        });
    }

    /// What is hashed of a table of one file, `edges`.
    const TABLE: &str = r#"table ["edges"]"#;

    #[test]
    fn a_file_is_hashed_again_if_it_may_have_changed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "rows").unwrap();
        assert!(is_hashed(&path), "nothing is remembered");
        note(&path, |changed| changed + SETTLED_NS);
        assert!(!is_hashed(&path));
        assert!(checksum_of_table(&["nodes"], &[&path], || Err(())).is_err());
        let of_table = || checksum_of_table(&["edges"], &[&path], || Err(()));
        assert!(of_table().is_ok());
        KNOWN.lock().unwrap().as_mut().unwrap().remembered = Remembered::Tables;
        assert!(is_hashed(&path) && of_table().is_ok());
        note(&path, |changed| changed + SETTLED_NS - 1);
        assert!(is_hashed(&path), "it may have changed within a tick");
        note(&path, |changed| changed + SETTLED_NS);
        let times = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "swor").unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(times)
            .unwrap();
        assert!(is_hashed(&path), "size and modification time are as before");
        // The file of checksums is written and read.
        let noted = root.path().join("below/checksums.json");
        remember(&noted, Remembered::AllFiles);
        assert!(is_hashed(&path));
        save().unwrap();
        remember(&noted, Remembered::AllFiles);
        assert_eq!(KNOWN.lock().unwrap().as_ref().unwrap().read.len(), 1);
        // It is noted again, longer after its last change.
        fs::remove_file(&noted).unwrap();
        assert!(is_hashed(&path), "it was noted too early");
        save().unwrap();
        assert!(noted.exists());
        remember(&noted, Remembered::AllFiles);
        fs::remove_file(&noted).unwrap();
        save().unwrap();
        assert!(!noted.exists(), "nothing was hashed");
        assert!(is_hashed(&path), "nothing is remembered any more");
    }
}
