//! How a process finds the others of its job.

use crate::Secret;
use std::sync::Arc;
use std::time::Duration;

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
