//! What a model is made of, as written in `model.json`.

use serde::{Deserialize, Serialize};

use crate::GnnError;
use crate::parameter::{self, ParameterInfo};

/// Parameters of a model at most: 4 GiB, of which a training holds some eight copies.
pub const PARAMETERS_MAX: usize = 1 << 30;

/// Kind of every conv of a model.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerKind {
    /// Graph convolution with symmetric normalisation.
    Gcn,
    /// GraphSAGE.
    Sage,
    /// Graph attention.
    Gat,
    /// Graph attention with the non-linearity before the scoring vector.
    GatV2,
    /// Graph isomorphism network with a two-layer perceptron; GINE with edge features.
    Gin,
}

impl LayerKind {
    /// Tells whether this kind scores its in-edges by attention.
    #[must_use]
    pub fn is_attention(self) -> bool {
        matches!(self, LayerKind::Gat | LayerKind::GatV2)
    }
}

/// How GraphSAGE joins the messages of a node's in-edges.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregator {
    /// The mean over kept in-edges of weight times feature.
    #[default]
    Mean,
    /// The largest weight times feature, per feature.
    Max,
}

/// Normalisation of a hidden conv's output.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// None.
    #[default]
    None,
    /// Over the rows of a batch, per feature.
    Batch,
    /// Over the features of a node.
    Layer,
}

/// Non-linearity after a hidden conv.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// `x` above 0, `exp(x) - 1` below.
    Elu,
}

/// What the logits mean, and so the loss.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One of `out_dim` classes: softmax cross-entropy.
    Classes,
    /// Any of `out_dim` classes: the mean over classes of binary cross-entropy with logits.
    MultiLabel,
    /// `out_dim` numbers: the mean over them of the squared error.
    Regression,
}

/// Everything that decides a model's parameters and its forward pass.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Kind of every conv.
    pub layer: LayerKind,
    /// How GraphSAGE aggregates; must be `mean` for other kinds.
    pub aggregator: Aggregator,
    /// Width of the raw features.
    pub in_dim: usize,
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
    /// Attention heads of a hidden conv; their outputs stand side by side.
    pub heads: usize,
    /// Attention heads of a last conv without head; their outputs are averaged.
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
    /// What the logits mean.
    pub task: Task,
}

impl Architecture {
    /// Checks that the keys fit together.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] names the first key that does not.
    pub fn validate(&self) -> Result<(), GnnError> {
        self.validate_widths()?;
        self.validate_attention()?;
        for (key, rate) in [
            ("dropout", self.dropout),
            ("input_dropout", self.input_dropout),
            ("attention_dropout", self.attention_dropout),
        ] {
            require((0.0..1.0).contains(&rate), key, || {
                format!("{rate} is not in [0, 1)")
            })?;
        }
        require(
            self.aggregator == Aggregator::Mean || self.layer == LayerKind::Sage,
            "aggregator",
            || "only sage can aggregate by max".to_owned(),
        )?;
        let takes_edge_features = self.layer.is_attention() || self.layer == LayerKind::Gin;
        require(
            self.edge_dim.is_none() || takes_edge_features,
            "edge_dim",
            || "only gat, gatv2 and gin use edge features".to_owned(),
        )?;
        self.validate_size()
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
        // Products of two such widths fit `usize`, and of three `u128`.
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

    /// Lists the parameters of such a model in the order of its flat vector.
    #[must_use]
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        let all = parameter::parameters(self).into_iter();
        all.map(|(info, _)| info).collect()
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
        require(heads == 1, "heads", || {
            "only gat and gatv2 have heads".to_owned()
        })?;
        require(out_heads == 1, "out_heads", || {
            "only gat and gatv2 have heads".to_owned()
        })?;
        require(self.attention_dropout == 0.0, "attention_dropout", || {
            "only gat and gatv2 have attention".to_owned()
        })
    }

    /// Returns the width of what conv `layer` (1-based) reads.
    #[must_use]
    pub fn input_dim(&self, layer: usize) -> usize {
        if layer == 1 {
            self.in_dim
        } else {
            self.output_dim(layer - 1)
        }
    }

    /// Returns the width of conv `layer` (1-based), activation included.
    #[must_use]
    pub fn output_dim(&self, layer: usize) -> usize {
        self.hidden.get(layer - 1).copied().unwrap_or(self.out_dim)
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

    /// Returns the attention heads of conv `layer` and whether they are averaged.
    pub(crate) fn heads_of(&self, layer: usize) -> (usize, bool) {
        if self.is_hidden(layer) {
            (self.heads, false)
        } else {
            (self.out_heads, true)
        }
    }
}

fn require(
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
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn gat() -> Architecture {
        Architecture {
            layer: LayerKind::Gat,
            aggregator: Aggregator::Mean,
            in_dim: 5,
            edge_dim: None,
            edge_weight: false,
            hidden: vec![6],
            num_layers: 2,
            out_dim: 3,
            heads: 2,
            out_heads: 1,
            dropout: 0.5,
            input_dropout: 0.5,
            attention_dropout: 0.5,
            norm: Norm::None,
            residual: false,
            activation: Activation::Elu,
            task: Task::Classes,
        }
    }

    fn check(change: impl FnOnce(&mut Architecture), expected: &Expect) {
        let mut arch = gat();
        change(&mut arch);
        let got = arch.validate();
        expected.assert_eq(&got.map_or_else(|error| error.to_string(), |()| "ok".to_owned()));
    }

    #[test]
    fn impossible_combinations_are_named() {
        check(|_| {}, &expect!["ok"]);
        check(|arch| arch.hidden = vec![6, 8], &expect!["ok"]);
        check(
            |arch| arch.hidden = vec![],
            &expect![
                "architecture key `hidden`: 0 widths for 2 layers: 1, or 2 with a linear head"
            ],
        );
        check(
            |arch| arch.hidden = vec![0],
            &expect!["architecture key `hidden`: a width is 0"],
        );
        check(
            |arch| arch.num_layers = 0,
            &expect!["architecture key `num_layers`: at least 1 is needed"],
        );
        check(
            |arch| arch.heads = 4,
            &expect!["architecture key `heads`: 4 heads do not divide the hidden widths [6]"],
        );
        check(
            |arch| arch.heads = 0,
            &expect!["architecture key `heads`: at least 1 is needed"],
        );
        check(
            |arch| arch.layer = LayerKind::Gcn,
            &expect!["architecture key `heads`: only gat and gatv2 have heads"],
        );
        check(
            |arch| (arch.hidden, arch.out_heads) = (vec![6, 8], 2),
            &expect![
                "architecture key `out_heads`: 2, but the last layer is a linear head, which has no attention"
            ],
        );
        check(
            |arch| arch.dropout = 1.0,
            &expect!["architecture key `dropout`: 1 is not in [0, 1)"],
        );
        check(
            |arch| arch.input_dropout = f32::NAN,
            &expect!["architecture key `input_dropout`: NaN is not in [0, 1)"],
        );
        check(
            |arch| arch.aggregator = Aggregator::Max,
            &expect!["architecture key `aggregator`: only sage can aggregate by max"],
        );
        check(
            |arch| arch.edge_dim = Some(0),
            &expect!["architecture key `edge_dim`: 0 means none: leave it out"],
        );
        let plain = |arch: &mut Architecture| {
            (arch.layer, arch.heads, arch.attention_dropout) = (LayerKind::Sage, 1, 0.0);
        };
        check(plain, &expect!["ok"]);
        let edges = |arch: &mut Architecture| {
            plain(arch);
            arch.edge_dim = Some(3);
        };
        check(
            edges,
            &expect!["architecture key `edge_dim`: only gat, gatv2 and gin use edge features"],
        );
    }

    #[test]
    fn absurd_widths_are_refused_before_anything_is_drawn() {
        check(
            |arch| arch.hidden = vec![usize::MAX - 1],
            &expect![
                "architecture key `hidden`: 18446744073709551614 is more than the 1073741824 parameters a model may have"
            ],
        );
        check(
            |arch| arch.hidden = vec![1 << 29],
            &expect![
                "architecture key `hidden`: widths [536870912], 5 features and 3 outputs (`num_classes`) make 5905580041 parameters, allowed are 1073741824"
            ],
        );
        check(
            |arch| arch.out_dim = 4_000_000_000,
            &expect![
                "architecture key `out_dim`: widths [6], 5 features and 4000000000 outputs (`num_classes`) make 36000000048 parameters, allowed are 1073741824"
            ],
        );
        check(
            |arch| (arch.in_dim, arch.out_dim) = (40_000, 900_000_000),
            &expect![
                "architecture key `out_dim`: widths [6], 40000 features and 900000000 outputs (`num_classes`) make 8100240018 parameters, allowed are 1073741824"
            ],
        );
        check(
            |arch| (arch.in_dim, arch.hidden) = (1 << 20, vec![1 << 9]),
            &expect!["ok"],
        );
    }

    #[test]
    fn json_names_kinds_in_lower_case_and_refuses_unknown_keys() {
        let arch = Architecture {
            layer: LayerKind::GatV2,
            ..gat()
        };
        let text = serde_json::to_string(&arch).unwrap();
        assert!(text.contains(r#""layer":"gatv2""#), "{text}");
        assert_eq!(serde_json::from_str::<Architecture>(&text).unwrap(), arch);
        let stray = text.replace("\"heads\"", "\"haeds\"");
        assert!(serde_json::from_str::<Architecture>(&stray).is_err());
    }

    #[test]
    fn widths_follow_the_hidden_list() {
        let mut arch = gat();
        assert_eq!(
            (arch.output_dim(1), arch.output_dim(2), arch.has_head()),
            (6, 3, false)
        );
        arch.hidden = vec![6, 8];
        assert_eq!(
            (arch.input_dim(2), arch.output_dim(2), arch.has_head()),
            (6, 8, true)
        );
    }
}
