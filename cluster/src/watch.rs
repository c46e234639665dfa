//! Notices that another process of the job is gone, stands still or has failed.
//!
//! Each pair of processes has a connection for this alone. After they have met, each sends a word
//! every second. A process that reads nothing for [`SILENCE_MAX`], or whose connection is closed,
//! ends the job: it tells all others which process is lost, so that all report the same, and ends
//! itself. Those that it is about to meet are told too. A process whose network fails reads nothing
//! from all others, and ends too.
//!
//! A process that leaves looks like a lost one unless the others have read that it is done. So the
//! end has two steps. Each process sends `Done`. When it has read `Done` from all others, it sends
//! `Settled`. When it has read `Settled` from all others, all have read every `Done`, and it
//! leaves.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::{ClusterError, End, OnEnd};
use schemas::threads::spawn;

/// Time without a word after which a process counts as lost.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_secs(1);
/// Time within which the system must accept a word.
const LAST_WORDS: Duration = Duration::from_secs(1);
const TEXT_BYTES_MAX: usize = 1 << 16;
/// Byte of [`Word::Settled`].
const SETTLED: u8 = 4;

/// Watches the other processes of the job.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Shared>);

struct Shared {
    hosts: Vec<String>,
    process: usize,
    /// Locked while a word is written, so that words do not mix.
    links: Mutex<Links>,
    phase: Mutex<String>,
    ends: Mutex<Leaving>,
    /// Notified when `ends` has changed.
    ended: Condvar,
    /// Whether this process has left or has sent the others the reason why the job ends.
    is_over: AtomicBool,
    on_end: OnEnd,
}

/// The connections on which words are sent. Each list has an entry for each process.
#[derive(Default)]
struct Links {
    /// Connections of the processes that were met.
    met: Vec<Option<TcpStream>>,
    /// Connections of processes that this one has dialled and that may use them at any time. They
    /// are only sent why the job ends.
    dialled: Vec<Option<TcpStream>>,
    /// The word that says why the job ends, once it was sent; empty before.
    end: Vec<u8>,
}

/// Which steps of the end the other processes have reached.
#[derive(Debug, Default)]
struct Leaving {
    /// Processes that are done.
    done: BTreeSet<usize>,
    /// Processes that know that all are done, or that have left.
    settled: BTreeSet<usize>,
}

/// A message of one process to another.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Alive,
    /// The sender is done with the job.
    Done,
    /// The sender knows that all processes are done.
    Settled,
    /// A process has failed, which ends the job.
    Failed {
        exit_code: u8,
        text: String,
    },
    /// A process is lost, which ends the job.
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
    /// Starts a watch without any other process.
    pub(crate) fn start(
        hosts: Vec<String>,
        process: usize,
        on_end: OnEnd,
    ) -> Result<Self, ClusterError> {
        let num_hosts = hosts.len();
        let shared = Arc::new(Shared {
            hosts,
            process,
            links: Mutex::new(Links {
                met: (0..num_hosts).map(|_| None).collect(),
                dialled: (0..num_hosts).map(|_| None).collect(),
                end: Vec::new(),
            }),
            phase: Mutex::new("the start of the job".to_owned()),
            ends: Mutex::default(),
            ended: Condvar::new(),
            is_over: AtomicBool::new(false),
            on_end,
        });
        let beating = Arc::clone(&shared);
        let beat = move || {
            while !beating.is_over() {
                beating.tell_all(&Word::Alive);
                thread::sleep(BEAT);
            }
        };
        spawn("beat", beat).map_err(ClusterError::Thread)?;
        Ok(Self(shared))
    }

    /// Sends `greeting` on a connection that its other end may use from then on, and later why the
    /// job ends if this process ends before [`Self::add`]. Its writes must have a time limit.
    pub(crate) fn expect(
        &self,
        peer: usize,
        stream: &TcpStream,
        greeting: &[u8],
    ) -> io::Result<()> {
        let mut dialled = stream.try_clone()?;
        let mut links = guard(&self.0.links);
        dialled.write_all(&[greeting, &links.end].concat())?;
        links.dialled[peer] = Some(dialled);
        Ok(())
    }

    /// Watches the process at the other end of a connection from now on. First sends `greeting`,
    /// and after it why the job ends if it does.
    pub(crate) fn add(
        &self,
        peer: usize,
        stream: &TcpStream,
        greeting: &[u8],
    ) -> Result<(), ClusterError> {
        let listened = self.set_up(peer, stream, greeting);
        let listened = listened.map_err(ClusterError::Connect)?;
        let shared = Arc::clone(&self.0);
        let listen = move || shared.listen(peer, listened);
        spawn("watch", listen)
            .map(drop)
            .map_err(ClusterError::Thread)
    }

    /// Sets the limits of a connection and sends words to it from now on; returns a handle to read
    /// it.
    fn set_up(&self, peer: usize, stream: &TcpStream, greeting: &[u8]) -> io::Result<TcpStream> {
        let (mut spoken_to, listened) = (stream.try_clone()?, stream.try_clone()?);
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(LAST_WORDS))?;
        fail_when_dark(stream)?;
        let mut links = guard(&self.0.links);
        // In one piece: this process may end in between.
        spoken_to.write_all(&[greeting, &links.end].concat())?;
        links.dialled[peer] = None;
        links.met[peer] = Some(spoken_to);
        Ok(listened)
    }

    pub(crate) fn set_phase(&self, phase: &str) {
        let mut current = guard(&self.0.phase);
        phase.clone_into(&mut current);
    }

    /// Sends the others the reason why this process ends.
    pub(crate) fn fail(&self, problem: &str, exit_code: u8) {
        let shared = &self.0;
        if shared.is_over.swap(true, Ordering::SeqCst) {
            return;
        }
        let (me, phase) = (shared.name(shared.process), guard(&shared.phase).clone());
        let text = format!("{me} failed at {phase}: {problem}");
        shared.tell_end(&Word::Failed { exit_code, text });
        shared.close();
    }

    /// Does the same as [`Self::fail`] and ends this process, because nothing can be completed
    /// without the others.
    pub(crate) fn fail_now(&self, problem: &str, exit_code: u8) {
        self.fail(problem, exit_code);
        (self.0.on_end)(End::Failed {
            text: problem,
            exit_code,
        });
    }

    /// Waits until every process is done, and every process knows that all are.
    pub(crate) fn leave(&self) {
        let shared = &self.0;
        shared.tell_all(&Word::Done);
        shared.wait_for_others(|ends| &ends.done);
        shared.tell_all(&Word::Settled);
        shared.wait_for_others(|ends| &ends.settled);
        shared.is_over.store(true, Ordering::SeqCst);
    }
}

/// Makes the system close a connection whose packets are not acknowledged for [`SILENCE_MAX`].
///
/// Linux also closes a connection whose other end does not read for that long, so use this only for
/// connections that are always read.
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
                    self.note_end(|ends| ends.done.insert(peer));
                    // Go on reading: closing a connection with unread bytes resets it, and the
                    // other end may lose the last words.
                    continue;
                }
                Ok(Word::Settled) => {
                    self.note_end(|ends| ends.settled.insert(peer));
                    continue;
                }
                Ok(end) => end,
                // The process was done and has left.
                Err(_) if is_done => return self.note_end(|ends| ends.settled.insert(peer)),
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
                self.tell_end(&end);
                if let Some(end) = end.as_end() {
                    (self.on_end)(end);
                }
            }
            return;
        }
    }

    fn note_end(&self, note: impl FnOnce(&mut Leaving) -> bool) {
        note(&mut guard(&self.ends));
        self.ended.notify_all();
    }

    /// Waits until a set holds every other process.
    fn wait_for_others(&self, set: impl Fn(&Leaving) -> &BTreeSet<usize>) {
        let num_others = self.hosts.len() - 1;
        let all = self
            .ended
            .wait_while(guard(&self.ends), |ends| set(ends).len() < num_others);
        drop(all.unwrap_or_else(PoisonError::into_inner));
    }

    /// Sends a word to all others. If that fails, the thread that reads the connection notices.
    fn tell_all(&self, word: &Word) {
        let bytes = word.to_bytes();
        for mut stream in guard(&self.links).met.iter().flatten() {
            stream.write_all(&bytes).ok();
        }
    }

    /// Sends all others the word that ends the job, also those that are met later.
    fn tell_end(&self, end: &Word) {
        let mut links = guard(&self.links);
        links.end = end.to_bytes();
        for mut stream in links.met.iter().chain(&links.dialled).flatten() {
            stream.write_all(&links.end).ok();
        }
    }

    fn close(&self) {
        let links = guard(&self.links);
        for stream in links.met.iter().chain(&links.dialled).flatten() {
            stream.shutdown(Shutdown::Write).ok();
        }
    }
}

impl Word {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Word::Alive => vec![0],
            Word::Done => vec![1],
            Word::Settled => vec![SETTLED],
            Word::Failed { exit_code, text } => with_text(2, *exit_code, text),
            Word::Lost { text } => with_text(3, 1, text),
        }
    }

    /// Returns how the word ends the job; none if it does not.
    fn as_end(&self) -> Option<End<'_>> {
        match self {
            Word::Alive | Word::Done | Word::Settled => None,
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
            [SETTLED] => Ok(Word::Settled),
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

/// Returns the bytes of a word with a text; a text that is too long is cut.
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
    use std::net::TcpListener;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Returns both ends of a connection.
    fn link() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    /// Returns a link whose second end's words are held back until that end says that the job is
    /// settled. If it hangs up before, they are lost.
    fn holding_link() -> (TcpStream, TcpStream) {
        let ((here, mut near), (mut far, there)) = (link(), link());
        let (mut to_far, mut to_near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut near, &mut to_far));
        thread::spawn(move || {
            let (mut held, mut word) = (Vec::new(), [0]);
            while !held.contains(&SETTLED) && far.read_exact(&mut word).is_ok() {
                held.push(word[0]);
            }
            if held.contains(&SETTLED) {
                to_near.write_all(&held).unwrap();
                io::copy(&mut far, &mut to_near).ok();
            }
            to_near.shutdown(Shutdown::Both).ok();
        });
        (here, there)
    }

    /// Starts a process with these connections. It sends `None` to `ends` when it has left, and a
    /// text if its job ends early.
    fn process(number: usize, streams: Vec<(usize, TcpStream)>, ends: &Sender<Option<String>>) {
        let hosts = (0..3).map(|host| format!("h:{host}")).collect();
        let lost = ends.clone();
        let on_end: OnEnd = Arc::new(move |end: End<'_>| drop(lost.send(Some(format!("{end:?}")))));
        let watch = Watch::start(hosts, number, on_end).unwrap();
        for (peer, stream) in &streams {
            watch.add(*peer, stream, &[]).unwrap();
        }
        let ends = ends.clone();
        thread::spawn(move || {
            watch.leave();
            ends.send(None).ok();
            // The connections close, as at the end of a process.
            for (_, stream) in streams {
                stream.shutdown(Shutdown::Both).ok();
            }
        });
    }

    #[test]
    fn nobody_leaves_before_all_know_that_all_are_done() {
        let ((a, b), (c, d), (e, f)) = (link(), link(), holding_link());
        let (sender, ends) = channel();
        process(0, vec![(1, a), (2, c)], &sender);
        process(1, vec![(0, b), (2, e)], &sender);
        process(2, vec![(0, d), (1, f)], &sender);
        for _ in 0..3 {
            assert_eq!(ends.recv().unwrap(), None, "it lost another process");
        }
    }

    /// A process that has lost another one tells it to those that it meets then, and to those that
    /// take its connection.
    #[test]
    fn whoever_is_met_late_learns_why_the_job_ends() {
        let hosts = (0..4).map(|host| format!("h:{host}")).collect();
        let (sender, ends) = channel();
        let on_end: OnEnd = Arc::new(move |end: End<'_>| drop(sender.send(format!("{end:?}"))));
        let watch = Watch::start(hosts, 1, on_end).unwrap();
        let ((lost, gone), (dialled, mut far), (late, mut there)) = (link(), link(), link());
        watch.expect(0, &dialled, &[]).unwrap();
        watch.add(2, &lost, &[]).unwrap();
        drop(gone);
        assert!(ends.recv().unwrap().contains("lost process 2 (h:2)"));
        watch.add(3, &late, &[77]).unwrap();
        let mut greeting = [0];
        there.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, [77]);
        for stream in [&mut far, &mut there] {
            let Word::Lost { text } = Word::read(stream).unwrap() else {
                panic!("no word that a process is lost");
            };
            assert!(text.contains("lost process 2 (h:2)"), "{text}");
        }
    }

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
            Word::Settled,
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
