//! The loss of a batch and its gradient.

use super::{Mode, Model, Wanted, compute_on};
use crate::check::check;
use crate::layer::{plain, read};
use crate::light::{self, Light, LightLayer};
use crate::loss::Weighing;
use crate::{Block, Dense, Device, GnnError, Labels, LayerKind, ReadyInput, Task};

/// Loss and gradient of one batch.
#[derive(Clone, Debug)]
pub struct LossAndGradient {
    /// Loss summed over the labelled rows, times class weights if there are any.
    pub loss_sum: f64,
    /// Gradient of `loss_sum / normalizer` with respect to the flat parameters; with a
    /// [`label_scale`](Model::label_scale), of the loss in scaled units.
    pub gradient: Vec<f32>,
    /// By node type, the gradient of the learnable columns of the input, `[num_src, embedding_dim]`;
    /// none for types without learnable rows, and for types without src nodes.
    pub rows: Vec<Option<Dense>>,
    /// `[num_dst, out_dim]` of the last block.
    pub logits: Dense,
    /// The running statistics after this batch (momentum 0.1), for [`Model::set_buffers`];
    /// empty without batch norm. Workers may average them: the update is linear.
    pub buffers: Vec<f32>,
}

impl Model {
    /// Returns the loss of a batch and its gradient.
    ///
    /// The last block's first dst nodes are the targets, in label order. Dst nodes after them do
    /// not enter the loss.
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
        let targets = check(&self.arch, blocks, &input)?;
        labels.check(self.arch.task, self.arch.out_dim, targets)?;
        if targets == 0 {
            let (gradient, logits) = (
                vec![0.0; self.state.flat.len()],
                Dense::zeros(0, self.arch.out_dim),
            );
            let buffers = self.state.buffers.clone();
            return Ok(LossAndGradient {
                loss_sum: 0.0,
                gradient,
                rows: vec![None],
                logits,
                buffers,
            });
        }
        if let Some(computed) = self.light_gradient(blocks, &input, labels, normalizer) {
            return Ok(computed);
        }
        compute_on(&self.device, || {
            let stack = self.stack(&self.state.flat, (&self.device, true), mode, |_| true);
            let logits = stack.run(blocks, input);
            let given = plain(logits.clone())?;
            let values: Vec<f64> = given.values.iter().map(|&value| f64::from(value)).collect();
            let mut slopes = self.state.backward(
                &stack.pass,
                (logits, &values),
                &self.wanted(labels, &self.state.flat),
                f64::from(normalizer),
            )?;
            if let Some(error) = stack.pass.failure.take() {
                return Err(error);
            }
            Ok(LossAndGradient {
                loss_sum: slopes.loss_sum,
                rows: slopes.take_inputs(1),
                gradient: slopes.parameters,
                logits: self.in_label_unit(given),
                buffers: stack.pass.buffers.into_inner(),
            })
        })
    }

    /// Returns the loss of the pairs of a `LightGCN` on the processor, and its gradient; none for all
    /// other models.
    fn light_gradient(
        &self,
        blocks: &[Block],
        input: &ReadyInput,
        labels: &Labels,
        normalizer: f32,
    ) -> Option<LossAndGradient> {
        let (Task::Links(decoder), Labels::Pairs(pairs)) = (self.arch.task, labels) else {
            return None;
        };
        if self.arch.layer != LayerKind::LightGcn || self.device.is_gpu() {
            return None;
        }
        let start = [light::start_rows(Some(input))?];
        Some(compute_on(&self.device, || {
            let layers: Vec<LightLayer> = blocks.iter().map(LightLayer::of_block).collect();
            let dim = self.arch.in_dim;
            let light = Light {
                layers: &layers,
                dim,
            };
            let state = (&self.state, decoder);
            light.loss_and_gradient(state, &start, pairs, f64::from(normalizer))
        }))
    }

    /// Returns the loss sum and the gradient of `loss sum / normalizer` at the parameters `flat`,
    /// in f64.
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
        let targets = check(&self.arch, blocks, &input)?;
        labels.check(self.arch.task, self.arch.out_dim, targets)?;
        if targets == 0 {
            return Ok((0.0, vec![0.0; flat.len()]));
        }
        let stack = self.stack(flat, (&Device::cpu(), true), mode, |_| true);
        let logits = stack.run(blocks, input);
        let values: Vec<f64> = read(logits.clone())?;
        let wanted = self.wanted(labels, flat);
        let slopes = self
            .state
            .backward(&stack.pass, (logits, &values), &wanted, normalizer)?;
        Ok((slopes.loss_sum, slopes.parameters))
    }

    /// Returns the labels with what their loss depends on.
    fn wanted<'a, F>(&'a self, labels: &'a Labels, flat: &'a [F]) -> Wanted<'a, F> {
        Wanted {
            task: self.arch.task,
            labels,
            weighing: Weighing {
                class_weights: &self.class_weights,
                label_scale: self.label_scale.as_ref(),
            },
            flat,
        }
    }
}
