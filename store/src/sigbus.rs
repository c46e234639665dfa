//! Names the file when a mapped file is cut or its disk fails.
//!
//! Pages of a map that lie beyond the end of its file, or that a disk cannot deliver, give no
//! error: the system sends SIGBUS to the thread that reads them. The handler here finds the address
//! among all maps, prints the name of the file and ends the process with exit code 1. It does only
//! what a signal handler may do: it reads a list that never shrinks, writes one line and exits.
//! If [`CutMaps`] waits, the handler hands the file over to the waiting thread instead, which may do
//! more.
#![expect(
    unsafe_code,
    reason = "signal handlers are installed and run through the C interface of the system"
)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::ffi::OsStringExt as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use memmap2::Mmap;

/// One map; when the map is dropped, the entry stays with an empty range.
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    path: Vec<u8>,
    next: Option<&'static Entry>,
}

/// The latest entry, for adding the next one.
static LATEST: Mutex<Option<&'static Entry>> = Mutex::new(None);
/// The latest entry for the handler, which must not wait for a lock.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(null_mut());
/// The previous handler, which is Rust's own and reports stack overflows.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// File descriptor to which the handler writes the address of an entry; negative if no thread waits.
static REPORTS: AtomicI32 = AtomicI32::new(-1);
/// Milliseconds after which the handler ends the process, if the waiting thread has not.
const REPORT_MILLIS_MAX: c_int = 30_000;
/// Error text of a file that was cut, before and after its name.
const CUT: [&str; 2] = [
    "cannot read ",
    ": the file was cut, or its disk failed, while it was mapped; run again",
];

/// Waits until a mapped file is cut, so that the process can end with an error like any other.
#[derive(Debug)]
pub struct CutMaps(PipeReader);

impl CutMaps {
    /// Makes the handler report cut files to [`Self::wait`] from now on; call it once a process.
    ///
    /// # Errors
    ///
    /// If the system has no pipe to give.
    pub fn watch() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // The handler may need it as long as the process lives.
        REPORTS.store(writer.into_raw_fd(), Ordering::SeqCst);
        Ok(Self(reader))
    }

    /// Waits until a mapped file is cut; returns the error text, or none if the pipe cannot be read.
    /// The caller must then end the process: the thread that reads the map waits for it.
    pub fn wait(mut self) -> Option<String> {
        let mut address = [0; size_of::<usize>()];
        self.0.read_exact(&mut address).ok()?;
        let address = usize::from_ne_bytes(address);
        let latest = *LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = std::iter::successors(latest, |entry| entry.next);
        let found = entries.find(|entry| std::ptr::from_ref(*entry).addr() == address)?;
        let [before, after] = CUT;
        let path = String::from_utf8_lossy(&found.path);
        Some(format!("{before}{path}{after}"))
    }
}

/// A map whose file the handler names if it is cut.
pub(crate) struct NamedMap {
    map: Mmap,
    entry: &'static Entry,
}

impl NamedMap {
    pub(crate) fn new(map: Mmap, file: &File) -> Self {
        BEFORE.get_or_init(install);
        let start = map.as_ptr().addr();
        let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        let entry: &'static Entry = Box::leak(Box::new(Entry {
            start: AtomicUsize::new(start),
            end: AtomicUsize::new(start + map.len()),
            path: path_of(file),
            next: *latest,
        }));
        *latest = Some(entry);
        ENTRIES.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
        Self { map, entry }
    }
}

impl AsRef<[u8]> for NamedMap {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for NamedMap {
    fn drop(&mut self) {
        // Another map may get these addresses later.
        self.entry.end.store(0, Ordering::SeqCst);
    }
}

/// Returns the path of an open file.
fn path_of(file: &File) -> Vec<u8> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    match std::fs::read_link(link) {
        Ok(path) => path.into_os_string().into_vec(),
        Err(_) => b"a file of the store".to_vec(),
    }
}

/// Installs the handler and returns the previous one.
fn install() -> libc::sigaction {
    // SAFETY: all zeros is a valid `sigaction`; both pointers are valid for the call, and the
    // handler has the signature that SA_SIGINFO requires.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before);
        before
    }
}

extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes a valid `info` to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: entries are never freed, and are whole before they are published.
    let mut entry = unsafe { ENTRIES.load(Ordering::Acquire).as_ref() };
    while let Some(found) = entry {
        let start = found.start.load(Ordering::SeqCst);
        if (start..found.end.load(Ordering::SeqCst)).contains(&address) {
            end(found);
        }
        entry = found.next;
    }
    // The address is in none of these maps: the previous handler gets the signal when the read is
    // repeated.
    if let Some(before) = BEFORE.get() {
        // SAFETY: `before` was returned by `sigaction`.
        unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
    }
}

/// Hands the file over to whoever waits for it, or writes one line; then ends the process. Takes no
/// lock and no memory.
fn end(entry: &'static Entry) -> ! {
    let reports = REPORTS.load(Ordering::SeqCst);
    if reports >= 0 {
        let address = std::ptr::from_ref(entry).addr().to_ne_bytes();
        // SAFETY: the bytes are valid for reads; `write`, `poll` and `_exit` may be called in a handler.
        unsafe {
            libc::write(reports, address.as_ptr().cast(), address.len());
            libc::poll(null_mut(), 0, REPORT_MILLIS_MAX);
            libc::_exit(1)
        }
    }
    let [before, after] = CUT;
    let texts: [&[u8]; 5] = [
        b"error: ",
        before.as_bytes(),
        &entry.path,
        after.as_bytes(),
        b"\n",
    ];
    let pieces = texts.map(|text| libc::iovec {
        iov_base: text.as_ptr().cast_mut().cast(),
        iov_len: text.len(),
    });
    // SAFETY: the pieces are valid for reads; `writev` and `_exit` may be called in a handler.
    unsafe {
        libc::writev(2, pieces.as_ptr(), 5);
        libc::_exit(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map_bytes;

    /// Environment variable with which the test below runs as the process that is ended.
    const CUT_MAP: &str = "GRAPHFLAT_TEST_CUT_MAP";
    /// Environment variable with which that process waits for the handler.
    const WAITS: &str = "GRAPHFLAT_TEST_CUT_MAP_WAITS";

    #[test]
    fn a_mapped_file_that_is_cut_is_named() {
        if let Some(path) = std::env::var_os(CUT_MAP) {
            if std::env::var_os(WAITS).is_some() {
                let cut = CutMaps::watch().unwrap();
                std::thread::spawn(move || {
                    eprintln!("told: {}", cut.wait().unwrap());
                    std::process::exit(3);
                });
            }
            let bytes = map_bytes(&File::open(&path).unwrap()).unwrap();
            drop(map_bytes(&File::open(&path).unwrap()).unwrap());
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(4096).unwrap();
            let sum: usize = bytes.iter().map(|&byte| usize::from(byte)).sum();
            panic!("read {sum} where the file was cut");
        }
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap().join("nodes-000.arrow");
        let problem = format!(
            "cannot read {}: the file was cut, or its disk failed, while it was mapped; run again\n",
            path.display()
        );
        for (waits, before, exit_code) in [(false, "error: ", 1), (true, "told: ", 3)] {
            std::fs::write(&path, vec![1; 1 << 16]).unwrap();
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child
                .args(["--exact", "--nocapture"])
                .arg("sigbus::tests::a_mapped_file_that_is_cut_is_named")
                .env(CUT_MAP, &path);
            if waits {
                child.env(WAITS, "1");
            }
            let child = child.output().unwrap();
            let told = String::from_utf8_lossy(&child.stderr).into_owned();
            let expected = format!("{before}{problem}");
            assert_eq!((child.status.code(), told), (Some(exit_code), expected));
        }
    }
}
