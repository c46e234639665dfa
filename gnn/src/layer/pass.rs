//! One forward pass: parameters as tensors, and the operations that use them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Element, Tensor, TensorData};

use crate::kernel::{Dropout, Linear, Mask, Shared, Spmm, Update, mix};
use crate::ops::Fused;
use crate::parameter::BufferInfo;
use crate::tensor::{ReadyFeatures, SparseFeatures};
use crate::{Activation, Block, Dense, GnnError, Norm, ReadyInput};

/// One forward pass: parameters as tensors, device, mode and running statistics.
pub(crate) struct Pass<'a> {
    /// Every parameter as a matrix: vectors as one row, `[1, heads, dim]` as `[heads, dim]`.
    pub(crate) parameters: BTreeMap<&'a str, Tensor<2>>,
    pub(crate) device: Device,
    pub(crate) on_gpu: bool,
    pub(crate) dtype: DType,
    /// The seed of the dropout masks, when training.
    pub(crate) train: Option<u64>,
    pub(crate) buffer_infos: &'a [BufferInfo],
    /// The running statistics, updated as batch norms run in training.
    pub(crate) buffers: RefCell<Vec<f32>>,
    /// The error, if the statistics of a batch could not be read from the GPU.
    pub(crate) failure: RefCell<Option<GnnError>>,
    /// By node type, inputs that have learnable columns, when gradients are computed.
    pub(crate) learnable: RefCell<BTreeMap<usize, Learnable>>,
}

/// The input of a node type, whose last columns are learnable.
pub(crate) struct Learnable {
    /// `[num_src, in_dim]`.
    pub(crate) input: Tensor<2>,
    /// Number of learnable columns.
    pub(crate) cols: usize,
}

/// The input of a conv: a row for each src node.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one value a layer, never many")]
pub enum Features {
    /// `[num_src, dim]`.
    Dense(Tensor<2>),
    /// Raw features of layer 1.
    Sparse(SparseFeatures),
}

/// The output of a conv before residual, norm and activation, as terms that one kernel adds up.
#[derive(Clone, Debug)]
pub struct Summed {
    /// `[num_dst, out_dim]`.
    pub x: Tensor<2>,
    /// `[num_dst, out_dim]`.
    pub addend: Option<Tensor<2>>,
    /// `[1, out_dim]`.
    pub bias: Option<Tensor<2>>,
}

impl Summed {
    /// Makes a sum of one term.
    #[must_use]
    pub fn of(x: Tensor<2>) -> Summed {
        let (addend, bias) = (None, None);
        Summed { x, addend, bias }
    }

    /// Adds a term.
    #[must_use]
    pub(crate) fn plus(mut self, term: Option<Tensor<2>>) -> Summed {
        self.addend = match (self.addend, term) {
            (Some(addend), Some(term)) => Some(addend + term),
            (addend, term) => addend.or(term),
        };
        self
    }
}

/// One conv of a pass: its number and its block.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// 1-based.
    pub(crate) layer: usize,
    pub(crate) block: &'a Block,
}

/// The values that a dropout mask applies to.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum MaskKind {
    Input,
    Attention,
}

impl Pass<'_> {
    /// Returns a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Tensor<2> {
        let parameter = self.parameters.get(name);
        parameter
            .unwrap_or_else(|| panic!("parameter {name} is not listed for this architecture"))
            .clone()
    }

    /// Makes a constant matrix.
    pub(crate) fn constant(&self, rows: usize, cols: usize, values: &[f32]) -> Tensor<2> {
        let data = match self.dtype {
            DType::F64 => {
                let values: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
                TensorData::new(values, [rows, cols])
            }
            _ => TensorData::new(values.to_vec(), [rows, cols]),
        };
        Tensor::from_data(data, (&self.device, self.dtype))
    }

    /// Returns an input on the device and in the number type of this pass.
    pub(crate) fn features(&self, input: ReadyInput) -> Features {
        match input.features {
            ReadyFeatures::Sparse(sparse) => Features::Sparse(sparse),
            ReadyFeatures::Dense(dense) => {
                let dense = if self.on_gpu {
                    let upload = || {
                        // Rows in 16 bits are widened before; shaders have no such numbers.
                        let wide = dense.clone().cast(self.dtype);
                        wide.to_device(&self.device.clone().inner())
                    };
                    input.on_gpu.get_or_init(upload).clone()
                } else if dense.dtype() == DType::BF16 {
                    // Aggregations read rows in 16 bits as they are.
                    dense
                } else {
                    dense.cast(self.dtype)
                };
                Features::Dense(if self.device.is_autodiff() {
                    dense.autodiff()
                } else {
                    dense
                })
            }
        }
    }

    /// Returns an input whose last `cols` columns are learnable. If gradients are computed, the pass
    /// keeps it, so that the backward pass can return its gradient.
    pub(crate) fn learnable(&self, node_type: usize, input: ReadyInput, cols: usize) -> Features {
        let mut dense = self.dense(self.features(input));
        if self.device.is_autodiff() {
            dense = dense.require_grad();
            let kept = Learnable {
                input: dense.clone(),
                cols,
            };
            self.learnable.borrow_mut().insert(node_type, kept);
        }
        Features::Dense(dense)
    }

    /// Returns features as a dense matrix, for layers that need one.
    pub(crate) fn dense(&self, features: Features) -> Tensor<2> {
        match features {
            Features::Dense(dense) => dense,
            Features::Sparse(SparseFeatures { csr, value }) => {
                let (rows, cols) = (csr.num_rows(), csr.num_cols);
                let mut dense = vec![0.0; rows * cols];
                for row in 0..rows {
                    for at in csr.row(row) {
                        dense[row * cols + csr.col[at] as usize] += value[at];
                    }
                }
                self.constant(rows, cols, &dense)
            }
        }
    }

    /// Returns `features[..rows] * weight^T` for the parameter called `name`, `[out, in]`.
    pub(crate) fn product(&self, features: &Features, rows: usize, name: &str) -> Tensor<2> {
        let weight = self.parameter(name); // [out, in]
        match features {
            Features::Dense(dense) => {
                let cols = weight.dims()[0];
                Fused::Linear(Linear { rows, cols }).apply_2([dense.clone(), weight])
            }
            Features::Sparse(sparse) => {
                let product = Fused::Spmm(Spmm {
                    csr: Arc::clone(&sparse.csr),
                    rows,
                    edge: sparse.value.clone(),
                    own: None,
                });
                product.apply(weight.transpose())
            }
        }
    }

    /// Returns `a * A^T + b[..rows] * B^T` for the parameters A and B, named `a_name` and `b_name`.
    pub(crate) fn product_of_two(
        &self,
        rows: usize,
        (a, a_name): (Tensor<2>, &str),
        (b, b_name): (Tensor<2>, &str),
    ) -> Tensor<2> {
        let (a_weight, b_weight) = (self.parameter(a_name), self.parameter(b_name));
        let cols = a_weight.dims()[0];
        Fused::Linear(Linear { rows, cols }).apply_4([a, a_weight, b, b_weight])
    }

    /// Normalises the output of a hidden conv, applies its non-linearity, and dropout for the next
    /// layer.
    pub(crate) fn hidden(
        &self,
        summed: Summed,
        (norm, name): (Norm, &str),
        num_active: usize,
        activation: Option<Activation>,
        dropout: Option<(Mask, Shared<u64>)>,
    ) -> Tensor<2> {
        let summed = match norm {
            Norm::None => summed,
            Norm::Batch | Norm::Layer => {
                let out = self.sum(summed, None, None);
                Summed::of(self.norm(norm, name, num_active, out))
            }
        };
        self.sum(summed, activation, dropout)
    }

    /// Returns `features[..rows] * NAME.weight^T + NAME.bias`.
    pub(crate) fn linear(&self, name: &str, features: &Features, rows: usize) -> Tensor<2> {
        let product = self.product(features, rows, &format!("{name}.weight"));
        let bias = format!("{name}.bias");
        let summed = Summed {
            bias: Some(self.parameter(&bias)),
            ..Summed::of(product)
        };
        self.sum(summed, None, None)
    }

    /// Adds up the terms of a sum and applies non-linearity and dropout, in one pass.
    pub(crate) fn sum(
        &self,
        Summed { x, addend, bias }: Summed,
        activation: Option<Activation>,
        dropout: Option<(Mask, Shared<u64>)>,
    ) -> Tensor<2> {
        let op = Update {
            cols: x.dims()[1],
            addend: addend.is_some(),
            bias: bias.is_some(),
            activation,
            dropout,
        };
        let op = Fused::Update(op);
        match (addend, bias) {
            (None, None) => op.apply(x),
            (Some(other), None) | (None, Some(other)) => op.apply_2([x, other]),
            (Some(addend), Some(bias)) => op.apply_3([x, addend, bias]),
        }
    }

    /// Returns the mask of one layer's input or attention; none in eval mode or if `rate` is 0.
    pub(crate) fn mask(&self, layer: usize, kind: MaskKind, rate: f32) -> Option<Mask> {
        self.salted_mask(layer, kind, rate, 0)
    }

    /// Returns the mask of one of several convs of a layer, which have different salts.
    pub(crate) fn salted_mask(
        &self,
        layer: usize,
        kind: MaskKind,
        rate: f32,
        salt: u64,
    ) -> Option<Mask> {
        let seed = self.train.filter(|_| rate > 0.0)?;
        let stream = 2 * layer as u64 + u64::from(kind == MaskKind::Attention);
        let seed = seed.wrapping_add(mix(stream)).wrapping_add(salt);
        Some(Mask::new(mix(seed), rate))
    }

    /// Applies dropout to the features that a layer reads; to stored elements only if they are
    /// sparse.
    pub(crate) fn drop_features(
        &self,
        (layer, rate): (usize, f32),
        key: &Shared<u64>,
        input: Features,
    ) -> Features {
        let Some(mask) = self.mask(layer, MaskKind::Input, rate) else {
            return input;
        };
        match input {
            Features::Dense(dense) => {
                let (key, cols) = (key.clone(), dense.dims()[1]);
                Features::Dense(Fused::Dropout(Dropout { mask, key, cols }).apply(dense))
            }
            Features::Sparse(SparseFeatures { csr, value }) => {
                let mut kept = value.to_vec();
                for (v, &of_node) in key.iter().enumerate().take(csr.num_rows()) {
                    let row = mask.row(of_node);
                    for at in csr.row(v) {
                        kept[at] *= row.factor::<f32>(csr.col[at]);
                    }
                }
                Features::Sparse(SparseFeatures {
                    csr,
                    value: kept.into(),
                })
            }
        }
    }
}

/// Reads a tensor of `f32`.
///
/// # Errors
///
/// [`GnnError::Device`] if a GPU fails.
pub fn plain(tensor: Tensor<2>) -> Result<Dense, GnnError> {
    let [rows, cols] = tensor.dims();
    let values = read(tensor)?;
    Ok(Dense { rows, cols, values })
}

/// Reads a tensor. A GPU reports the errors of earlier operations here.
pub(crate) fn read<F: Element>(tensor: Tensor<2>) -> Result<Vec<F>, GnnError> {
    let data = tensor.try_into_data().map_err(|error| GnnError::Device {
        problem: format!("the device failed: {error}"),
    })?;
    Ok(data
        .try_into_vec::<F>()
        .expect("a pass has one number type"))
}
