//! Starts a job of `run --processes N --restarts R` again after it has lost a process.

use std::ffi::OsString;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use schemas::dataset::is_begun;

use crate::arguments::add_fresh;
use crate::cli::{RunArgs, Stage};
use crate::console::Console;
use crate::error::JobError;
use crate::job::Job;
use crate::source::Edits;

/// A second start of the same job; it continues after its last committed part, round or checkpoint.
pub(crate) struct Restart {
    args: Vec<OsString>,
    /// Number of restarts that are left after this one.
    left: u16,
    /// Number of restarts that were left before this one.
    allowed: u16,
    /// The stages of the job that have not finished yet, in order.
    unfinished: Mutex<Vec<Unfinished>>,
}

/// A stage that this run has not finished.
struct Unfinished {
    stage: Stage,
    /// Whether the stage keeps nothing of an earlier job.
    is_renewed: bool,
    /// Whether an earlier job has left a half-finished output of the stage.
    was_begun: bool,
}

impl Restart {
    /// Prepares a restart; none if the arguments do not allow one, or no restarts are left.
    ///
    /// # Errors
    ///
    /// If an output that would be replaced cannot be read.
    pub(crate) fn new(
        args: &RunArgs,
        edits: &Edits,
        job: &Job,
    ) -> Result<Option<Restart>, JobError> {
        let of = &args.processes;
        let allowed = of.restarts.filter(|allowed| *allowed > 0);
        let (Some(allowed), Some(num)) = (allowed, of.processes) else {
            return Ok(None);
        };
        let left = allowed - 1;
        let mut again = args.same(edits, job);
        again.extend(["--processes".into(), num.to_string().into()]);
        again.extend(["--restarts".into(), left.to_string().into()]);
        again.extend(args.json.then(|| "--json".into()));
        again.extend(args.quiet.then(|| "--quiet".into()));
        let mut unfinished = Vec::new();
        for &stage in &job.selected {
            let output = job.output(stage).expect("a selected stage has a plan");
            let is_fresh = job.is_fresh(stage);
            unfinished.push(Unfinished {
                stage,
                is_renewed: is_fresh || args.begun_stage == Some(stage),
                was_begun: is_fresh && is_begun(output)?,
            });
        }
        Ok(Some(Restart {
            args: again,
            left,
            allowed,
            unfinished: Mutex::new(unfinished),
        }))
    }

    /// Records that a stage has finished.
    pub(crate) fn note_done(&self, stage: Stage) {
        let mut unfinished = self
            .unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unfinished.retain(|of| of.stage != stage);
    }

    /// Runs the job in place of this process; returns only if that fails.
    pub(crate) fn run(&self, reason: &str, console: &Console) {
        let Self { left, allowed, .. } = self;
        console.caution(&format!(
            "{reason}; the job is started again (restarts left: {allowed} before, {left} now)"
        ));
        schemas::cleanup::run();
        let mut args = self.args.clone();
        self.add_renewed(&mut args);
        if let Err(error) = replace(&args) {
            console.caution(&format!("the job cannot be started again: {error}"));
        }
    }

    /// Adds the stages that keep nothing of an earlier job to arguments.
    ///
    /// The first unfinished stage was running, and its thread may remove what it has begun until
    /// this process is replaced. So the restart looks whether it can continue it.
    fn add_renewed(&self, args: &mut Vec<OsString>) {
        let unfinished = self
            .unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let running = unfinished.first();
        let running = running.filter(|of| of.is_renewed && !of.was_begun);
        if let Some(of) = running {
            args.extend(["--begun-stage".into(), of.stage.name().into()]);
        }
        let others = unfinished.iter().skip(usize::from(running.is_some()));
        let others = others.filter(|of| of.is_renewed).map(|of| of.stage);
        add_fresh(args, &others.collect::<Vec<_>>());
    }
}

/// Runs this program with other arguments in place of this process, which keeps its number, so that
/// a process that waits for it keeps waiting.
#[cfg(unix)]
fn replace(args: &[OsString]) -> std::io::Result<()> {
    use std::os::unix::process::CommandExt as _;

    Err(Command::new(std::env::current_exe()?).args(args).exec())
}

/// Runs this program with other arguments and ends with its exit code.
#[cfg(not(unix))]
fn replace(args: &[OsString]) -> std::io::Result<()> {
    let status = Command::new(std::env::current_exe()?).args(args).status()?;
    std::process::exit(status.code().unwrap_or(1));
}
