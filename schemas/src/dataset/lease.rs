//! The lock of an output in a store: an object that its holder renews as long as it runs.
//!
//! A store does not report the death of a process. A run that finds the lock therefore watches it
//! by its own clock: if the lock is not renewed for [`LEASE`], the run takes it over. If the holder
//! was a process of the same machine that has ended, the run does not wait. Only one of several
//! runs takes the lock over: on S3 the write requires the version that the run saw; on HDFS only
//! one run succeeds in renaming the old lock.
//!
//! A holder that was suspended and lost its lock may go on writing: a [`Fence`] keeps its files
//! from becoming visible.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::LOCK;
use crate::cleanup::{Cleanup, at_early_end};
use crate::error::{Result, SchemaError};
use crate::storage::{Object, Put, Version, object};
use crate::threads;

/// Milliseconds of a second; fewer in tests.
const SECOND: u64 = if cfg!(test) { 20 } else { 1000 };
/// Time after which a lock that is not renewed is taken over.
const LEASE: Duration = Duration::from_millis(30 * SECOND);
/// Time between renewals.
const RENEWAL: Duration = Duration::from_millis(8 * SECOND);
/// Time after a renewal in which the lock counts as held without a request.
const TRUST: Duration = Duration::from_millis(15 * SECOND);
/// Time between two reads of the lock of another run.
const LOOK: Duration = Duration::from_millis(SECOND);
/// How often a lock that was just taken is read again while it is missing.
const LOOKS_ASIDE: usize = 5;
/// How often a store may refuse a write of the lock whose condition holds.
const REFUSALS_MAX: usize = 10;

/// The lock that a run holds while it writes an output of a store; dropping it releases it.
#[derive(Debug)]
pub(super) struct Lease {
    shared: Arc<Shared>,
    /// Ends the thread when it is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _cleanup: Cleanup,
}

#[derive(Debug)]
pub(super) struct Shared {
    lock: Object,
    dir: PathBuf,
    /// First content of the lock; the lock in the store counts the renewals.
    note: Note,
    is_lost: AtomicBool,
    /// When the last renewal began.
    renewed: Mutex<Instant>,
}

/// Checks for a thread or process that writes an output whether its run still holds the lock.
#[derive(Clone, Debug)]
pub(super) enum Fence {
    /// The lock of this process.
    Own(Arc<Shared>),
    /// The lock of another process of the run.
    Other(Arc<OtherLock>),
}

/// The lock of another process of this run.
#[derive(Debug)]
pub(super) struct OtherLock {
    lock: Object,
    dir: PathBuf,
    token: u64,
}

/// Content of the lock: its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Random number that identifies the holder.
    token: u64,
    /// Number of renewals.
    renewals: u64,
    host: String,
    process: u32,
    /// Start time of the process, which an earlier process of the same number does not share; none
    /// where it is not known.
    started: Option<String>,
}

impl Lease {
    pub(super) fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let lock = object(&path)?.expect("the directory is in a store");
        let note = Note::new();
        let mut watched: Option<(Version, Instant)> = None;
        let mut refusals = 0;
        let mut is_told = false;
        while !lock.put_if(Put::Absent, note.to_json())? {
            let Some((text, version)) = lock.read()? else {
                refusals = refused_again(refusals, &path)?;
                continue;
            };
            let holder = Note::of(&text);
            if holder
                .as_ref()
                .is_some_and(|holder| holder.token == note.token)
            {
                // The answer to an earlier attempt was lost.
                break;
            }
            let since = match &watched {
                Some((seen, since)) if *seen == version => *since,
                Some(_) => return Err(locked(dir, holder.as_ref())),
                None => {
                    watched = Some((version.clone(), Instant::now()));
                    Instant::now()
                }
            };
            let is_dead = holder.as_ref().is_some_and(Note::is_dead);
            if !is_dead && since.elapsed() < LEASE {
                // A run that still works has renewed its lock by now.
                if !is_told && since.elapsed() > RENEWAL + 2 * LOOK {
                    is_told = true;
                    tracing::warn!(
                        "the lock of {} is not renewed: waiting until it is {} s old",
                        dir.display(),
                        LEASE.as_secs()
                    );
                }
                std::thread::sleep(LOOK);
            } else if take_over(&lock, &note, (text, version))? {
                break;
            } else {
                refusals = refused_again(refusals, &path)?;
            }
        }
        Self::keep(lock, dir, note)
    }

    /// Starts to renew a lock that was just taken.
    fn keep(lock: Object, dir: &Path, note: Note) -> Result<Self> {
        let shared = Arc::new(Shared {
            lock,
            dir: dir.to_owned(),
            note,
            is_lost: AtomicBool::new(false),
            renewed: Mutex::new(Instant::now()),
        });
        // Two runs that took the lock over at the same time may both reach this line; only one of
        // them keeps it. The slower run may have renamed the lock of the faster one, until it sees
        // that this lock is fresh and renames it back.
        let mut looks = 0;
        while !shared.is_there()? {
            looks += 1;
            if looks > LOOKS_ASIDE {
                return Err(locked(dir, None));
            }
            std::thread::sleep(LOOK);
        }
        let (stop, stopped) = channel();
        let renewed = Arc::clone(&shared);
        let thread = threads::spawn("lease", move || renewed.renew_until(&stopped))?;
        let released = Arc::clone(&shared);
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
            _cleanup: at_early_end(move || released.release()),
        })
    }

    /// Fails if another run holds the lock now.
    pub(super) fn check(&self) -> Result<()> {
        self.shared.check()
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::Own(Arc::clone(&self.shared))
    }

    /// Returns the number that identifies this holder.
    pub(super) fn token(&self) -> u64 {
        self.shared.note.token
    }
}

impl Fence {
    /// Fails if another run may hold the lock now; asks the store only if the last renewal is older
    /// than [`TRUST`].
    pub(super) fn check(&self) -> Result<()> {
        let shared = match self {
            Self::Own(shared) => shared,
            Self::Other(other) => return other.check(),
        };
        let renewed = *shared.renewed_guard();
        if !shared.is_lost.load(Ordering::Relaxed) && renewed.elapsed() < TRUST {
            return Ok(());
        }
        shared.check()
    }
}

impl OtherLock {
    pub(super) fn new(dir: &Path, token: u64) -> Result<Self> {
        Ok(Self {
            lock: object(&dir.join(LOCK))?.expect("the directory is in a store"),
            dir: dir.to_owned(),
            token,
        })
    }

    /// Fails if another run holds the lock now.
    pub(super) fn check(&self) -> Result<()> {
        if is_held(&self.lock, self.token)? {
            return Ok(());
        }
        Err(locked(&self.dir, None))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
        self.shared.release();
    }
}

impl Shared {
    /// Removes the lock if this process still holds it; from now on nothing is written under it.
    fn release(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        if self.is_held().is_ok_and(|is_held| is_held) {
            // If this fails, the next run takes the lock over.
            self.lock.remove().ok();
        }
    }

    fn check(&self) -> Result<()> {
        if !self.is_lost.load(Ordering::Relaxed) && self.is_held()? {
            return Ok(());
        }
        Err(locked(&self.dir, None))
    }

    fn is_held(&self) -> Result<bool> {
        is_held(&self.lock, self.note.token)
    }

    /// Tells whether the lock exists; a lock of another run is an error.
    fn is_there(&self) -> Result<bool> {
        let Some((text, version)) = self.lock.read()? else {
            return Ok(false);
        };
        match Note::of(&text) {
            Some(found) if found.token == self.note.token => {
                if self.lock.swaps() && !version.has_e_tag() {
                    let dir = self.dir.display();
                    tracing::warn!(
                        "the store of {dir} gives no ETags: if this run is killed, no other can \
                         go on; remove {dir}/{LOCK} by hand then"
                    );
                }
                Ok(true)
            }
            holder => Err(locked(&self.dir, holder.as_ref())),
        }
    }

    fn renewed_guard(&self) -> MutexGuard<'_, Instant> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_until(&self, stopped: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(RENEWAL) {
            // After a fault of the store, the next renewal may succeed.
            if let Ok(false) = self.renew() {
                self.is_lost.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Renews the lock; false if it is another run's.
    fn renew(&self) -> Result<bool> {
        let began = Instant::now();
        let Some((text, version)) = self.lock.read()? else {
            return Ok(false);
        };
        let Some(found) = Note::of(&text).filter(|found| found.token == self.note.token) else {
            return Ok(false);
        };
        let next = Note {
            renewals: found.renewals + 1,
            ..found
        };
        let is_renewed = if self.lock.swaps() && !version.has_e_tag() {
            // No run can take the lock over, so the write needs no condition.
            self.lock.put(next.to_json(), false)?;
            true
        } else {
            // The answer to an earlier attempt may have been lost.
            self.lock.put_if(Put::Unchanged(version), next.to_json())? || self.is_held()?
        };
        if is_renewed {
            *self.renewed_guard() = began;
        }
        Ok(is_renewed)
    }
}

/// Tells whether the run of a token holds a lock.
fn is_held(lock: &Object, token: u64) -> Result<bool> {
    let found = lock.read()?.and_then(|(text, _version)| Note::of(&text));
    Ok(found.is_some_and(|found| found.token == token))
}

/// Takes over the lock of a dead run, if it still is as it was seen; false if another run was
/// faster.
fn take_over(lock: &Object, note: &Note, seen: (Vec<u8>, Version)) -> Result<bool> {
    let (text, version) = seen;
    if lock.swaps() && !version.has_e_tag() {
        let problem = "its run is gone, but the store gives no ETags, so it cannot be taken over; \
                       remove it by hand if no run writes there";
        return Err(lock.problem("lock", problem));
    }
    if lock.swaps() {
        return Ok(
            lock.put_if(Put::Unchanged(version), note.to_json())? || is_held(lock, note.token)?
        );
    }
    let aside = lock.beside(&format!("{LOCK}-{:016x}", note.token));
    if !lock.rename(&aside)? {
        return Ok(false);
    }
    // The renamed lock may be the fresh one of a faster run: then it is renamed back.
    let is_stale = aside.read()?.is_some_and(|(found, _version)| found == text);
    if is_stale {
        aside.remove()?;
        lock.put_if(Put::Absent, note.to_json())
    } else {
        aside.rename(lock).map(|_| false)
    }
}

/// Counts writes of the lock that a store refused though their condition holds.
fn refused_again(refusals: usize, lock: &Path) -> Result<usize> {
    if refusals < REFUSALS_MAX {
        std::thread::sleep(LOOK);
        return Ok(refusals + 1);
    }
    let problem = "the store keeps refusing the write, although its condition holds; it must \
                   support If-None-Match and If-Match as S3 does";
    Err(SchemaError::io("write", lock)(std::io::Error::other(
        problem,
    )))
}

/// Tells whether a file is a lock that was renamed to take it over.
pub(super) fn is_lock_aside(name: &str) -> bool {
    let token = name
        .strip_prefix(LOCK)
        .and_then(|rest| rest.strip_prefix('-'));
    token.is_some_and(|token| token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl Note {
    fn new() -> Self {
        let process = std::process::id();
        Self {
            token: rand::random(),
            renewals: 0,
            host: host(),
            process,
            started: started(process),
        }
    }

    fn of(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("it holds string keys only")
    }

    /// Tells whether the holder was a process of this machine that has ended.
    fn is_dead(&self) -> bool {
        // If process 1 is hidden from this process, the holder may be hidden too.
        let sees_others = started(1).is_some();
        let is_here = self.started.is_some() && self.host == host();
        is_here && sees_others && started(self.process) != self.started
    }
}

/// Returns a name of this machine and of the space of its process numbers.
fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let name = read("/proc/sys/kernel/hostname");
    let boot = read("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {} {}", name.trim(), boot.trim(), space.display())
}

/// Returns when a process started, in ticks since the machine booted; none where it is not known.
fn started(process: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in brackets, may contain any character.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let is_gone = matches!(state, "Z" | "X");
    fields.nth(18).filter(|_| !is_gone).map(str::to_owned)
}

fn locked(dir: &Path, holder: Option<&Note>) -> SchemaError {
    let name = |note: &Note| {
        let host = note.host.split(' ').next().unwrap_or_default();
        format!(" (process {} of {host})", note.process)
    };
    SchemaError::OutputLocked {
        dir: dir.to_owned(),
        holder: holder.map(name).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
