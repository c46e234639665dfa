//! Feature transforms: fitted on train nodes, stored with the model, applied to its raw features.

use serde::{Deserialize, Serialize};

use crate::{Encoder, GnnError, Input, LabelScale, RawColumn};

/// A transform of raw features before layer 1 reads them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// Nothing.
    #[default]
    None,
    /// Divides each row by the larger of its sum and 1, so a row whose sum is below 1 stays as it
    /// is. `PyG`'s `NormalizeFeatures` also shifts all features so that the smallest of the graph
    /// is 0; in a bag of words it already is.
    RowNormalize,
    /// `(x - mean) * scale`, per feature; for dense features only.
    Standardize {
        /// Mean of each feature over the train nodes.
        mean: Vec<f32>,
        /// 1 / standard deviation of each feature; 1 for a constant feature.
        scale: Vec<f32>,
    },
    /// Encodes columns with gaps, categories or times; for dense features only.
    Encode(Encoder),
}

impl Transform {
    /// Returns the width of what the transform makes of rows of `raw_width` features.
    #[must_use]
    pub fn width(&self, raw_width: usize) -> usize {
        match self {
            Transform::Encode(encoder) => encoder.width(),
            Transform::None | Transform::RowNormalize | Transform::Standardize { .. } => raw_width,
        }
    }

    /// Tells whether transformed rows are sparse even if raw rows are dense.
    #[must_use]
    pub fn makes_sparse(&self) -> bool {
        matches!(self, Transform::Encode(encoder) if encoder.sparse)
    }

    /// Prepares the transform for the rows of a table. An empty list means that all columns are
    /// numbers without gaps.
    ///
    /// # Errors
    ///
    /// As [`Encoder::bind`]. Every transform but [`Transform::Encode`] needs columns of numbers
    /// without gaps.
    pub fn bind(&self, table: &[RawColumn]) -> Result<Transform, GnnError> {
        if let Transform::Encode(encoder) = self {
            return Ok(Transform::Encode(encoder.bind(table)?));
        }
        match table.iter().find_map(RawColumn::unlike_plain) {
            None => Ok(self.clone()),
            Some(problem) => Err(GnnError::Transform { problem }),
        }
    }

    /// Transforms `input` in place; sparse rows stay sparse.
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] if the widths differ, for [`Transform::Standardize`] on sparse rows,
    /// which it would make dense, and for [`Transform::Encode`] on sparse rows or before
    /// [`Transform::bind`].
    pub fn apply(&self, input: &mut Input) -> Result<(), GnnError> {
        match (self, input) {
            (Transform::None, _) => {}
            (Transform::Encode(encoder), input) => match input {
                Input::Dense(rows) => *input = encoder.encode(rows)?,
                Input::Sparse(_) => {
                    let problem = "only dense features are encoded".to_owned();
                    return Err(GnnError::Transform { problem });
                }
            },
            (Transform::RowNormalize, Input::Dense(dense)) => {
                dense
                    .values
                    .chunks_mut(dense.cols.max(1))
                    .for_each(row_normalize);
            }
            (Transform::RowNormalize, Input::Sparse(sparse)) => {
                for pair in sparse.offset.windows(2) {
                    row_normalize(&mut sparse.value[pair[0] as usize..pair[1] as usize]);
                }
            }
            (Transform::Standardize { mean, scale }, Input::Dense(dense)) => {
                if mean.len() != dense.cols || scale.len() != dense.cols {
                    let (fitted, cols) = (mean.len(), dense.cols);
                    let problem = format!("fitted to {fitted} features but the input has {cols}");
                    return Err(GnnError::Transform { problem });
                }
                for row in dense.values.chunks_mut(dense.cols.max(1)) {
                    for ((x, m), s) in row.iter_mut().zip(mean).zip(scale) {
                        *x = (*x - m) * s;
                    }
                }
            }
            (Transform::Standardize { .. }, Input::Sparse(_)) => {
                let problem = "standardize would make sparse features dense".to_owned();
                return Err(GnnError::Transform { problem });
            }
        }
        Ok(())
    }
}

/// Fits [`Transform::Standardize`] or a [`LabelScale`] to rows one by one, in f64, in the order of
/// the calls.
#[derive(Clone, Debug)]
pub struct StandardizeFit {
    count: f64,
    mean: Vec<f64>,
    /// Sum of the squared distances from the mean.
    square: Vec<f64>,
}

impl StandardizeFit {
    /// Starts with no rows of `dim` features.
    #[must_use]
    pub fn new(dim: usize) -> StandardizeFit {
        StandardizeFit {
            count: 0.0,
            mean: vec![0.0; dim],
            square: vec![0.0; dim],
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    ///
    /// If the row has another width.
    pub fn add(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.mean.len(), "every row is equally wide");
        self.count += 1.0;
        // Welford's update: no second pass, and no cancellation for features far from 0.
        for ((&x, mean), square) in row.iter().zip(&mut self.mean).zip(&mut self.square) {
            let delta = f64::from(x) - *mean;
            *mean += delta / self.count;
            *square += delta * (f64::from(x) - *mean);
        }
    }

    /// Returns the transform after which the rows have mean 0 and deviation 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "statistics are stored as f32"
    )]
    pub fn finish(&self) -> Transform {
        // The scale of a constant feature, or one whose scale is beyond f32, is 1.
        let scale = |square: &f64| finite_or_one((1.0 / self.deviation(*square)) as f32);
        Transform::Standardize {
            mean: self.mean.iter().map(|&mean| mean as f32).collect(),
            scale: self.square.iter().map(scale).collect(),
        }
    }

    /// Returns mean and deviation of the rows, which are labels.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "statistics are stored as f32"
    )]
    pub fn label_scale(&self) -> LabelScale {
        let deviation = |square: &f64| match finite_or_one(self.deviation(*square) as f32) {
            0.0 => 1.0,
            deviation => deviation,
        };
        LabelScale {
            mean: self.mean.iter().map(|&mean| mean as f32).collect(),
            deviation: self.square.iter().map(deviation).collect(),
        }
    }

    fn deviation(&self, square: f64) -> f64 {
        (square / self.count.max(1.0)).sqrt()
    }
}

fn finite_or_one(x: f32) -> f32 {
    if x.is_finite() { x } else { 1.0 }
}

/// Divides by the larger of the sum and 1.
///
/// The sum is taken in f64, so that a sparse row and the same row with its zeros stored agree.
#[expect(clippy::cast_possible_truncation, reason = "features are f32")]
fn row_normalize(row: &mut [f32]) {
    let sum: f64 = row.iter().map(|&x| f64::from(x)).sum();
    let divisor = sum.max(1.0) as f32;
    row.iter_mut().for_each(|x| *x /= divisor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dense, SparseRows};

    fn dense(cols: usize, values: &[f32]) -> Input {
        Input::Dense(Dense {
            rows: values.len() / cols,
            cols,
            values: values.to_vec(),
        })
    }

    #[test]
    fn row_normalize_divides_by_the_sum_but_never_by_less_than_one() {
        let mut input = dense(2, &[1.0, 3.0, 0.25, 0.25, 0.0, 0.0]);
        Transform::RowNormalize.apply(&mut input).unwrap();
        assert_eq!(input, dense(2, &[0.25, 0.75, 0.25, 0.25, 0.0, 0.0]));
    }

    #[test]
    fn row_normalize_keeps_sparse_rows_sparse() {
        let rows = SparseRows {
            rows: 2,
            cols: 9,
            offset: vec![0, 2, 2],
            index: vec![1, 7],
            value: vec![1.0, 1.0],
        };
        let mut input = Input::Sparse(rows.clone());
        Transform::RowNormalize.apply(&mut input).unwrap();
        assert_eq!(
            input,
            Input::Sparse(SparseRows {
                value: vec![0.5, 0.5],
                ..rows
            })
        );
    }

    #[test]
    fn standardize_gives_mean_zero_and_deviation_one() {
        let rows = [[1.0_f32, 5.0], [3.0, 5.0]];
        let mut fit = StandardizeFit::new(2);
        rows.iter().for_each(|row| fit.add(row));
        let fitted = fit.finish();
        let mut input = dense(2, &[1.0, 5.0, 3.0, 5.0]);
        fitted.apply(&mut input).unwrap();
        assert_eq!(input, dense(2, &[-1.0, 0.0, 1.0, 0.0]));
    }

    #[test]
    fn standardize_refuses_sparse_rows_and_other_widths() {
        let fitted = Transform::Standardize {
            mean: vec![0.0; 3],
            scale: vec![1.0; 3],
        };
        let error = fitted.apply(&mut dense(2, &[0.0, 0.0])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "transform: fitted to 3 features but the input has 2"
        );
        let refused = fitted
            .apply(&mut Input::Sparse(SparseRows::default()))
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "transform: standardize would make sparse features dense"
        );
    }
}
