//! The tensors of a model in memory, and the forward and backward passes over them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Element, Tensor, TensorData};

use super::Mode;
use crate::kernel::Float;
use crate::layer::{Pass, read};
use crate::loss::{Weighing, loss_and_slope};
use crate::parameter::{self, BufferInfo, ParameterList, ZeroInfo};
use crate::{Device, GnnError, Labels, ParameterInfo, Task};

/// Parameters and buffers, each with its names.
#[derive(Clone, Debug)]
pub(crate) struct ModelState {
    pub(crate) infos: Vec<ParameterInfo>,
    pub(crate) flat: Vec<f32>,
    pub(crate) buffer_infos: Vec<BufferInfo>,
    pub(crate) buffers: Vec<f32>,
    /// Further tensors of the file, all of them 0.
    pub(crate) zeros: Vec<ZeroInfo>,
}

impl ModelState {
    /// Draws the listed parameters: a pure function of their names and `seed`.
    pub(crate) fn draw(list: ParameterList, seed: u64) -> ModelState {
        let ParameterList {
            parameters,
            buffers: buffer_infos,
            zeros,
            ..
        } = list;
        let flat = parameters
            .iter()
            .flat_map(|item| parameter::draw(item, seed))
            .collect();
        let infos = parameters.into_iter().map(|(info, _)| info).collect();
        let fill = |info: &BufferInfo| vec![info.start; info.len];
        let buffers = buffer_infos.iter().flat_map(fill).collect();
        ModelState {
            infos,
            flat,
            buffer_infos,
            buffers,
            zeros,
        }
    }

    /// Makes tensors of the parameters that `wanted` picks, in the number type of `flat` and on a
    /// device, with gradients if `tracked`.
    pub(crate) fn pass<F: Float + Element>(
        &self,
        flat: &[F],
        (on, tracked): (&Device, bool),
        mode: Mode,
        wanted: impl Fn(&ParameterInfo) -> bool,
    ) -> Pass<'_> {
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

    /// Returns the loss sum and the gradient of `loss sum / normalizer`.
    ///
    /// The loss and its slope are computed in f64 outside the graph. The backward pass starts from
    /// `sum(logits * slope)`, whose gradient equals the gradient of the loss.
    pub(crate) fn backward<F: Float + Element>(
        &self,
        pass: &Pass<'_>,
        (logits, values): (Tensor<2>, &[f64]),
        (task, labels, weighing): (Task, &Labels, Weighing<'_>),
        normalizer: f64,
    ) -> Result<(f64, Vec<F>), GnnError> {
        let [rows, width] = logits.dims();
        let (loss_sum, mut slope) = loss_and_slope(task, values, width, labels, weighing);
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
