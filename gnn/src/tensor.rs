//! Matrices that callers pass to models.

use std::sync::{Arc, OnceLock};

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Shape, Tensor, TensorData};

use crate::kernel::{Csr, Shared};
use crate::{Dense, GnnError, RowFormat, SharedRows};

/// A sparse matrix as compressed rows, such as a bag of words.
///
/// # Shapes
///
/// - `offset`: `[rows + 1]`, ascending from 0
/// - `index`, `value`: `[offset[rows]]`; columns of a row may come in any order and may repeat:
///   their values add up
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseRows {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Where each row starts in `index` and `value`.
    pub offset: Vec<u32>,
    /// Column of each stored value.
    pub index: Vec<u32>,
    /// The stored values.
    pub value: Vec<f32>,
}

impl SparseRows {
    /// Returns the values of a dense matrix that are not zero; none if there are more than `most`.
    #[must_use]
    pub fn from_dense(dense: &Dense, most: usize) -> Option<SparseRows> {
        let mut sparse = SparseRows {
            rows: dense.rows,
            cols: dense.cols,
            offset: vec![0],
            ..SparseRows::default()
        };
        for row in 0..dense.rows {
            for (col, &value) in (0u32..).zip(dense.row(row)) {
                if value != 0.0 {
                    sparse.index.push(col);
                    sparse.value.push(value);
                }
            }
            if sparse.index.len() > most {
                return None;
            }
            sparse.offset.push(u32::try_from(sparse.index.len()).ok()?);
        }
        Some(sparse)
    }

    /// Returns the first `rows` rows as a dense matrix.
    ///
    /// # Panics
    ///
    /// If `rows` is more than there are.
    #[must_use]
    pub fn to_dense(&self, rows: usize) -> Dense {
        let mut dense = Dense::zeros(rows, self.cols);
        for row in 0..rows {
            for at in self.offset[row] as usize..self.offset[row + 1] as usize {
                dense.values[row * self.cols + self.index[at] as usize] += self.value[at];
            }
        }
        dense
    }

    fn check(&self) -> Result<(), GnnError> {
        let stored = self.index.len();
        let problem = if self.offset.len() != self.rows + 1 {
            format!(
                "{} offsets for {} sparse rows",
                self.offset.len(),
                self.rows
            )
        } else if self.offset[0] != 0
            || self.offset[self.rows] as usize != stored
            || self.offset.windows(2).any(|pair| pair[0] > pair[1])
        {
            format!("sparse row offsets do not ascend from 0 to {stored}")
        } else if self.value.len() != stored {
            format!("{stored} sparse columns but {} values", self.value.len())
        } else if let Some(col) = self.index.iter().find(|&&col| col as usize >= self.cols) {
            format!("sparse column {col} is not below the width {}", self.cols)
        } else {
            return Ok(());
        };
        Err(GnnError::Input { problem })
    }
}

/// Features of a block's src nodes, one row each.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Raw features, or the embeddings of the layer before.
    Dense(Dense),
    /// Raw features of layer 1 as stored; made dense only for a layer that needs it.
    Sparse(SparseRows),
}

impl Input {
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Input::Dense(dense) => dense.rows,
            Input::Sparse(sparse) => sparse.rows,
        }
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        match self {
            Input::Dense(dense) => dense.cols,
            Input::Sparse(sparse) => sparse.cols,
        }
    }

    /// Checks that lengths, offsets and columns agree.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if they do not.
    pub fn check(&self) -> Result<(), GnnError> {
        match self {
            Input::Dense(dense) => dense.check(),
            Input::Sparse(sparse) => sparse.check(),
        }
    }
}

/// An [`Input`] in the form that layers read: made once for any number of passes, cheap to clone.
#[derive(Clone, Debug)]
pub struct ReadyInput {
    rows: usize,
    cols: usize,
    pub(crate) features: ReadyFeatures,
    /// Dense features on a GPU, once they are uploaded.
    pub(crate) on_gpu: Arc<OnceLock<Tensor<2>>>,
}

/// The features themselves.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one value a batch, never many")]
pub(crate) enum ReadyFeatures {
    /// `[rows, cols]` in f32, without autodiff.
    Dense(Tensor<2>),
    Sparse(SparseFeatures),
}

/// Sparse rows as a kernel multiplies them; `value` holds the value of each edge of `csr`.
#[derive(Clone, Debug)]
pub struct SparseFeatures {
    pub(crate) csr: Arc<Csr>,
    pub(crate) value: Shared<f32>,
}

impl ReadyInput {
    /// Checks an input and makes it ready, without a copy.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if lengths, offsets and columns do not agree.
    pub fn new(input: Input) -> Result<ReadyInput, GnnError> {
        input.check()?;
        let (rows, cols) = (input.rows(), input.cols());
        let features = match input {
            Input::Dense(dense) => {
                let data = TensorData::new(dense.values, [rows, cols]);
                let device = Device::flex();
                ReadyFeatures::Dense(Tensor::from_data(data, (&device, DType::F32)))
            }
            Input::Sparse(sparse) => ReadyFeatures::Sparse(SparseFeatures {
                csr: Arc::new(Csr::new(sparse.offset, sparse.index, cols)),
                value: sparse.value.into(),
            }),
        };
        Ok(ReadyInput {
            rows,
            cols,
            features,
            on_gpu: Arc::default(),
        })
    }

    /// Makes shared rows ready, without a copy, as the rows that a layer aggregates. Rows in 16 bits
    /// are read by aggregations alone; other steps read them [widened](Self::widened).
    #[must_use]
    pub fn shared(rows: &SharedRows) -> ReadyInput {
        let dtype = match rows.format() {
            RowFormat::F32 => DType::F32,
            RowFormat::Bf16 => DType::BF16,
        };
        let bytes = Bytes::from_shared(rows.bytes().clone(), AllocationProperty::File);
        let data = TensorData::from_bytes(bytes, Shape::new([rows.rows(), rows.cols()]), dtype);
        let tensor = Tensor::from_data(data, (&Device::flex(), dtype));
        ReadyInput {
            rows: rows.rows(),
            cols: rows.cols(),
            features: ReadyFeatures::Dense(tensor),
            on_gpu: Arc::default(),
        }
    }

    /// Makes shared rows ready in f32; copies them if they are in 16 bits.
    ///
    /// # Panics
    ///
    /// Never: the shape of shared rows is checked when they are made.
    #[must_use]
    pub fn widened(rows: &SharedRows) -> ReadyInput {
        match rows.format() {
            RowFormat::F32 => ReadyInput::shared(rows),
            RowFormat::Bf16 => ReadyInput::new(Input::Dense(rows.to_dense()))
                .expect("shared rows have a value for each row and column"),
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the approximate memory in bytes; sparse features count twice, by row and by column.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.features {
            ReadyFeatures::Dense(_) => 4 * self.rows * self.cols,
            ReadyFeatures::Sparse(sparse) => 16 * sparse.value.len() + 4 * (self.rows + self.cols),
        }
    }
}

impl ReadyInput {
    /// Returns the number of columns, unless features are sparse.
    pub(crate) fn dense_dim(&self) -> Option<usize> {
        matches!(self.features, ReadyFeatures::Dense(_)).then_some(self.cols)
    }

    /// Groups sparse features by column; returns whether the input is sparse.
    pub(crate) fn transpose_sparse(&self) -> bool {
        match &self.features {
            ReadyFeatures::Sparse(sparse) => {
                sparse.csr.transposed();
                true
            }
            ReadyFeatures::Dense(_) => false,
        }
    }
}

impl TryFrom<&Input> for ReadyInput {
    type Error = GnnError;

    fn try_from(input: &Input) -> Result<ReadyInput, GnnError> {
        ReadyInput::new(input.clone())
    }
}

impl TryFrom<&ReadyInput> for ReadyInput {
    type Error = GnnError;

    fn try_from(input: &ReadyInput) -> Result<ReadyInput, GnnError> {
        Ok(input.clone())
    }
}
