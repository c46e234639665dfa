//! Connections between the processes of a job, each proved before it is used.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use super::handshake::{HandshakeError, Introduction, accept, dial};
use super::watch::Watch;
use super::{ClusterError, ClusterPlan};

/// The session in which processes meet first.
const JOINING: u64 = 0;
/// Time of a whole handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Time of an attempt to connect.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Time in which a process that is watched over has to be reached once more.
const RECONNECT_MAX: Duration = Duration::from_secs(30);
/// Silence after which the system asks whether the other end is there: a network may forget a connection
/// that nothing crosses for minutes, as in a long epoch.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Handshakes under way at once; the oldest gives way, since those of our own end within milliseconds.
const STRANGERS_MAX: usize = 64;
/// Refused connections that are logged one by one; later ones by the thousand.
const LOGGED_MAX: u64 = 20;

/// This process among those of its job.
pub(super) struct Mesh {
    plan: Arc<ClusterPlan>,
    arrivals: Arc<Arrivals>,
    /// Sessions that were begun; all processes begin the same ones in the same order.
    sessions: AtomicU64,
    watch: Watch,
}

/// Connections that others made, until they are used.
#[derive(Default)]
struct Arrivals {
    /// By session and process.
    streams: Mutex<BTreeMap<(u64, usize), TcpStream>>,
    changed: Condvar,
    refused: AtomicU64,
    /// Whether all have met, so that whoever joins now is of another run.
    is_complete: AtomicBool,
}

/// A stream that has to be done with at some time.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh")
            .field("hosts", &self.plan.hosts)
            .field("process", &self.plan.process)
            .finish_non_exhaustive()
    }
}

impl Mesh {
    pub(super) fn join(plan: ClusterPlan) -> Result<Arc<Self>, ClusterError> {
        let plan = Arc::new(plan);
        let address = plan.bind.as_ref().unwrap_or(&plan.hosts[plan.process]);
        let listener = TcpListener::bind(address).map_err(|source| ClusterError::Listen {
            address: address.clone(),
            source,
        })?;
        let arrivals = Arc::new(Arrivals::default());
        let (listening, arriving) = (Arc::clone(&plan), Arc::clone(&arrivals));
        thread::spawn(move || listen(&listener, &listening, &arriving));
        let deadline = Instant::now() + plan.start_timeout;
        let streams = connect(&plan, &arrivals, JOINING, Some(deadline))?;
        arrivals.is_complete.store(true, Ordering::SeqCst);
        let (hosts, on_end) = (plan.hosts.clone(), Arc::clone(&plan.on_end));
        Ok(Arc::new(Self {
            watch: Watch::start(hosts, plan.process, streams, plan.start_timeout, on_end)?,
            plan,
            arrivals,
            sessions: AtomicU64::new(JOINING + 1),
        }))
    }

    pub(super) fn process(&self) -> usize {
        self.plan.process
    }

    pub(super) fn num_processes(&self) -> usize {
        self.plan.hosts.len()
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Makes one more connection to each process; waits for those that are still at something else.
    pub(super) fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        connect(&self.plan, &self.arrivals, session, None)
    }
}

/// Connects to every process: dials those before this one, and waits for those behind it.
///
/// Without a deadline it is left to the watch to notice who does not come.
fn connect(
    plan: &ClusterPlan,
    arrivals: &Arrivals,
    session: u64,
    deadline: Option<Instant>,
) -> Result<Vec<Option<TcpStream>>, ClusterError> {
    let dial_by = deadline.unwrap_or_else(|| Instant::now() + RECONNECT_MAX);
    // All at once, so that one that is missing does not keep the others waiting.
    let dialled: Vec<_> = thread::scope(|scope| {
        let dial = |process| scope.spawn(move || dial_until(plan, process, session, dial_by));
        let dials: Vec<_> = (0..plan.process).map(dial).collect();
        let ends = dials.into_iter().map(|dialling| dialling.join());
        ends.map(|end| end.expect("a panic ends the process"))
            .collect()
    });
    let (mut streams, mut missing) = (Vec::with_capacity(plan.hosts.len()), Vec::new());
    let name = |process: usize| format!("process {process} ({})", plan.hosts[process]);
    for (process, met) in dialled.into_iter().enumerate() {
        match met? {
            Ok(stream) => streams.push(Some(stream)),
            Err(cause) => missing.push(format!("{}: {cause}", name(process))),
        }
    }
    streams.push(None);
    for process in plan.process + 1..plan.hosts.len() {
        match arrivals.take(session, process, deadline) {
            Some(stream) => streams.push(Some(stream)),
            None => missing.push(name(process)),
        }
    }
    if !missing.is_empty() {
        return Err(ClusterError::Missing {
            missing: missing.join(", "),
            seconds: deadline
                .map_or(RECONNECT_MAX, |_| plan.start_timeout)
                .as_secs(),
        });
    }
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    for stream in streams.iter().flatten() {
        let set_up = || {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
            stream.set_nodelay(true)
        };
        set_up().map_err(ClusterError::Connect)?;
    }
    Ok(streams)
}

/// Dials a process until it answers; then what was met last, if it does not.
fn dial_until(
    plan: &ClusterPlan,
    process: usize,
    session: u64,
    deadline: Instant,
) -> Result<Result<TcpStream, String>, ClusterError> {
    let stranger = |problem: String| ClusterError::Stranger {
        process,
        address: plan.hosts[process].clone(),
        problem,
    };
    // Says more than that nobody listens, which may come after it.
    let mut hung_up = None;
    loop {
        let cause = match dial_once(plan, process, session) {
            Ok((stream, found)) => {
                let Some(problem) = mismatch(plan, &found, process) else {
                    return Ok(Ok(stream));
                };
                return Err(stranger(problem));
            }
            Err(Dialled::Connect(error)) => error.to_string(),
            Err(Dialled::Handshake(HandshakeError::Io(error))) => match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    let cause = "hangs up: its job has another secret, or is an earlier run that still ends";
                    hung_up.insert(cause.to_owned()).clone()
                }
                _ => error.to_string(),
            },
            Err(Dialled::Handshake(error)) => return Err(stranger(error.to_string())),
        };
        if Instant::now() + PAUSE >= deadline {
            return Ok(Err(hung_up.unwrap_or(cause)));
        }
        thread::sleep(PAUSE);
    }
}

enum Dialled {
    Connect(io::Error),
    Handshake(HandshakeError),
}

fn dial_once(
    plan: &ClusterPlan,
    process: usize,
    session: u64,
) -> Result<(TcpStream, Introduction), Dialled> {
    let addresses = plan.hosts[process].to_socket_addrs();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses.map_err(Dialled::Connect)? {
        let stream = match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => stream,
            Err(error) => {
                failed = error;
                continue;
            }
        };
        let mut timed = Timed::new(&stream);
        let found = dial(&mut timed, &plan.secret, &introduction(plan, session));
        return Ok((stream, found.map_err(Dialled::Handshake)?));
    }
    Err(Dialled::Connect(failed))
}

fn introduction(plan: &ClusterPlan, session: u64) -> Introduction {
    Introduction {
        process: plan.process,
        processes: plan.hosts.len(),
        threads: plan.threads,
        job: plan.job.clone(),
        session,
    }
}

/// Says why a process that knows the secret is none of this run.
fn mismatch(plan: &ClusterPlan, found: &Introduction, process: usize) -> Option<String> {
    let (processes, threads) = (plan.hosts.len(), plan.threads);
    if found.job != plan.job {
        return Some("runs another job: its file, --set, date or environment differs".to_owned());
    }
    if found.processes != processes {
        let found = found.processes;
        return Some(format!(
            "knows of {found} processes, this one of {processes}"
        ));
    }
    if found.threads != threads {
        let found = found.threads;
        return Some(format!(
            "has {found} workers, this one {threads}; all need as many"
        ));
    }
    (found.process != process).then(|| format!("takes itself for process {}", found.process))
}

/// Lets other processes in, for as long as this one lives.
fn listen(listener: &TcpListener, plan: &Arc<ClusterPlan>, arrivals: &Arc<Arrivals>) {
    let strangers: Arc<Mutex<VecDeque<(u64, TcpStream)>>> = Arc::default();
    for number in 0.. {
        let Ok((stream, address)) = listener.accept() else {
            // Such as too many open files, which may pass.
            thread::sleep(PAUSE);
            continue;
        };
        let Ok(watched) = stream.try_clone() else {
            continue;
        };
        {
            let mut under_way = guard(&strangers);
            under_way.push_back((number, watched));
            if under_way.len() > STRANGERS_MAX
                && let Some((_, oldest)) = under_way.pop_front()
            {
                oldest.shutdown(Shutdown::Both).ok();
            }
        }
        let (plan, arrivals) = (Arc::clone(plan), Arc::clone(arrivals));
        let under_way = Arc::clone(&strangers);
        // False if it had to give way.
        let leave = move || {
            let mut under_way = guard(&under_way);
            let num_before = under_way.len();
            under_way.retain(|(other, _)| *other != number);
            under_way.len() < num_before
        };
        let leave_unmet = leave.clone();
        let met =
            thread::Builder::new().spawn(move || meet(stream, address, &plan, &arrivals, leave));
        if met.is_err() {
            // The connection is dropped, and dialled once more.
            leave_unmet();
        }
    }
}

/// Lets a process in that proves to be one of the job's; `leave` tells whether it still may.
fn meet(
    stream: TcpStream,
    address: SocketAddr,
    plan: &ClusterPlan,
    arrivals: &Arrivals,
    leave: impl Fn() -> bool,
) {
    let mut timed = Timed::new(&stream);
    let introduce = |found: &Introduction| {
        let is_late = found.session == JOINING && arrivals.is_complete.load(Ordering::SeqCst);
        (!is_late).then(|| introduction(plan, found.session))
    };
    let met = accept(&mut timed, &plan.secret, introduce);
    let is_left = leave();
    let problem = match met {
        Ok(found) => {
            let is_behind = (plan.process + 1..plan.hosts.len()).contains(&found.process);
            match mismatch(plan, &found, found.process) {
                Some(problem) => problem,
                None if !is_left => "gave way to others".to_owned(),
                None if is_behind => {
                    guard(&arrivals.streams).insert((found.session, found.process), stream);
                    arrivals.changed.notify_all();
                    return;
                }
                None => format!(
                    "calls itself process {}, which does not dial",
                    found.process
                ),
            }
        }
        Err(error) => error.to_string(),
    };
    let refused = arrivals.refused.fetch_add(1, Ordering::Relaxed) + 1;
    if refused <= LOGGED_MAX || refused.is_multiple_of(1000) {
        tracing::warn!("refused connection {refused}, from {address}: it {problem}");
    }
}

impl Arrivals {
    /// Waits for the connection of a process; none if it does not come in time.
    fn take(&self, session: u64, process: usize, deadline: Option<Instant>) -> Option<TcpStream> {
        let mut streams = guard(&self.streams);
        loop {
            if let Some(stream) = streams.remove(&(session, process)) {
                return Some(stream);
            }
            let left = match deadline {
                Some(deadline) => deadline.checked_duration_since(Instant::now())?,
                None => Duration::MAX,
            };
            let waited = self.changed.wait_timeout(streams, left);
            streams = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<'a> Timed<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            deadline: Instant::now() + HANDSHAKE_MAX,
        }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.checked_duration_since(Instant::now());
        let left = left.filter(|left| !left.is_zero());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "does not finish its introduction");
        left.map(Some).ok_or_else(late)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
