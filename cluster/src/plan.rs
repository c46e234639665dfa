//! How a process finds the others of its job.

use crate::Secret;
use std::sync::Arc;
use std::time::Duration;

/// What to do when another process has ended the job; it must end this process.
pub type OnEnd = Arc<dyn Fn(End<'_>) + Send + Sync>;

/// How another process has ended the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End<'a> {
    /// It is gone, silent or cannot be reached.
    Lost {
        /// Which one, and what this process was doing, in a sentence.
        text: &'a str,
    },
    /// It has failed.
    Failed {
        /// Its error.
        text: &'a str,
        /// Its exit code.
        exit_code: u8,
    },
}

/// How a process finds the others of its job.
#[derive(Clone)]
pub struct ClusterPlan {
    /// Addresses of all processes, `host:port`.
    pub hosts: Vec<String>,
    /// Position of this process in `hosts`.
    pub process: usize,
    /// Address to listen on, in place of the one in `hosts`.
    pub bind: Option<String>,
    /// Workers of each process.
    pub threads: usize,
    /// Secret that only the processes of the job know.
    pub secret: Secret,
    /// Checksum of the program, which has to be the same everywhere: messages between processes
    /// have no format that is fixed across builds.
    pub build: String,
    /// Fingerprint of the job, which has to be the same everywhere.
    pub job: String,
    /// Time in which all processes have to be there.
    pub start_timeout: Duration,
    /// Ends this process.
    pub on_end: OnEnd,
}
