//! Connects the processes of a job; each connection is proved before it is used.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arrivals::{Arrivals, JOINING};
use crate::session::Session;
use crate::watch::Watch;
use crate::{ClusterError, ClusterPlan};

/// Exit code of the other processes if this one does not meet all.
const JOIN_FAILED: u8 = 1;

/// The connections of this process to the others of its job.
pub(crate) struct Mesh {
    plan: Arc<ClusterPlan>,
    arrivals: Arc<Arrivals>,
    /// Number of the next session; all processes begin the same sessions in the same order.
    sessions: AtomicU64,
    watch: Watch,
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
    pub(crate) fn join(
        plan: ClusterPlan,
        listener: Option<TcpListener>,
    ) -> Result<Arc<Self>, ClusterError> {
        let listener = listener.map_or_else(|| plan.listen(), Ok)?;
        let plan = Arc::new(plan);
        let arrivals = Arrivals::start(&plan, listener)?;
        let watch = Watch::start(plan.hosts.clone(), plan.process, Arc::clone(&plan.on_end))?;
        let met = Session::joining(&plan, &arrivals, JOINING, &watch).connect();
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

    /// Makes one more connection to each process; waits for processes that have not come to this
    /// session yet.
    pub(crate) fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        Session::later(&self.plan, &self.arrivals, number).connect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _, Write as _};
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::handshake::{Introduction, MET, TAKEN, await_word, dial, say};
    use crate::timed::HANDSHAKE_MAX;
    use crate::{End, Secret};

    fn plan(hosts: &[String], process: usize) -> ClusterPlan {
        ClusterPlan {
            hosts: hosts.to_vec(),
            process,
            bind: None,
            threads: 1,
            secret: Secret::new(b"the secret of the job").unwrap(),
            build: "b".to_owned(),
            job: "f".to_owned(),
            start_timeout: Duration::from_secs(20),
            on_end: Arc::new(|end: End<'_>| panic!("{end:?}")),
        }
    }

    fn listeners() -> [TcpListener; 2] {
        [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn addresses(listeners: &[TcpListener; 2]) -> [String; 2] {
        [0, 1].map(|process| listeners[process].local_addr().unwrap().to_string())
    }

    /// Joins two processes to one job.
    fn pair() -> [Arc<Mesh>; 2] {
        let listeners = listeners();
        let hosts = addresses(&listeners);
        let join = |process, listener| {
            let plan = plan(&hosts, process);
            move || Mesh::join(plan, Some(listener)).unwrap()
        };
        let [first, second] = listeners;
        let other = thread::spawn(join(1, second));
        [join(0, first)(), other.join().unwrap()]
    }

    /// The dialler is connected at once, but reads nothing before the listener joins the session.
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

    /// A stream that calls `pause` before its second write, which sends the proof.
    struct Pausing<F: FnMut()> {
        stream: TcpStream,
        num_writes: usize,
        pause: F,
    }

    impl<F: FnMut()> io::Read for Pausing<F> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.stream.read(buffer)
        }
    }

    impl<F: FnMut()> io::Write for Pausing<F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.num_writes += 1;
            if self.num_writes == 2 {
                (self.pause)();
            }
            self.stream.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Connects from an address of the loopback network.
    fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    }

    /// Connects from many addresses, and waits until the listener has accepted all connections.
    fn flood(to: SocketAddr) -> Vec<TcpStream> {
        let mut open = Vec::new();
        for i in 0..10 {
            open.extend((0..50).map(|j| connect_from([127, 1 + j, 1, 1 + i], to)));
            // The listener refuses it after it has accepted all earlier connections.
            let mut last = connect_from([127, 77, 0, 1 + i], to);
            last.write_all(&[0; 64]).unwrap();
            last.read_to_end(&mut Vec::new()).ok();
        }
        open
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_of_the_hosts_file_gets_in_beside_strangers_of_many_networks() {
        let listeners = listeners();
        let hosts = addresses(&listeners);
        let address: SocketAddr = hosts[0].parse().unwrap();
        let listening = plan(&hosts, 0);
        let [listener, _] = listeners;
        let joined = thread::spawn(move || Mesh::join(listening, Some(listener)).unwrap());
        let stream = TcpStream::connect(address).unwrap();
        let mut strangers = Vec::new();
        let mut pausing = Pausing {
            stream,
            num_writes: 0,
            pause: || strangers = flood(address),
        };
        let me = Introduction {
            process: 1,
            run: 5,
            processes: 2,
            threads: 1,
            build: "b".to_owned(),
            job: "f".to_owned(),
            session: JOINING,
        };
        let secret = Secret::new(b"the secret of the job").unwrap();
        let found = dial(&mut pausing, &secret, &me).unwrap();
        assert_eq!(found.process, 0);
        say(&mut pausing, MET).unwrap();
        await_word(&mut pausing, TAKEN).unwrap();
        joined.join().unwrap();
        assert_eq!(strangers.len(), 500);
    }
}
