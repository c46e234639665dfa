//! Convs: one kind a file, and what surrounds every kind.

mod coefficient;
mod gat;
mod gatv2;
mod gcn;
mod gin;
mod norm;
mod sage;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::kernel::{Activate, Csr, Dropout, Mask, Spmm, mix};
use crate::ops::Fused;
use crate::parameter::BufferInfo;
use crate::{Architecture, Block, Dense, Input, LayerKind, SparseRows};

/// One forward pass: parameters as tensors, and how it is run.
pub(crate) struct Pass<'a> {
    pub(crate) arch: &'a Architecture,
    /// Every parameter as a matrix: vectors as one row, `[1, heads, dim]` as `[heads, dim]`.
    pub(crate) parameters: BTreeMap<&'a str, Tensor<2>>,
    pub(crate) device: Device,
    pub(crate) dtype: DType,
    /// The seed of the dropout masks, when training.
    pub(crate) train: Option<u64>,
    pub(crate) buffer_infos: &'a [BufferInfo],
    /// The running statistics, updated as batch norms run in training.
    pub(crate) buffers: RefCell<Vec<f32>>,
}

/// What a conv reads: a row for each src node.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one value a layer, never many")]
pub(crate) enum Features {
    Dense(Tensor<2>),
    Sparse(Arc<SparseRows>),
}

/// Where a conv stands: its number and its block.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// 1-based.
    pub(crate) layer: usize,
    pub(crate) block: &'a Block,
}

/// What a dropout mask is drawn for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum MaskKind {
    Input,
    Attention,
}

impl Pass<'_> {
    /// Runs one conv with dropout, residual, norm and activation: `[num_src, _]` to `[num_dst, _]`.
    pub(crate) fn layer(&self, place: Place<'_>, input: Features) -> Tensor<2> {
        let Place { layer, block } = place;
        let rate = if layer == 1 {
            self.arch.input_dropout
        } else {
            self.arch.dropout
        };
        let input = self.dropout(layer, rate, block.shared_key(), input);
        let residual = self.arch.residual.then(|| self.residual(place, &input));
        let out = match self.arch.layer {
            LayerKind::Gcn => self.gcn(place, input),
            LayerKind::Sage => self.sage(place, input),
            LayerKind::Gin => self.gin(place, input),
            LayerKind::Gat => self.gat(place, &input),
            LayerKind::GatV2 => self.gatv2(place, &input),
        };
        let out = match residual {
            Some(residual) => out + residual,
            None => out,
        };
        if !self.arch.is_hidden(layer) {
            return out;
        }
        let out = self.norm(&format!("norms.{}", layer - 1), block.num_active(), out);
        self.activate(out)
    }

    /// Turns embeddings of the last conv into logits.
    pub(crate) fn head(&self, key: &Arc<Vec<u64>>, embedding: Tensor<2>) -> Tensor<2> {
        if !self.arch.has_head() {
            return embedding;
        }
        let (layer, rate) = (self.arch.num_layers + 1, self.arch.dropout);
        let input = self.dropout(layer, rate, key, Features::Dense(embedding));
        self.linear("lin", &input)
    }

    fn residual(&self, Place { layer, block }: Place<'_>, input: &Features) -> Tensor<2> {
        let name = format!("res.{}.weight", layer - 1);
        let own = self.first_rows(input, block.num_dst());
        if self.parameters.contains_key(name.as_str()) {
            self.product(&own, &name)
        } else {
            self.dense(own)
        }
    }

    /// Returns a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Tensor<2> {
        let parameter = self.parameters.get(name);
        parameter
            .unwrap_or_else(|| panic!("parameter {name} is listed for this architecture"))
            .clone()
    }

    /// Returns a parameter of a conv.
    pub(crate) fn own(&self, layer: usize, name: &str) -> Tensor<2> {
        self.parameter(&format!("convs.{}.{name}", layer - 1))
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

    /// Wraps plain features.
    pub(crate) fn features(&self, input: &Input) -> Features {
        match input {
            Input::Dense(Dense { rows, cols, values }) => {
                Features::Dense(self.constant(*rows, *cols, values))
            }
            Input::Sparse(sparse) => Features::Sparse(Arc::new(sparse.clone())),
        }
    }

    /// Returns features as a dense matrix, for layers that cannot do without.
    pub(crate) fn dense(&self, features: Features) -> Tensor<2> {
        match features {
            Features::Dense(dense) => dense,
            Features::Sparse(sparse) => {
                let dense = sparse.to_dense(sparse.rows);
                self.constant(dense.rows, dense.cols, &dense.values)
            }
        }
    }

    /// Returns the first rows, which are those of the dst nodes.
    pub(crate) fn first_rows(&self, features: &Features, rows: usize) -> Features {
        match features {
            Features::Dense(dense) => Features::Dense(dense.clone().narrow(0, 0, rows)),
            Features::Sparse(sparse) => {
                let stored = sparse.offset[rows] as usize;
                Features::Sparse(Arc::new(SparseRows {
                    rows,
                    cols: sparse.cols,
                    offset: sparse.offset[..=rows].to_vec(),
                    index: sparse.index[..stored].to_vec(),
                    value: sparse.value[..stored].to_vec(),
                }))
            }
        }
    }

    /// Returns `features * weight^T` for the parameter called `name`, `[out, in]`.
    pub(crate) fn product(&self, features: &Features, name: &str) -> Tensor<2> {
        let weight = self.parameter(name).transpose(); // [in, out]
        match features {
            Features::Dense(dense) => dense.clone().matmul(weight),
            Features::Sparse(sparse) => {
                let csr = Csr::new(sparse.offset.clone(), sparse.index.clone(), sparse.cols);
                let edge = sparse.value.clone();
                Fused::Spmm(Spmm {
                    csr: Arc::new(csr),
                    edge,
                    own: None,
                })
                .apply(weight)
            }
        }
    }

    /// Returns `features * NAME.weight^T + NAME.bias`.
    pub(crate) fn linear(&self, name: &str, features: &Features) -> Tensor<2> {
        let product = self.product(features, &format!("{name}.weight"));
        product + self.parameter(&format!("{name}.bias"))
    }

    /// Tells whether a linear map should come before a linear aggregation, which is then narrower.
    ///
    /// Depends on nothing but the shapes of weights and the kind of input, so that training and
    /// inference agree to the bit.
    pub(crate) fn product_first(&self, layer: usize, features: &Features) -> bool {
        let narrower = self.arch.output_dim(layer) < self.arch.input_dim(layer);
        narrower || matches!(features, Features::Sparse(_))
    }

    /// Returns the mask of one layer's input or attention, when training and something is dropped.
    pub(crate) fn mask(&self, layer: usize, kind: MaskKind, rate: f32) -> Option<Mask> {
        let seed = self.train.filter(|_| rate > 0.0)?;
        let stream = 2 * layer as u64 + u64::from(kind == MaskKind::Attention);
        Some(Mask::new(mix(seed.wrapping_add(mix(stream))), rate))
    }

    /// Drops elements of a conv's input; stored elements only, if it is sparse.
    fn dropout(&self, layer: usize, rate: f32, key: &Arc<Vec<u64>>, input: Features) -> Features {
        let Some(mask) = self.mask(layer, MaskKind::Input, rate) else {
            return input;
        };
        match input {
            Features::Dense(dense) => {
                let (key, cols) = (Arc::clone(key), dense.dims()[1]);
                Features::Dense(Fused::Dropout(Dropout { mask, key, cols }).apply(dense))
            }
            Features::Sparse(sparse) => {
                let mut sparse = Arc::unwrap_or_clone(sparse);
                for (v, &of_node) in key.iter().enumerate().take(sparse.rows) {
                    let row = mask.row(of_node);
                    for at in sparse.offset[v] as usize..sparse.offset[v + 1] as usize {
                        sparse.value[at] *= row.factor::<f32>(sparse.index[at]);
                    }
                }
                Features::Sparse(Arc::new(sparse))
            }
        }
    }

    /// Applies the architecture's non-linearity.
    pub(crate) fn activate(&self, x: Tensor<2>) -> Tensor<2> {
        let (activation, cols) = (self.arch.activation, x.dims()[1]);
        Fused::Activate(Activate { activation, cols }).apply(x)
    }
}
