//! Options of a model; each is one word in `model.json`.

use serde::{Deserialize, Serialize};

use crate::Decoder;

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

/// How the rows of a graph's nodes become the row of the graph.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Readout {
    /// The mean of the rows.
    #[default]
    Mean,
    /// The sum of the rows.
    Sum,
    /// The largest value of each column.
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

/// The meaning of the logits, which decides the loss.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One of `out_dim` classes: softmax cross-entropy.
    Classes,
    /// Any of `out_dim` classes: the mean over classes of binary cross-entropy with logits.
    MultiLabel,
    /// `out_dim` numbers: the mean over them of the squared error.
    Regression,
    /// An embedding of `out_dim` numbers, which the decoder scores in pairs.
    Links(Decoder),
}
