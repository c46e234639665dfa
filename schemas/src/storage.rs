//! File operations on local files, objects of S3 and files of HDFS.
//!
//! A path is the URL of a store, `s3://bucket/key` or `hdfs://host:port/path`, as
//! [`path::resolve`](crate::path::resolve) returns it; every other path is local. The functions
//! work as those of `std::fs`, on both kinds of paths.
//!
//! A process opens a store once, at its first use, with the options of [`configure`], of the
//! environment and of configuration files.

mod csv_input;
mod fault;
mod fetch;
#[cfg(feature = "hdfs")]
mod hdfs;
mod health;
mod object;
mod options;
mod page_header;
mod parquet_input;
mod runtime;
#[cfg(feature = "s3")]
mod s3;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod upload;
mod writable;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

pub(crate) use csv_input::{CsvInput, is_csv};
pub(crate) use object::{Object, Put, Version, object};
pub use options::{S3Options, StorageOptions};
pub(crate) use parquet_input::ParquetInput;
pub(crate) use runtime::{Pending, wait};
pub(crate) use store::authority_problem;
pub use store::{Traffic, configure, options, traffic};
pub(crate) use upload::NewFile;
pub use writable::check_writable;

use crate::error::{Result, SchemaError};

/// Bytes of one read of a local file.
const BLOCK_BYTES: usize = 1 << 20;

/// Stores by the scheme of their URLs; `s3a` is Hadoop's scheme for S3.
pub(crate) const SCHEMES: &[(&str, &str)] = &[
    ("s3", "s3"),
    ("s3a", "s3"),
    ("hdfs", "hdfs"),
    // In memory, with the operations of S3 and of HDFS.
    #[cfg(test)]
    ("swapping", "swapping"),
    #[cfg(test)]
    ("renaming", "renaming"),
];

/// Tells whether a path is the URL of a store.
pub fn is_remote(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| SCHEMES.iter().any(|(_, known)| *known == scheme))
}

/// Reads a whole file; none if it does not exist.
///
/// # Errors
///
/// If it cannot be read.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    if let Some(object) = object(path)? {
        return Ok(object.read()?.map(|(bytes, _version)| bytes));
    }
    refuse_special(path)?;
    absent(fs::read(path)).map_err(SchemaError::io("read", path))
}

/// Refuses a path that is no file, such as a named pipe, whose reader would wait for ever.
pub(crate) fn refuse_special(path: &Path) -> Result<()> {
    let Some(metadata) = absent(fs::metadata(path)).map_err(SchemaError::io("look up", path))?
    else {
        return Ok(());
    };
    let what = kind_of(&metadata.file_type());
    if what == "file" {
        return Ok(());
    }
    let problem = format!("it is a {what}, not a file");
    let source = io::Error::new(io::ErrorKind::InvalidInput, problem);
    Err(SchemaError::io("open", path)(source))
}

fn kind_of(kind: &fs::FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "named pipe";
        } else if kind.is_socket() {
            return "socket";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "device";
        }
    }
    match kind.is_dir() {
        true => "directory",
        false => "file",
    }
}

/// Reads a whole file that must have `size` bytes.
pub(crate) fn read_sized(path: &Path, size: u64) -> Result<Bytes> {
    let broken = |found: u64| SchemaError::Broken {
        path: path.to_owned(),
        problem: format!("{found} bytes, its manifest says {size}"),
    };
    if let Some(object) = object(path)? {
        let Some(version) = object.version()? else {
            return Err(broken(0));
        };
        if version.size != size {
            return Err(broken(version.size));
        }
        let range = std::iter::once(0..size).collect();
        let read = wait(object.fetch(&version, range))?;
        return Ok(read.into_iter().next().unwrap_or_default());
    }
    refuse_special(path)?;
    let mut file = File::open(path).map_err(SchemaError::io("open", path))?;
    let found = file
        .metadata()
        .map_err(SchemaError::io("look up", path))?
        .len();
    if found != size {
        return Err(broken(found));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    let read = file.read_to_end(&mut bytes);
    read.map_err(SchemaError::io("read", path))?;
    Ok(bytes.into())
}

/// Reads a whole file, for callers that return an [`io::Error`].
///
/// # Errors
///
/// If it does not exist or cannot be read.
pub fn read_existing_io(path: &Path) -> io::Result<Vec<u8>> {
    match read(path) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(io::ErrorKind::NotFound.into()),
        Err(SchemaError::Io { source, .. }) => Err(source),
        Err(other) => Err(io::Error::other(other)),
    }
}

/// Passes the bytes of a file to `consume`, block by block.
pub(crate) fn for_each_block(path: &Path, mut consume: impl FnMut(&[u8])) -> Result<()> {
    if let Some(object) = object(path)? {
        return object.for_each_block(consume);
    }
    let mut file = File::open(path).map_err(SchemaError::io("open", path))?;
    let mut buffer = vec![0; BLOCK_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(num) => consume(&buffer[..num]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SchemaError::io("read", path)(error)),
        }
    }
}

/// Writes a small file so that it exists whole or not at all, even after a power failure.
///
/// # Errors
///
/// If it cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, bytes, Durability::Synced)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Writes a small file so that a reader sees the old one or the new one, never a part; it is not
/// forced to the disk, which may take longer than the work that it records.
///
/// # Errors
///
/// If it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, bytes, Durability::Cached)
}

/// Whether a small file is forced to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Synced,
    Cached,
}

fn write(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    let temporary = path.with_file_name(format!(".{}.tmp", file_name(path)));
    if let Some(object) = object(path)? {
        if bytes.len() <= upload::PART_BYTES {
            return object.put(bytes.to_vec(), durability == Durability::Synced);
        }
        let mut file = NewFile::create(path, &temporary)?;
        file.write_all(bytes)
            .map_err(SchemaError::io("write", path))?;
        return file.finish(|| Ok(()))?.map_or(Ok(()), wait);
    }
    let _cleanup = crate::cleanup::remove_at_early_end(&temporary);
    let write = |file: io::Result<File>| {
        let mut file = file?;
        file.write_all(bytes)?;
        match durability {
            Durability::Synced => file.sync_all(),
            Durability::Cached => Ok(()),
        }
    };
    write(File::create(&temporary)).map_err(SchemaError::io("write", &temporary))?;
    fs::rename(&temporary, path).map_err(SchemaError::io("rename", path))
}

/// Returns the size of a file; none if there is none.
///
/// # Errors
///
/// If it cannot be read.
pub fn size(path: &Path) -> Result<Option<u64>> {
    if let Some(object) = object(path)? {
        return Ok(object.version()?.map(|version| version.size));
    }
    let metadata = absent(fs::metadata(path)).map_err(SchemaError::io("read the size of", path))?;
    Ok(metadata
        .filter(fs::Metadata::is_file)
        .map(|file| file.len()))
}

/// Tells whether there is a file of this path.
///
/// # Errors
///
/// If a store does not tell.
pub fn is_file(path: &Path) -> Result<bool> {
    match object(path)? {
        Some(object) => Ok(object.version()?.is_some()),
        None => Ok(path.is_file()),
    }
}

/// Tells whether there is a directory of this path; on S3 there is one if an object lies below the
/// path.
///
/// # Errors
///
/// If a store does not tell.
pub fn is_dir(path: &Path) -> Result<bool> {
    match object(path)? {
        Some(object) => object.is_dir(),
        None => Ok(path.is_dir()),
    }
}

/// Tells whether there is a file or directory of this path.
///
/// # Errors
///
/// If a store does not tell.
pub fn exists(path: &Path) -> Result<bool> {
    Ok(is_file(path)? || is_dir(path)?)
}

/// Returns the sorted names of a directory's entries; no names if there is no directory.
///
/// # Errors
///
/// If it cannot be listed.
pub fn entries(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if let Some(object) = object(dir)? {
        names = object.entries()?;
    } else if let Some(found) = absent(fs::read_dir(dir)).map_err(SchemaError::io("list", dir))? {
        for entry in found {
            let entry = entry.map_err(SchemaError::io("list", dir))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the names of all files below a directory, with `/`, sorted.
///
/// Links to directories are followed, but a directory is listed once, so loops end.
pub(crate) fn list(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    match object(dir)? {
        Some(object) => names.extend(object.list()?.into_iter().map(|(name, _)| name)),
        None => {
            // A link to a parent directory would add the tables beside this one.
            let real = real_dir(dir)?;
            let mut listed = real.ancestors().skip(1).map(Path::to_owned).collect();
            list_local(dir, "", &mut listed, &mut names)?;
        }
    }
    names.sort();
    Ok(names)
}

fn list_local(
    dir: &Path,
    prefix: &str,
    listed: &mut BTreeSet<PathBuf>,
    names: &mut Vec<String>,
) -> Result<()> {
    let real = real_dir(dir)?;
    if listed.contains(&real) {
        let (dir, real) = (dir.display(), real.display());
        tracing::warn!("{dir} is left out: it links to {real}, which is listed or a parent");
        return Ok(());
    }
    listed.insert(real);
    for name in entries(dir)? {
        let path = dir.join(&name);
        let below = format!("{prefix}{name}");
        if path.is_dir() {
            list_local(&path, &format!("{below}/"), listed, names)?;
        } else {
            names.push(below);
        }
    }
    Ok(())
}

fn real_dir(dir: &Path) -> Result<PathBuf> {
    dir.canonicalize().map_err(SchemaError::io("look up", dir))
}

/// Returns the sizes of some files of a directory; none for a file that does not exist.
pub(crate) fn sizes(dir: &Path, names: &[&str]) -> Result<Vec<Option<u64>>> {
    // One request lists a thousand objects.
    let Some(object) = object(dir)?.filter(|_| names.len() > 1) else {
        return names.iter().map(|name| size(&dir.join(name))).collect();
    };
    let found: BTreeMap<String, u64> = object
        .list()?
        .into_iter()
        .map(|(name, version)| (name, version.size))
        .collect();
    Ok(names.iter().map(|name| found.get(*name).copied()).collect())
}

/// Creates a directory and its parents; S3 needs none.
///
/// # Errors
///
/// If it cannot be created.
pub fn create_dir_all(dir: &Path) -> Result<()> {
    if is_remote(dir) {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(SchemaError::io("create", dir))
}

/// Renames a file and replaces the file that has the new name; S3 copies it.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    if let (Some(source), Some(target)) = (object(from)?, object(to)?) {
        return upload::replace(&source, &target);
    }
    let parent = to.parent().expect("a file lies in a directory");
    fs::create_dir_all(parent).map_err(SchemaError::io("create", parent))?;
    fs::rename(from, to).map_err(SchemaError::io("rename", from))
}

/// Removes a file, if there is one.
///
/// # Errors
///
/// If it cannot be removed.
pub fn remove_file(path: &Path) -> Result<()> {
    if let Some(object) = object(path)? {
        return object.remove();
    }
    absent(fs::remove_file(path))
        .map(|_| ())
        .map_err(SchemaError::io("remove", path))
}

/// Removes a directory and all in it, if there is one.
///
/// # Errors
///
/// If it cannot be removed.
pub fn remove_dir_all(dir: &Path) -> Result<()> {
    if let Some(object) = object(dir)? {
        return object.remove_all();
    }
    absent(fs::remove_dir_all(dir))
        .map(|_| ())
        .map_err(SchemaError::io("remove", dir))
}

/// Removes a directory if it is empty; S3 has no empty ones.
pub fn remove_empty_dir(dir: &Path) {
    match object(dir) {
        Ok(Some(object)) => object.remove_empty_dir(),
        // Fails, as intended, if the directory is not empty.
        _ => drop(fs::remove_dir(dir)),
    }
}

/// Aborts the uploads that killed runs left unfinished below a directory.
pub(crate) fn abort_unfinished(dir: &Path) -> Result<()> {
    if let Some(object) = object(dir)? {
        object.abort_unfinished(true);
    }
    Ok(())
}

/// Makes renames into a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    if cfg!(unix) && !is_remote(dir) {
        let file = File::open(dir).map_err(SchemaError::io("open", dir))?;
        file.sync_all().map_err(SchemaError::io("write", dir))?;
    }
    Ok(())
}

/// Forces a closed file to the disk; the file of a store is safe when the store has confirmed it.
pub(crate) fn sync_file(path: &Path) -> Result<()> {
    if is_remote(path) {
        return Ok(());
    }
    let file = File::open(path).map_err(SchemaError::io("open", path))?;
    file.sync_all().map_err(SchemaError::io("write", path))
}

/// Turns the error "not found" into none.
fn absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
