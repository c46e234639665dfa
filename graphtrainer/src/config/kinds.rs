//! Keys of `[train]` with a few named values.

use gnn::{PairLossKind, Task};
use serde::{Deserialize, Serialize};

/// The order of the workers' updates, as written.
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

/// The loss that training minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Softmax cross-entropy of classes.
    CrossEntropy,
    /// Sigmoid cross-entropy of each label.
    BinaryCrossEntropy,
    /// Mean of the squared error.
    MeanSquaredError,
    /// Links: cross-entropy of a pair among itself and its negatives.
    Softmax,
    /// Links: Bayesian personalised ranking.
    Bpr,
    /// Links: how much a negative's score lacks to be `margin` below the pair's.
    Margin,
}

/// The device that computes the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// A hardware GPU if there is one and the program was built for it, else the processor.
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
            Task::Links(_) => Self::Softmax,
        }
    }

    /// Returns the losses of pairs.
    pub(crate) fn of_pairs() -> [Self; 4] {
        [
            Self::Softmax,
            Self::BinaryCrossEntropy,
            Self::Bpr,
            Self::Margin,
        ]
    }

    /// Returns the loss of pairs of the same name; none if it is none of pairs.
    pub(crate) fn pair_kind(self) -> Option<PairLossKind> {
        match self {
            Self::Softmax => Some(PairLossKind::Softmax),
            Self::BinaryCrossEntropy => Some(PairLossKind::BinaryCrossEntropy),
            Self::Bpr => Some(PairLossKind::Bpr),
            Self::Margin => Some(PairLossKind::Margin),
            Self::CrossEntropy | Self::MeanSquaredError => None,
        }
    }

    /// Returns the name as written in a job file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::BinaryCrossEntropy => "binary_cross_entropy",
            Self::MeanSquaredError => "mean_squared_error",
            Self::Softmax => "softmax",
            Self::Bpr => "bpr",
            Self::Margin => "margin",
        }
    }
}
