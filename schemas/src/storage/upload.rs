//! Writes a new file that becomes visible under its name only when it is whole.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use super::object::Object;
use super::object::object;
use super::runtime::{Pending, enter, limited, start, start_blocking, wait};
use crate::cleanup::{Cleanup, remove_at_early_end};
use crate::error::{Result, SchemaError};

/// Bytes of a part of an upload; S3 allows 10,000 parts of at least 5 MiB each.
pub(super) const PART_BYTES: usize = 8 << 20;
/// Greatest number of parts being sent at a time.
const PARTS_MAX: usize = 2;
/// Bytes buffered for the file system.
const BUFFER_BYTES: usize = 1 << 18;

/// Greatest size of an object that S3 copies in one request; small in tests.
const COPY_BYTES_MAX: u64 = if cfg!(test) { 9 << 20 } else { 5 << 30 };

/// A file being written. Dropping it before it is finished removes it.
pub(crate) enum NewFile {
    Local(LocalFile),
    Object(Upload),
}

pub(crate) struct LocalFile {
    /// None once finished.
    writer: Option<BufWriter<File>>,
    temporary: PathBuf,
    path: PathBuf,
    _cleanup: Cleanup,
}

/// An object being written; at most a few parts of it are in memory.
pub(crate) struct Upload {
    /// Object that receives the bytes: `object` itself if an unfinished upload is invisible, else a
    /// temporary one.
    written: Object,
    object: Object,
    buffer: Vec<u8>,
    num_bytes: u64,
    parts: Option<Parts>,
    is_finished: bool,
}

/// Upload of an object that is too large for one request.
struct Parts {
    upload: Box<dyn MultipartUpload>,
    pending: VecDeque<Pending<(), object_store::Error>>,
    /// ETag of the object before the upload.
    before: Option<String>,
}

/// Renames an object and replaces an object that has the new name. S3 copies it, or reads and writes
/// it if it is too large for one copy, and removes the original.
pub(super) fn replace(from: &Object, to: &Object) -> Result<()> {
    let num_bytes = match from.swaps() {
        true => from.head("copy")?.size,
        false => 0,
    };
    if num_bytes <= COPY_BYTES_MAX {
        return from.replace(to);
    }
    let mut copy = NewFile::create(&to.path, &to.path)?;
    for start in (0..num_bytes).step_by(PART_BYTES) {
        let range = start..num_bytes.min(start + PART_BYTES as u64);
        let bytes = from.call("read", move |store, key| {
            let range = range.clone();
            async move { store.client.get_range(&key, range).await }
        })?;
        copy.write_all(&bytes)
            .map_err(SchemaError::io("write", &to.path))?;
    }
    copy.finish(|| Ok(()))?.map_or(Ok(()), wait)?;
    from.remove()
}

impl NewFile {
    /// Starts a file; until it is finished, the file system or HDFS holds it under the name
    /// `temporary`.
    pub(crate) fn create(path: &Path, temporary: &Path) -> Result<Self> {
        let Some(target) = object(path)? else {
            let _cleanup = remove_at_early_end(temporary);
            let file = File::create(temporary).map_err(SchemaError::io("create", temporary))?;
            return Ok(Self::Local(LocalFile {
                writer: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
                temporary: temporary.to_owned(),
                path: path.to_owned(),
                _cleanup,
            }));
        };
        let written = match target.store.is_atomic {
            true => Some(target.clone()),
            false => object(temporary)?,
        };
        Ok(Self::Object(Upload {
            written: written.unwrap_or_else(|| target.clone()),
            object: target,
            buffer: Vec::new(),
            num_bytes: 0,
            parts: None,
            is_finished: false,
        }))
    }

    /// Writes the remaining bytes and gives the file its name. A store does so in the background,
    /// since its answers take long, and only if `check` then succeeds; [`wait`] for the returned
    /// value.
    pub(crate) fn finish(
        self,
        check: impl Fn() -> Result<()> + Send + 'static,
    ) -> Result<Option<Pending<()>>> {
        match self {
            Self::Local(file) => file.finish().map(|()| None),
            Self::Object(upload) => Ok(Some(start_blocking(move || upload.finish(check)))),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Local(file) => file.writer_mut().write(bytes),
            Self::Object(upload) => upload.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Local(file) => file.writer_mut().flush(),
            // Parts have a fixed size; a smaller rest waits.
            Self::Object(_) => Ok(()),
        }
    }
}

impl LocalFile {
    fn writer_mut(&mut self) -> &mut BufWriter<File> {
        self.writer
            .as_mut()
            .expect("a finished file is not written")
    }

    fn finish(mut self) -> Result<()> {
        self.writer_mut()
            .flush()
            .map_err(SchemaError::io("write", &self.temporary))?;
        self.writer = None;
        let parent = self.path.parent().expect("it lies in the output directory");
        fs::create_dir_all(parent).map_err(SchemaError::io("create", parent))?;
        fs::rename(&self.temporary, &self.path).map_err(SchemaError::io("rename", &self.path))
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // If this fails, the next run removes the folder of temporary files.
            fs::remove_file(&self.temporary).ok();
        }
    }
}

impl Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.capacity() == 0 {
            self.buffer
                .reserve_exact(PART_BYTES.min(bytes.len().max(BUFFER_BYTES)));
        }
        let num = bytes.len().min(PART_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..num]);
        self.num_bytes += num as u64;
        if self.buffer.len() == PART_BYTES {
            let part = std::mem::replace(&mut self.buffer, Vec::with_capacity(PART_BYTES));
            self.send(part)?;
        }
        Ok(num)
    }

    /// Sends a part; waits while [`PARTS_MAX`] parts are being sent.
    fn send(&mut self, part: Vec<u8>) -> Result<(), object_store::Error> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let (upload, before) = self.written.begin()?;
                self.parts.insert(Parts {
                    upload,
                    pending: VecDeque::new(),
                    before,
                })
            }
        };
        while parts.pending.len() >= PARTS_MAX {
            parts.pending.pop_front().map_or(Ok(()), wait)?;
        }
        let payload = PutPayload::from(part);
        // The client of HDFS writes parts in the order of these calls.
        let sent = enter(|| parts.upload.put_part(payload));
        let limit = self.written.store.timeout;
        parts.pending.push_back(start(limited(limit, sent)));
        Ok(())
    }

    fn finish(mut self, check: impl Fn() -> Result<()>) -> Result<()> {
        let rest = std::mem::take(&mut self.buffer);
        if self.parts.is_none() {
            check()?;
            self.written.put(rest, true)?;
        } else {
            self.send_last(rest)
                .map_err(|error| self.written.error("write", error))?;
            check()?;
            self.complete()
                .map_err(|error| self.written.error("write", error))?;
            // Uploads of a run that was killed here, or of a request whose answer was lost.
            self.written.abort_unfinished(false);
        }
        self.is_finished = true;
        if self.written.path == self.object.path {
            return Ok(());
        }
        check()?;
        if self.written.rename(&self.object)? {
            return Ok(());
        }
        let missing = io::Error::from(io::ErrorKind::NotFound);
        Err(SchemaError::io("rename", &self.written.path)(missing))
    }

    /// Sends the last part and waits until all have arrived.
    fn send_last(&mut self, rest: Vec<u8>) -> Result<(), object_store::Error> {
        if !rest.is_empty() {
            self.send(rest)?;
        }
        let sent = self.parts.as_mut().map(|parts| &mut parts.pending);
        // If a part fails, the upload stays and is aborted when it is dropped.
        sent.map(std::mem::take)
            .unwrap_or_default()
            .into_iter()
            .try_for_each(wait)
    }

    fn complete(&mut self) -> Result<(), object_store::Error> {
        let Some(mut parts) = self.parts.take() else {
            return Ok(());
        };
        let (written, num_bytes) = (self.written.clone(), self.num_bytes);
        wait(start(async move {
            let limit = written.store.timeout;
            let Err(error) = limited(limit, parts.upload.complete()).await else {
                return Ok(());
            };
            // The server may have completed the upload, and its answer was lost.
            match limited(limit, written.store.client.head(&written.key)).await {
                Ok(found) if found.size == num_bytes && found.e_tag != parts.before => Ok(()),
                _ => {
                    limited(limit, parts.upload.abort()).await.ok();
                    Err(error)
                }
            }
        }))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.is_finished
            && let Some(mut parts) = self.parts.take()
        {
            // If this fails, the next run aborts the unfinished upload.
            let limit = self.written.store.timeout;
            wait(start(
                async move { limited(limit, parts.upload.abort()).await },
            ))
            .ok();
        }
    }
}
