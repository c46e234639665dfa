//! A stack of convs with an optional linear head: its parameters and its forward pass.

mod gradient;
mod state;

pub use gradient::LossAndGradient;
pub(crate) use state::{ModelState, Wanted};

use std::sync::Arc;

use burn::tensor::Element;

use crate::check::{check, check_block, check_input};
use crate::kernel::Float;
use crate::layer::{Conv, Place, plain};
use crate::stack::{self, Stack};
use crate::{
    Architecture, Block, Dense, Device, GnnError, Head, LabelScale, LayerSlice, ParameterInfo,
    ReadyInput, Scorer,
};

/// Whether a forward pass trains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Dropout is drawn and batch norm uses the statistics of the batch.
    Train {
        /// Seed of the dropout masks; the caller mixes it from the run's seed and the global step.
        seed: u64,
    },
    /// No dropout; batch norm uses its running statistics.
    Eval,
}

/// A model: an architecture and its parameters.
#[derive(Clone, Debug)]
pub struct Model {
    arch: Architecture,
    convs: Vec<Arc<dyn Conv>>,
    pub(crate) state: ModelState,
    class_weights: Vec<f32>,
    label_scale: Option<LabelScale>,
    device: Device,
}

impl Model {
    /// Makes a model whose parameters are drawn by a pure function of `arch` and `seed`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if `arch` is invalid or too large.
    pub fn init(arch: &Architecture, seed: u64) -> Result<Model, GnnError> {
        arch.validate()?;
        let convs = arch.convs();
        let state = ModelState::draw(arch.tensors(&convs), seed);
        Ok(Model {
            arch: arch.clone(),
            convs,
            state,
            class_weights: Vec::new(),
            label_scale: None,
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
        &self.state.infos
    }

    /// Returns a copy of the flat parameters.
    #[must_use]
    pub fn flat(&self) -> Vec<f32> {
        self.state.flat.clone()
    }

    /// Replaces the flat parameters.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_flat(&mut self, values: &[f32]) {
        self.state.flat.copy_from_slice(values);
    }

    /// Returns batch norm's running means and variances; empty without batch norm.
    #[must_use]
    pub fn buffers(&self) -> &[f32] {
        &self.state.buffers
    }

    /// Replaces batch norm's running means and variances.
    ///
    /// # Panics
    ///
    /// If the length differs.
    pub fn set_buffers(&mut self, values: &[f32]) {
        self.state.buffers.copy_from_slice(values);
    }

    /// Sets the device that the model computes on; the default is the processor.
    pub fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    /// Returns a copy of the model on a device.
    #[must_use]
    pub fn on(&self, device: Device) -> Model {
        let mut model = self.clone();
        model.set_device(device);
        model
    }

    /// Returns the device that the model computes on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Computes coefficients and transposes of a batch's blocks before its first training pass; the
    /// blocks keep them. The input of a model with learnable rows may be none.
    pub fn prepare(&self, blocks: &[Block], input: Option<&ReadyInput>) {
        let raw = input.filter(|_| self.arch.embedding_dim.is_none());
        stack::prepare(&self.convs, blocks, (raw, self.device.is_gpu()));
    }

    /// Sets class weights: [`loss_and_gradient`](Model::loss_and_gradient) multiplies the loss of a
    /// target by the weight of its class. No weights mean 1 for every class.
    ///
    /// # Panics
    ///
    /// If there are weights, but not one per class.
    pub fn set_class_weights(&mut self, weights: Vec<f32>) {
        let fits = weights.is_empty() || weights.len() == self.arch.out_dim;
        assert!(fits, "one weight per class");
        self.class_weights = weights;
    }

    /// Sets the unit of a regression's labels: the model then computes scaled labels, while losses
    /// and outputs stay in the unit of the labels.
    ///
    /// # Errors
    ///
    /// [`GnnError::Transform`] if the model is not a regression, or the scale has another width.
    pub fn set_label_scale(&mut self, scale: LabelScale) -> Result<(), GnnError> {
        scale.check(self.arch.task, self.arch.out_dim)?;
        self.label_scale = Some(scale);
        Ok(())
    }

    /// Returns the unit of a regression's labels, if one was set.
    #[must_use]
    pub fn label_scale(&self) -> Option<&LabelScale> {
        self.label_scale.as_ref()
    }

    /// Returns the logits of the last block's dst nodes; for a regression with a
    /// [`label_scale`](Model::label_scale), numbers in the unit of the labels.
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
        let targets = check(&self.arch, blocks, &input)?;
        if targets == 0 {
            return Ok(Dense::zeros(0, self.arch.out_dim));
        }
        compute_on(&self.device, || {
            let stack = self.stack(&self.state.flat, (&self.device, false), mode, |_| true);
            let logits = self.in_label_unit(plain(stack.run(blocks, input))?);
            stack.pass.failure.take().map_or(Ok(logits), Err)
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
    /// If the model has no layer `layer`.
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
        check_block(&self.arch, block)?;
        check_input(&input, block.num_src(), self.arch.input_dim(layer))?;
        if block.num_dst() == 0 {
            return Ok(Dense::zeros(0, self.arch.output_dim(layer)));
        }
        compute_on(&self.device, || {
            let wanted = |info: &ParameterInfo| info.layer == layer;
            let stack = self.stack(&self.state.flat, (&self.device, false), Mode::Eval, wanted);
            plain(stack.layer(Place { layer, block }, stack.pass.features(input)))
        })
    }

    /// Turns embeddings of the last conv into logits; without a head, the embeddings are the
    /// logits.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the width is not that of the last conv; [`GnnError::Device`] if a GPU
    /// fails.
    pub fn forward_head(&self, embedding: Dense) -> Result<Dense, GnnError> {
        self.head().run(embedding)
    }

    /// Returns a layer (1-based) that runs on many blocks in eval mode, each a range of the nodes of a
    /// graph; `is_sparse` tells whether the rows it reads are sparse.
    ///
    /// # Panics
    ///
    /// If the model has no layer `layer`.
    #[must_use]
    pub fn layer_slice(&self, layer: usize, is_sparse: bool) -> LayerSlice<'_> {
        assert!(
            (1..=self.arch.num_layers).contains(&layer),
            "layers count from 1"
        );
        let wanted = |info: &ParameterInfo| info.layer == layer;
        let stack = self.stack(&self.state.flat, (&self.device, false), Mode::Eval, wanted);
        LayerSlice::new(stack, layer, is_sparse)
    }

    /// Returns the head, which runs on many rows.
    #[must_use]
    pub fn head(&self) -> Head<'_> {
        let wanted = |info: &ParameterInfo| info.layer == 0;
        let stack = self.stack(&self.state.flat, (&self.device, false), Mode::Eval, wanted);
        Head::new(stack, self.label_scale.as_ref())
    }

    /// Makes tensors of the parameters that `wanted` picks, in the number type of `flat` and on a device,
    /// with gradients if `tracked`.
    fn stack<'a, F: Float + Element>(
        &'a self,
        flat: &[F],
        (on, tracked): (&Device, bool),
        mode: Mode,
        wanted: impl Fn(&ParameterInfo) -> bool,
    ) -> Stack<'a> {
        Stack {
            arch: &self.arch,
            convs: &self.convs,
            pass: self.state.pass(flat, (on, tracked), mode, wanted),
        }
    }

    /// Returns the decoder with its parameters, for a model of links.
    #[must_use]
    pub fn scorer(&self) -> Option<Scorer> {
        self.state.scorer(self.arch.task, self.arch.out_dim)
    }

    /// Undoes the scaling of labels.
    fn in_label_unit(&self, mut outputs: Dense) -> Dense {
        if let Some(scale) = &self.label_scale {
            scale.undo(&mut outputs);
        }
        outputs
    }
}

/// Runs a pass on a device, on a thread of the pool if the device is the processor. On a thread
/// outside the pool, a kernel would hand all its work to the pool and sleep until it is done.
pub(crate) fn compute_on<R: Send>(device: &Device, work: impl FnOnce() -> R + Send) -> R {
    if device.is_gpu() {
        work()
    } else {
        rayon::scope(|_| work())
    }
}
