//! The processes that `run --processes N` starts on this machine: all but the first.
//!
//! Each child reads the addresses of all processes and their secret from its standard input. The
//! process that started it keeps that input open. When the input ends, the child ends at once,
//! whether or not the processes have met. The standard output of a child is the socket on which it
//! listens.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ending;
use crate::error::JobError;

/// Longest wait for the children to end when the job is done.
const DONE_MAX: Duration = Duration::from_secs(5);

/// Longest wait for the children to remove their temporary files and end when the job has failed.
const END_MAX: Duration = Duration::from_secs(2);

/// The children; dropping this kills those that still run.
#[derive(Default)]
pub(crate) struct Children {
    running: Mutex<Vec<Running>>,
    /// Whether all processes of the job have met.
    have_met: AtomicBool,
}

struct Running {
    child: Child,
    /// Closing it ends the child.
    input: Option<ChildStdin>,
    /// Returns the error that the child has printed.
    error: Option<JoinHandle<Option<String>>>,
}

/// How a child ended before all processes had met.
pub(crate) struct EarlyEnd {
    /// The reason, in one sentence.
    pub(crate) text: String,
    /// None if a signal ended the child.
    pub(crate) exit_code: Option<u8>,
}

/// The first line that a child reads.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Addresses of all processes.
    pub(crate) hosts: Vec<String>,
    /// Their shared secret.
    pub(crate) secret: String,
}

impl Children {
    /// Starts a process for each host but the first, with the arguments `args`, its number, and the
    /// listener of its address in place of a standard output.
    ///
    /// # Errors
    ///
    /// If the system refuses to start one.
    pub(crate) fn start(
        &self,
        args: &[OsString],
        hello: &Hello,
        listeners: impl Iterator<Item = TcpListener>,
    ) -> Result<(), JobError> {
        let failed = |source| JobError::Process { source };
        let program = std::env::current_exe().map_err(failed)?;
        let line =
            serde_json::to_string(hello).expect("lists of strings and strings always serialize");
        for (process, listener) in (1..hello.hosts.len()).zip(listeners) {
            let mut child = Command::new(&program)
                .args(args)
                .args(["--quiet", "--launched", &process.to_string()])
                .stdin(Stdio::piped())
                .stdout(OwnedFd::from(listener))
                .stderr(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            let (mut input, said) = (child.stdin.take(), child.stderr.take());
            let told = input.as_mut().map(|input| writeln!(input, "{line}"));
            self.guard().push(Running {
                child,
                input,
                error: None,
            });
            told.unwrap_or(Ok(())).map_err(failed)?;
            let said = said.expect("it was piped above");
            let thread = schemas::threads::spawn("errors", move || hand_on(said))?;
            if let Some(running) = self.guard().last_mut() {
                running.error = Some(thread);
            }
        }
        Ok(())
    }

    /// Records that all processes have met.
    pub(crate) fn meet(&self) {
        self.have_met.store(true, Ordering::SeqCst);
    }

    /// Waits until all processes have met, or a child has ended; returns how that child ended.
    pub(crate) fn wait_for_early_end(&self) -> Option<EarlyEnd> {
        while !self.have_met.load(Ordering::SeqCst) {
            for (process, running) in (1..).zip(self.guard().iter_mut()) {
                if let Ok(Some(status)) = running.child.try_wait() {
                    let error = running.error.take().and_then(|thread| thread.join().ok()?);
                    let code = status.code().and_then(|code| u8::try_from(code).ok());
                    return Some(EarlyEnd {
                        text: match error {
                            Some(error) => format!("process {process}: {error}"),
                            None => format!("process {process} ended before all had met: {status}"),
                        },
                        exit_code: code,
                    });
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    }

    /// Ends the children with an exit code.
    pub(crate) fn end(&self, exit_code: u8) {
        for running in self.guard().iter_mut() {
            if let Some(mut input) = running.input.take() {
                // Fails if the child has ended.
                writeln!(input, "{exit_code}").ok();
            }
        }
        self.wait_for(END_MAX);
    }

    /// Waits until all children have ended after the job.
    pub(crate) fn wait(&self) {
        self.wait_for(DONE_MAX);
    }

    /// Waits until all children have ended, and kills those that have not after `longest`.
    fn wait_for(&self, longest: Duration) {
        let deadline = Instant::now() + longest;
        let mut running = self.guard();
        let is_running = |one: &mut Running| matches!(one.child.try_wait(), Ok(None));
        while running.iter_mut().any(is_running) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(running);
        self.kill();
    }

    fn kill(&self) {
        for running in self.guard().iter_mut() {
            // Fails if the child has ended.
            running.child.kill().ok();
            running.child.wait().ok();
        }
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Copies the lines of a child's standard error to this process's, except its error, which is
/// returned: the watch between the processes reports it too.
fn hand_on(said: ChildStderr) -> Option<String> {
    let mut last = None;
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        match line.strip_prefix("error: ") {
            Some(error) => last = Some(error.to_owned()),
            None => drop(writeln!(io::stderr(), "{line}")),
        }
    }
    last
}

/// Reads the first line of a child's standard input, and starts the thread that ends this process
/// when that input ends.
///
/// # Errors
///
/// If the first line is not a [`Hello`], or the system refuses a thread.
pub(crate) fn read_hello() -> Result<Hello, JobError> {
    let failed = |source| JobError::Process { source };
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(failed)?;
    let hello = serde_json::from_str(&line).map_err(|_| JobError::Key {
        key: "--launched".to_owned(),
        problem: "is for processes that `run --processes` starts".to_owned(),
    })?;
    schemas::threads::spawn("launcher", end_with_launcher)?;
    Ok(hello)
}

/// Returns the listener that this child has in place of a standard output, which it does not use.
///
/// # Errors
///
/// If the standard output is no listener.
pub(crate) fn inherited_listener() -> Result<TcpListener, JobError> {
    let failed = |source| JobError::Process { source };
    let output = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
    let listener = TcpListener::from(output);
    listener.local_addr().map_err(failed)?; // fails if it is no socket
    Ok(listener)
}

/// Ends this process when its standard input ends, with the exit code that it reads there or 1.
fn end_with_launcher() {
    let mut line = String::new();
    // A failed read counts as the end of the input.
    io::stdin().lock().read_line(&mut line).ok();
    ending::claim();
    ending::exit(line.trim().parse().unwrap_or(1));
}
