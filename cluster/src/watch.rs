//! How processes of a job notice that one of them is gone, stands still or has failed.
//!
//! On a connection of their own two processes tell each other every second that they live, from when they
//! meet, be others still missing. Whoever hears nothing for [`SILENCE_MAX`], or finds the connection
//! closed, ends the job: it tells the others whom it misses, so that all say the same, and ends its own
//! process. A process whose network is cut finds all others silent, and ends just so.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::{End, OnEnd};

/// Time after which a process that says nothing is taken for lost.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_secs(1);
/// Time in which the last words of a process have to be on their way.
const LAST_WORDS: Duration = Duration::from_secs(1);
const TEXT_BYTES_MAX: usize = 1 << 16;

/// The watch of a process over the others.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Shared>);

struct Shared {
    hosts: Vec<String>,
    process: usize,
    /// By process, those that were met; locked while a word is written, so that each crosses whole.
    streams: Mutex<Vec<Option<TcpStream>>>,
    phase: Mutex<String>,
    /// Those that have come to the end of the job.
    done: Mutex<BTreeSet<usize>>,
    is_done: Condvar,
    /// Whether it is settled how the job ends, so that nothing further is said of it.
    is_over: AtomicBool,
    on_end: OnEnd,
}

/// What one process tells another.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Alive,
    /// It has come to the end of the job.
    Done,
    /// A process has failed, and the job with it.
    Failed {
        exit_code: u8,
        text: String,
    },
    /// A process is lost, and the job with it.
    Lost {
        text: String,
    },
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("hosts", &self.hosts)
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Begins to watch over nobody yet.
    pub(crate) fn start(hosts: Vec<String>, process: usize, on_end: OnEnd) -> Self {
        let num_hosts = hosts.len();
        let shared = Arc::new(Shared {
            hosts,
            process,
            streams: Mutex::new((0..num_hosts).map(|_| None).collect()),
            phase: Mutex::new("the start of the job".to_owned()),
            done: Mutex::default(),
            is_done: Condvar::new(),
            is_over: AtomicBool::new(false),
            on_end,
        });
        let beating = Arc::clone(&shared);
        thread::spawn(move || {
            while !beating.is_over() {
                beating.tell_all(&Word::Alive);
                thread::sleep(BEAT);
            }
        });
        Self(shared)
    }

    /// Watches over the other end of a connection from now on.
    pub(crate) fn add(&self, peer: usize, stream: &TcpStream) -> io::Result<()> {
        let (spoken_to, listened) = (stream.try_clone()?, stream.try_clone()?);
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(LAST_WORDS))?;
        fail_when_dark(stream)?;
        guard(&self.0.streams)[peer] = Some(spoken_to);
        let shared = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("watch".to_owned());
        thread
            .spawn(move || shared.listen(peer, listened))
            .map(drop)
    }

    pub(crate) fn set_phase(&self, phase: &str) {
        let mut current = guard(&self.0.phase);
        phase.clone_into(&mut current);
    }

    /// Tells the others why this process ends.
    pub(crate) fn fail(&self, problem: &str, exit_code: u8) {
        let shared = &self.0;
        if shared.is_over.swap(true, Ordering::SeqCst) {
            return;
        }
        let (me, phase) = (shared.name(shared.process), guard(&shared.phase).clone());
        let text = format!("{me} failed at {phase}: {problem}");
        shared.tell_all(&Word::Failed { exit_code, text });
        shared.close();
    }

    /// Fails, and ends this process with it: without the others nothing that runs can come to its end.
    pub(crate) fn fail_now(&self, problem: &str, exit_code: u8) {
        self.fail(problem, exit_code);
        (self.0.on_end)(End::Failed {
            text: problem,
            exit_code,
        });
    }

    /// Waits until every process has come to the end of the job.
    pub(crate) fn leave(&self) {
        let shared = &self.0;
        shared.tell_all(&Word::Done);
        let num_others = shared.hosts.len() - 1;
        let done = guard(&shared.done);
        let all = shared
            .is_done
            .wait_while(done, |done| done.len() < num_others)
            .unwrap_or_else(PoisonError::into_inner);
        drop(all);
        shared.is_over.store(true, Ordering::SeqCst);
    }
}

/// Ends a connection whose packets are not acknowledged for as long as a process may be silent. Linux
/// ends one whose other end does not read just so: for those alone that are read all the time.
pub(crate) fn fail_when_dark(stream: &TcpStream) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(SILENCE_MAX))?;
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
    Ok(())
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn name(&self, process: usize) -> String {
        format!("process {process} ({})", self.hosts[process])
    }

    fn listen(&self, peer: usize, mut stream: TcpStream) {
        let lost = |how: String| {
            let (me, phase) = (self.process, guard(&self.phase).clone());
            format!(
                "lost {}: {how}; process {me} was at {phase}",
                self.name(peer)
            )
        };
        let mut is_done = false;
        loop {
            let end = match Word::read(&mut stream) {
                Ok(Word::Alive) => continue,
                Ok(Word::Done) => {
                    is_done = true;
                    guard(&self.done).insert(peer);
                    self.is_done.notify_all();
                    // Read on: a connection that is closed before all was read is reset, and what was
                    // said last may be lost with it.
                    continue;
                }
                Ok(end) => end,
                Err(_) if is_done => return,
                Err(error) => Word::Lost {
                    text: lost(match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                            format!("it says nothing for {} s", SILENCE_MAX.as_secs())
                        }
                        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                            "it is gone".to_owned()
                        }
                        _ => error.to_string(),
                    }),
                },
            };
            if !self.is_over.swap(true, Ordering::SeqCst) {
                self.tell_all(&end);
                if let Some(end) = end.as_end() {
                    (self.on_end)(end);
                }
            }
            return;
        }
    }

    /// Tells all others something; those that cannot be told are missed by whoever listens to them.
    fn tell_all(&self, word: &Word) {
        let bytes = word.to_bytes();
        let streams = guard(&self.streams);
        for mut stream in streams.iter().flatten() {
            stream.write_all(&bytes).ok();
        }
    }

    fn close(&self) {
        for stream in guard(&self.streams).iter().flatten() {
            stream.shutdown(Shutdown::Write).ok();
        }
    }
}

impl Word {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Word::Alive => vec![0],
            Word::Done => vec![1],
            Word::Failed { exit_code, text } => with_text(2, *exit_code, text),
            Word::Lost { text } => with_text(3, 1, text),
        }
    }

    /// How it ends the job; none where it does not.
    fn as_end(&self) -> Option<End<'_>> {
        match self {
            Word::Alive | Word::Done => None,
            Word::Lost { text } => Some(End::Lost { text }),
            Word::Failed { exit_code, text } => Some(End::Failed {
                text,
                exit_code: *exit_code,
            }),
        }
    }

    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let unknown = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        match kind {
            [0] => Ok(Word::Alive),
            [1] => Ok(Word::Done),
            [kind @ (2 | 3)] => {
                let mut head = [0; 5];
                stream.read_exact(&mut head)?;
                let [exit_code, length @ ..] = head;
                let length = u32::from_le_bytes(length);
                let num_bytes = usize::try_from(length).unwrap_or(usize::MAX);
                if num_bytes > TEXT_BYTES_MAX {
                    return Err(unknown(format!("it sends a text of {length} bytes")));
                }
                let mut text = vec![0; num_bytes];
                stream.read_exact(&mut text)?;
                let text = String::from_utf8_lossy(&text).into_owned();
                Ok(match kind {
                    2 => Word::Failed { exit_code, text },
                    _ => Word::Lost { text },
                })
            }
            [kind] => Err(unknown(format!("it sends a word of unknown kind {kind}"))),
        }
    }
}

/// The bytes of a word with a text, which is cut off where it is too long.
fn with_text(kind: u8, exit_code: u8, text: &str) -> Vec<u8> {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let length = u32::try_from(end).expect("the limit is smaller");
    [
        &[kind, exit_code],
        &length.to_le_bytes()[..],
        &text.as_bytes()[..end],
    ]
    .concat()
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_was_said() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let end = |text: &str| Word::Failed {
            exit_code: 3,
            text: text.to_owned(),
        };
        let lost = Word::Lost {
            text: "lost process 1".to_owned(),
        };
        for word in [
            Word::Alive,
            Word::Done,
            lost,
            end(""),
            end("no such file: ä"),
        ] {
            assert_eq!(Word::read(&mut &word.to_bytes()[..]).unwrap(), word);
        }
        let cut = Word::read(&mut &end(&long).to_bytes()[..]).unwrap();
        assert_eq!(cut, end(&long[..TEXT_BYTES_MAX]));
    }

    #[test]
    fn whatever_is_sent_is_read_or_refused() {
        for _ in 0..20_000 {
            let bytes: [u8; 12] = rand::random();
            let mut rest = &bytes[..];
            while let Ok(word) = Word::read(&mut rest) {
                drop(word);
            }
        }
        let mut large = &[2, 1, 0xff, 0xff, 0xff, 0xff][..];
        let error = Word::read(&mut large).unwrap_err();
        assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    }
}
