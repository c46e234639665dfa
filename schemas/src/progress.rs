//! Progress of a running stage, reported to whoever shows it.

use std::sync::Arc;

/// Something a stage has to say while it runs.
#[derive(Clone, Debug)]
pub struct Event {
    /// `flatten`, `train` or `infer`.
    pub stage: &'static str,
    /// What the stage is at, such as `epoch`.
    pub phase: String,
    /// Units done, such as epochs.
    pub done: u64,
    /// Units there are; 0 where that is not known.
    pub total: u64,
    /// A line for people.
    pub message: Option<String>,
    /// The same for machines.
    pub fields: serde_json::Value,
}

/// Receives the events of a stage, from any of its threads.
pub type Progress = Arc<dyn Fn(&Event) + Send + Sync>;
