//! The lock of an output in a store: an object that its holder renews while it lives.
//!
//! A store does not tell when a process dies. So whoever finds the lock watches it: if it is not
//! renewed for [`LEASE`], its holder is taken for dead and the lock is taken over. The watcher goes
//! by its own clock alone. Where the holder was a process of the same machine and is no longer, it
//! is not waited for. S3 lets only one of several runs take over, by the version it saw; on HDFS,
//! which renames in one step, it is the one that renames the old lock away.
//!
//! A holder that stood still and lost its lock may go on without knowing: a [`Fence`] keeps what it
//! writes from becoming visible.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::lock::LOCK;
use crate::cleanup::{Cleanup, at_early_end};
use crate::error::{Result, SchemaError};
use crate::storage::{Object, Put, Version, object};

/// Milliseconds of a second, which is shorter in tests.
const SECOND: u64 = if cfg!(test) { 20 } else { 1000 };
/// Time after which a lock that is not renewed is taken over.
const LEASE: Duration = Duration::from_millis(30 * SECOND);
/// Time between renewals.
const RENEWAL: Duration = Duration::from_millis(8 * SECOND);
/// Time after a renewal in which the lock is taken for held without asking.
const TRUST: Duration = Duration::from_millis(15 * SECOND);
/// Time between looks at the lock of another run.
const LOOK: Duration = Duration::from_millis(SECOND);
/// How often a lock that was just taken is looked for where it is not.
const LOOKS_ASIDE: usize = 5;
/// How often a store may refuse a write of the lock whose condition holds.
const REFUSALS_MAX: usize = 10;

/// Held while a run writes an output of a store; dropped, it is released.
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
    /// What the lock said first; renewals are counted in the store.
    note: Note,
    is_lost: AtomicBool,
    /// When the last renewal began.
    renewed: Mutex<Instant>,
}

/// Tells whoever writes for a holder whether it still is one.
#[derive(Clone, Debug)]
pub(super) enum Fence {
    /// Of this process.
    Own(Arc<Shared>),
    /// Of another process of the run.
    Other(Arc<OtherLock>),
}

/// The lock of another process of this run.
#[derive(Debug)]
pub(super) struct OtherLock {
    lock: Object,
    dir: PathBuf,
    token: u64,
}

/// What the lock says of its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Random, of one holder alone.
    token: u64,
    /// Number of renewals.
    renewals: u64,
    host: String,
    process: u32,
    /// What tells the process from an earlier one of the same number, where that can be known.
    started: Option<String>,
}

impl Lease {
    pub(super) fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let lock = object(&path)?.expect("the directory is of a store");
        let note = Note::new();
        let mut watched: Option<(Version, Instant)> = None;
        let mut refusals = 0;
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
        // Two runs that took over at the same time may both have got here, but only one stays. The
        // lock of the faster one may be aside for a moment, until the other sees that it is none to
        // take over.
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
        let thread = std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || renewed.renew_until(&stopped))
            .map_err(SchemaError::io("keep the lock of", dir))?;
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

    /// Returns what tells this holder from others.
    pub(super) fn token(&self) -> u64 {
        self.shared.note.token
    }
}

impl Fence {
    /// Fails if another run may hold the lock now; asks the store only if the lock was not renewed
    /// for long.
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
            lock: object(&dir.join(LOCK))?.expect("the directory is of a store"),
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
    /// Removes the lock, if it is still this one; from now on nothing is written under it.
    fn release(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        if self.is_held().is_ok_and(|is_held| is_held) {
            // A lock that stays is taken over.
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

    /// Tells whether there is a lock, which then has to be this one.
    fn is_there(&self) -> Result<bool> {
        let Some((text, version)) = self.lock.read()? else {
            return Ok(false);
        };
        match Note::of(&text) {
            Some(found) if found.token == self.note.token => {
                if self.lock.swaps() && !version.has_e_tag() {
                    let dir = self.dir.display();
                    tracing::warn!(
                        "the store of {dir} gives no ETags: if this run is killed, none can go on; \
                         remove {dir}/{LOCK} by hand then"
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
            // A fault of the store is one that the next renewal may not meet.
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
            // Nobody can take the lock over.
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

/// Tells whether a lock is that of a run.
fn is_held(lock: &Object, token: u64) -> Result<bool> {
    let found = lock.read()?.and_then(|(text, _version)| Note::of(&text));
    Ok(found.is_some_and(|found| found.token == token))
}

/// Takes the lock of a run that is dead, as it was seen; false if another run was faster.
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
    // What was renamed may be the fresh lock of a run that was faster: then it is put back.
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
    let problem = "the store refuses the write again and again, though its condition holds; it needs \
                   If-None-Match and If-Match as S3 has them";
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

    /// Tells whether the holder is known to be gone: a process of this machine that is not there.
    fn is_dead(&self) -> bool {
        // Where the first process is hidden from us, so may be the holder.
        let sees_others = started(1).is_some();
        let is_here = self.started.is_some() && self.host == host();
        is_here && sees_others && started(self.process) != self.started
    }
}

/// Tells this machine, as far as it shares its numbers of processes, from others.
fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let name = read("/proc/sys/kernel/hostname");
    let boot = read("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {} {}", name.trim(), boot.trim(), space.display())
}

/// Returns when a process started, in ticks since the machine did; none where that is not known.
fn started(process: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in brackets, may hold anything.
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
