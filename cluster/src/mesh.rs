//! Connections between the processes of a job, each proved before it is used.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use crate::handshake::{HandshakeError, Introduction, MET, TAKEN, accept, await_word, dial, say};
use crate::watch::Watch;
use crate::{ClusterError, ClusterPlan};

/// The session in which processes meet first.
const JOINING: u64 = 0;
/// Time of a whole handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Time of an attempt to connect.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Time in which attempts to reach a process that is watched over may begin.
const RECONNECT_MAX: Duration = Duration::from_secs(8);
/// Silence after which the system asks whether the other end is there: a network may forget a connection
/// that nothing crosses for minutes, as in a long epoch.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Time between such questions.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(2);
/// Handshakes under way at once; then one of the address that has the most gives way, its oldest, since
/// those of our own end within two round trips.
const STRANGERS_MAX: usize = 256; // each a thread and a file, of which there may be few
/// Stack of a thread that does a handshake, of which there may be as many.
const STACK_BYTES: usize = 256 << 10;
/// The exit code of others where this process does not meet all.
const JOIN_FAILED: u8 = 1;
/// Refused connections that are logged one by one; later ones by the thousand.
const LOGGED_MAX: u64 = 20;

/// This process among those of its job.
pub(crate) struct Mesh {
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
    /// The run of each process that was met: whoever comes with another one is none of this job.
    runs: Mutex<BTreeMap<usize, u64>>,
}

/// Connections of which nothing is known yet, in the order in which they came.
#[derive(Default)]
struct Strangers(Mutex<VecDeque<Stranger>>);

struct Stranger {
    number: u64,
    address: IpAddr,
    stream: Arc<TcpStream>,
}

/// The connections of one session, in the making.
struct Session<'a> {
    plan: &'a ClusterPlan,
    arrivals: &'a Arrivals,
    number: u64,
    /// None where it is left to the watch to notice who does not come.
    deadline: Option<Instant>,
    /// Whether one cannot be made, so that the others need not come.
    has_failed: AtomicBool,
    /// Does something with a connection as soon as it is there.
    met: &'a (dyn Fn(usize, &TcpStream) -> io::Result<()> + Sync),
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
    pub(crate) fn join(plan: ClusterPlan) -> Result<Arc<Self>, ClusterError> {
        let plan = Arc::new(plan);
        let address = plan.bind.as_ref().unwrap_or(&plan.hosts[plan.process]);
        let listener = TcpListener::bind(address).map_err(|source| ClusterError::Listen {
            address: address.clone(),
            source,
        })?;
        let arrivals = Arc::new(Arrivals::default());
        // Its own run is one that nobody else may come with.
        guard(&arrivals.runs).insert(plan.process, rand::random());
        let (listening, arriving) = (Arc::clone(&plan), Arc::clone(&arrivals));
        let accept = move || listen(&listener, &listening, &arriving);
        schemas::threads::spawn("listen", accept).map_err(ClusterError::Thread)?;
        let watch = Watch::start(plan.hosts.clone(), plan.process, Arc::clone(&plan.on_end));
        let session = Session {
            plan: &plan,
            arrivals: &arrivals,
            number: JOINING,
            deadline: Some(Instant::now() + plan.start_timeout),
            has_failed: AtomicBool::new(false),
            met: &|process, stream| watch.add(process, stream),
        };
        let met = session.connect();
        met.inspect_err(|error| watch.fail(&error.to_string(), JOIN_FAILED))?;
        Ok(Arc::new(Self {
            watch,
            plan,
            arrivals,
            sessions: AtomicU64::new(JOINING + 1),
        }))
    }

    pub(crate) fn process(&self) -> usize {
        self.plan.process
    }

    pub(crate) fn num_processes(&self) -> usize {
        self.plan.hosts.len()
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Makes one more connection to each process; waits for those that are still at something else.
    pub(crate) fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let session = Session {
            plan: &self.plan,
            arrivals: &self.arrivals,
            number: self.sessions.fetch_add(1, Ordering::Relaxed),
            deadline: None,
            has_failed: AtomicBool::new(false),
            met: &|_, _| Ok(()),
        };
        session.connect()
    }
}

impl Session<'_> {
    /// Connects to every process: dials those before this one, and waits for those behind it.
    fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let plan = self.plan;
        // All at once, so that one that is missing does not keep the others waiting.
        let (dialled, arrived) = thread::scope(|scope| {
            let dial = |process| scope.spawn(move || self.dial(process));
            let dials: Vec<_> = (0..plan.process).map(dial).collect();
            let arrived = self.take(plan.process + 1..plan.hosts.len());
            let ends = dials.into_iter().map(|dialling| dialling.join());
            let dialled: Vec<_> = ends
                .map(|end| end.expect("a panic ends the process"))
                .collect();
            (dialled, arrived)
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
        for (process, stream) in (plan.process + 1..).zip(arrived?) {
            // Without a deadline they were waited for no longer than one could be dialled.
            if stream.is_none() && self.deadline.is_some() {
                missing.push(name(process));
            }
            streams.push(stream);
        }
        if missing.is_empty() {
            return Ok(streams);
        }
        let longest = self.deadline.map_or(RECONNECT_MAX, |_| plan.start_timeout);
        Err(ClusterError::Missing {
            missing: missing.join(", "),
            seconds: longest.as_secs(),
        })
    }

    /// Dials a process until it answers; then what was met last, if it does not.
    fn dial(&self, process: usize) -> Result<Result<TcpStream, String>, ClusterError> {
        let end = self.dial_until(process);
        let end = end.and_then(|met| {
            if let Ok(stream) = &met {
                self.use_stream(process, stream)?;
            }
            Ok(met)
        });
        if !matches!(end, Ok(Ok(_))) {
            self.has_failed.store(true, Ordering::SeqCst);
            // Whoever looked before it was stored waits by now.
            drop(guard(&self.arrivals.streams));
            self.arrivals.changed.notify_all();
        }
        end
    }

    /// Waits for the connections of some processes; none stands for one that does not come in time.
    fn take(&self, processes: Range<usize>) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let taken = self.take_all(processes);
        if taken.is_err() {
            self.has_failed.store(true, Ordering::SeqCst);
        }
        taken
    }

    fn take_all(&self, processes: Range<usize>) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let mut taken: Vec<Option<TcpStream>> = processes.clone().map(|_| None).collect();
        let mut streams = guard(&self.arrivals.streams);
        loop {
            for (slot, process) in taken.iter_mut().zip(processes.clone()) {
                if let Some(mut stream) = streams.remove(&(self.number, process)) {
                    say(&mut stream, TAKEN).map_err(ClusterError::Connect)?;
                    self.use_stream(process, &stream)?;
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
            let waited = self.arrivals.changed.wait_timeout(streams, left);
            streams = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Readies a connection for what it is to carry, which may take as long as it likes.
    fn use_stream(&self, process: usize, stream: &TcpStream) -> Result<(), ClusterError> {
        let set_up = || {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            (self.met)(process, stream)
        };
        set_up().map_err(ClusterError::Connect)
    }

    fn dial_until(&self, process: usize) -> Result<Result<TcpStream, String>, ClusterError> {
        let deadline = self
            .deadline
            .unwrap_or_else(|| Instant::now() + RECONNECT_MAX);
        let stranger = |problem: String| ClusterError::Stranger {
            process,
            address: self.plan.hosts[process].clone(),
            problem,
        };
        // Says more than that nobody listens, which may come after it.
        let mut hung_up = None;
        loop {
            let cause = match self.dial_once(process) {
                Ok(stream) => return Ok(Ok(stream)),
                Err(Dialled::Connect(error)) => error.to_string(),
                Err(Dialled::Handshake(HandshakeError::Io(error))) => match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                        let cause = "hangs up: its job has another secret, or is an earlier run that still ends";
                        hung_up.insert(cause.to_owned()).clone()
                    }
                    _ => error.to_string(),
                },
                Err(Dialled::Handshake(error)) => return Err(stranger(error.to_string())),
                Err(Dialled::Mismatch(problem)) => return Err(stranger(problem)),
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
                Ok(stream) => return self.introduce(process, stream),
                Err(error) => failed = error,
            }
        }
        Err(Dialled::Connect(failed))
    }

    fn introduce(&self, process: usize, stream: TcpStream) -> Result<TcpStream, Dialled> {
        let mut timed = Timed::new(&stream);
        let me = self.arrivals.introduction(self.plan, self.number);
        let found = dial(&mut timed, &self.plan.secret, &me).map_err(Dialled::Handshake)?;
        if let Some(problem) = mismatch(self.plan, &found, process) {
            return Err(Dialled::Mismatch(problem));
        }
        let other_run = |error: HandshakeError| Dialled::Mismatch(error.to_string());
        self.arrivals.check_run(&found).map_err(other_run)?;
        let mut last_words = || {
            say(&mut timed, MET)?;
            keep_alive(&stream)?;
            self.await_taken(&stream)
        };
        last_words().map_err(Dialled::Handshake)?;
        self.arrivals.note_run(&found).map_err(other_run)?;
        Ok(stream)
    }

    /// Waits until the other end comes to this session; the watch notices where it does not.
    fn await_taken(&self, mut stream: &TcpStream) -> Result<(), HandshakeError> {
        stream.set_read_timeout(Some(PAUSE))?;
        loop {
            match await_word(&mut stream, TAKEN) {
                // The read's own end; of a connection that is dead the system says `TimedOut`.
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

/// Has the system find out where the other end of a connection is gone, and nobody on the way forget it.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    SockRef::from(stream).set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE_PAUSE))
}

/// Why a process was not met.
enum Dialled {
    Connect(io::Error),
    Handshake(HandshakeError),
    /// What it says of itself is not what is known of it.
    Mismatch(String),
}

/// Says why a process that knows the secret is none of this run.
fn mismatch(plan: &ClusterPlan, found: &Introduction, process: usize) -> Option<String> {
    let (processes, threads) = (plan.hosts.len(), plan.threads);
    if found.build != plan.build {
        return Some("is another build of the program; all need the same file of it".to_owned());
    }
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
    let strangers: Arc<Strangers> = Arc::default();
    for number in 0.. {
        let Ok((stream, address)) = listener.accept() else {
            // Such as too many open files, which may pass.
            thread::sleep(PAUSE);
            continue;
        };
        let stream = Arc::new(stream);
        strangers.add(Stranger {
            number,
            address: address.ip(),
            stream: Arc::clone(&stream),
        });
        let (plan, arrivals) = (Arc::clone(plan), Arc::clone(arrivals));
        let among = Arc::clone(&strangers);
        let work = move || meet(stream, address, (&plan, &arrivals), || among.remove(number));
        let meeting = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
        if meeting.is_err() {
            // The connection is dropped, and dialled once more.
            strangers.remove(number);
        }
    }
}

/// Lets a process in that proves to be one of the job's; `leave` takes it from those of whom nothing is
/// known, and tells whether it still was there.
fn meet(
    stream: Arc<TcpStream>,
    address: SocketAddr,
    (plan, arrivals): (&ClusterPlan, &Arrivals),
    leave: impl Fn() -> bool,
) {
    let mut timed = Timed::new(&stream);
    let introduce = |found: &Introduction| {
        // It knows the secret: from here on it gives way to nobody.
        if !leave() {
            return Err(HandshakeError::GaveWay);
        }
        arrivals.check_run(found)?;
        Ok(arrivals.introduction(plan, found.session))
    };
    let met = accept(&mut timed, &plan.secret, introduce);
    leave();
    let problem = match met {
        Ok(found) => {
            let is_behind = (plan.process + 1..plan.hosts.len()).contains(&found.process);
            match mismatch(plan, &found, found.process) {
                Some(problem) => problem,
                None if is_behind => {
                    let last_word = await_word(&mut timed, MET);
                    match last_word.and_then(|()| arrivals.add(&found, stream)) {
                        Ok(()) => return,
                        Err(error) => error.to_string(),
                    }
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

impl Strangers {
    fn add(&self, stranger: Stranger) {
        let mut all = guard(&self.0);
        all.push_back(stranger);
        if all.len() <= STRANGERS_MAX {
            return;
        }
        let mut nums: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for other in all.iter() {
            *nums.entry(other.address).or_default() += 1;
        }
        let most = nums.values().max().copied();
        let gives_way = all
            .iter()
            .position(|other| nums.get(&other.address).copied() == most);
        if let Some(oldest) = gives_way.and_then(|at| all.remove(at)) {
            oldest.stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Returns false if it was not there: it had to give way.
    fn remove(&self, number: u64) -> bool {
        let mut all = guard(&self.0);
        let at = all.binary_search_by_key(&number, |stranger| stranger.number);
        at.ok().and_then(|at| all.remove(at)).is_some()
    }
}

impl Arrivals {
    /// What this process says of itself.
    fn introduction(&self, plan: &ClusterPlan, session: u64) -> Introduction {
        Introduction {
            process: plan.process,
            run: guard(&self.runs)[&plan.process],
            processes: plan.hosts.len(),
            threads: plan.threads,
            build: plan.build.clone(),
            job: plan.job.clone(),
            session,
        }
    }

    /// Refuses a process that is not the one that was met under its number, or joins once more.
    fn check_run(&self, found: &Introduction) -> Result<(), HandshakeError> {
        check_run(&guard(&self.runs), found)
    }

    /// Notes the run of a process that was met; of two that came this far side by side one is refused.
    fn note_run(&self, found: &Introduction) -> Result<(), HandshakeError> {
        let mut runs = guard(&self.runs);
        check_run(&runs, found)?;
        runs.insert(found.process, found.run);
        Ok(())
    }

    /// Keeps the connection of a process that was met, until it is taken.
    fn add(&self, found: &Introduction, stream: Arc<TcpStream>) -> Result<(), HandshakeError> {
        // Its other owner was the list that it left.
        let stream = Arc::into_inner(stream).ok_or(HandshakeError::GaveWay)?;
        keep_alive(&stream)?;
        self.note_run(found)?;
        guard(&self.streams).insert((found.session, found.process), stream);
        self.changed.notify_all();
        Ok(())
    }
}

fn check_run(runs: &BTreeMap<usize, u64>, found: &Introduction) -> Result<(), HandshakeError> {
    match runs.get(&found.process) {
        None if found.session == JOINING => Ok(()),
        Some(&run) if run == found.run && found.session != JOINING => Ok(()),
        _ => Err(HandshakeError::OtherRun),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::End;
    use crate::Secret;

    /// Two processes of a job that have met.
    fn pair() -> [Arc<Mesh>; 2] {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let hosts = listeners.map(|listener| listener.local_addr().unwrap().to_string());
        let join = |process| {
            let hosts = hosts.to_vec();
            move || {
                let plan = ClusterPlan {
                    hosts,
                    process,
                    bind: None,
                    threads: 1,
                    secret: Secret::new(b"the secret of the job").unwrap(),
                    build: "b".to_owned(),
                    job: "f".to_owned(),
                    start_timeout: Duration::from_secs(20),
                    on_end: Arc::new(|end: End<'_>| panic!("{end:?}")),
                };
                Mesh::join(plan).unwrap()
            }
        };
        let other = thread::spawn(join(1));
        [join(0)(), other.join().unwrap()]
    }

    /// The dialler has met the listener at once, but nothing of it can be read before that comes.
    #[test]
    fn whoever_comes_late_to_a_session_is_waited_for() {
        for late in [0, 1] {
            let meshes = pair();
            let has_come = Arc::new(AtomicBool::new(false));
            let ends = [0, 1].map(|process| {
                let mesh = Arc::clone(&meshes[process]);
                let has_come = Arc::clone(&has_come);
                thread::spawn(move || {
                    if process == late {
                        thread::sleep(HANDSHAKE_MAX + Duration::from_secs(1));
                        has_come.store(true, Ordering::SeqCst);
                    }
                    let mut streams = mesh.connect().unwrap();
                    assert!(has_come.load(Ordering::SeqCst), "{process} did not wait");
                    assert!(streams[process].is_none());
                    streams.swap_remove(1 - process).unwrap()
                })
            });
            let [mut here, mut there] = ends.map(|end| end.join().unwrap());
            here.write_all(b"to").unwrap();
            there.write_all(b"fro").unwrap();
            let (mut to, mut fro) = ([0; 2], [0; 3]);
            there.read_exact(&mut to).unwrap();
            here.read_exact(&mut fro).unwrap();
            assert_eq!((&to, &fro), (b"to", b"fro"), "nothing else is left to read");
        }
    }

    /// A process that was met cannot be taken for another one of its number.
    #[test]
    fn another_run_of_a_process_is_refused() {
        let arrivals = Arrivals::default();
        let found = |run, session| Introduction {
            process: 1,
            run,
            processes: 2,
            threads: 1,
            build: String::new(),
            job: String::new(),
            session,
        };
        arrivals.check_run(&found(5, JOINING)).unwrap();
        arrivals.check_run(&found(5, 1)).unwrap_err();
        arrivals.note_run(&found(5, JOINING)).unwrap();
        for refused in [found(5, JOINING), found(6, JOINING), found(6, 1)] {
            arrivals.check_run(&refused).unwrap_err();
        }
        arrivals.check_run(&found(5, 1)).unwrap();
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let strangers = Strangers::default();
        let add = |number, address: [u8; 4]| {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            listener.accept().unwrap();
            let stream = Arc::new(stream);
            let address = address.into();
            strangers.add(Stranger {
                number,
                address,
                stream,
            });
        };
        add(0, [10, 0, 0, 1]);
        (1..=STRANGERS_MAX as u64).for_each(|number| add(number, [10, 0, 0, 2]));
        assert!(strangers.remove(0), "it is of another address");
        assert!(!strangers.remove(1), "it gave way");
        assert!(strangers.remove(2));
    }
}
