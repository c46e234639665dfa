//! Arguments with which a run starts the program again: as its children, or as a restart.

use std::ffi::OsString;

use crate::cli::RunArgs;
use crate::job::Job;
use crate::source::Edits;

impl RunArgs {
    /// Returns the arguments of the same job for another process that works on it: all but
    /// `--fresh`, those that choose the processes, and those that set how the run reports.
    pub(crate) fn same(&self, edits: &Edits, job: &Job) -> Vec<OsString> {
        let mut same = vec!["run".into(), self.job.path.clone().into_os_string()];
        let mut add = |name: &str, value: String| same.extend([name.into(), value.into()]);
        // Later processes may start after midnight.
        add("--date", edits.date.to_rfc3339());
        for (name, value) in &edits.set {
            add("--set", format!("{name}={value}"));
        }
        for stage in &job.selected {
            add("--stage", stage.name().to_owned());
        }
        add("--workers", job.workers.to_string());
        add("--start-timeout", self.processes.start_timeout.to_string());
        same
    }

    /// Returns the arguments of the processes that this one starts, which share its memory budget.
    pub(crate) fn of_child(&self, edits: &Edits, job: &Job) -> Vec<OsString> {
        let mut args = self.same(edits, job);
        let budget = format!("memory_budget={}B", job.memory_budget.as_u64());
        args.extend(["--set".into(), budget.into()]);
        args.extend(self.fresh.then(|| "--fresh".into()));
        args
    }
}
