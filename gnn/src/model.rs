//! A stack of convs with an optional linear head, and its loss and gradient.

use crate::parameter::{self, BufferInfo};
use crate::{Architecture, Block, Dense, GnnError, Input, Labels, ParameterInfo};

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
    /// Sum over the labelled rows of their loss.
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
}

impl Model {
    /// Draws a fresh model, a pure function of `arch` and `seed`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if `arch` does not validate.
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
    /// [`GnnError::Input`] or [`GnnError::Block`] if the shapes do not fit the model.
    pub fn forward(&self, blocks: &[Block], input: &Input, mode: Mode) -> Result<Dense, GnnError> {
        let _ = (blocks, input, mode, &self.buffer_infos);
        todo!()
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
    /// [`GnnError::Input`] or [`GnnError::Block`] if the shapes do not fit the layer.
    pub fn forward_layer(
        &self,
        layer: usize,
        block: &Block,
        input: &Input,
    ) -> Result<Dense, GnnError> {
        let _ = (layer, block, input);
        todo!()
    }

    /// Turns embeddings of the last conv into logits; without a head they are the logits.
    ///
    /// # Errors
    ///
    /// [`GnnError::Input`] if the width is not that of the last conv.
    pub fn forward_head(&self, embedding: &Dense) -> Result<Dense, GnnError> {
        let _ = embedding;
        todo!()
    }

    /// Returns the loss of a batch and its gradient.
    ///
    /// The last block's first dst nodes are the targets, in label order; dst nodes beyond them
    /// (and logits of theirs) do not enter the loss.
    ///
    /// # Errors
    ///
    /// [`GnnError::Labels`], [`GnnError::Input`] or [`GnnError::Block`] if something does not fit
    /// the model.
    pub fn loss_and_gradient(
        &self,
        blocks: &[Block],
        input: &Input,
        labels: &Labels,
        normalizer: f32,
        mode: Mode,
    ) -> Result<LossAndGradient, GnnError> {
        let _ = (blocks, input, labels, normalizer, mode);
        todo!()
    }
}
