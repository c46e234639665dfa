//! Values of `[train]` that are one of a few words.

use gnn::Task;
use serde::{Deserialize, Serialize};

/// How the workers' updates are ordered, as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateMode {
    /// All workers take each step together.
    #[default]
    Sync,
    /// No worker waits for another within an epoch.
    Async,
    /// A worker waits while it is more than `staleness` steps ahead.
    Bounded,
}

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Softmax cross-entropy of classes.
    CrossEntropy,
    /// Sigmoid cross-entropy of each label.
    BinaryCrossEntropy,
    /// Mean of the squared error.
    MeanSquaredError,
}

/// Where the model is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// A GPU in hardware if there is one and the program was built for it, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU, in programs that were built with the feature `gpu`.
    Gpu,
}

impl Loss {
    /// Returns the loss of a task.
    pub fn of_task(task: Task) -> Self {
        match task {
            Task::Classes => Self::CrossEntropy,
            Task::MultiLabel => Self::BinaryCrossEntropy,
            Task::Regression => Self::MeanSquaredError,
        }
    }

    /// Returns the loss as written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::BinaryCrossEntropy => "binary_cross_entropy",
            Self::MeanSquaredError => "mean_squared_error",
        }
    }
}
