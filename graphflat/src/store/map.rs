//! Read-only memory maps of the store's files.

use arrow::buffer::Buffer;
use std::fs::File;

/// Maps a whole file; the page cache is then the only cache.
///
/// # Errors
///
/// The file cannot be mapped.
#[expect(
    unsafe_code,
    reason = "a memory map is sound only while nobody changes the file"
)]
pub(super) fn map_file(file: &File) -> std::io::Result<Buffer> {
    if file.metadata()?.len() == 0 {
        return Ok(Buffer::from(&[] as &[u8]));
    }
    // SAFETY: store files are written under another name, renamed into place when complete, and
    // never written again; a store is rebuilt as new files. The checksum is checked on opening.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Buffer::from(bytes::Bytes::from_owner(map)))
}
