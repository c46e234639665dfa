//! Runs one program to its end and measures it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use wait4::Wait4 as _;

/// Lines of a failed program that its error repeats.
const LAST_LINES: usize = 3;

/// Longest error of a failed program, in characters.
const ERROR_CHARS_MAX: usize = 400;

/// A program to start, in an existing directory that it may write to.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, &'static str)>,
    pub(crate) dir: PathBuf,
    /// Only the first core is used.
    pub(crate) one_core: bool,
}

/// A line of the standard output, and when it came, in seconds since the start.
pub(crate) struct Line {
    pub(crate) at: f64,
    pub(crate) text: String,
}

/// A program that has ended.
pub(crate) struct Ended {
    pub(crate) seconds: f64,
    /// User and system time, with all descendants that were waited for.
    pub(crate) cpu_seconds: f64,
    /// Largest resident memory of the process, or of a descendant if that is more.
    pub(crate) peak_bytes: u64,
    pub(crate) lines: Vec<Line>,
    /// How the program failed, with its last output.
    pub(crate) failure: Option<String>,
}

impl Launch {
    /// Runs the program; kills it when it takes longer than `limit`.
    ///
    /// # Errors
    ///
    /// If it cannot be started or waited for. A program that fails is no error here.
    pub(crate) fn run(&self, limit: Duration) -> anyhow::Result<Ended> {
        let said = self.dir.join("stderr.txt");
        let started = Instant::now();
        let errors = File::create(&said).with_context(|| said.display().to_string())?;
        let mut child = self
            .spawn(errors)
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let stdout = child.stdout.take().context("standard output is a pipe")?;
        let (send, receive) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut lines = Vec::new();
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                let at = started.elapsed().as_secs_f64();
                let text = String::from_utf8_lossy(&line).into_owned();
                lines.push(Line { at, text });
            }
            // The other side is gone if the limit has passed.
            send.send(()).ok();
            lines
        });
        // The pipe closes when the program ends.
        let is_late = receive.recv_timeout(limit).is_err();
        if is_late {
            child.kill()?;
        }
        let used = child.wait4().context("cannot wait for the program")?;
        let seconds = started.elapsed().as_secs_f64();
        let lines = reader
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        let failure = if is_late {
            Some(format!("was killed after {} s", limit.as_secs()))
        } else if used.status.success() {
            None
        } else {
            let text = fs::read(&said)?;
            let last = last_output(&String::from_utf8_lossy(&text), &lines);
            Some(format!("{}: {last}", used.status))
        };
        Ok(Ended {
            seconds,
            cpu_seconds: (used.rusage.utime + used.rusage.stime).as_secs_f64(),
            peak_bytes: used.rusage.maxrss,
            lines,
            failure,
        })
    }

    fn spawn(&self, errors: File) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().copied())
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        if !self.one_core {
            return command.spawn();
        }
        // A child has the cores of the thread that starts it, so this takes a thread of its own.
        thread::scope(|scope| {
            let pinned = scope.spawn(|| {
                let cores = core_affinity::get_core_ids().unwrap_or_default();
                let first = cores.into_iter().min_by_key(|core| core.id);
                match first.is_some_and(core_affinity::set_for_current) {
                    true => command.spawn(),
                    false => Err(std::io::Error::other(
                        "this system pins no program to a core",
                    )),
                }
            });
            pinned
                .join()
                .unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
        })
    }
}

/// Returns the last lines of the standard error, or of the standard output if that is empty.
fn last_output(errors: &str, lines: &[Line]) -> String {
    let said: Vec<&str> = match errors.trim() {
        "" => lines.iter().map(|line| line.text.as_str()).collect(),
        text => text.lines().collect(),
    };
    let last = said[said.len().saturating_sub(LAST_LINES)..].join(" | ");
    let skipped = last.chars().count().saturating_sub(ERROR_CHARS_MAX);
    last.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, one_core: bool) -> Ended {
        let dir = tempfile::tempdir().unwrap();
        let launch = Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("SAID", "hello")],
            dir: dir.path().to_owned(),
            one_core,
        };
        launch.run(Duration::from_secs(1)).unwrap()
    }

    #[test]
    fn a_program_is_measured() {
        let ended = shell(
            "echo $SAID; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done",
            false,
        );
        assert_eq!(ended.failure, None);
        let texts: Vec<&str> = ended.lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["hello"]);
        assert!(ended.cpu_seconds > 0.0 && ended.cpu_seconds <= ended.seconds * 1.5);
        assert!(ended.lines[0].at <= ended.seconds);
        assert!(ended.peak_bytes > 500_000);
    }

    #[test]
    fn a_failure_has_the_last_output() {
        let ended = shell(
            "echo out; for i in 1 2 3 4; do echo line $i >&2; done; exit 3",
            false,
        );
        let expected = "exit status: 3: line 2 | line 3 | line 4";
        assert_eq!(ended.failure.as_deref(), Some(expected));
        let silent = shell("echo only out; exit 1", false);
        assert_eq!(silent.failure.as_deref(), Some("exit status: 1: only out"));
    }

    #[test]
    fn a_late_program_is_killed() {
        let ended = shell("exec sleep 30", false);
        assert_eq!(ended.failure.as_deref(), Some("was killed after 1 s"));
        assert!(ended.seconds < 10.0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_core_is_one_core() {
        let count = |one_core| {
            shell("nproc", one_core).lines[0]
                .text
                .parse::<usize>()
                .unwrap()
        };
        assert_eq!(count(true), 1);
        let all = thread::available_parallelism().unwrap().get();
        assert_eq!(count(false), all);
    }
}
