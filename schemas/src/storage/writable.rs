//! Checks that a directory can be written, before there is anything to write.

use std::fs;
use std::io;
use std::path::Path;

use super::{Object, is_dir, object};
use crate::error::{Result, SchemaError};

/// Name of the object that is written to a store and removed again. A run that was killed between
/// leaves it; the next check removes it.
const PROBE: &str = "._SUCCESS.tmp.probe";

/// Checks that files can be written to a directory, which is not created where it is missing, and
/// leaves nothing behind.
///
/// The local test file has no name; it is created in the directory or in its nearest parent that
/// exists. In a store, an object is written and removed again, with two requests.
///
/// # Errors
///
/// If the file system or store refuses.
pub fn check_writable(dir: &Path) -> Result<()> {
    match object(dir)? {
        Some(object) => check_store(dir, &object),
        None => check_local(dir).map_err(SchemaError::io("write to", dir)),
    }
}

fn check_local(dir: &Path) -> io::Result<()> {
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    let nearest = dir.ancestors().find(is_there);
    let nearest = nearest.unwrap_or(Path::new("."));
    if !fs::metadata(nearest)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    tempfile::tempfile_in(nearest).map(drop)
}

fn check_store(dir: &Path, object: &Object) -> Result<()> {
    // HDFS would create the parent directories of a file; S3 has no directories.
    let nearest = match object.store.is_atomic {
        true => Some(dir),
        false => nearest_dir(dir)?,
    };
    let Some(nearest) = nearest else {
        return Ok(());
    };
    // HDFS fails if another process, which checks at the same time, removes the object while it is
    // written. Then a name of its own tells whether the directory can be written.
    write_and_remove(&nearest.join(PROBE)).or_else(|_| {
        let name = format!("{PROBE}-{:032x}", rand::random::<u128>());
        write_and_remove(&nearest.join(name))
    })
}

fn write_and_remove(path: &Path) -> Result<()> {
    let Some(probe) = super::object(path)? else {
        return Ok(());
    };
    probe.put(Vec::new(), true)?;
    probe.remove()
}

fn nearest_dir(dir: &Path) -> Result<Option<&Path>> {
    for above in dir.ancestors().filter(|above| super::is_remote(above)) {
        if is_dir(above)? {
            return Ok(Some(above));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_where_files_can_be_written() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let check = |dir: &str, problem: Option<&str>| {
            let found = check_writable(&root.join(dir)).map_err(|error| match error {
                SchemaError::Io { source, .. } => source.to_string(),
                other => panic!("{other}"),
            });
            assert_eq!(found.err().as_deref(), problem, "{dir}");
        };
        fs::write(root.join("file"), b"text").unwrap();
        check("", None);
        check("missing/twice", None);
        check("file", Some("not a directory"));
        check("file/below", Some("not a directory"));
        let names: Vec<_> = fs::read_dir(root).unwrap().collect();
        assert_eq!(names.len(), 1);
        // Not even root can write here.
        let refused = check_writable(Path::new("/proc/out")).unwrap_err();
        assert!(refused.to_string().contains("/proc/out"), "{refused}");
    }

    #[test]
    fn nothing_is_left_in_a_store() {
        for store in ["swapping", "renaming"] {
            let dir = format!("{store}://writable/out");
            check_writable(Path::new(&dir)).unwrap();
            assert!(super::super::entries(Path::new(&dir)).unwrap().is_empty());
        }
    }
}
