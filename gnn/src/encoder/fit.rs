//! Fits an encoder to the rows of train nodes.

use super::{
    CategoryCode, ColumnCode, EncodedColumn, Encoder, NumberCode, NumberTransform, RawColumn,
    RawValues, no_category, position,
};
use crate::GnnError;

/// Fits an [`Encoder`] to rows one by one, in f64, in the order of the calls.
#[derive(Clone, Debug)]
pub struct EncoderFit {
    columns: Vec<(RawColumn, ColumnFit)>,
    transform: NumberTransform,
}

#[derive(Clone, Debug)]
enum ColumnFit {
    /// Moments of each number of a row.
    Numbers(Vec<Moments>),
    /// Which categories of the table were seen.
    Categories { seen: Vec<bool>, one_hot: usize },
}

/// Count, mean and sum of the squared distances from the mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    pub(crate) count: f64,
    pub(crate) mean: f64,
    pub(crate) square: f64,
}

impl Moments {
    /// Adds a number by Welford's update: no second pass, and no cancellation for numbers far
    /// from 0.
    pub(crate) fn add(&mut self, x: f64) {
        self.count += 1.0;
        let delta = x - self.mean;
        self.mean += delta / self.count;
        self.square += delta * (x - self.mean);
    }

    /// Returns 1 / standard deviation; 1 if it is beyond f32, as for a constant.
    #[expect(clippy::cast_possible_truncation, reason = "statistics are f32")]
    pub(crate) fn scale(&self) -> f32 {
        let scale = (1.0 / (self.square / self.count.max(1.0)).sqrt()) as f32;
        if scale.is_finite() { scale } else { 1.0 }
    }
}

impl EncoderFit {
    /// Starts with no rows of a table. `one_hot` returns for a column the number of categories
    /// above which rows are sparse.
    #[must_use]
    pub fn new(
        table: Vec<RawColumn>,
        one_hot: impl Fn(&str) -> usize,
        transform: NumberTransform,
    ) -> EncoderFit {
        let columns = table.into_iter().map(|column| {
            let fit = match &column.values {
                RawValues::Categories(values) => ColumnFit::Categories {
                    seen: vec![false; values.len()],
                    one_hot: one_hot(&column.name),
                },
                numbers => ColumnFit::Numbers(vec![Moments::default(); numbers.width()]),
            };
            (column, fit)
        });
        EncoderFit {
            columns: columns.collect(),
            transform,
        }
    }

    /// Adds a row of the table.
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] if a value is not the position of a category.
    ///
    /// # Panics
    ///
    /// If the row has another width.
    pub fn add(&mut self, row: &[f32]) -> Result<(), GnnError> {
        let mut at = 0;
        for (column, fit) in &mut self.columns {
            let values = &row[at..at + column.values.width()];
            at += values.len();
            match fit {
                ColumnFit::Numbers(moments) => {
                    for (&x, of_number) in values.iter().zip(moments) {
                        if !x.is_nan() {
                            of_number.add(f64::from(x));
                        }
                    }
                }
                ColumnFit::Categories { seen, .. } => {
                    if !values[0].is_nan() {
                        let len = seen.len();
                        let found = position(values[0], len);
                        seen[found.ok_or_else(|| no_category(&column.name, values[0], len))?] =
                            true;
                    }
                }
            }
        }
        assert_eq!(at, row.len(), "every row is equally wide");
        Ok(())
    }

    /// Returns the encoder, bound to the table.
    ///
    /// # Errors
    ///
    /// As [`Encoder::bind`], which cannot fail for the table that the encoder was fitted to.
    pub fn finish(self) -> Result<Encoder, GnnError> {
        let mut sparse = false;
        let table: Vec<RawColumn> = self.columns.iter().map(|(raw, _)| raw.clone()).collect();
        let standardize = self.transform == NumberTransform::Standardize;
        let columns = self.columns.into_iter().map(|(column, fit)| {
            let is_time = column.values == RawValues::Time;
            let code = match (fit, column.values) {
                (ColumnFit::Categories { seen, one_hot }, RawValues::Categories(values)) => {
                    let unseen = seen.contains(&false);
                    let kept = values.into_iter().zip(seen).filter(|(_, seen)| *seen);
                    let known: Vec<String> = kept.map(|(value, _)| value).collect();
                    sparse |= known.len() > one_hot;
                    ColumnCode::Category(CategoryCode {
                        values: known,
                        unseen,
                        gaps: column.gaps,
                    })
                }
                (ColumnFit::Numbers(moments), _) => {
                    let code = number_code(&moments, is_time || standardize, column.gaps);
                    match is_time {
                        true => ColumnCode::Time(code),
                        false => ColumnCode::Number(code),
                    }
                }
                (ColumnFit::Categories { .. }, _) => unreachable!("fitted by the values"),
            };
            EncodedColumn {
                name: column.name,
                code,
            }
        });
        let encoder = Encoder {
            columns: columns.collect(),
            row_normalize: self.transform == NumberTransform::RowNormalize,
            sparse,
            bound: None,
        };
        encoder.bind(&table)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "statistics are f32")]
fn number_code(moments: &[Moments], scaled: bool, gaps: bool) -> NumberCode {
    let scale = moments.iter().filter(|_| scaled).map(Moments::scale);
    NumberCode {
        mean: moments.iter().map(|moments| moments.mean as f32).collect(),
        scale: scale.collect(),
        gaps,
    }
}
