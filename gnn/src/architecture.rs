//! The architecture of a model, as written in `model.json`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::layer::{Conv, ConvConfig};
use crate::parameter::{ParameterInfo, ParameterList};
use crate::{Activation, Aggregator, GnnError, LayerKind, Norm, Task};

/// Largest number of parameters of a model: 4 GiB as `f32`. A training holds about eight copies.
pub const PARAMETERS_MAX: usize = 1 << 30;

/// Everything that decides a model's parameters and its forward pass.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Kind of every conv.
    pub layer: LayerKind,
    /// How GraphSAGE aggregates; must be `mean` for other kinds.
    pub aggregator: Aggregator,
    /// Width of the input of layer 1: the raw features, and after them the learnable row.
    pub in_dim: usize,
    /// Width of a node's learnable row: the last columns of the input. None: no learnable rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_dim: Option<usize>,
    /// Width of the edge features, used by gat, gatv2 and gin.
    pub edge_dim: Option<usize>,
    /// Whether edge weights are used.
    pub edge_weight: bool,
    /// Widths of the hidden convs: `num_layers - 1` entries, or `num_layers` with a linear head.
    pub hidden: Vec<usize>,
    /// Number of convs, which is the number of hops.
    pub num_layers: usize,
    /// Width of the logits.
    pub out_dim: usize,
    /// Attention heads of a hidden conv; their outputs are concatenated.
    pub heads: usize,
    /// Attention heads of the last conv, if no linear head follows; their outputs are averaged.
    pub out_heads: usize,
    /// Dropout on the input of every conv but the first, and of the head.
    pub dropout: f32,
    /// Dropout on the raw features.
    pub input_dropout: f32,
    /// Dropout on attention coefficients.
    pub attention_dropout: f32,
    /// Normalisation of hidden convs, before the activation.
    pub norm: Norm,
    /// Whether a conv adds its (projected) input to its output, before norm and activation.
    pub residual: bool,
    /// Non-linearity of hidden convs.
    pub activation: Activation,
    /// Meaning of the logits.
    pub task: Task,
}

impl Architecture {
    /// Checks that the keys fit together.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] names the first key that does not fit.
    pub fn validate(&self) -> Result<(), GnnError> {
        self.validate_widths()?;
        self.validate_attention()?;
        validate_links(self.task, self.has_head())?;
        self.validate_light()?;
        for (key, rate) in [
            ("dropout", self.dropout),
            ("input_dropout", self.input_dropout),
            ("attention_dropout", self.attention_dropout),
        ] {
            require((0.0..1.0).contains(&rate), key, || {
                format!("{rate} is not in [0, 1)")
            })?;
        }
        let fits = |&dim: &usize| (1..=self.in_dim).contains(&dim);
        let dim = self.embedding_dim;
        require(dim.as_ref().is_none_or(fits), "embedding_dim", || {
            format!("allowed is 1 to `in_dim` = {}", self.in_dim)
        })?;
        require(
            self.aggregator == Aggregator::Mean || self.layer.takes_maximum(),
            "aggregator",
            || {
                let names = LayerKind::names_of(LayerKind::takes_maximum);
                format!("only {names} can aggregate by max")
            },
        )?;
        require(
            self.edge_dim.is_none() || self.layer.takes_edge_features(),
            "edge_dim",
            || {
                let names = LayerKind::names_of(LayerKind::takes_edge_features);
                format!("only {names} use edge features")
            },
        )?;
        self.validate_size()
    }

    /// Checks that a `LightGCN` propagates learnable rows and nothing else.
    fn validate_light(&self) -> Result<(), GnnError> {
        if self.layer != LayerKind::LightGcn {
            return Ok(());
        }
        let alone = self.embedding_dim == Some(self.in_dim);
        require(alone, "embedding_dim", || LIGHT_INPUT.to_owned())?;
        let widths = self.hidden.iter().chain([&self.out_dim]);
        let num_convs = self.num_layers;
        let odd = widths.take(num_convs).find(|width| **width != self.in_dim);
        require(odd.is_none(), "hidden", || light_widths(self.in_dim))?;
        let rates = [self.dropout, self.input_dropout];
        validate_light_options(rates, self.norm, self.residual, self.edge_weight)
    }

    /// Refuses a model of more than [`PARAMETERS_MAX`] parameters before any of them is made.
    fn validate_size(&self) -> Result<(), GnnError> {
        let widest = self.hidden.iter().copied().max().unwrap_or(0);
        for (key, width) in [
            ("hidden", widest),
            ("in_dim", self.in_dim),
            ("out_dim", self.out_dim),
            ("edge_dim", self.edge_dim.unwrap_or(0)),
            ("heads", self.heads),
            ("out_heads", self.out_heads),
        ] {
            require(u32::try_from(width).is_ok(), key, || {
                format!("{width} is more than the {PARAMETERS_MAX} parameters a model may have")
            })?;
        }
        // No product overflows: each width has 32 bits, `usize` holds a product of two widths, and
        // `u128` a product of three.
        let len = |info: &ParameterInfo| info.shape.iter().map(|&n| n as u128).product::<u128>();
        let count: u128 = self.parameters().iter().map(len).sum();
        let is_hidden = widest >= self.out_dim;
        let key = if is_hidden { "hidden" } else { "out_dim" };
        require(count <= PARAMETERS_MAX as u128, key, || {
            format!(
                "widths {:?}, {} features and {} outputs (`num_classes`) make {count} parameters, \
                 allowed are {PARAMETERS_MAX}",
                self.hidden, self.in_dim, self.out_dim
            )
        })
    }

    /// Returns the width of the raw features, without a learnable row.
    #[must_use]
    pub fn features_dim(&self) -> usize {
        self.in_dim - self.embedding_dim.unwrap_or(0)
    }

    /// Lists the parameters of a model of this architecture, in the order of its flat vector.
    #[must_use]
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        let all = self.tensors(&self.convs()).parameters.into_iter();
        all.map(|(info, _)| info).collect()
    }

    /// Makes the convs, first to last.
    pub(crate) fn convs(&self) -> Vec<Arc<dyn Conv>> {
        let layers = 1..=self.num_layers;
        layers
            .map(|layer| self.layer.conv(self.conv_config(layer)))
            .collect()
    }

    fn conv_config(&self, layer: usize) -> ConvConfig {
        let is_hidden = self.is_hidden(layer);
        ConvConfig {
            in_dim: self.input_dim(layer),
            out_dim: self.output_dim(layer),
            edge_dim: self.edge_dim,
            edge_weight: self.edge_weight,
            aggregator: self.aggregator,
            heads: if is_hidden {
                self.heads
            } else {
                self.out_heads
            },
            averages_heads: !is_hidden,
            attention_dropout: self.attention_dropout,
            norm: self.norm,
            activation: self.activation,
            carried_dim: self.out_dim_of_convs(),
            of_relation: false,
            bipartite: false,
        }
    }

    /// Lists the tensors of each conv, followed by its residual and its norm, and last of the head.
    pub(crate) fn tensors(&self, convs: &[Arc<dyn Conv>]) -> ParameterList {
        let mut list = ParameterList::default();
        for (at, conv) in convs.iter().enumerate() {
            let layer = at + 1;
            list.enter(layer, format!("convs.{at}."));
            conv.parameters(&mut list);
            list.enter(layer, String::new());
            let (rows, cols) = (self.output_dim(layer), self.input_dim(layer));
            if self.residual && rows != cols {
                list.linear(&format!("res.{at}"), rows, cols, false);
            }
            if self.is_hidden(layer) {
                list.norm(&format!("norms.{at}"), self.norm, rows);
            }
        }
        if self.has_head() {
            list.enter(0, String::new());
            list.linear("lin", self.out_dim, self.output_dim(self.num_layers), true);
        }
        if let Task::Links(decoder) = self.task {
            list.enter(0, "decoder.".to_owned());
            decoder.parameters(self.out_dim, &mut list);
        }
        list
    }

    fn validate_widths(&self) -> Result<(), GnnError> {
        require(self.num_layers > 0, "num_layers", || {
            "at least 1 is needed".to_owned()
        })?;
        require(self.in_dim > 0, "in_dim", || {
            "at least 1 is needed".to_owned()
        })?;
        require(self.out_dim > 0, "out_dim", || {
            "at least 1 is needed".to_owned()
        })?;
        require(self.edge_dim != Some(0), "edge_dim", || {
            "0 means none: leave it out".to_owned()
        })?;
        let (given, layers) = (self.hidden.len(), self.num_layers);
        require(given == layers || given + 1 == layers, "hidden", || {
            let fewer = layers.saturating_sub(1);
            format!("{given} widths for {layers} layers: {fewer}, or {layers} with a linear head")
        })?;
        require(!self.hidden.contains(&0), "hidden", || {
            "a width is 0".to_owned()
        })
    }

    fn validate_attention(&self) -> Result<(), GnnError> {
        let (heads, out_heads) = (self.heads, self.out_heads);
        require(heads > 0, "heads", || "at least 1 is needed".to_owned())?;
        require(out_heads > 0, "out_heads", || {
            "at least 1 is needed".to_owned()
        })?;
        require(out_heads == 1 || !self.has_head(), "out_heads", || {
            format!("{out_heads}, but the last layer is a linear head, which has no attention")
        })?;
        if self.layer.is_attention() {
            let ragged = self.hidden.iter().find(|&&width| width % heads != 0);
            return require(ragged.is_none(), "heads", || {
                format!(
                    "{heads} heads do not divide the hidden widths {:?}",
                    self.hidden
                )
            });
        }
        let only = |what| {
            format!(
                "only {} have {what}",
                LayerKind::names_of(LayerKind::is_attention)
            )
        };
        require(heads == 1, "heads", || only("heads"))?;
        require(out_heads == 1, "out_heads", || only("heads"))?;
        require(self.attention_dropout == 0.0, "attention_dropout", || {
            only("attention")
        })
    }

    /// Returns the input width of conv `layer` (1-based).
    #[must_use]
    pub fn input_dim(&self, layer: usize) -> usize {
        if layer == 1 {
            self.in_dim
        } else {
            self.output_dim(layer - 1)
        }
    }

    /// Returns the output width of conv `layer` (1-based). Between the layers of `LightGCN`, each row
    /// has the start of the propagation behind it.
    #[must_use]
    pub fn output_dim(&self, layer: usize) -> usize {
        let given = self.hidden.get(layer - 1).copied().unwrap_or(self.out_dim);
        let carries = self.layer == LayerKind::LightGcn && layer < self.num_layers;
        given << u8::from(carries)
    }

    /// Returns the output width of the last conv.
    fn out_dim_of_convs(&self) -> usize {
        self.output_dim(self.num_layers)
    }

    /// Tells whether a linear head follows the convs.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.hidden.len() == self.num_layers
    }

    /// Tells whether norm and activation follow conv `layer` (1-based).
    #[must_use]
    pub fn is_hidden(&self, layer: usize) -> bool {
        layer <= self.hidden.len()
    }
}

/// Checks that the output of a model of links is an embedding of its last conv.
pub(crate) fn validate_links(task: Task, has_head: bool) -> Result<(), GnnError> {
    let is_links = matches!(task, Task::Links(_));
    require(!is_links || !has_head, "hidden", || {
        "with links the output of the last conv is the embedding, which no head follows".to_owned()
    })
}

/// The input of `LightGCN`.
pub(crate) const LIGHT_INPUT: &str =
    "lightgcn propagates learnable rows: all nodes have them, and no features";

/// Returns the rule for the widths of `LightGCN`.
pub(crate) fn light_widths(dim: usize) -> String {
    format!("every layer of lightgcn is as wide as the learnable rows, {dim}")
}

/// Checks that `LightGCN` has no options that change rows between its layers.
pub(crate) fn validate_light_options(
    rates: [f32; 2],
    norm: Norm,
    residual: bool,
    edge_weight: bool,
) -> Result<(), GnnError> {
    let none = |what: &'static str| move || format!("lightgcn has no {what}");
    require(rates[0] == 0.0, "dropout", none("dropout"))?;
    require(rates[1] == 0.0, "input_dropout", none("dropout"))?;
    require(norm == Norm::None, "norm", none("norm"))?;
    require(!residual, "residual", none("residual"))?;
    require(!edge_weight, "edge_weight", none("edge weights"))
}

pub(crate) fn require(
    holds: bool,
    key: &'static str,
    problem: impl FnOnce() -> String,
) -> Result<(), GnnError> {
    if holds {
        Ok(())
    } else {
        Err(GnnError::Architecture {
            key,
            problem: problem(),
        })
    }
}

#[cfg(test)]
mod tests;
