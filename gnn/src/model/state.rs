//! The tensors of a model in memory, and the forward and backward passes over them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Element, Tensor, TensorData};

use super::Mode;
use crate::kernel::Float;
use crate::layer::{Pass, read};
use crate::link;
use crate::loss::{Weighing, loss_and_slope};
use crate::parameter::{self, BufferInfo, ParameterList, ZeroInfo};
use crate::{Dense, Device, GnnError, Labels, ParameterInfo, Scorer, Task};

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

    /// Returns the decoder of a task of links with its parameters.
    pub(crate) fn scorer(&self, task: Task, dim: usize) -> Option<Scorer> {
        let Task::Links(decoder) = task else {
            return None;
        };
        let weights = link::Weights::last_of(decoder, dim, &self.flat);
        Some(Scorer::new(decoder, dim, weights.values.to_vec()))
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
            learnable: RefCell::default(),
        }
    }

    /// Returns the loss sum and the gradient of `loss sum / normalizer`: of the parameters, and of
    /// the learnable columns of the input.
    ///
    /// The loss and its slope are computed outside the graph. The backward pass starts from
    /// `sum(logits * slope)`, whose gradient equals the gradient of the loss.
    pub(crate) fn backward<F: Float + Element>(
        &self,
        pass: &Pass<'_>,
        (logits, values): (Tensor<2>, &[f64]),
        wanted: &Wanted<'_, F>,
        normalizer: f64,
    ) -> Result<Slopes<F>, GnnError> {
        let [rows, width] = logits.dims();
        let OutputSlopes {
            loss_sum,
            rows: mut slope,
            decoder,
        } = wanted.slopes(values, width, normalizer);
        if slope.is_empty() {
            return Ok(Slopes::zeros(self.flat.len(), pass));
        }
        slope.resize(rows * width, F::ZERO);
        let slope = TensorData::new(slope, [rows, width]);
        let slope = Tensor::<2>::from_data(slope, (&pass.device, pass.dtype));
        let grads = (logits * slope).sum().backward();
        let learnable = pass.learnable.borrow();
        let of_inputs = learnable.iter().map(|(&node_type, kept)| {
            let [num_src, in_dim] = kept.input.dims();
            let of_input = match kept.input.grad(&grads) {
                Some(grad) => read::<F>(grad)?,
                None => vec![F::ZERO; num_src * in_dim],
            };
            let of_nodes = of_input.chunks_exact(in_dim);
            let own = of_nodes.flat_map(|row| &row[in_dim - kept.cols..]);
            Ok((node_type, (kept.cols, own.copied().collect())))
        });
        let inputs = of_inputs.collect::<Result<_, GnnError>>()?;
        // A parameter that this batch does not use has no gradient, such as a map of edge features
        // in a batch without edges.
        let of_parameters = self.infos.iter().map(|info| {
            let grad = pass.parameters[info.name.as_str()].grad(&grads);
            grad.ok_or(info.len())
        });
        let mut parameters = Vec::with_capacity(self.flat.len());
        if pass.on_gpu {
            parameters = read_at_once(of_parameters.collect(), pass)?;
        } else {
            for grad in of_parameters {
                match grad {
                    Ok(grad) => parameters.extend(read::<F>(grad)?),
                    Err(len) => parameters.resize(parameters.len() + len, F::ZERO),
                }
            }
        }
        let start = parameters.len() - decoder.len();
        parameters[start..].copy_from_slice(&decoder);
        Ok(Slopes {
            loss_sum,
            parameters,
            inputs,
        })
    }
}

/// The wanted outputs of a batch, and what its loss depends on.
pub(crate) struct Wanted<'a, F> {
    pub(crate) task: Task,
    pub(crate) labels: &'a Labels,
    pub(crate) weighing: Weighing<'a>,
    /// The flat parameters, the last of which are the decoder's.
    pub(crate) flat: &'a [F],
}

/// The loss of a batch and its gradient with respect to the outputs.
struct OutputSlopes<F> {
    loss_sum: f64,
    /// Of the first rows of the outputs; the others have none.
    rows: Vec<F>,
    /// Of the decoder's parameters.
    decoder: Vec<F>,
}

impl<F: Float> Wanted<'_, F> {
    /// Returns the loss sum, and the gradient of `loss sum / normalizer`.
    fn slopes(&self, outputs: &[f64], width: usize, normalizer: f64) -> OutputSlopes<F> {
        if let (Task::Links(decoder), Labels::Pairs(pairs)) = (self.task, self.labels) {
            let weights = link::Weights::last_of(decoder, width, self.flat);
            let rows: Vec<F> = outputs.iter().map(|&value| F::from_f64(value)).collect();
            let slopes = link::loss_and_slope(weights, &rows, pairs, normalizer);
            return OutputSlopes {
                loss_sum: slopes.loss_sum,
                rows: slopes.rows,
                decoder: slopes.parameters,
            };
        }
        let (loss_sum, slope) =
            loss_and_slope(self.task, outputs, width, self.labels, self.weighing);
        let slope = slope.into_iter().map(|x| F::from_f64(x / normalizer));
        OutputSlopes {
            loss_sum,
            rows: slope.collect(),
            decoder: Vec::new(),
        }
    }
}

/// The loss of a batch and its gradient.
pub(crate) struct Slopes<F> {
    pub(crate) loss_sum: f64,
    /// Of the flat parameters.
    pub(crate) parameters: Vec<F>,
    /// By node type with learnable columns: their number, and `[num_src, cols]`.
    inputs: BTreeMap<usize, (usize, Vec<F>)>,
}

impl<F: Float> Slopes<F> {
    /// Returns a gradient of zeros.
    fn zeros(num_parameters: usize, pass: &Pass<'_>) -> Self {
        let learnable = pass.learnable.borrow();
        let zeros = learnable.iter().map(|(&node_type, kept)| {
            let rows = kept.input.dims()[0];
            (node_type, (kept.cols, vec![F::ZERO; rows * kept.cols]))
        });
        Self {
            loss_sum: 0.0,
            parameters: vec![F::ZERO; num_parameters],
            inputs: zeros.collect(),
        }
    }
}

impl Slopes<f32> {
    /// Takes the gradient of the learnable columns of each of `num_types` types.
    pub(crate) fn take_inputs(&mut self, num_types: usize) -> Vec<Option<Dense>> {
        let of_type = |node_type| {
            let (cols, values) = self.inputs.remove(&node_type)?;
            let rows = values.len() / cols;
            Some(Dense { rows, cols, values })
        };
        (0..num_types).map(of_type).collect()
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
