//! Names, shapes and initial values of parameters and buffers, as in `PyG`.

use crate::Norm;
use crate::kernel::mix;

/// One named slice of the flat parameter vector.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ParameterInfo {
    /// Tensor name in `model.safetensors`, such as `convs.0.lin.weight`.
    pub name: String,
    /// Shape in `model.safetensors`; the flat vector holds the values row-major.
    pub shape: Vec<usize>,
    /// 1-based conv it belongs to, 0 for the head.
    pub layer: usize,
}

impl ParameterInfo {
    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Tells whether there are no values; a valid architecture has no such parameter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a parameter is initialised.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// Uniform in `±sqrt(6 / (rows + cols))` of the last two axes.
    Glorot,
    /// Uniform in `±1 / sqrt(fan_in)`, as in `torch.nn.Linear`; the number is the fan-in.
    Linear(usize),
    /// Uniform with mean 0 and this variance.
    Variance(f64),
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
}

/// A parameter and how it is initialised.
pub(crate) type Parameter = (ParameterInfo, Start);

/// One named slice of the flat buffer vector: a running mean or variance of batch norm.
#[derive(Clone, Debug)]
pub(crate) struct BufferInfo {
    pub(crate) name: String,
    pub(crate) len: usize,
    pub(crate) start: f32,
}

/// A tensor that `PyG` saves and that is always 0 here.
#[derive(Clone, Debug)]
pub(crate) struct ZeroInfo {
    pub(crate) name: String,
    /// Whether it is one 64-bit integer without an axis, or a vector of one `f32`.
    pub(crate) is_integer: bool,
}

/// The tensors of a model, in the order in which its parts list them.
#[derive(Clone, Debug, Default)]
pub struct ParameterList {
    /// Prefix of the names of the tensors listed next.
    prefix: String,
    /// Conv of the tensors listed next, 0 for the head.
    layer: usize,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) buffers: Vec<BufferInfo>,
    pub(crate) zeros: Vec<ZeroInfo>,
}

impl ParameterList {
    /// Starts the tensors of conv `layer`, whose names begin with `prefix`.
    pub(crate) fn enter(&mut self, layer: usize, prefix: String) {
        (self.layer, self.prefix) = (layer, prefix);
    }

    /// Lists a parameter; its name comes after the conv's prefix.
    pub fn push(&mut self, name: &str, shape: &[usize], start: Start) {
        let info = ParameterInfo {
            name: format!("{}{name}", self.prefix),
            shape: shape.to_vec(),
            layer: self.layer,
        };
        self.parameters.push((info, start));
    }

    /// Lists `NAME.weight`, `[rows, cols]`, and with `bias` also `NAME.bias`, initialised as by
    /// `torch.nn.Linear`.
    pub fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: bool) {
        self.push(
            &format!("{name}.weight"),
            &[rows, cols],
            Start::Linear(cols),
        );
        if bias {
            self.push(&format!("{name}.bias"), &[rows], Start::Linear(cols));
        }
    }

    /// Lists scale, shift and running statistics of a norm over rows that are `dim` wide.
    pub fn norm(&mut self, name: &str, norm: Norm, dim: usize) {
        let name = match norm {
            Norm::None => return,
            Norm::Batch => format!("{name}.module"),
            Norm::Layer => name.to_owned(),
        };
        self.push(&format!("{name}.weight"), &[dim], Start::Ones);
        self.push(&format!("{name}.bias"), &[dim], Start::Zeros);
        if norm == Norm::Batch {
            self.statistics(&name, dim);
        }
    }

    /// Lists the running statistics of a batch norm. `PyTorch` also saves the number of batches,
    /// which it does not read if the momentum is fixed.
    fn statistics(&mut self, name: &str, dim: usize) {
        for (part, start) in [("running_mean", 0.0), ("running_var", 1.0)] {
            self.buffers.push(BufferInfo {
                name: format!("{}{name}.{part}", self.prefix),
                len: dim,
                start,
            });
        }
        self.zeros.push(ZeroInfo {
            name: format!("{}{name}.num_batches_tracked", self.prefix),
            is_integer: true,
        });
    }

    /// Lists a vector of one number that `PyG` saves and that is always 0 here.
    pub fn zero(&mut self, name: &str) {
        self.zeros.push(ZeroInfo {
            name: format!("{}{name}", self.prefix),
            is_integer: false,
        });
    }
}

/// Draws the initial values of one parameter: a pure function of seed and name.
#[expect(clippy::cast_possible_truncation, reason = "parameters are f32")]
#[expect(
    clippy::cast_precision_loss,
    reason = "shapes are small; draws keep 53 bits"
)]
pub(crate) fn draw((info, start): &Parameter, seed: u64) -> Vec<f32> {
    let bound = match start {
        Start::Zeros => return vec![0.0; info.len()],
        Start::Ones => return vec![1.0; info.len()],
        Start::Linear(fan_in) => (1.0 / *fan_in as f64).sqrt(),
        Start::Variance(variance) => (3.0 * variance).sqrt(),
        Start::Glorot => {
            let ends: usize = info.shape[info.shape.len() - 2..].iter().sum();
            (6.0 / ends as f64).sqrt()
        }
    };
    let stream = info
        .name
        .bytes()
        .fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
    let values = (0..info.len() as u64).map(|at| {
        let unit = (mix(stream.wrapping_add(at)) >> 11) as f64 / (1_u64 << 53) as f64;
        ((2.0 * unit - 1.0) * bound) as f32
    });
    values.collect()
}
