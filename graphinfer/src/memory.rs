//! The memory that an inference takes, for predictions.

use crate::model::Trained;
use crate::{InferError, InferPlan};

/// Copies of the rows that are being written: computed rows, columns, encoded pages.
const WRITE_COPIES: f64 = 4.0;

/// Bytes of a number.
const NUMBER_BYTES: f64 = 4.0;

/// The approximate memory of an inference, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct InferMemory {
    /// Pages of files: the rows of the layer that is read and of the one that is computed.
    pub mapped: f64,
    /// The parts that are computed and encoded, one a thread.
    pub parts: f64,
}

impl InferPlan {
    /// Returns the memory of computing and writing the embeddings of `num_nodes` nodes with
    /// `num_workers` threads. `hidden` holds the widths of the hidden layers.
    pub fn memory(&self, num_nodes: usize, num_workers: usize, hidden: &[usize]) -> InferMemory {
        let widest = hidden.iter().copied().max().unwrap_or(0);
        let row = NUMBER_BYTES * widest as f64;
        let kept = self.rows.num_bytes() as f64 * widest as f64;
        let written = num_nodes.min(self.rows_per_part.saturating_mul(num_workers));
        InferMemory {
            mapped: kept * hidden.len().min(2) as f64 * num_nodes as f64,
            parts: row * WRITE_COPIES * written as f64,
        }
    }

    /// Returns the widths of the hidden layers of the finished model.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken.
    pub fn hidden_of_model(&self) -> Result<Vec<usize>, InferError> {
        Ok(Trained::open(self)?.record().shape.hidden.clone())
    }
}
