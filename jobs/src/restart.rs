//! Starting a job of `run --processes N --restarts R` again, after it has lost a process.

use std::ffi::OsString;
use std::process::Command;

use crate::cli::RunArgs;
use crate::ending;
use crate::job::Job;
use crate::source::Edits;

/// The same job once more: it goes on after its last committed part, round or checkpoint.
pub(crate) struct Restart {
    args: Vec<OsString>,
    /// How often the job may still be started again after that.
    left: u16,
    /// How often `--restarts` allowed it from now on.
    allowed: u16,
}

impl Restart {
    /// Prepares it; none where the arguments do not allow it, or no longer.
    pub(crate) fn new(args: &RunArgs, edits: &Edits, job: &Job) -> Option<Restart> {
        let of = &args.processes;
        let (allowed, num) = (of.restarts.filter(|allowed| *allowed > 0)?, of.processes?);
        let left = allowed - 1;
        let mut again = args.same(edits, job);
        again.extend(["--processes".into(), num.to_string().into()]);
        again.extend(["--restarts".into(), left.to_string().into()]);
        again.extend(args.json.then(|| "--json".into()));
        again.extend(args.quiet.then(|| "--quiet".into()));
        Some(Restart {
            args: again,
            left,
            allowed,
        })
    }

    /// Runs the job in place of this process; returns only where that is not possible.
    pub(crate) fn run(&self, reason: &str) {
        let Self { left, allowed, .. } = self;
        ending::say(&format!(
            "warning: {reason}; the job is started again ({allowed} of its restarts were left, now \
             {left})"
        ));
        schemas::cleanup::run();
        if let Err(error) = replace(&self.args) {
            ending::say(&format!(
                "warning: the job cannot be started again: {error}"
            ));
        }
    }
}

/// Runs this program with other arguments in place of this process, which keeps its number: whoever
/// waits for it notices nothing.
#[cfg(unix)]
fn replace(args: &[OsString]) -> std::io::Result<()> {
    use std::os::unix::process::CommandExt as _;

    Err(Command::new(std::env::current_exe()?).args(args).exec())
}

/// Runs this program with other arguments and ends as it does.
#[cfg(not(unix))]
fn replace(args: &[OsString]) -> std::io::Result<()> {
    let status = Command::new(std::env::current_exe()?).args(args).status()?;
    std::process::exit(status.code().unwrap_or(1));
}
