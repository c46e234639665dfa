//! The unit of regression labels, which training standardises.

use serde::{Deserialize, Serialize};

use crate::{Dense, GnnError, Task};

/// Mean and deviation of each output's labels over the train targets.
///
/// A regression model computes `(label - mean) / deviation`: labels of 1e7, or of 1e-7, train as
/// well as labels around 1. Losses and outputs are in the unit of the labels.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LabelScale {
    /// `[out_dim]`.
    pub mean: Vec<f32>,
    /// `[out_dim]`, above 0; 1 where all labels are equal.
    pub deviation: Vec<f32>,
}

impl LabelScale {
    /// Checks that the scale fits a model.
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] describes the contradiction.
    pub(crate) fn check(&self, task: Task, out_dim: usize) -> Result<(), GnnError> {
        let lens = [self.mean.len(), self.deviation.len()];
        let is_scale = |deviation: &f32| deviation.is_finite() && *deviation > 0.0;
        let problem = if task != Task::Regression {
            format!("labels are scaled, but the task is {task:?}")
        } else if lens != [out_dim; 2] {
            format!("scales of {lens:?} labels, but the model has {out_dim}")
        } else if !self.deviation.iter().all(is_scale) {
            format!(
                "deviations {:?} of labels are not all above 0",
                self.deviation
            )
        } else if !self.mean.iter().all(|mean| mean.is_finite()) {
            format!("means {:?} of labels are not all finite", self.mean)
        } else {
            return Ok(());
        };
        Err(GnnError::Transform { problem })
    }

    /// Turns outputs of a model into numbers in the unit of the labels.
    #[expect(clippy::cast_possible_truncation, reason = "outputs are f32")]
    pub(crate) fn undo(&self, outputs: &mut Dense) {
        for row in outputs.values.chunks_exact_mut(self.mean.len()) {
            for ((x, &mean), &deviation) in row.iter_mut().zip(&self.mean).zip(&self.deviation) {
                *x = (f64::from(*x) * f64::from(deviation) + f64::from(mean)) as f32;
            }
        }
    }
}
