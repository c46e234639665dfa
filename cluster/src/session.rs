//! Connects this process to all others, at one point of the job.

use std::io::{self, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::arrivals::{Arrivals, PAUSE, mismatch};
use crate::handshake::{HandshakeError, MET, TAKEN, await_word, dial, say};
use crate::timed::{Timed, keep_alive};
use crate::watch::Watch;
use crate::{ClusterError, ClusterPlan};
use schemas::threads::spawn_scoped;

/// Greatest duration of one attempt to connect.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time within which this process tries to reach a process that it already watches.
const RECONNECT_MAX: Duration = Duration::from_secs(8);

/// A session: one connection to each other process, while they are made.
pub(crate) struct Session<'a> {
    plan: &'a ClusterPlan,
    arrivals: &'a Arrivals,
    number: u64,
    /// None if the watch notices a process that does not come.
    deadline: Option<Instant>,
    /// Whether a connection failed, so that the session fails.
    has_failed: AtomicBool,
    /// Watches each process after it was met.
    watch: Option<&'a Watch>,
}

/// Why a process was not met.
enum Dialled {
    Connect(io::Error),
    Handshake(HandshakeError),
}

impl<'a> Session<'a> {
    /// Makes the session in which the processes meet, until a deadline.
    pub(crate) fn joining(
        plan: &'a ClusterPlan,
        arrivals: &'a Arrivals,
        number: u64,
        watch: &'a Watch,
    ) -> Self {
        Self {
            deadline: Some(Instant::now() + plan.start_timeout),
            watch: Some(watch),
            ..Self::later(plan, arrivals, number)
        }
    }

    /// Makes a session of processes that already watch each other.
    pub(crate) fn later(plan: &'a ClusterPlan, arrivals: &'a Arrivals, number: u64) -> Self {
        Self {
            plan,
            arrivals,
            number,
            deadline: None,
            has_failed: AtomicBool::new(false),
            watch: None,
        }
    }

    /// Connects to every process: dials the processes before this one in the list, and waits for
    /// the processes after it.
    pub(crate) fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let plan = self.plan;
        // All are dialled at once, so that a missing one does not delay the others.
        let (dialled, arrived) = thread::scope(|scope| {
            let dial = |process| spawn_scoped(scope, "dial", move || self.dial(process));
            let dials: Result<Vec<_>, _> = (0..plan.process).map(dial).collect();
            // The threads that did start end once one has failed.
            let dials = dials.inspect_err(|_| self.has_failed.store(true, Ordering::SeqCst));
            let dials = dials.map_err(ClusterError::Thread)?;
            let arrived = self.take(plan.process + 1..plan.hosts.len());
            let ends = dials.into_iter().map(|dialling| dialling.join());
            let dialled: Vec<_> = ends
                .map(|end| end.expect("a panic ends the process"))
                .collect();
            Ok::<_, ClusterError>((dialled, arrived))
        })?;
        let (mut streams, mut missing) = (Vec::with_capacity(plan.hosts.len()), Vec::new());
        let name = |process: usize| format!("process {process} ({})", plan.hosts[process]);
        for (process, met) in dialled.into_iter().enumerate() {
            match met? {
                Ok(stream) => streams.push(Some(stream)),
                Err(cause) => missing.push(format!("{}: {cause}", name(process))),
            }
        }
        streams.push(None);
        for (process, stream) in (plan.process + 1..).zip(arrived?) {
            // Without a deadline the wait ends only when a dial has failed, which is the error
            // then.
            if stream.is_none() && self.deadline.is_some() {
                missing.push(name(process));
            }
            streams.push(stream);
        }
        if missing.is_empty() {
            return Ok(streams);
        }
        Err(self.missing(&missing))
    }

    fn missing(&self, processes: &[String]) -> ClusterError {
        let mut missing = processes.join(", ");
        let refused = self.arrivals.num_refused();
        if refused > 0 {
            missing.push_str(&format!(
                "; meanwhile this process refused {refused} connections, which its log names"
            ));
        }
        let longest = self
            .deadline
            .map_or(RECONNECT_MAX, |_| self.plan.start_timeout);
        ClusterError::Missing {
            missing,
            seconds: longest.as_secs(),
        }
    }

    /// Dials a process until it answers; if it does not, returns the last reason.
    fn dial(&self, process: usize) -> Result<Result<TcpStream, String>, ClusterError> {
        let end = self.dial_until(process);
        let end = end.and_then(|met| {
            if let Ok(stream) = &met {
                self.use_stream(process, stream, &[])?;
            }
            Ok(met)
        });
        if !matches!(end, Ok(Ok(_))) {
            self.has_failed.store(true, Ordering::SeqCst);
            self.arrivals.wake();
        }
        end
    }

    /// Waits for the connections of some processes; the entry of one that does not come in time is
    /// none.
    fn take(&self, processes: Range<usize>) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let taken = self.take_all(processes);
        if taken.is_err() {
            self.has_failed.store(true, Ordering::SeqCst);
        }
        taken
    }

    fn take_all(&self, processes: Range<usize>) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let mut taken: Vec<Option<TcpStream>> = processes.clone().map(|_| None).collect();
        let mut arrived = self.arrivals.arrived();
        loop {
            for (slot, process) in taken.iter_mut().zip(processes.clone()) {
                if let Some(stream) = arrived.remove(&(self.number, process)) {
                    self.use_stream(process, &stream, &[TAKEN])?;
                    *slot = Some(stream);
                }
            }
            if taken.iter().all(Option::is_some) || self.has_failed.load(Ordering::SeqCst) {
                return Ok(taken);
            }
            let left = match self.deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return Ok(taken);
            }
            arrived = self.arrivals.wait(arrived, left);
        }
    }

    /// Sends `greeting` and removes the deadlines of a connection, and begins to watch its process
    /// if asked to.
    fn use_stream(
        &self,
        process: usize,
        mut stream: &TcpStream,
        greeting: &[u8],
    ) -> Result<(), ClusterError> {
        let unlimited = stream.set_read_timeout(None);
        let unlimited = unlimited.and_then(|()| stream.set_write_timeout(None));
        unlimited.map_err(ClusterError::Connect)?;
        match self.watch {
            Some(watch) => watch.add(process, stream, greeting),
            None => stream.write_all(greeting).map_err(ClusterError::Connect),
        }
    }

    fn dial_until(&self, process: usize) -> Result<Result<TcpStream, String>, ClusterError> {
        let deadline = self
            .deadline
            .unwrap_or_else(|| Instant::now() + RECONNECT_MAX);
        // Kept, because it says more than the refusals that may follow.
        let mut hung_up = None;
        loop {
            let cause = match self.dial_once(process) {
                Ok(stream) => return Ok(Ok(stream)),
                Err(Dialled::Connect(error)) => error.to_string(),
                Err(Dialled::Handshake(HandshakeError::Io(error))) => match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                        let cause = "hangs up: its job has another secret, or is an earlier run \
                                     that still ends, or connections of strangers keep it busy";
                        hung_up.insert(cause.to_owned()).clone()
                    }
                    _ => error.to_string(),
                },
                Err(Dialled::Handshake(error)) => {
                    return Err(ClusterError::Stranger {
                        process,
                        address: self.plan.hosts[process].clone(),
                        problem: error.to_string(),
                    });
                }
            };
            let is_late = Instant::now() + PAUSE >= deadline;
            if is_late || self.has_failed.load(Ordering::SeqCst) {
                return Ok(Err(hung_up.unwrap_or(cause)));
            }
            thread::sleep(PAUSE);
        }
    }

    fn dial_once(&self, process: usize) -> Result<TcpStream, Dialled> {
        let addresses = self.plan.hosts[process].to_socket_addrs();
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses.map_err(Dialled::Connect)? {
            match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                Ok(stream) => {
                    self.introduce(process, &stream)
                        .map_err(Dialled::Handshake)?;
                    return Ok(stream);
                }
                Err(error) => failed = error,
            }
        }
        Err(Dialled::Connect(failed))
    }

    fn introduce(&self, process: usize, stream: &TcpStream) -> Result<(), HandshakeError> {
        let mut timed = Timed::new(stream);
        let me = self.arrivals.introduction(self.plan, self.number);
        let found = dial(&mut timed, &self.plan.secret, &me)?;
        if let Some(problem) = mismatch(self.plan, &found, process) {
            return Err(HandshakeError::Mismatch(problem));
        }
        self.arrivals.check_run(&found)?;
        keep_alive(stream)?;
        match self.watch {
            Some(watch) => watch.expect(process, stream, &[MET])?,
            None => say(&mut timed, MET)?,
        }
        self.await_taken(stream)?;
        self.arrivals.note_run(&found)
    }

    /// Waits until the other end reaches this session; the watch notices if it does not.
    fn await_taken(&self, mut stream: &TcpStream) -> Result<(), HandshakeError> {
        stream.set_read_timeout(Some(PAUSE))?;
        loop {
            match await_word(&mut stream, TAKEN) {
                // The time limit of the read; for a dead connection the system returns `TimedOut`.
                Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                end => return end,
            }
            let is_late = self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline);
            if is_late || self.has_failed.load(Ordering::SeqCst) {
                let late = io::Error::new(io::ErrorKind::TimedOut, "does not take the connection");
                return Err(late.into());
            }
        }
    }
}
