//! How a process finds the others of its job.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::{ClusterError, Secret};

/// Called when another process has ended the job; it must end this process.
pub type OnEnd = Arc<dyn Fn(End<'_>) + Send + Sync>;

/// How another process has ended the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End<'a> {
    /// The process is gone, silent or cannot be reached.
    Lost {
        /// A sentence that names the process, and the phase of this process.
        text: &'a str,
    },
    /// The process has failed.
    Failed {
        /// The error of that process.
        text: &'a str,
        /// The exit code of that process.
        exit_code: u8,
    },
}

/// The processes of a job, and how they prove that they belong to it.
#[derive(Clone)]
pub struct ClusterPlan {
    /// Addresses of all processes, `host:port`.
    pub hosts: Vec<String>,
    /// Position of this process in `hosts`.
    pub process: usize,
    /// Address to listen on, in place of the one in `hosts`.
    pub bind: Option<String>,
    /// Number of workers of each process.
    pub threads: usize,
    /// Secret that only the processes of the job know.
    pub secret: Secret,
    /// Checksum of the program. It must be the same in all processes, because the format of their
    /// messages may differ between builds.
    pub build: String,
    /// Fingerprint of the job, which must be the same in all processes.
    pub job: String,
    /// Time within which all processes must have met.
    pub start_timeout: Duration,
    /// Ends this process when another one has ended the job.
    pub on_end: OnEnd,
}

impl ClusterPlan {
    /// Listens on the address of this process.
    pub(crate) fn listen(&self) -> Result<TcpListener, ClusterError> {
        let address = self.bind.as_ref().unwrap_or(&self.hosts[self.process]);
        TcpListener::bind(address).map_err(|source| ClusterError::Listen {
            address: address.clone(),
            source,
        })
    }
}
