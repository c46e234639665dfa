//! Arguments with which a run starts the program again: for its child processes, or to restart.

use std::ffi::OsString;

use crate::cli::{RunArgs, Stage};
use crate::job::Job;
use crate::source::Edits;

impl RunArgs {
    /// Returns the arguments with which another process works on the same job.
    ///
    /// They lack the stages that start over, the options that choose the processes (but
    /// `--start-timeout`), and the options that set how the run reports.
    pub(crate) fn same(&self, edits: &Edits, job: &Job) -> Vec<OsString> {
        let mut same = vec!["run".into(), self.job.path.clone().into_os_string()];
        let mut add = |name: &str, value: String| same.extend([name.into(), value.into()]);
        // A process that starts after midnight must not take another date.
        add("--date", edits.date.to_rfc3339());
        for (name, value) in &edits.set {
            add("--set", format!("{name}={value}"));
        }
        for stage in &job.selected {
            add("--stage", stage.name().to_owned());
        }
        add("--workers", job.workers.to_string());
        add("--start-timeout", self.processes.start_timeout.to_string());
        same.extend(self.full.then(|| "--full".into()));
        same
    }

    /// Returns the arguments of a child process: those of [`RunArgs::same`], the stages that start
    /// over, and the memory budget, which this process and its children share.
    pub(crate) fn of_child(&self, edits: &Edits, job: &Job) -> Vec<OsString> {
        let mut args = self.same(edits, job);
        let budget = format!("memory_budget={}B", job.memory_budget.as_u64());
        args.extend(["--set".into(), budget.into()]);
        add_fresh(&mut args, &job.fresh);
        args
    }
}

/// Adds the stages that start over to arguments.
pub(crate) fn add_fresh(args: &mut Vec<OsString>, stages: &[Stage]) {
    for stage in stages {
        args.extend(["--fresh-stages".into(), stage.name().into()]);
    }
}
