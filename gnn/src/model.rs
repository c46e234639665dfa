//! A stack of convs with an optional linear head, and its loss and gradient.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Element, Tensor, TensorData};

use crate::kernel::Float;
use crate::layer::{self, Features, Pass, Place};
use crate::loss::loss_and_slope;
use crate::parameter::{self, BufferInfo};
use crate::{
    Architecture, Block, Conv, Dense, Device, GnnError, Head, Labels, ParameterInfo, ReadyInput,
};

/// Whether a forward pass trains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Dropout is drawn and batch norm uses the statistics of the batch.
    Train {
        /// Decides the dropout masks; mixes the run's seed and the global step already.
        seed: u64,
    },
    /// No dropout; batch norm uses its running statistics.
    Eval,
}

/// What one batch gives to the optimizer.
#[derive(Clone, Debug)]
pub struct LossAndGradient {
    /// Sum over the labelled rows of their loss, weighed where classes have weights.
    pub loss_sum: f64,
    /// Gradient of `loss_sum / normalizer` with respect to the flat parameters.
    pub gradient: Vec<f32>,
    /// `[num_dst, out_dim]` of the last block.
    pub logits: Dense,
    /// The running statistics after this batch (momentum 0.1), for [`Model::set_buffers`];
    /// empty without batch norm. Workers may average them: the update is linear.
    pub buffers: Vec<f32>,
}

/// A model: an architecture and its parameters.
#[derive(Clone, Debug)]
pub struct Model {
    arch: Architecture,
    infos: Vec<ParameterInfo>,
    flat: Vec<f32>,
    buffer_infos: Vec<BufferInfo>,
    buffers: Vec<f32>,
    class_weights: Vec<f32>,
    device: Device,
}

impl Model {
    /// Draws a fresh model, a pure function of `arch` and `seed`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if `arch` does not validate, its size included.
    pub fn init(arch: &Architecture, seed: u64) -> Result<Model, GnnError> {
        arch.validate()?;
        let parameters = parameter::parameters(arch);
        let flat = parameters
            .iter()
            .flat_map(|item| parameter::draw(item, seed))
            .collect();
        let infos = parameters.into_iter().map(|(info, _)| info).collect();
        let buffer_infos = parameter::buffers(arch);
        let fill = |info: &BufferInfo| vec![info.start; info.len];
        let buffers = buffer_infos.iter().flat_map(fill).collect();
        Ok(Model {
            arch: arch.clone(),
            infos,
            flat,
            buffer_infos,
            buffers,
            class_weights: Vec::new(),
            device: Device::cpu(),
        })
    }

    /// Returns the architecture.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.arch
    }

    /// Lists the parameters; the flat vector is their concatenation in this order.
    #[must_use]
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.infos
    }

    /// Returns a copy of the flat parameters.
    #[must_use]
    pub fn flat(&self) -> Vec<f32> {
        self.flat.clone()
    }

    /// Replaces the flat parameters.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_flat(&mut self, values: &[f32]) {
        self.flat.copy_from_slice(values);
    }

    /// Returns batch norm's running means and variances; empty without batch norm.
    #[must_use]
    pub fn buffers(&self) -> &[f32] {
        &self.buffers
    }

    /// Replaces batch norm's running means and variances.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_buffers(&mut self, values: &[f32]) {
        self.buffers.copy_from_slice(values);
    }

    /// Has the model compute on a device; without this it does on the processor.
    pub fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    /// Returns the device that the model computes on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Does ahead what the first training pass over a batch would do on its way: coefficients and
    /// transposes, which the blocks then keep.
    pub fn prepare(&self, blocks: &[Block], input: &ReadyInput) {
        layer::prepare(&self.arch, blocks, input);
    }

    /// Multiplies the loss of a target by the weight of its class, in
    /// [`loss_and_gradient`](Model::loss_and_gradient); without weights every class has 1.
    ///
    /// # Panics
    ///
    /// If there are weights and not one a class.
    pub fn set_class_weights(&mut self, weights: Vec<f32>) {
        let fits = weights.is_empty() || weights.len() == self.arch.out_dim;
        assert!(fits, "one weight a class");
        self.class_weights = weights;
    }

    /// Returns the logits of the last block's dst nodes.
    ///
    /// # Shapes
    ///
    /// - `blocks`: one per conv, the first for conv 1; the src nodes of a block are the dst nodes
    ///   of the one before
    /// - `input`: `[num_src of blocks[0], in_dim]`
    /// - returns: `[num_dst of the last block, out_dim]`
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] or [`GnnError::Block`] if the shapes do not fit the model;
    /// [`GnnError::Device`] if a GPU fails.
    pub fn forward(
        &self,
        blocks: &[Block],
        input: impl TryInto<ReadyInput, Error = GnnError>,
        mode: Mode,
    ) -> Result<Dense, GnnError> {
        let input = input.try_into()?;
        let targets = self.check(blocks, &input)?;
        if targets == 0 {
            return Ok(Dense::zeros(0, self.arch.out_dim));
        }
        self.compute(|| {
            let pass = self.pass(&self.flat, (&self.device, false), mode, |_| true);
            let logits = plain(run(&pass, blocks, input))?;
            pass.failure.take().map_or(Ok(logits), Err)
        })
    }

    /// Runs conv `layer` (1-based) with its residual, norm and activation, in eval mode.
    ///
    /// # Shapes
    ///
    /// - `input`: `[num_src, input width]`
    /// - returns: `[num_dst, output width]`
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] or [`GnnError::Block`] if the shapes do not fit the layer;
    /// [`GnnError::Device`] if a GPU fails.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn forward_layer(
        &self,
        layer: usize,
        block: &Block,
        input: impl TryInto<ReadyInput, Error = GnnError>,
    ) -> Result<Dense, GnnError> {
        let input = input.try_into()?;
        assert!(
            (1..=self.arch.num_layers).contains(&layer),
            "layers count from 1"
        );
        self.check_block(block)?;
        check_input(&input, block.num_src(), self.arch.input_dim(layer))?;
        if block.num_dst() == 0 {
            return Ok(Dense::zeros(0, self.arch.output_dim(layer)));
        }
        self.compute(|| {
            let pass = self.pass(&self.flat, (&self.device, false), Mode::Eval, |info| {
                info.layer == layer
            });
            plain(pass.layer(Place { layer, block }, pass.features(input)))
        })
    }

    /// Turns embeddings of the last conv into logits; without a head they are the logits.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the width is not that of the last conv; [`GnnError::Device`] if a GPU
    /// fails.
    pub fn forward_head(&self, embedding: Dense) -> Result<Dense, GnnError> {
        self.head().run(embedding)
    }

    /// Returns a conv (1-based) that runs on many blocks in eval mode on the processor, each a range of
    /// the nodes of a graph; `is_sparse` tells whether the rows it reads are sparse.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    #[must_use]
    pub fn conv(&self, layer: usize, is_sparse: bool) -> Conv<'_> {
        assert!(
            (1..=self.arch.num_layers).contains(&layer),
            "layers count from 1"
        );
        let wanted = |info: &ParameterInfo| info.layer == layer;
        let cpu = Device::cpu();
        let pass = self.pass(&self.flat, (&cpu, false), Mode::Eval, wanted);
        Conv::new(self, pass, layer, is_sparse)
    }

    /// Returns the head, to run on many rows on the processor.
    #[must_use]
    pub fn head(&self) -> Head<'_> {
        let wanted = |info: &ParameterInfo| info.layer == 0;
        let cpu = Device::cpu();
        Head::new(
            self,
            self.pass(&self.flat, (&cpu, false), Mode::Eval, wanted),
        )
    }

    /// Returns the loss of a batch and its gradient.
    ///
    /// The last block's first dst nodes are the targets, in label order; dst nodes beyond them
    /// (and logits of theirs) do not enter the loss.
    ///
    /// # Errors
    ///
    /// [`GnnError::Labels`], [`GnnError::Input`] or [`GnnError::Block`] if something does not fit
    /// the model; [`GnnError::Device`] if a GPU fails.
    pub fn loss_and_gradient(
        &self,
        blocks: &[Block],
        input: impl TryInto<ReadyInput, Error = GnnError>,
        labels: &Labels,
        normalizer: f32,
        mode: Mode,
    ) -> Result<LossAndGradient, GnnError> {
        let input = input.try_into()?;
        let targets = self.check(blocks, &input)?;
        labels.check(&self.arch, targets)?;
        if targets == 0 {
            let (gradient, logits) = (
                vec![0.0; self.flat.len()],
                Dense::zeros(0, self.arch.out_dim),
            );
            let buffers = self.buffers.clone();
            return Ok(LossAndGradient {
                loss_sum: 0.0,
                gradient,
                logits,
                buffers,
            });
        }
        self.compute(|| {
            let pass = self.pass(&self.flat, (&self.device, true), mode, |_| true);
            let logits = run(&pass, blocks, input);
            let given = plain(logits.clone())?;
            let values: Vec<f64> = given.values.iter().map(|&value| f64::from(value)).collect();
            let (loss_sum, gradient) =
                self.backward(&pass, (logits, &values), labels, f64::from(normalizer))?;
            if let Some(error) = pass.failure.take() {
                return Err(error);
            }
            Ok(LossAndGradient {
                loss_sum,
                gradient,
                logits: given,
                buffers: pass.buffers.into_inner(),
            })
        })
    }

    /// Returns the loss sum and its gradient over `normalizer` at the parameters `flat`, all in f64.
    ///
    /// Ten times slower than [`Model::loss_and_gradient`]; for checking gradients.
    ///
    /// # Errors
    ///
    /// As [`Model::loss_and_gradient`].
    ///
    /// # Panics
    ///
    /// If `flat` is not as long as the flat parameters.
    pub fn loss_and_gradient_f64(
        &self,
        flat: &[f64],
        blocks: &[Block],
        input: impl TryInto<ReadyInput, Error = GnnError>,
        labels: &Labels,
        normalizer: f64,
        mode: Mode,
    ) -> Result<(f64, Vec<f64>), GnnError> {
        let input = input.try_into()?;
        let targets = self.check(blocks, &input)?;
        labels.check(&self.arch, targets)?;
        if targets == 0 {
            return Ok((0.0, vec![0.0; flat.len()]));
        }
        let pass = self.pass(flat, (&Device::cpu(), true), mode, |_| true);
        let logits = run(&pass, blocks, input);
        let values: Vec<f64> = read(logits.clone())?;
        self.backward(&pass, (logits, &values), labels, normalizer)
    }

    /// Makes tensors of the parameters that `wanted` picks, in the number type of `flat` and on a device,
    /// with gradients if it says so.
    pub(crate) fn pass<'a, F: Float + Element>(
        &'a self,
        flat: &[F],
        (on, tracked): (&Device, bool),
        mode: Mode,
        wanted: impl Fn(&ParameterInfo) -> bool,
    ) -> Pass<'a> {
        let device = on.backend().clone();
        let device = if tracked { device.autodiff() } else { device };
        let (mut parameters, mut start, dtype) = (BTreeMap::new(), 0, F::dtype());
        for info in &self.infos {
            let values = &flat[start..start + info.len()];
            start += info.len();
            if wanted(info) {
                let cols = *info.shape.last().expect("no parameter is a scalar");
                let data = TensorData::new(values.to_vec(), [info.len() / cols, cols]);
                let tensor = Tensor::<2>::from_data(data, (&device, dtype));
                let tensor = if device.is_autodiff() {
                    tensor.require_grad()
                } else {
                    tensor
                };
                parameters.insert(info.name.as_str(), tensor);
            }
        }
        Pass {
            arch: &self.arch,
            parameters,
            device,
            on_gpu: on.is_gpu(),
            dtype,
            train: match mode {
                Mode::Train { seed } => Some(seed),
                Mode::Eval => None,
            },
            buffer_infos: &self.buffer_infos,
            buffers: RefCell::new(self.buffers.clone()),
            failure: RefCell::default(),
        }
    }

    /// Returns the loss sum and the gradient of loss sum over normalizer.
    ///
    /// The loss and its slope are computed in f64 outside the graph; the backward pass then starts
    /// from `sum(logits * slope)`, whose gradient is that of the loss.
    fn backward<F: Float + Element>(
        &self,
        pass: &Pass<'_>,
        (logits, values): (Tensor<2>, &[f64]),
        labels: &Labels,
        normalizer: f64,
    ) -> Result<(f64, Vec<F>), GnnError> {
        let [rows, width] = logits.dims();
        let (loss_sum, mut slope) =
            loss_and_slope(self.arch.task, values, width, labels, &self.class_weights);
        if slope.is_empty() {
            return Ok((0.0, vec![F::ZERO; self.flat.len()]));
        }
        slope.iter_mut().for_each(|slope| *slope /= normalizer);
        slope.resize(rows * width, 0.0);
        let slope = TensorData::new(slope, [rows, width]).convert::<F>();
        let slope = Tensor::<2>::from_data(slope, (&pass.device, pass.dtype));
        let grads = (logits * slope).sum().backward();
        // A parameter that this batch does not touch (edge weights without edges) has none.
        let grads = self.infos.iter().map(|info| {
            let grad = pass.parameters[info.name.as_str()].grad(&grads);
            grad.ok_or(info.len())
        });
        if pass.on_gpu {
            return Ok((loss_sum, read_at_once(grads.collect(), pass)?));
        }
        let mut gradient = Vec::with_capacity(self.flat.len());
        for grad in grads {
            match grad {
                Ok(grad) => gradient.extend(read::<F>(grad)?),
                Err(len) => gradient.resize(gradient.len() + len, F::ZERO),
            }
        }
        Ok((loss_sum, gradient))
    }

    /// Runs work on one of the pool's threads, where kernels start that use them.
    fn compute<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        if self.device.is_gpu() {
            work()
        } else {
            on_pool(work)
        }
    }

    /// Checks blocks and input against the model and returns the number of targets.
    fn check(&self, blocks: &[Block], input: &ReadyInput) -> Result<usize, GnnError> {
        let num_layers = self.arch.num_layers;
        let ([first, ..], [.., last]) = (blocks, blocks) else {
            let problem = format!("no blocks for {num_layers} layers");
            return Err(GnnError::Input { problem });
        };
        if blocks.len() != num_layers {
            let problem = format!("{} blocks for {num_layers} layers", blocks.len());
            return Err(GnnError::Input { problem });
        }
        for block in blocks {
            self.check_block(block)?;
        }
        for pair in blocks.windows(2) {
            let (dst, src) = (pair[0].num_dst(), pair[1].num_src());
            if dst != src {
                let problem = format!("{src} src nodes after a block with {dst} dst nodes");
                return Err(GnnError::Block {
                    field: "num_src",
                    problem,
                });
            }
        }
        check_input(input, first.num_src(), self.arch.in_dim)?;
        Ok(last.num_dst())
    }

    pub(crate) fn check_block(&self, block: &Block) -> Result<(), GnnError> {
        let arch = &self.arch;
        let weighted = block.edge_weight().is_some();
        if arch.edge_weight && !weighted {
            let problem = "is missing, but the model uses edge weights".to_owned();
            return Err(GnnError::Block {
                field: "edge_weight",
                problem,
            });
        }
        let Some(wanted) = arch.edge_dim else {
            return Ok(());
        };
        let got = block.edge_feature().map(|feature| feature.cols);
        if got == Some(wanted) {
            return Ok(());
        }
        let problem = format!("is {} wide, but the model needs {wanted}", got.unwrap_or(0));
        Err(GnnError::Block {
            field: "edge_feature",
            problem,
        })
    }
}

/// Runs a pass on one of the pool's threads. Kernels that started from outside would hand every
/// piece of work over to other threads, and wait for it asleep.
fn on_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

fn run(pass: &Pass<'_>, blocks: &[Block], input: ReadyInput) -> Tensor<2> {
    let mut features = pass.features(input);
    if let Some(block) = blocks.first() {
        features = pass.drop_features(block.shared_key(), features);
    }
    for (layer, block) in (1..).zip(blocks) {
        features = Features::Dense(pass.layer(Place { layer, block }, features));
    }
    pass.head(pass.dense(features))
}

pub(crate) fn check_input(input: &ReadyInput, rows: usize, cols: usize) -> Result<(), GnnError> {
    if (input.rows(), input.cols()) == (rows, cols) {
        return Ok(());
    }
    let (got_rows, got_cols) = (input.rows(), input.cols());
    let problem = format!("is {got_rows} x {got_cols}, but {rows} x {cols} is needed");
    Err(GnnError::Input { problem })
}

pub(crate) fn plain(tensor: Tensor<2>) -> Result<Dense, GnnError> {
    let [rows, cols] = tensor.dims();
    let values = read(tensor)?;
    Ok(Dense { rows, cols, values })
}

/// Reads a tensor, which is when a GPU says what went wrong before.
pub(crate) fn read<F: Element>(tensor: Tensor<2>) -> Result<Vec<F>, GnnError> {
    let data = tensor.try_into_data().map_err(|error| GnnError::Device {
        problem: format!("the device failed: {error}"),
    })?;
    Ok(data
        .try_into_vec::<F>()
        .expect("a pass has one number type"))
}

/// Reads gradients, or zeros where there is but a length, in one go: each read waits for the GPU.
fn read_at_once<F: Float + Element>(
    grads: Vec<Result<Tensor<2>, usize>>,
    pass: &Pass<'_>,
) -> Result<Vec<F>, GnnError> {
    let row = |grad: Result<Tensor<2>, usize>| match grad {
        Ok(grad) => {
            let len = grad.dims().iter().product();
            grad.reshape([1, len])
        }
        Err(len) => pass.constant(1, len, &vec![0.0; len]).inner(),
    };
    read(Tensor::cat(grads.into_iter().map(row).collect(), 1))
}
