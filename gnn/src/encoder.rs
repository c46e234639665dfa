//! Encodes feature columns with gaps, categories and times as the input of layer 1.

mod fit;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

pub use fit::EncoderFit;

use crate::{Dense, GnnError, Input, SparseRows};

/// Position of a category that a model has no column for.
const NO_COLUMN: u32 = u32::MAX;

/// A column of a table's features, as its rows hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawColumn {
    /// Name of the column.
    pub name: String,
    /// Meaning of its numbers.
    pub values: RawValues,
    /// Whether values are missing somewhere in the table; a missing number is NaN.
    pub gaps: bool,
}

/// Meaning of the numbers of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum RawValues {
    /// Numbers.
    Numbers {
        /// Numbers in a row.
        width: usize,
    },
    /// Days since 1970-01-01.
    Time,
    /// Positions in the list of the table's categories.
    Categories(Vec<String>),
}

/// The encoding of feature columns, fitted to rows of train nodes.
///
/// - A number that is missing becomes the mean. If numbers are missing in the table of the training,
///   another column is 1 in rows with a missing number.
/// - A time becomes its distance from the mean, in standard deviations.
/// - A category becomes a column of its own, which is 1 (one-hot). If the table has categories that
///   no train node has, all of them share one column. If values are missing, they share one column.
///   A category without a column is 0 in all columns.
///
/// If a column has many categories, rows are sparse. The first linear map of a model then reads one
/// of its rows for each category: this row is a learnable code of the category.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Encoder {
    /// The columns, in the order of the table.
    pub columns: Vec<EncodedColumn>,
    /// Whether the numbers of a row are divided by the larger of their sum and 1.
    pub row_normalize: bool,
    /// Whether rows are sparse.
    pub sparse: bool,
    /// For each column of categories of the table whose rows are encoded: the output column of each
    /// category, counted from the first one of the column.
    #[serde(skip)]
    bound: Option<Vec<Vec<u32>>>,
}

/// The encoding of a column.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct EncodedColumn {
    /// Name of the column.
    pub name: String,
    /// How values are encoded.
    pub code: ColumnCode,
}

/// How the values of a column are encoded.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnCode {
    /// Numbers.
    Number(NumberCode),
    /// Times, always as distances from the mean.
    Time(NumberCode),
    /// Categories.
    Category(CategoryCode),
}

/// How numbers are encoded.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct NumberCode {
    /// Mean of each number of a row over the train nodes; replaces a missing number.
    pub mean: Vec<f32>,
    /// What the distances from the mean are multiplied by; empty: numbers stay as they are.
    pub scale: Vec<f32>,
    /// Whether a last column is 1 in rows with a missing number.
    pub gaps: bool,
}

/// How categories are encoded.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct CategoryCode {
    /// Categories with a column each, sorted bytewise.
    pub values: Vec<String>,
    /// Whether other categories share a column.
    pub unseen: bool,
    /// Whether missing values share a column.
    pub gaps: bool,
}

/// How the numbers of all columns are transformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumberTransform {
    /// They stay as they are.
    #[default]
    None,
    /// Divided by the larger of the sum of a row's numbers and 1.
    RowNormalize,
    /// Mean 0 and standard deviation 1.
    Standardize,
}

impl NumberCode {
    fn width(&self) -> usize {
        self.mean.len() + usize::from(self.gaps)
    }

    /// Returns value `i` of a row, encoded.
    fn encode(&self, i: usize, value: f32) -> f32 {
        let mean = self.mean[i];
        let value = if value.is_nan() { mean } else { value };
        self.scale
            .get(i)
            .map_or(value, |scale| (value - mean) * scale)
    }
}

impl CategoryCode {
    fn width(&self) -> usize {
        self.values.len() + usize::from(self.unseen) + usize::from(self.gaps)
    }

    /// Returns the column of categories without a column of their own.
    fn unseen_column(&self) -> u32 {
        match self.unseen {
            true => narrow(self.values.len()),
            false => NO_COLUMN,
        }
    }

    fn gap_column(&self) -> u32 {
        match self.gaps {
            true => narrow(self.values.len() + usize::from(self.unseen)),
            false => self.unseen_column(),
        }
    }

    /// Returns the column of each category of a table.
    fn columns_of(&self, table: &[String]) -> Vec<u32> {
        let known: HashMap<&str, u32> = self.values.iter().map(String::as_str).zip(0..).collect();
        let column = |value: &String| known.get(value.as_str()).copied();
        let columns = table
            .iter()
            .map(|value| column(value).unwrap_or(self.unseen_column()));
        columns.collect()
    }
}

impl ColumnCode {
    fn width(&self) -> usize {
        match self {
            Self::Number(code) | Self::Time(code) => code.width(),
            Self::Category(code) => code.width(),
        }
    }

    /// Returns the numbers of a row of the table.
    fn raw_width(&self) -> usize {
        match self {
            Self::Number(code) | Self::Time(code) => code.mean.len(),
            Self::Category(_) => 1,
        }
    }

    fn meaning(&self) -> &'static str {
        match self {
            Self::Number(_) => "numbers",
            Self::Time(_) => "times",
            Self::Category(_) => "categories",
        }
    }
}

impl RawColumn {
    /// Describes what a model without an encoder cannot read in the column.
    pub(crate) fn unlike_plain(&self) -> Option<String> {
        let name = &self.name;
        match &self.values {
            RawValues::Numbers { .. } => self
                .gaps
                .then(|| format!("column `{name}` has missing values, in training it had none")),
            other => {
                let found = other.meaning();
                Some(format!(
                    "column `{name}` has {found}, in training it had numbers"
                ))
            }
        }
    }
}

impl RawValues {
    fn width(&self) -> usize {
        match self {
            Self::Numbers { width } => *width,
            Self::Time | Self::Categories(_) => 1,
        }
    }

    fn meaning(&self) -> &'static str {
        match self {
            Self::Numbers { .. } => "numbers",
            Self::Time => "times",
            Self::Categories(_) => "categories",
        }
    }
}

impl Encoder {
    /// Returns the numbers of an encoded row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.columns.iter().map(|column| column.code.width()).sum()
    }

    /// Returns the numbers of a row of the table.
    #[must_use]
    pub fn raw_width(&self) -> usize {
        let columns = self.columns.iter();
        columns.map(|column| column.code.raw_width()).sum()
    }

    /// Prepares the encoder for the rows of a table, whose categories may be others, or in another
    /// order. An empty list means that all columns are numbers without gaps.
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] names the column whose values have another meaning or width, or that
    /// has missing numbers now.
    pub fn bind(&self, table: &[RawColumn]) -> Result<Encoder, GnnError> {
        let fail = |problem: String| Err(GnnError::Transform { problem });
        if table.is_empty() {
            let of = |column: &&EncodedColumn| !matches!(column.code, ColumnCode::Number(_));
            if let Some(EncodedColumn { name, code }) = self.columns.iter().find(of) {
                let fitted = code.meaning();
                return fail(format!(
                    "column `{name}` has numbers, in training it had {fitted}"
                ));
            }
            return Ok(Encoder {
                bound: Some(Vec::new()),
                ..self.clone()
            });
        }
        if table.len() != self.columns.len() {
            let (fitted, found) = (self.columns.len(), table.len());
            return fail(format!(
                "fitted to {fitted} columns but the table has {found}"
            ));
        }
        let mut bound = Vec::new();
        for (column, found) in self.columns.iter().zip(table) {
            let name = &found.name;
            let (code, values) = (&column.code, &found.values);
            if code.meaning() != values.meaning() {
                let (fitted, given) = (code.meaning(), values.meaning());
                return fail(format!(
                    "column `{name}` has {given}, in training it had {fitted}"
                ));
            }
            if code.raw_width() != values.width() {
                let (fitted, given) = (code.raw_width(), values.width());
                return fail(format!(
                    "column `{name}` has {given} numbers a row, in training it had {fitted}"
                ));
            }
            match (code, values) {
                (ColumnCode::Category(code), RawValues::Categories(values)) => {
                    bound.push(code.columns_of(values));
                }
                (ColumnCode::Number(code) | ColumnCode::Time(code), _)
                    if found.gaps && !code.gaps =>
                {
                    return fail(format!(
                        "column `{name}` has missing values, in training it had none"
                    ));
                }
                _ => {}
            }
        }
        Ok(Encoder {
            bound: Some(bound),
            ..self.clone()
        })
    }

    /// Encodes rows of the table that the encoder is bound to.
    pub(crate) fn encode(&self, rows: &Dense) -> Result<Input, GnnError> {
        let fail = |problem: String| Err(GnnError::Transform { problem });
        let Some(bound) = &self.bound else {
            return fail("the encoder is not bound to a table".to_owned());
        };
        if rows.cols != self.raw_width() {
            let (fitted, cols) = (self.raw_width(), rows.cols);
            return fail(format!(
                "fitted to {fitted} features but the input has {cols}"
            ));
        }
        let cols = self.width();
        let mut row = Vec::with_capacity(cols);
        if self.sparse {
            let mut sparse = SparseRows {
                rows: rows.rows,
                cols,
                offset: vec![0],
                ..SparseRows::default()
            };
            for raw in rows.values.chunks_exact(rows.cols.max(1)) {
                self.encode_row(bound, raw, &mut row)?;
                sparse.index.extend(row.iter().map(|(index, _)| index));
                sparse.value.extend(row.iter().map(|(_, value)| value));
                sparse.offset.push(narrow(sparse.index.len()));
            }
            return Ok(Input::Sparse(sparse));
        }
        let mut dense = Dense::zeros(rows.rows, cols);
        let all = dense.values.chunks_exact_mut(cols.max(1));
        for (raw, encoded) in rows.values.chunks_exact(rows.cols.max(1)).zip(all) {
            self.encode_row(bound, raw, &mut row)?;
            for &(index, value) in &row {
                encoded[index as usize] = value;
            }
        }
        Ok(Input::Dense(dense))
    }

    /// Encodes a row as the positions and values that are not zero, ascending.
    fn encode_row(
        &self,
        bound: &[Vec<u32>],
        raw: &[f32],
        row: &mut Vec<(u32, f32)>,
    ) -> Result<(), GnnError> {
        row.clear();
        let divisor = self.row_divisor(raw);
        let (mut bound, mut first, mut at) = (bound.iter(), 0, 0);
        for column in &self.columns {
            let width = column.code.raw_width();
            let raw = &raw[at..at + width];
            match &column.code {
                ColumnCode::Number(code) | ColumnCode::Time(code) => {
                    let divisor = match &column.code {
                        ColumnCode::Number(_) => divisor,
                        _ => 1.0,
                    };
                    for (i, &value) in raw.iter().enumerate() {
                        let value = code.encode(i, value) / divisor;
                        if value != 0.0 {
                            row.push((narrow(first + i), value));
                        }
                    }
                    if code.gaps && raw.iter().any(|value| value.is_nan()) {
                        row.push((narrow(first + width), 1.0));
                    }
                }
                ColumnCode::Category(code) => {
                    let columns = bound.next().expect("one list a column of categories");
                    let code_column = if raw[0].is_nan() {
                        code.gap_column()
                    } else if let Some(position) = position(raw[0], columns.len()) {
                        columns[position]
                    } else {
                        return Err(no_category(&column.name, raw[0], columns.len()));
                    };
                    if code_column != NO_COLUMN {
                        row.push((narrow(first) + code_column, 1.0));
                    }
                }
            }
            first += column.code.width();
            at += width;
        }
        Ok(())
    }

    /// Returns what the numbers of a row are divided by. The sum is taken in f64, as that of
    /// [`Transform::RowNormalize`](crate::Transform::RowNormalize).
    #[expect(clippy::cast_possible_truncation, reason = "features are f32")]
    fn row_divisor(&self, raw: &[f32]) -> f32 {
        if !self.row_normalize {
            return 1.0;
        }
        let (mut sum, mut at) = (0.0, 0);
        for column in &self.columns {
            let width = column.code.raw_width();
            if let ColumnCode::Number(code) = &column.code {
                let values = raw[at..at + width].iter().enumerate();
                sum += values
                    .map(|(i, &value)| f64::from(code.encode(i, value)))
                    .sum::<f64>();
            }
            at += width;
        }
        sum.max(1.0) as f32
    }

    /// Checks an encoder that was read from a file.
    pub(crate) fn validate(&self) -> Result<(), GnnError> {
        for EncodedColumn { name, code } in &self.columns {
            let lacks = match code {
                ColumnCode::Number(code) | ColumnCode::Time(code) => {
                    let of = code.scale.len();
                    let finite = code.mean.iter().chain(&code.scale).all(|x| x.is_finite());
                    if of != 0 && of != code.mean.len() {
                        Some("as many scales as means, or none")
                    } else {
                        (!finite).then_some("finite means and scales")
                    }
                }
                ColumnCode::Category(code) => {
                    let sorted = code.values.is_sorted_by(|left, right| left < right);
                    (!sorted).then_some("its categories sorted, each once")
                }
            };
            if let Some(needs) = lacks {
                let problem = format!("the encoder of column `{name}` needs {needs}");
                return Err(GnnError::Transform { problem });
            }
        }
        Ok(())
    }
}

/// Returns a position below `len` that a column of floats holds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a cast of a float saturates, and the result is compared"
)]
fn position(value: f32, len: usize) -> Option<usize> {
    let position = value as usize;
    (position < len && position as f32 == value).then_some(position)
}

/// Returns the error of a value that is not the position of a category.
fn no_category(name: &str, value: f32, len: usize) -> GnnError {
    GnnError::Transform {
        problem: format!("column `{name}` holds {value}, its table has {len} categories"),
    }
}

fn narrow(at: usize) -> u32 {
    u32::try_from(at).expect("a batch has below 2^32 values")
}

#[cfg(test)]
mod tests;
