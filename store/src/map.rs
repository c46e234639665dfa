//! Read-only memory maps of the store's files.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use bytes::Bytes;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// A whole file in a map; it is cached by the system's page cache alone.
#[derive(Clone)]
pub struct MappedFile(Bytes);

impl std::fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MappedFile").field(&self.0.len()).finish()
    }
}

impl MappedFile {
    /// Maps a file that no process writes any more.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or mapped.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self(map_bytes(&File::open(path)?)?))
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Removes the pages from the memory of this process. They stay in the page cache, and come
    /// back when they are read.
    #[expect(unsafe_code, reason = "a system call")]
    pub fn release(&self) {
        if self.0.is_empty() {
            return;
        }
        let start = self.0.as_ptr().cast_mut();
        // SAFETY: the bytes are the whole map of a file, which is never written, so the same bytes
        // come back. The map starts at a page.
        unsafe {
            libc::madvise(start.cast(), self.0.len(), libc::MADV_DONTNEED);
        }
    }
}

/// Maps a whole file that no process writes any more.
///
/// # Errors
///
/// If the file cannot be mapped.
pub fn map_bytes(file: &File) -> std::io::Result<Bytes> {
    map_as(file, None)
}

/// Maps a whole file whose pages are read when they are touched or [needed soon](will_need), and
/// none around them.
///
/// # Errors
///
/// If the file cannot be mapped.
pub(crate) fn map_paged(file: &File) -> std::io::Result<Buffer> {
    Ok(Buffer::from(map_as(file, Some(memmap2::Advice::Random))?))
}

#[expect(
    unsafe_code,
    reason = "a memory map is sound only while no process changes the file"
)]
fn map_as(file: &File, advice: Option<memmap2::Advice>) -> std::io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: store files are written under another name, renamed into place when complete, and
    // never written again; a store is rebuilt as new files. The checksum is checked on opening.
    // The rows of inference are mapped when they are complete, in a directory that is locked.
    let map = unsafe { memmap2::Mmap::map(file)? };
    if let Some(advice) = advice {
        map.advise(advice)?;
    }
    #[cfg(unix)]
    let map = crate::sigbus::NamedMap::new(map, file);
    Ok(Bytes::from_owner(map))
}

/// Starts to read the pages of some bytes, if they belong to a mapped file and are not in memory.
#[expect(unsafe_code, reason = "system calls")]
pub fn will_need(bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: the call only returns a number.
    let page = || usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
    let page = *PAGE.get_or_init(|| page().unwrap_or(1 << 12));
    let before = bytes.as_ptr().addr() % page;
    let start = bytes.as_ptr().wrapping_sub(before);
    // SAFETY: the call only starts to read pages of a file into the page cache. It changes no
    // memory that the program sees, and refuses addresses without a map.
    unsafe {
        libc::madvise(
            start.cast_mut().cast(),
            before + bytes.len(),
            libc::MADV_WILLNEED,
        );
    }
}

/// [Needs](will_need) the rows `rows` of a column soon.
pub(crate) fn will_need_rows(array: &ArrayRef, rows: Range<usize>) {
    let some = array.slice(rows.start, rows.len());
    let values = |first: Option<i64>, end: Option<i64>| {
        let place = |at: Option<i64>| at.and_then(|at| usize::try_from(at).ok());
        place(first).unwrap_or(0)..place(end).unwrap_or(0)
    };
    match array.data_type() {
        DataType::Utf8 => {
            let strings = some.as_string::<i32>();
            let offsets = strings.value_offsets();
            let wide = |at: Option<&i32>| at.copied().map(i64::from);
            let range = values(wide(offsets.first()), wide(offsets.last()));
            will_need(bytemuck::cast_slice(offsets));
            will_need(&strings.value_data()[range]);
        }
        DataType::LargeList(_) => {
            let lists = some.as_list::<i64>();
            let offsets = lists.value_offsets();
            will_need(bytemuck::cast_slice(offsets));
            let range = values(offsets.first().copied(), offsets.last().copied());
            will_need_rows(lists.values(), range);
        }
        DataType::FixedSizeList(..) => {
            let lists = some.as_fixed_size_list();
            will_need_rows(lists.values(), 0..lists.values().len());
        }
        _ => some.to_data().buffers().iter().for_each(|of| will_need(of)),
    }
}
