//! The processes of this machine that `run --processes N` starts: all but the first.
//!
//! Each is told on its standard input where all of them listen, and with which secret. That input stays
//! open for as long as the process that started it lives: when it ends, so does the child, at once and
//! at any moment, whether or not the processes have met.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ending;
use crate::error::JobError;

/// Time in which the children end, once the job is done.
const DONE_MAX: Duration = Duration::from_secs(5);

/// Time in which they end where it is not, and remove their temporary files.
const END_MAX: Duration = Duration::from_secs(2);

/// The children; they are killed where this process ends before them.
#[derive(Default)]
pub(crate) struct Children {
    running: Mutex<Vec<Running>>,
    /// Whether all processes of the job have met.
    have_met: AtomicBool,
}

struct Running {
    child: Child,
    /// Its end ends the child.
    input: Option<ChildStdin>,
    /// Returns the error that the child has written.
    error: Option<JoinHandle<Option<String>>>,
}

/// How a child ended before all processes had met.
pub(crate) struct EarlyEnd {
    /// Why, in a sentence.
    pub(crate) text: String,
    /// None where a signal ended it.
    pub(crate) exit_code: Option<u8>,
}

/// The first line that a child reads.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Addresses of all processes.
    pub(crate) hosts: Vec<String>,
    /// The secret by which they know each other.
    pub(crate) secret: String,
}

impl Children {
    /// Starts all processes of the hosts but the first, each with these arguments and its number.
    ///
    /// # Errors
    ///
    /// If the system refuses to start one.
    pub(crate) fn start(&self, args: &[OsString], hello: &Hello) -> Result<(), JobError> {
        let failed = |source| JobError::Process { source };
        let program = std::env::current_exe().map_err(failed)?;
        let line = serde_json::to_string(hello).expect("a hello is two keys");
        for process in 1..hello.hosts.len() {
            let mut child = Command::new(&program)
                .args(args)
                .args(["--quiet", "--launched", &process.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
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
            let said = said.expect("it was asked for");
            let thread = std::thread::Builder::new().spawn(move || hand_on(said));
            if let Some(running) = self.guard().last_mut() {
                running.error = Some(thread.map_err(failed)?);
            }
        }
        Ok(())
    }

    /// Notes that all processes have met.
    pub(crate) fn meet(&self) {
        self.have_met.store(true, Ordering::SeqCst);
    }

    /// Waits until all processes have met; returns how a child ended that did so before.
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

    /// Ends the children with this exit code.
    pub(crate) fn end(&self, exit_code: u8) {
        for running in self.guard().iter_mut() {
            if let Some(mut input) = running.input.take() {
                // One that has ended reads no more.
                writeln!(input, "{exit_code}").ok();
            }
        }
        self.wait_for(END_MAX);
    }

    /// Waits for all to end with the job.
    pub(crate) fn wait(&self) {
        self.wait_for(DONE_MAX);
    }

    /// Waits for all to end, and kills those that do not.
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
            // Fails for one that has ended.
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

/// Hands on the lines of a child's standard error but its error, which it returns: that comes by the
/// watch between the processes, too.
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

/// Reads what a child is told, and ends it with the process that started it.
///
/// # Errors
///
/// If the standard input is not that of a child, or the system has no thread to give.
pub(crate) fn read_hello() -> Result<Hello, JobError> {
    let failed = |source| JobError::Process { source };
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(failed)?;
    let hello = serde_json::from_str(&line).map_err(|_| JobError::Key {
        key: "--launched".to_owned(),
        problem: "is for processes that `run --processes` starts".to_owned(),
    })?;
    let thread = std::thread::Builder::new().name("launcher".to_owned());
    thread.spawn(end_with_launcher).map_err(failed)?;
    Ok(hello)
}

/// Ends this process when its standard input does, or with the exit code that it reads there.
fn end_with_launcher() {
    let mut line = String::new();
    // A read that fails is an end, too.
    io::stdin().lock().read_line(&mut line).ok();
    ending::claim();
    ending::exit(line.trim().parse().unwrap_or(1));
}
