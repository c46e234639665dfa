//! Names, shapes and initial values of a model's parameters and buffers, as `PyG` has them.

use crate::kernel::mix;
use crate::{Architecture, LayerKind, Norm};

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

    /// Tells whether there are no values, which no valid architecture gives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// Uniform in `±sqrt(6 / (rows + cols))` of the last two axes.
    Glorot,
    /// Uniform in `±1 / sqrt(fan_in)`, which is `torch.nn.Linear`'s.
    Linear(usize),
    Zeros,
    Ones,
}

/// A parameter and how it starts.
pub(crate) type Parameter = (ParameterInfo, Start);

/// One named slice of the flat buffer vector: a running mean or variance of batch norm.
#[derive(Clone, Debug)]
pub(crate) struct BufferInfo {
    pub(crate) name: String,
    pub(crate) len: usize,
    pub(crate) start: f32,
}

/// Collects the parameters of one conv.
struct Conv<'a> {
    arch: &'a Architecture,
    /// 1-based.
    layer: usize,
    list: &'a mut Vec<Parameter>,
}

/// Lists the parameters in the order of the flat vector.
pub(crate) fn parameters(arch: &Architecture) -> Vec<Parameter> {
    let mut list = Vec::new();
    for layer in 1..=arch.num_layers {
        let mut conv = Conv {
            arch,
            layer,
            list: &mut list,
        };
        match arch.layer {
            LayerKind::Gcn => conv.gcn(),
            LayerKind::Sage => conv.sage(),
            LayerKind::Gat => conv.gat(),
            LayerKind::GatV2 => conv.gatv2(),
            LayerKind::Gin => conv.gin(),
        }
        conv.around();
    }
    if arch.has_head() {
        let mut head = Conv {
            arch,
            layer: 0,
            list: &mut list,
        };
        head.linear("lin", arch.out_dim, arch.output_dim(arch.num_layers), true);
    }
    list
}

impl Conv<'_> {
    fn push(&mut self, name: String, shape: &[usize], start: Start) {
        let info = ParameterInfo {
            name,
            shape: shape.to_vec(),
            layer: self.layer,
        };
        self.list.push((info, start));
    }

    fn own(&mut self, name: &str, shape: &[usize], start: Start) {
        self.push(format!("convs.{}.{name}", self.layer - 1), shape, start);
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: bool) {
        self.push(format!("{name}.weight"), &[rows, cols], Start::Linear(cols));
        if bias {
            self.push(format!("{name}.bias"), &[rows], Start::Linear(cols));
        }
    }

    fn own_linear(&mut self, name: &str, rows: usize, cols: usize, bias: bool) {
        self.linear(
            &format!("convs.{}.{name}", self.layer - 1),
            rows,
            cols,
            bias,
        );
    }

    fn dims(&self) -> (usize, usize) {
        (
            self.arch.input_dim(self.layer),
            self.arch.output_dim(self.layer),
        )
    }

    fn gcn(&mut self) {
        let (cols, rows) = self.dims();
        self.own("lin.weight", &[rows, cols], Start::Glorot);
        self.own("bias", &[rows], Start::Zeros);
    }

    fn sage(&mut self) {
        let (cols, rows) = self.dims();
        self.own_linear("lin_l", rows, cols, true);
        self.own_linear("lin_r", rows, cols, false);
    }

    fn gat(&mut self) {
        let (cols, rows) = self.dims();
        let (heads, head_dim, wide) = head_shape(self.arch, self.layer);
        self.own("lin.weight", &[wide, cols], Start::Glorot);
        self.own("att_src", &[1, heads, head_dim], Start::Glorot);
        self.own("att_dst", &[1, heads, head_dim], Start::Glorot);
        if let Some(edge_dim) = self.arch.edge_dim {
            self.own("lin_edge.weight", &[wide, edge_dim], Start::Glorot);
            self.own("att_edge", &[1, heads, head_dim], Start::Glorot);
        }
        self.own("bias", &[rows], Start::Zeros);
    }

    fn gatv2(&mut self) {
        let (cols, rows) = self.dims();
        let (heads, head_dim, wide) = head_shape(self.arch, self.layer);
        for side in ["lin_l", "lin_r"] {
            self.own(&format!("{side}.weight"), &[wide, cols], Start::Glorot);
            self.own(&format!("{side}.bias"), &[wide], Start::Linear(cols));
        }
        if let Some(edge_dim) = self.arch.edge_dim {
            self.own("lin_edge.weight", &[wide, edge_dim], Start::Glorot);
        }
        self.own("att", &[1, heads, head_dim], Start::Glorot);
        self.own("bias", &[rows], Start::Zeros);
    }

    fn gin(&mut self) {
        let (cols, rows) = self.dims();
        if let Some(edge_dim) = self.arch.edge_dim {
            self.own_linear("lin", cols, edge_dim, true);
        }
        self.own_linear("nn.lins.0", rows, cols, true);
        self.norm(&format!("convs.{}.nn.norms.0", self.layer - 1), rows);
        self.own_linear("nn.lins.1", rows, rows, true);
    }

    fn norm(&mut self, name: &str, dim: usize) {
        let name = match self.arch.norm {
            Norm::None => return,
            Norm::Batch => format!("{name}.module"),
            Norm::Layer => name.to_owned(),
        };
        self.push(format!("{name}.weight"), &[dim], Start::Ones);
        self.push(format!("{name}.bias"), &[dim], Start::Zeros);
    }

    /// Residual and norm, which every kind of conv may have.
    fn around(&mut self) {
        let ((cols, rows), at) = (self.dims(), self.layer - 1);
        if self.arch.residual && rows != cols {
            self.linear(&format!("res.{at}"), rows, cols, false);
        }
        if self.arch.is_hidden(self.layer) {
            self.norm(&format!("norms.{at}"), rows);
        }
    }
}

/// Returns heads, width of one head and width of all heads side by side.
pub(crate) fn head_shape(arch: &Architecture, layer: usize) -> (usize, usize, usize) {
    let (heads, averaged) = arch.heads_of(layer);
    let width = arch.output_dim(layer);
    let head_dim = if averaged { width } else { width / heads };
    (heads, head_dim, heads * head_dim)
}

/// Lists the running statistics in the order of the flat buffer vector.
pub(crate) fn buffers(arch: &Architecture) -> Vec<BufferInfo> {
    let mut list = Vec::new();
    if arch.norm != Norm::Batch {
        return list;
    }
    let mut push = |norm: String, len: usize| {
        list.push(BufferInfo {
            name: format!("{norm}.module.running_mean"),
            len,
            start: 0.0,
        });
        list.push(BufferInfo {
            name: format!("{norm}.module.running_var"),
            len,
            start: 1.0,
        });
    };
    for layer in 1..=arch.num_layers {
        let (at, width) = (layer - 1, arch.output_dim(layer));
        if arch.layer == LayerKind::Gin {
            push(format!("convs.{at}.nn.norms.0"), width);
        }
        if arch.is_hidden(layer) {
            push(format!("norms.{at}"), width);
        }
    }
    list
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
