//! Accepts the connections of other processes and keeps them until they are used.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::handshake::{HandshakeError, Introduction, MET, await_word, receive};
use crate::strangers::{Stranger, Strangers};
use crate::timed::{Timed, keep_alive};
use crate::{ClusterError, ClusterPlan};
use schemas::threads::spawn;

/// Number of the session in which the processes meet.
pub(crate) const JOINING: u64 = 0;
/// Time between attempts.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Time between attempts to resolve names of the hosts file.
const RESOLVE_PAUSE: Duration = Duration::from_secs(2);
/// Stack of a thread that does a handshake; hundreds of them may exist.
const STACK_BYTES: usize = 256 << 10;
/// Number of refused connections that are each logged; of later ones every 1000th is.
const LOGGED_MAX: u64 = 20;

/// Connections that other processes made and this one has not used yet.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// By session and process.
    streams: Mutex<BTreeMap<(u64, usize), TcpStream>>,
    changed: Condvar,
    refused: AtomicU64,
    /// The run of each process that was met: a process with another run is refused.
    runs: Mutex<BTreeMap<usize, u64>>,
    strangers: Strangers,
}

/// Connections that arrived, locked.
pub(crate) type Arrived<'a> = MutexGuard<'a, BTreeMap<(u64, usize), TcpStream>>;

impl Arrivals {
    /// Starts to listen, until this process ends.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub(crate) fn start(
        plan: &Arc<ClusterPlan>,
        listener: TcpListener,
    ) -> Result<Arc<Self>, ClusterError> {
        let arrivals = Arc::new(Self::default());
        // The number of this process's own run, which no other process may use.
        guard(&arrivals.runs).insert(plan.process, rand::random());
        let numeric = plan
            .hosts
            .iter()
            .filter_map(|host| host.parse::<SocketAddr>().ok());
        numeric.for_each(|address| arrivals.strangers.list(address.ip()));
        let (resolving, its_plan) = (Arc::clone(&arrivals), Arc::clone(plan));
        let resolve = move || resolving.resolve(&its_plan);
        spawn("resolve", resolve).map_err(ClusterError::Thread)?;
        let (listening, this_plan) = (Arc::clone(&arrivals), Arc::clone(plan));
        let listen = move || listening.listen(&listener, &this_plan);
        spawn("listen", listen).map_err(ClusterError::Thread)?;
        Ok(arrivals)
    }

    /// Returns the introduction of this process.
    pub(crate) fn introduction(&self, plan: &ClusterPlan, session: u64) -> Introduction {
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

    /// Refuses a process whose number belongs to another run, or that joins a second time.
    pub(crate) fn check_run(&self, found: &Introduction) -> Result<(), HandshakeError> {
        check_run(&guard(&self.runs), found)
    }

    /// Records the run of a process that was met. If two arrive with one number at the same time,
    /// one is refused.
    pub(crate) fn note_run(&self, found: &Introduction) -> Result<(), HandshakeError> {
        let mut runs = guard(&self.runs);
        check_run(&runs, found)?;
        runs.insert(found.process, found.run);
        Ok(())
    }

    /// Locks the connections that arrived.
    pub(crate) fn arrived(&self) -> Arrived<'_> {
        guard(&self.streams)
    }

    /// Waits until another connection arrives or [`Self::wake`] is called.
    pub(crate) fn wait<'a>(&self, arrived: Arrived<'a>, longest: Duration) -> Arrived<'a> {
        let waited = self.changed.wait_timeout(arrived, longest);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes up all threads that wait for a connection.
    pub(crate) fn wake(&self) {
        // A thread that has checked its condition under the lock is waiting now.
        drop(self.arrived());
        self.changed.notify_all();
    }

    /// Returns the number of connections that were refused.
    pub(crate) fn num_refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Resolves the names of the hosts file until all processes that dial this one were met. Names
    /// of machines that still start may be unknown for a while.
    fn resolve(&self, plan: &ClusterPlan) {
        let behind = plan.process + 1..plan.hosts.len();
        while behind
            .clone()
            .any(|process| !guard(&self.runs).contains_key(&process))
        {
            for host in &plan.hosts[behind.clone()] {
                let addresses = host.to_socket_addrs().into_iter().flatten();
                addresses.for_each(|address| self.strangers.list(address.ip()));
            }
            thread::sleep(RESOLVE_PAUSE);
        }
    }

    fn listen(self: &Arc<Self>, listener: &TcpListener, plan: &Arc<ClusterPlan>) {
        for number in 0.. {
            let Ok((stream, address)) = listener.accept() else {
                // For example too many open files, which may pass.
                thread::sleep(PAUSE);
                continue;
            };
            let stream = Arc::new(stream);
            self.strangers.add(Stranger {
                number,
                address: address.ip(),
                stream: Arc::clone(&stream),
            });
            let (arrivals, plan) = (Arc::clone(self), Arc::clone(plan));
            let work = move || arrivals.meet(stream, address, number, &plan);
            let meeting = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
            if meeting.is_err() {
                // The connection is dropped; its process dials again.
                self.strangers.remove(number);
            }
        }
    }

    /// Lets a process in if it proves that it belongs to the job.
    fn meet(&self, stream: Arc<TcpStream>, address: SocketAddr, number: u64, plan: &ClusterPlan) {
        let met = self.prove(&stream, number, plan);
        self.strangers.remove(number);
        let added = met.and_then(|found| {
            self.strangers.list(address.ip());
            self.add(&found, stream)
        });
        let Err(error) = added else { return };
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused <= LOGGED_MAX || refused.is_multiple_of(1000) {
            tracing::warn!("refused connection {refused}, from {address}: it {error}");
        }
    }

    fn prove(
        &self,
        stream: &TcpStream,
        number: u64,
        plan: &ClusterPlan,
    ) -> Result<Introduction, HandshakeError> {
        let mut timed = Timed::new(stream);
        let dialler = receive(&mut timed, &plan.secret)?;
        // The process knows the secret: its connection is no longer closed in a flood.
        if !self.strangers.remove(number) {
            return Err(HandshakeError::GaveWay);
        }
        self.check_run(dialler.introduction())?;
        let me = self.introduction(plan, dialler.introduction().session);
        let found = dialler.answer(&mut timed, &plan.secret, &me)?;
        if let Some(problem) = mismatch(plan, &found, found.process) {
            return Err(HandshakeError::Mismatch(problem));
        }
        if !(plan.process + 1..plan.hosts.len()).contains(&found.process) {
            let problem = format!(
                "calls itself process {}, which does not dial",
                found.process
            );
            return Err(HandshakeError::Mismatch(problem));
        }
        await_word(&mut timed, MET)?;
        Ok(found)
    }

    /// Keeps the connection of a process that was met until it is used.
    fn add(&self, found: &Introduction, stream: Arc<TcpStream>) -> Result<(), HandshakeError> {
        // The list of strangers, its other owner, no longer holds it.
        let stream = Arc::into_inner(stream).ok_or(HandshakeError::GaveWay)?;
        keep_alive(&stream)?;
        self.note_run(found)?;
        self.arrived()
            .insert((found.session, found.process), stream);
        self.changed.notify_all();
        Ok(())
    }
}

/// Returns why a process that knows the secret does not belong to this run; none if it does.
pub(crate) fn mismatch(plan: &ClusterPlan, found: &Introduction, process: usize) -> Option<String> {
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

fn check_run(runs: &BTreeMap<usize, u64>, found: &Introduction) -> Result<(), HandshakeError> {
    match runs.get(&found.process) {
        None if found.session == JOINING => Ok(()),
        Some(&run) if run == found.run && found.session != JOINING => Ok(()),
        _ => Err(HandshakeError::OtherRun),
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process may join once under its number; later sessions need the run number of that
    /// process.
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
}
