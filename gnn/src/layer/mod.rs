//! Convs: one kind a file, and what surrounds every kind.

mod coefficient;
mod gat;
mod gatv2;
mod gcn;
mod gin;
mod norm;
mod sage;

pub(crate) use coefficient::{CoefficientCache, Coefficients, round};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::kernel::{Dropout, Linear, Mask, Shared, Spmm, Update, mix};
use crate::ops::Fused;
use crate::parameter::BufferInfo;
use crate::tensor::{ReadyFeatures, SparseFeatures};
use crate::{Activation, Aggregator, Architecture, Block, GnnError, LayerKind, Norm, ReadyInput};

/// One forward pass: parameters as tensors, and how it is run.
pub(crate) struct Pass<'a> {
    pub(crate) arch: &'a Architecture,
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
    /// Why statistics of a batch could not be read, if so.
    pub(crate) failure: RefCell<Option<GnnError>>,
}

/// What a conv reads: a row for each src node.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one value a layer, never many")]
pub(crate) enum Features {
    Dense(Tensor<2>),
    Sparse(SparseFeatures),
}

/// What a conv aggregates: a row for each src node, as it came or projected.
#[derive(Clone)]
pub(crate) struct Src {
    pub(crate) rows: Features,
    pub(crate) is_projected: bool,
    /// What GAT makes of each row, `[num_src, 2 * heads]`, where it is known already.
    pub(crate) scores: Option<Tensor<2>>,
    /// What comes of it for each dst node, where it is aggregated already.
    pub(crate) aggregated: Option<Tensor<2>>,
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

/// What a conv comes to before bias and non-linearity: the sum of its fields.
pub(crate) struct Summed<'a> {
    pub(crate) x: Tensor<2>,
    pub(crate) addend: Option<Tensor<2>>,
    /// Name of the bias.
    pub(crate) bias: Option<&'a str>,
}

impl Summed<'_> {
    fn of(x: Tensor<2>) -> Self {
        let (addend, bias) = (None, None);
        Self { x, addend, bias }
    }
}

impl Pass<'_> {
    /// Runs one conv with residual, norm and activation, and the dropout of what reads it:
    /// `[num_src, _]` to `[num_dst, _]`.
    pub(crate) fn layer(&self, place: Place<'_>, input: Features) -> Tensor<2> {
        let residual = self.arch.residual.then(|| self.residual(place, &input));
        let projected = self.project(place.layer, &input, place.block.num_src());
        let src = Src {
            is_projected: projected.is_some(),
            rows: projected.map_or_else(|| input.clone(), Features::Dense),
            scores: None,
            aggregated: None,
        };
        self.aggregate(place, src, input, residual)
    }

    /// Returns what a conv aggregates of the first `rows` rows, where that is not the rows themselves.
    pub(crate) fn project(&self, layer: usize, input: &Features, rows: usize) -> Option<Tensor<2>> {
        let is_sparse = matches!(input, Features::Sparse(_));
        let map = projection(self.arch, layer, is_sparse)?;
        Some(match self.arch.layer {
            LayerKind::GatV2 => self.linear(&map, input, rows),
            _ => self.product(input, rows, &format!("{map}.weight")),
        })
    }

    /// Runs a conv from what it aggregates and what its dst nodes, the first rows of `own`, are.
    pub(crate) fn aggregate(
        &self,
        place: Place<'_>,
        src: Src,
        own: Features,
        residual: Option<Tensor<2>>,
    ) -> Tensor<2> {
        let Place { layer, block } = place;
        let bias = format!("convs.{}.bias", layer - 1);
        let (sage_bias, gin_bias) = (
            format!("convs.{}.lin_l.bias", layer - 1),
            format!("convs.{}.nn.lins.1.bias", layer - 1),
        );
        let (x, addend, bias) = match self.arch.layer {
            LayerKind::Gcn => (self.gcn(place, src), None, bias),
            LayerKind::Sage => {
                let (x, addend) = self.sage(place, src, own);
                (x, addend, sage_bias)
            }
            LayerKind::Gin => (self.gin(place, src), None, gin_bias),
            LayerKind::Gat => (self.gat(place, src), None, bias),
            LayerKind::GatV2 => (self.gatv2(place, src, &own), None, bias),
        };
        let addend = match (addend, residual) {
            (Some(addend), Some(residual)) => Some(addend + residual),
            (addend, residual) => addend.or(residual),
        };
        let summed = Summed {
            x,
            addend,
            bias: Some(&bias),
        };
        if !self.arch.is_hidden(layer) {
            return self.update(summed, None, None);
        }
        let summed = match self.arch.norm {
            Norm::None => summed,
            Norm::Batch | Norm::Layer => {
                let out = self.update(summed, None, None);
                let name = format!("norms.{}", layer - 1);
                Summed::of(self.norm(&name, block.num_active(), out))
            }
        };
        let mask = self.mask(layer + 1, MaskKind::Input, self.arch.dropout);
        let dropout = mask.map(|mask| (mask, block.shared_key().clone()));
        self.update(summed, Some(self.arch.activation), dropout)
    }

    /// Turns embeddings of the last conv, which dropout has passed, into logits.
    pub(crate) fn head(&self, embedding: Tensor<2>) -> Tensor<2> {
        if !self.arch.has_head() {
            return embedding;
        }
        let rows = embedding.dims()[0];
        self.linear("lin", &Features::Dense(embedding), rows)
    }

    /// Adds up what a conv gave and applies non-linearity and dropout, in one pass.
    pub(crate) fn update(
        &self,
        summed: Summed<'_>,
        activation: Option<Activation>,
        dropout: Option<(Mask, Shared<u64>)>,
    ) -> Tensor<2> {
        let Summed { x, addend, bias } = summed;
        let bias = bias.map(|name| self.parameter(name));
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

    pub(crate) fn residual(
        &self,
        Place { layer, block }: Place<'_>,
        input: &Features,
    ) -> Tensor<2> {
        let name = format!("res.{}.weight", layer - 1);
        let rows = block.num_dst();
        if self.parameters.contains_key(name.as_str()) {
            self.product(input, rows, &name)
        } else {
            self.dense(input.clone()).narrow(0, 0, rows)
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

    /// Returns an input as it takes part in this pass.
    pub(crate) fn features(&self, input: ReadyInput) -> Features {
        match input.features {
            ReadyFeatures::Sparse(sparse) => Features::Sparse(sparse),
            ReadyFeatures::Dense(dense) => {
                let dense = if self.on_gpu {
                    let upload = || dense.to_device(&self.device.clone().inner());
                    input.on_gpu.get_or_init(upload).clone()
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

    /// Returns features as a dense matrix, for layers that cannot do without.
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

    /// Returns `a * A^T + b[..rows] * B^T` for the parameters that stand beside them.
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

    /// Returns `features[..rows] * NAME.weight^T + NAME.bias`.
    pub(crate) fn linear(&self, name: &str, features: &Features, rows: usize) -> Tensor<2> {
        let product = self.product(features, rows, &format!("{name}.weight"));
        let bias = format!("{name}.bias");
        let summed = Summed {
            bias: Some(&bias),
            ..Summed::of(product)
        };
        self.update(summed, None, None)
    }

    /// Returns the mask of one layer's input or attention, when training and something is dropped.
    pub(crate) fn mask(&self, layer: usize, kind: MaskKind, rate: f32) -> Option<Mask> {
        let seed = self.train.filter(|_| rate > 0.0)?;
        let stream = 2 * layer as u64 + u64::from(kind == MaskKind::Attention);
        Some(Mask::new(mix(seed.wrapping_add(mix(stream))), rate))
    }

    /// Drops elements of the features; stored elements only, if they are sparse.
    pub(crate) fn drop_features(&self, key: &Shared<u64>, input: Features) -> Features {
        let Some(mask) = self.mask(1, MaskKind::Input, self.arch.input_dropout) else {
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

/// Does ahead what the first training pass over a batch would do on its way.
pub(crate) fn prepare(arch: &Architecture, blocks: &[Block], input: &ReadyInput) {
    let is_sparse = matches!(input.features, ReadyFeatures::Sparse(_));
    if let ReadyFeatures::Sparse(sparse) = &input.features {
        sparse.csr.transposed();
    }
    for (layer, block) in (1..).zip(blocks) {
        let coefficients = Coefficients::new(block, arch.edge_weight);
        match arch.layer {
            LayerKind::Gcn => drop(coefficients.gcn()),
            LayerKind::Sage if arch.aggregator == Aggregator::Mean => drop(coefficients.mean()),
            LayerKind::Sage | LayerKind::Gat | LayerKind::GatV2 => drop(coefficients.weights()),
            LayerKind::Gin => drop(coefficients.sum()),
        }
        // Nothing flows back into features that are aggregated as they are.
        let features_only = layer == 1
            && !arch.layer.is_attention()
            && arch.edge_dim.is_none()
            && !product_first(arch, layer, is_sparse);
        if !features_only {
            block.csr().transposed();
        }
    }
}

/// Returns the name of the linear map that a conv applies to the rows it aggregates, if it does so
/// before.
pub(crate) fn projection(arch: &Architecture, layer: usize, is_sparse: bool) -> Option<String> {
    let map = match (arch.layer, arch.aggregator) {
        (LayerKind::Gat, _) => return Some(format!("convs.{}.lin", layer - 1)),
        (LayerKind::GatV2, _) => return Some(format!("convs.{}.lin_l", layer - 1)),
        (LayerKind::Gcn, _) => "lin",
        (LayerKind::Sage, Aggregator::Mean) => "lin_l",
        (LayerKind::Gin, _) if arch.edge_dim.is_none() => "nn.lins.0",
        (LayerKind::Sage | LayerKind::Gin, _) => return None,
    };
    product_first(arch, layer, is_sparse).then(|| format!("convs.{}.{map}", layer - 1))
}

/// Tells whether a conv reads the rows of its dst nodes besides what it aggregates.
pub(crate) fn reads_own(arch: &Architecture) -> bool {
    arch.residual || matches!(arch.layer, LayerKind::Sage | LayerKind::GatV2)
}

/// Tells whether a linear map should come before a linear aggregation, which is then narrower.
///
/// Depends on nothing but the shapes of weights and the kind of input, so that training and
/// inference agree to the bit.
fn product_first(arch: &Architecture, layer: usize, is_sparse: bool) -> bool {
    arch.output_dim(layer) < arch.input_dim(layer) || is_sparse
}
