//! Read-only memory maps of the store's files.

use arrow::buffer::Buffer;
use bytes::Bytes;
use std::fs::File;

/// Maps a whole file; it is cached by the system's page cache alone.
///
/// # Errors
///
/// If the file cannot be mapped.
pub(crate) fn map_file(file: &File) -> std::io::Result<Buffer> {
    Ok(Buffer::from(map_bytes(file)?))
}

/// Maps a whole file that no process writes any more.
///
/// # Errors
///
/// If the file cannot be mapped.
#[expect(
    unsafe_code,
    reason = "a memory map is sound only while no process changes the file"
)]
pub fn map_bytes(file: &File) -> std::io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: store files are written under another name, renamed into place when complete, and
    // never written again; a store is rebuilt as new files. The checksum is checked on opening.
    // The rows of inference are mapped when they are complete, in a directory that is locked.
    let map = unsafe { memmap2::Mmap::map(file)? };
    #[cfg(unix)]
    let map = crate::sigbus::NamedMap::new(map, file);
    Ok(Bytes::from_owner(map))
}
