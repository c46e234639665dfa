//! Progress reports of a running stage.

use std::sync::Arc;

/// One report of a running stage.
#[derive(Clone, Debug)]
pub struct Event {
    /// `flatten`, `train`, `infer` or `score`.
    pub stage: &'static str,
    /// Current phase of the stage, such as `epoch`.
    pub phase: String,
    /// Units done, such as epochs.
    pub done: u64,
    /// Number of all units; 0 where it is not known.
    pub total: u64,
    /// A line for people.
    pub message: Option<String>,
    /// The same for programs.
    pub fields: serde_json::Value,
}

/// Receives the events of a stage, from any of its threads.
pub type Progress = Arc<dyn Fn(&Event) + Send + Sync>;
