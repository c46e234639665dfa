//! The architecture of a typed model, as written in `model.json`.

mod tensors;
mod validate;

pub(super) use tensors::relation_prefix;

use serde::{Deserialize, Serialize};

use super::kind::{RelationAggregator, TypedKind};
use super::schema::{RelationEnds, Schema};
use crate::{Activation, Aggregator, LayerKind, Norm, ParameterInfo, Readout, Task};

/// A node type and the width of its features.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TypeInput {
    /// Name of the type.
    pub name: String,
    /// Width of the input: the raw features, and after them the learnable row. None if nodes have
    /// neither: each then has the feature 1.
    pub in_dim: Option<usize>,
    /// Width of a node's learnable row: the last columns of the input. None: no learnable rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_dim: Option<usize>,
}

impl TypeInput {
    /// Returns the width of the raw features, without a learnable row; 0 without features.
    #[must_use]
    pub fn features_dim(&self) -> usize {
        self.in_dim.unwrap_or(0) - self.embedding_dim.unwrap_or(0)
    }
}

/// A relation, the types that it joins, and which columns of its edges the model reads.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RelationInput {
    /// Name of the relation.
    pub name: String,
    /// Name of the type of the src nodes.
    pub from: String,
    /// Name of the type of the dst nodes.
    pub to: String,
    /// Whether edge weights are used.
    pub edge_weight: bool,
    /// Width of the edge features, used by gat, gatv2 and gin.
    pub edge_dim: Option<usize>,
}

/// Everything that decides a typed model's parameters and its forward pass.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TypedArchitecture {
    /// Kind of every conv.
    pub layer: TypedKind,
    /// How outputs of several relations into a type are joined; must be `sum` for kinds that are
    /// not a conv for each relation.
    pub relation_aggregator: RelationAggregator,
    /// How GraphSAGE aggregates the in-edges of a relation; must be `mean` for other kinds.
    pub aggregator: Aggregator,
    /// The node types, sorted by name.
    pub types: Vec<TypeInput>,
    /// The relations, sorted by name.
    pub relations: Vec<RelationInput>,
    /// Name of the type whose logits are computed.
    pub target_type: String,
    /// Width that the features of every type are projected to.
    pub projection: usize,
    /// Widths of the hidden convs: `num_layers - 1` entries, or `num_layers` with a linear head.
    pub hidden: Vec<usize>,
    /// Number of convs, which is the number of hops.
    pub num_layers: usize,
    /// Width of the logits.
    pub out_dim: usize,
    /// Attention heads of a hidden conv; their outputs are concatenated.
    pub heads: usize,
    /// Attention heads of the last conv, if no linear head follows. Their outputs are averaged,
    /// but concatenated by hgt.
    pub out_heads: usize,
    /// Bases of rgcn: the weight of a relation is a combination of them. None: each relation has
    /// its own weight.
    pub num_bases: Option<usize>,
    /// Width of a relation's vector in `simple_hgn`; none for other kinds.
    pub relation_dim: Option<usize>,
    /// Share of the layer before in the attention of a hidden conv of `simple_hgn`; 0 for other
    /// kinds.
    pub attention_residual: f32,
    /// Dropout on the input of every conv, and of the head.
    pub dropout: f32,
    /// Dropout on the raw features.
    pub input_dropout: f32,
    /// Dropout on attention coefficients.
    pub attention_dropout: f32,
    /// Normalisation of hidden convs, of each type on its own, before the activation.
    pub norm: Norm,
    /// Whether a conv adds its (projected) input to its output, before norm and activation. hgt has
    /// a residual of its own, so it must be false there.
    pub residual: bool,
    /// Whether the logits of a node are divided by their length.
    pub normalize_output: bool,
    /// Non-linearity of hidden convs.
    pub activation: Activation,
    /// Meaning of the logits.
    pub task: Task,
    /// Graphs as targets: how the rows of the nodes of a graph become its row. The last layer is the
    /// readout: one relation leads from the nodes to their graphs, which are the target type. None:
    /// targets are nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readout: Option<Readout>,
}

impl TypedArchitecture {
    /// Returns the types and relations.
    ///
    /// # Panics
    ///
    /// If a relation or the target has an unknown type, which
    /// [`validate`](TypedArchitecture::validate) reports.
    #[must_use]
    pub fn schema(&self) -> Schema {
        let position = |name: &str| self.type_position(name).expect("the types were validated");
        let ends = self.relations.iter().map(|relation| RelationEnds {
            name: relation.name.clone(),
            from: position(&relation.from),
            to: position(&relation.to),
        });
        Schema {
            types: self.types.iter().map(|of| of.name.clone()).collect(),
            relations: ends.collect(),
        }
    }

    /// Returns the position of the target type.
    ///
    /// # Panics
    ///
    /// If there is no such type, which [`validate`](TypedArchitecture::validate) reports.
    #[must_use]
    pub fn target(&self) -> usize {
        let target = self.type_position(&self.target_type);
        target.expect("the types were validated")
    }

    fn type_position(&self, name: &str) -> Option<usize> {
        self.types.iter().position(|of| of.name == name)
    }

    /// Lists the parameters of a model of this architecture, in the order of its flat vector.
    ///
    /// # Panics
    ///
    /// As [`schema`](TypedArchitecture::schema).
    #[must_use]
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        let all = self.tensors(&self.convs()).parameters.into_iter();
        all.map(|(info, _)| info).collect()
    }

    /// Returns the input width of conv `layer` (1-based).
    #[must_use]
    pub fn input_dim(&self, layer: usize) -> usize {
        match layer {
            1 => self.projection << u8::from(self.is_light()),
            _ => self.output_dim(layer - 1),
        }
    }

    /// Returns the output width of conv `layer` (1-based). Between the layers of `LightGCN`, each row
    /// has the start of the propagation behind it.
    #[must_use]
    pub fn output_dim(&self, layer: usize) -> usize {
        let given = self.hidden.get(layer - 1).copied().unwrap_or(self.out_dim);
        given << u8::from(self.is_light() && layer < self.num_layers)
    }

    /// Tells whether the model is a `LightGCN`.
    pub(crate) fn is_light(&self) -> bool {
        self.layer == TypedKind::Conv(LayerKind::LightGcn)
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

    /// Tells whether layer `layer` (1-based) is the readout.
    #[must_use]
    pub fn is_readout(&self, layer: usize) -> bool {
        self.readout.is_some() && layer == self.num_layers
    }

    /// Tells whether a type is that of the graphs, whose rows are those of the readout.
    #[must_use]
    pub fn is_graphs(&self, name: &str) -> bool {
        self.readout.is_some() && name == self.target_type
    }

    /// Returns the attention heads of conv `layer` (1-based).
    pub(crate) fn heads_of(&self, layer: usize) -> usize {
        if self.is_hidden(layer) {
            self.heads
        } else {
            self.out_heads
        }
    }

    /// Returns how many layers' attention conv `layer` mixes, its own included.
    pub(crate) fn mixed_layers(&self, layer: usize) -> usize {
        if self.attention_residual > 0.0 && self.is_hidden(layer) {
            layer
        } else {
            1
        }
    }
}
