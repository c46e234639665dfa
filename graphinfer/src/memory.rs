//! The memory that an inference takes, for predictions.

use crate::model::Trained;
use crate::{InferError, InferPlan};

/// Copies of the rows that are being written: computed rows, columns, encoded pages.
const WRITE_COPIES: f64 = 4.0;

/// Bytes of a number.
const NUMBER_BYTES: f64 = 4.0;

impl InferPlan {
    /// Returns the approximate memory, in bytes, of computing and writing the embeddings of
    /// `num_nodes` nodes with `num_workers` threads: the rows of the layer that is read and of the
    /// one that is computed, and the parts that are computed and encoded, one a thread. `hidden`
    /// holds the widths of the hidden layers.
    pub fn memory_bytes(&self, num_nodes: usize, num_workers: usize, hidden: &[usize]) -> f64 {
        let widest = hidden.iter().copied().max().unwrap_or(0);
        let row = NUMBER_BYTES * widest as f64;
        let kept = self.rows.num_bytes() as f64 * widest as f64;
        let written = num_nodes.min(self.rows_per_part.saturating_mul(num_workers));
        let mapped = kept * hidden.len().min(2) as f64 * num_nodes as f64;
        mapped + row * WRITE_COPIES * written as f64
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
