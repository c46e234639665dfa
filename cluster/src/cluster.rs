//! The workers of a job: threads of this process and of others.

use crate::mesh::Mesh;
use crate::watch;
use crate::{ClusterError, ClusterPlan};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use timely::WorkerConfig;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::{Hooks, WorkerGuards};
use timely::worker::Worker;

/// Time within which a failed process tells the others the reason; it may have to finish requests
/// to remote storage first.
pub const REASON_MAX: Duration = Duration::from_secs(60);

/// The workers that run a stage together: threads of this process, and of others.
#[derive(Clone, Debug)]
pub struct Cluster {
    threads: usize,
    /// None if this process is alone.
    mesh: Option<Arc<Mesh>>,
}

/// Tells whether a thread serves a connection to another process. These are threads of timely, and
/// panic when the connection is lost.
pub fn is_connection(thread: &std::thread::Thread) -> bool {
    let name = thread.name().unwrap_or_default();
    name.starts_with("timely:send-") || name.starts_with("timely:recv-")
}

impl Cluster {
    /// Makes a cluster of threads of this process alone.
    pub fn of_threads(threads: usize) -> Self {
        Self {
            threads,
            mesh: None,
        }
    }

    /// Connects to the other processes of a job, and watches each of them from then on. Without a
    /// `listener`, this process listens on its address in the plan.
    ///
    /// # Errors
    ///
    /// If this process cannot listen on its address, or another process does not come in time, runs
    /// another job or version, or does not know the secret.
    pub fn join(plan: ClusterPlan, listener: Option<TcpListener>) -> Result<Self, ClusterError> {
        let threads = plan.threads;
        if plan.hosts.len() == 1 {
            return Ok(Self::of_threads(threads));
        }
        Ok(Self {
            threads,
            mesh: Some(Mesh::join(plan, listener)?),
        })
    }

    /// Returns the number of this process.
    pub fn process(&self) -> usize {
        self.mesh.as_ref().map_or(0, |mesh| mesh.process())
    }

    /// Tells whether this process is the leader, which owns the outputs; the others are followers.
    pub fn leads(&self) -> bool {
        self.process() == 0
    }

    /// Returns the number of processes.
    pub fn num_processes(&self) -> usize {
        self.mesh.as_ref().map_or(1, |mesh| mesh.num_processes())
    }

    /// Returns the number of workers of all processes.
    pub fn num_workers(&self) -> usize {
        self.threads * self.num_processes()
    }

    /// Returns the number of the first worker of this process.
    pub fn first_worker(&self) -> usize {
        self.threads * self.process()
    }

    /// Returns how many workers this process has.
    pub fn num_threads(&self) -> usize {
        self.threads
    }

    /// Makes one more connection to each other process. The connections are in the order of the
    /// processes; the entry of this process is none.
    ///
    /// All processes must make the same calls in the same order: each call waits for the others.
    ///
    /// # Errors
    ///
    /// If another process cannot be reached or no longer belongs to the job.
    pub fn connect(&self) -> Result<Vec<Option<TcpStream>>, ClusterError> {
        match &self.mesh {
            Some(mesh) => mesh.connect(),
            None => Ok(vec![None]),
        }
    }

    /// Sets the phase that messages about a lost process name.
    pub fn set_phase(&self, phase: &str) {
        if let Some(mesh) = &self.mesh {
            mesh.watch().set_phase(phase);
        }
    }

    /// Waits until all processes are done, and all know that all are.
    pub fn leave(&self) {
        if let Some(mesh) = &self.mesh {
            mesh.watch().leave();
        }
    }

    /// Tells the other processes that this one failed; they end.
    pub fn fail(&self, problem: &str, exit_code: u8) {
        if let Some(mesh) = &self.mesh {
            mesh.watch().fail(problem, exit_code);
        }
    }

    /// Does the same as [`Self::fail`] and ends this process at once. Does nothing in a process
    /// that is alone.
    pub fn fail_now(&self, error: &dyn std::error::Error, exit_code: u8) {
        if let Some(mesh) = &self.mesh {
            mesh.watch()
                .fail_now(&schemas::error_chain(error), exit_code);
        }
    }

    /// Waits until another process sends the reason of its failure, which ends this process;
    /// returns after `longest` if none comes.
    pub fn wait_for_end(&self, longest: Duration) {
        if self.mesh.is_some() {
            std::thread::sleep(longest);
        }
    }

    /// Runs a dataflow on the workers of all processes; returns the handles of the workers of this
    /// process.
    ///
    /// # Errors
    ///
    /// If a process cannot be connected, or the system refuses the threads.
    pub(crate) fn execute<T: Send + 'static>(
        &self,
        body: impl Fn(&mut Worker) -> T + Send + Sync + 'static,
    ) -> Result<WorkerGuards<T>, ClusterError> {
        let threads = self.threads;
        // Timely waits for ever if only some of its threads start; it has two for each connection.
        let num_threads = threads + 2 * (self.num_processes() - 1);
        schemas::threads::check(num_threads).map_err(ClusterError::Thread)?;
        let refused = |error: String| ClusterError::Thread(schemas::threads::refused(error));
        let Some(mesh) = &self.mesh else {
            let guards = timely::execute(timely::Config::process(threads), body);
            return guards.map_err(refused);
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
        guards.map_err(refused)
    }
}
