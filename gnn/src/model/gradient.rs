//! The loss of a batch and its gradient.

use burn::tensor::{Element, Tensor, TensorData};

use super::{Mode, Model};
use crate::check::check;
use crate::kernel::Float;
use crate::layer::{Pass, plain, read};
use crate::loss::{Weighing, loss_and_slope};
use crate::{Block, Dense, Device, GnnError, Labels, ReadyInput};

/// Loss and gradient of one batch.
#[derive(Clone, Debug)]
pub struct LossAndGradient {
    /// Loss summed over the labelled rows, times class weights if there are any.
    pub loss_sum: f64,
    /// Gradient of `loss_sum / normalizer` with respect to the flat parameters; with a
    /// [`label_scale`](Model::label_scale), of the loss in scaled units.
    pub gradient: Vec<f32>,
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
            let stack = self.stack(&self.flat, (&self.device, true), mode, |_| true);
            let logits = stack.run(blocks, input);
            let given = plain(logits.clone())?;
            let values: Vec<f64> = given.values.iter().map(|&value| f64::from(value)).collect();
            let (loss_sum, gradient) = self.backward(
                &stack.pass,
                (logits, &values),
                labels,
                f64::from(normalizer),
            )?;
            if let Some(error) = stack.pass.failure.take() {
                return Err(error);
            }
            Ok(LossAndGradient {
                loss_sum,
                gradient,
                logits: self.in_label_unit(given),
                buffers: stack.pass.buffers.into_inner(),
            })
        })
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
        labels.check(&self.arch, targets)?;
        if targets == 0 {
            return Ok((0.0, vec![0.0; flat.len()]));
        }
        let stack = self.stack(flat, (&Device::cpu(), true), mode, |_| true);
        let logits = stack.run(blocks, input);
        let values: Vec<f64> = read(logits.clone())?;
        self.backward(&stack.pass, (logits, &values), labels, normalizer)
    }

    /// Returns the loss sum and the gradient of `loss sum / normalizer`.
    ///
    /// The loss and its slope are computed in f64 outside the graph. The backward pass starts from
    /// `sum(logits * slope)`, whose gradient equals the gradient of the loss.
    fn backward<F: Float + Element>(
        &self,
        pass: &Pass<'_>,
        (logits, values): (Tensor<2>, &[f64]),
        labels: &Labels,
        normalizer: f64,
    ) -> Result<(f64, Vec<F>), GnnError> {
        let [rows, width] = logits.dims();
        let weighing = Weighing {
            class_weights: &self.class_weights,
            label_scale: self.label_scale.as_ref(),
        };
        let (loss_sum, mut slope) = loss_and_slope(self.arch.task, values, width, labels, weighing);
        if slope.is_empty() {
            return Ok((0.0, vec![F::ZERO; self.flat.len()]));
        }
        slope.iter_mut().for_each(|slope| *slope /= normalizer);
        slope.resize(rows * width, 0.0);
        let slope = TensorData::new(slope, [rows, width]).convert::<F>();
        let slope = Tensor::<2>::from_data(slope, (&pass.device, pass.dtype));
        let grads = (logits * slope).sum().backward();
        // A parameter that this batch does not use has no gradient, such as a map of edge features
        // in a batch without edges.
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
}

/// Reads all gradients at once, since each read waits for the GPU; a length means zeros.
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
