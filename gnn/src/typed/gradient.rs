//! The loss of a typed batch and its gradient.

use super::block::TypedBlock;
use super::check::check;
use super::model::TypedModel;
use crate::layer::{plain, read};
use crate::light::{self, Light, LightLayer};
use crate::loss::Weighing;
use crate::model::{Wanted, compute_on};
use crate::{Dense, Device, GnnError, Labels, LossAndGradient, Mode, ReadyInput, Task};

impl TypedModel {
    /// Returns the loss of a batch and its gradient.
    ///
    /// The last block's first dst nodes of the target type are the targets, in label order. Dst
    /// nodes after them do not enter the loss.
    ///
    /// # Errors
    ///
    /// [`GnnError::Labels`] if the labels do not fit the model, and as [`TypedModel::forward`].
    pub fn loss_and_gradient(
        &self,
        blocks: &[TypedBlock],
        input: &[Option<ReadyInput>],
        labels: &Labels,
        normalizer: f32,
        mode: Mode,
    ) -> Result<LossAndGradient, GnnError> {
        let targets = check(&self.arch, &self.schema, blocks, input)?;
        labels.check(self.arch.task, self.arch.out_dim, targets)?;
        if targets == 0 {
            return Ok(LossAndGradient {
                loss_sum: 0.0,
                gradient: vec![0.0; self.state.flat.len()],
                rows: vec![None; input.len()],
                logits: Dense::zeros(0, self.arch.out_dim),
                buffers: self.state.buffers.clone(),
            });
        }
        if let Some(computed) = self.light_gradient(blocks, input, labels, normalizer) {
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
                rows: slopes.take_inputs(input.len()),
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
        blocks: &[TypedBlock],
        input: &[Option<ReadyInput>],
        labels: &Labels,
        normalizer: f32,
    ) -> Option<LossAndGradient> {
        let (Task::Links(decoder), Labels::Pairs(pairs)) = (self.arch.task, labels) else {
            return None;
        };
        if !self.arch.is_light() || self.device.is_gpu() {
            return None;
        }
        let start = input.iter().map(|rows| light::start_rows(rows.as_ref()));
        let start = start.collect::<Option<Vec<_>>>()?;
        let layers = blocks.iter().map(TypedBlock::light_layer).cloned();
        Some(compute_on(&self.device, || {
            let dim = self.arch.projection;
            let layers: Vec<LightLayer> = layers.collect();
            let light = Light {
                layers: &layers,
                dim,
            };
            let state = (&self.state, decoder);
            light.loss_and_gradient(state, &start, pairs, f64::from(normalizer))
        }))
    }

    /// Returns the loss sum and the gradient of `loss sum / normalizer` at the parameters `flat`,
    /// in f64; for checking gradients.
    ///
    /// # Errors
    ///
    /// As [`TypedModel::loss_and_gradient`].
    ///
    /// # Panics
    ///
    /// If `flat` is not as long as the flat parameters.
    pub fn loss_and_gradient_f64(
        &self,
        flat: &[f64],
        blocks: &[TypedBlock],
        input: &[Option<ReadyInput>],
        labels: &Labels,
        normalizer: f64,
        mode: Mode,
    ) -> Result<(f64, Vec<f64>), GnnError> {
        let targets = check(&self.arch, &self.schema, blocks, input)?;
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
