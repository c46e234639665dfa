//! The processes that run a job together: who they are, how they meet, how one notices that another
//! is gone.
//!
//! Every process listens on its own address and dials those before it in the list. A pair first makes
//! one connection on which they watch each other (`watch`), and then one for each timely dataflow, and
//! those that a caller asks for.
//! Each of them begins with a `handshake`.

mod handshake;
mod mesh;
mod watch;

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use timely::WorkerConfig;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::{Hooks, WorkerGuards};
use timely::worker::Worker;

pub use handshake::Secret;
use mesh::Mesh;
pub use watch::SILENCE_MAX;

/// Time in which a process that has failed says why; it may have to end what it asks of a store first.
pub const REASON_MAX: Duration = Duration::from_secs(60);

/// The workers that run a stage together: threads of this process, and of others.
#[derive(Clone, Debug)]
pub struct Cluster {
    threads: usize,
    /// None where this process is alone.
    mesh: Option<Arc<Mesh>>,
}

/// What to do when another process ended the job, or is lost; it gets a sentence and the exit code, and
/// must end this process.
pub type OnEnd = Arc<dyn Fn(&str, u8) + Send + Sync>;

/// How a process finds the others of its job.
#[derive(Clone)]
pub struct ClusterPlan {
    /// Addresses of all processes, `host:port`.
    pub hosts: Vec<String>,
    /// Which of them this one is.
    pub process: usize,
    /// Address to listen on, in place of its own in the list.
    pub bind: Option<String>,
    /// Workers of each process.
    pub threads: usize,
    /// Known to the processes of the job alone.
    pub secret: Secret,
    /// Checksum of the program, which has to be the same everywhere: what crosses has no format of its
    /// own.
    pub build: String,
    /// Fingerprint of the job, which has to be the same everywhere.
    pub job: String,
    /// Time in which all processes have to be there.
    pub start_timeout: Duration,
    /// Ends this process.
    pub on_end: OnEnd,
}

/// The processes of a job did not find each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A hosts file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A hosts file is not one.
    #[error("{}: {problem}", path.display())]
    Hosts {
        /// The file.
        path: PathBuf,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Some processes did not come.
    #[error("not there within {seconds} s: {missing}")]
    Missing {
        /// Their numbers and addresses, with what was met there.
        missing: String,
        /// How long they were waited for.
        seconds: u64,
    },
    /// What listens at an address of the list is no process of this job.
    #[error("process {process} ({address}) {problem}")]
    Stranger {
        /// Number in the list.
        process: usize,
        /// Its address.
        address: String,
        /// What is wrong.
        problem: String,
    },
    /// A process sees other tables than the first one.
    #[error(
        "process {process} does not see the tables that process 0 sees; all need the same files"
    )]
    Tables {
        /// Number in the list.
        process: usize,
    },
    /// A connection to another process cannot be made.
    #[error("cannot connect the processes of the job")]
    Connect(#[source] io::Error),
}

/// Tells whether a thread is one that keeps the connection to another process, which panics where it
/// is lost.
pub fn is_connection(thread: &std::thread::Thread) -> bool {
    let name = thread.name().unwrap_or_default();
    name.starts_with("timely:send-") || name.starts_with("timely:recv-")
}

/// Reads a list of processes: a `host:port` a line, and comments after `#`.
///
/// # Errors
///
/// A file that cannot be read, a line that is no address, an address that stands twice.
pub fn read_hosts(path: &Path) -> Result<Vec<String>, ClusterError> {
    let text = std::fs::read_to_string(path).map_err(|source| ClusterError::Read {
        path: path.to_owned(),
        source,
    })?;
    let wrong = |problem: String| ClusterError::Hosts {
        path: path.to_owned(),
        problem,
    };
    let mut hosts: Vec<String> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let host = line.split('#').next().unwrap_or_default().trim();
        if host.is_empty() {
            continue;
        }
        let port = host.rsplit_once(':').filter(|(name, _)| !name.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            let problem = format!("line {number} is `{host}`; allowed is host:port");
            return Err(wrong(problem));
        }
        if hosts.iter().any(|earlier| earlier == host) {
            return Err(wrong(format!("line {number}: {host} stands twice")));
        }
        hosts.push(host.to_owned());
    }
    if hosts.is_empty() {
        return Err(wrong(
            "names no process; a host:port a line is needed".to_owned(),
        ));
    }
    Ok(hosts)
}

impl Cluster {
    /// Workers of this process alone.
    pub fn of_threads(threads: usize) -> Self {
        Self {
            threads,
            mesh: None,
        }
    }

    /// Meets the other processes of a job, and watches each from when it was met.
    ///
    /// # Errors
    ///
    /// If the address of this process cannot be listened on, or another one does not come in time, is
    /// of another job or version, or does not know the secret.
    pub fn join(plan: ClusterPlan) -> Result<Self, ClusterError> {
        let threads = plan.threads;
        if plan.hosts.len() == 1 {
            return Ok(Self::of_threads(threads));
        }
        Ok(Self {
            threads,
            mesh: Some(Mesh::join(plan)?),
        })
    }

    /// Returns the number of this process.
    pub fn process(&self) -> usize {
        self.mesh.as_ref().map_or(0, |mesh| mesh.process())
    }

    /// Returns the number of processes.
    pub fn num_processes(&self) -> usize {
        self.mesh.as_ref().map_or(1, |mesh| mesh.num_processes())
    }

    /// Returns the number of workers of all processes.
    pub fn num_workers(&self) -> usize {
        self.threads * self.num_processes()
    }

    /// Returns the number of this process's first worker.
    pub fn first_worker(&self) -> usize {
        self.threads * self.process()
    }

    /// Returns the number of this process's workers.
    pub fn num_threads(&self) -> usize {
        self.threads
    }

    /// Makes one more connection to each other process, in their order; none stands for this one. All
    /// have to come to it, as often and in the same order: it waits for those that are still at
    /// something else.
    ///
    /// # Errors
    ///
    /// If another process cannot be reached, or is none of the job any more.
    pub fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        match &self.mesh {
            Some(mesh) => mesh.connect(),
            None => Ok(vec![None]),
        }
    }

    /// Says what this process is at, for those who miss it or whom it misses.
    pub fn set_phase(&self, phase: &str) {
        if let Some(mesh) = &self.mesh {
            mesh.watch().set_phase(phase);
        }
    }

    /// Ends in good order: waits until all processes have come so far.
    pub fn leave(&self) {
        if let Some(mesh) = &self.mesh {
            mesh.watch().leave();
        }
    }

    /// Tells the other processes that this one failed, which ends them.
    pub fn fail(&self, problem: &str, exit_code: u8) {
        if let Some(mesh) = &self.mesh {
            mesh.watch().fail(problem, exit_code);
        }
    }

    /// Fails as [`Self::fail`], at once: ends this process, too. Does nothing in a process that is alone.
    pub(crate) fn fail_now(&self, error: &dyn std::error::Error, exit_code: u8) {
        if let Some(mesh) = &self.mesh {
            let causes = std::iter::successors(error.source(), |cause| cause.source());
            let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
            mesh.watch().fail_now(&text, exit_code);
        }
    }

    /// Waits so long for the reason why another process failed, which ends this one; returns if none
    /// comes.
    pub fn wait_for_end(&self, longest: Duration) {
        if self.mesh.is_some() {
            std::thread::sleep(longest);
        }
    }

    /// Starts the workers of this process on a dataflow with those of the others.
    pub(crate) fn execute<T: Send + 'static>(
        &self,
        body: impl Fn(&mut Worker) -> T + Send + Sync + 'static,
    ) -> Result<WorkerGuards<T>, ClusterError> {
        let threads = self.threads;
        let no_set_up = "threads of one process need no set-up that can fail";
        let Some(mesh) = &self.mesh else {
            let guards = timely::execute(timely::Config::process(threads), body);
            return Ok(guards.expect(no_set_up));
        };
        let sockets = mesh.connect()?;
        for socket in sockets.iter().flatten() {
            watch::fail_when_dark(socket).map_err(ClusterError::Connect)?;
        }
        let hooks = Hooks::default();
        let local =
            ProcessBuilder::new_typed_vector(threads, hooks.refill.clone(), hooks.spill.clone());
        let (builders, guard) =
            initialize_networking_from_sockets(local, sockets, mesh.process(), threads, hooks)
                .map_err(ClusterError::Connect)?;
        let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
        let config = WorkerConfig::default();
        let guards = timely::execute::execute_from(builders, Box::new(guard), config, body);
        Ok(guards.expect("threads can be started"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_hosts(file.path()).map_err(|error| {
            let said = error.to_string();
            said.split_once(": ").unwrap().1.to_owned()
        })
    }

    #[test]
    fn hosts_stand_a_line_each() {
        let found = hosts("a.example:7000 # the first\n\n# none\n10.0.0.2:7000\n[::1]:7001\n");
        let expected = ["a.example:7000", "10.0.0.2:7000", "[::1]:7001"];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn lines_that_are_no_hosts_are_named() {
        for (text, problem) in [
            ("a:1\nb\n", "line 2 is `b`; allowed is host:port"),
            ("a:0\n", "line 1 is `a:0`; allowed is host:port"),
            (":70\n", "line 1 is `:70`; allowed is host:port"),
            ("a:1\n#\na:1", "line 3: a:1 stands twice"),
            ("# a:1\n", "names no process; a host:port a line is needed"),
        ] {
            assert_eq!(hosts(text).unwrap_err(), problem);
        }
        let missing = read_hosts(Path::new("/nowhere/hosts.txt")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read /nowhere/hosts.txt");
    }
}
