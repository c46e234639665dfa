//! The trait of a layer, which models, training and inference call.

use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::Tensor;

use super::partial::PartialAggregation;
use super::pass::{Features, Summed};
use super::scope::Scope;
use crate::kernel::Shared;
use crate::parameter::ParameterList;
use crate::{Activation, Aggregator, Block, Dense, GnnError, Norm};

/// A kind of layer: its options, and the function that makes a conv of it.
#[derive(Debug)]
pub struct LayerType {
    /// Name in job files and `model.json`.
    pub name: &'static str,
    /// Whether it scores its in-edges by attention, so that it has heads and attention dropout.
    pub is_attention: bool,
    /// Whether it reads edge features.
    pub takes_edge_features: bool,
    /// Whether it can aggregate by the maximum.
    pub takes_maximum: bool,
    /// Whether it reads degrees, sums of weights or self-loops of sources. Otherwise a block may
    /// have 0 there for nodes that are not among its dst nodes.
    pub reads_source_degrees: bool,
    /// Makes a conv.
    pub conv: fn(ConvConfig) -> Arc<dyn Conv>,
}

impl PartialEq for LayerType {
    fn eq(&self, other: &LayerType) -> bool {
        self.name == other.name
    }
}

impl Eq for LayerType {}

/// The configuration of one conv, given by its position in the model.
#[derive(Clone, Copy, Debug)]
pub struct ConvConfig {
    /// Width of the rows that it reads.
    pub in_dim: usize,
    /// Width of its output.
    pub out_dim: usize,
    /// Width of the edge features, if they are read.
    pub edge_dim: Option<usize>,
    /// Whether edge weights are used.
    pub edge_weight: bool,
    /// How messages are joined, for kinds that have a choice.
    pub aggregator: Aggregator,
    /// Attention heads; 1 for kinds without.
    pub heads: usize,
    /// Whether outputs of heads are averaged; else they are concatenated.
    pub averages_heads: bool,
    /// Dropout on attention coefficients.
    pub attention_dropout: f32,
    /// Normalisation of the model, for kinds that have a norm inside.
    pub norm: Norm,
    /// Non-linearity of the model, for kinds that have one inside.
    pub activation: Activation,
    /// Width of the rows that `LightGCN` propagates; rows between its layers have more behind them.
    pub carried_dim: usize,
    /// Whether the conv is that of a relation of a typed graph.
    pub of_relation: bool,
    /// Whether dst nodes are of another type than src nodes, so that no src row is a dst node's own
    /// row: `own` has the rows of the dst nodes.
    pub bipartite: bool,
}

impl ConvConfig {
    /// Tells whether a conv should apply its linear map before a linear aggregation: the map makes
    /// rows narrower, or the input is sparse.
    ///
    /// Depends only on the shapes of weights and the kind of input, so training and inference agree
    /// to the bit.
    #[must_use]
    pub fn product_first(&self, is_sparse: bool) -> bool {
        self.out_dim < self.in_dim || is_sparse
    }
}

/// The input of an aggregation: a row for each src node, raw or projected.
#[derive(Clone, Debug)]
pub struct Src {
    /// `[num_src, _]`.
    pub rows: Features,
    /// Scores of each row, `[num_src, scores_dim]`, if they were computed before.
    pub scores: Option<Tensor<2>>,
}

/// The result of an aggregation: a row for each dst node.
#[derive(Clone, Debug)]
pub struct Aggregated {
    /// `[num_dst, _]`.
    pub rows: Tensor<2>,
    /// Whether the map of [`Conv::project`] is already applied.
    pub is_projected: bool,
}

/// The terms of an output `sums * weight^T + own * root^T + bias`, whose row v of `sums` is the sum
/// of `edge[e] * src row` over the in-edges e of v.
#[derive(Clone, Debug)]
pub struct LinearTerms {
    /// `[num_edges]`: coefficient of each in-edge.
    pub edge: Shared<f32>,
    /// `[out_dim, in_dim]`.
    pub weight: Tensor<2>,
    /// `[out_dim, in_dim]`.
    pub root: Option<Tensor<2>>,
    /// `[1, out_dim]`.
    pub bias: Option<Tensor<2>>,
}

/// One conv of a model: its parameters, and its output in three steps.
///
/// *Project* turns each src node's row into the row to aggregate; *aggregate* joins the rows of a
/// dst node's in-edges; *update* turns the joined row into the output. The trainer runs all three
/// on a batch, or [`aggregate_raw`](Conv::aggregate_raw) in place of the first two. Inference runs
/// *project* once per node, and the others on ranges of nodes whose src nodes are all nodes. So a
/// conv reads dst nodes only through `own` and [`Csr::own_col`](crate::kernel::Csr::own_col).
///
/// Residual, norm, activation and dropout around a conv belong to the model.
pub trait Conv: Debug + Send + Sync {
    /// Lists the parameters in the order of the flat vector, with their names in `PyG`.
    fn parameters(&self, list: &mut ParameterList);

    /// Computes the coefficients of a block before the first pass over it; the block keeps them.
    fn prepare(&self, _block: &Block) {}

    /// Returns the width of projected rows; none if rows are aggregated without
    /// [`project`](Conv::project).
    fn projected_dim(&self, _is_sparse: bool) -> Option<usize> {
        None
    }

    /// Projects the first `rows` rows; called only if there is a
    /// [`projected_dim`](Conv::projected_dim).
    fn project(&self, scope: &Scope<'_>, input: &Features, _rows: usize) -> Tensor<2> {
        scope.dense(input.clone())
    }

    /// Tells whether the conv uses parameters before the aggregation. If not, the aggregation of
    /// raw features needs no gradient.
    fn has_parameters_before(&self, _is_sparse: bool) -> bool {
        true
    }

    /// Tells whether a training step takes less time if layer 1 aggregates raw rows, although the
    /// conv [projects](Conv::projected_dim) rows elsewhere.
    fn aggregates_raw(&self) -> bool {
        false
    }

    /// Aggregates raw rows, `[num_src, in_dim]`, to what [`aggregate`](Conv::aggregate) makes of
    /// projected rows, but for rounding; the rows get no gradient.
    ///
    /// Called in place of *project* and *aggregate* for dense features of layer 1 of an untyped
    /// model, in passes with gradients on processors, if the conv
    /// [does so](Conv::aggregates_raw).
    fn aggregate_raw(&self, _scope: &Scope<'_>, _block: &Block, rows: Tensor<2>) -> Tensor<2> {
        rows
    }

    /// Tells whether the conv reads the rows of its dst nodes besides the rows that it aggregates.
    fn reads_own(&self) -> bool {
        false
    }

    /// Tells whether the aggregation may read the row of a dst node among the aggregated rows, at
    /// [`Csr::own_col`](crate::kernel::Csr::own_col).
    fn aggregates_own(&self) -> bool {
        true
    }

    /// Returns the width of a row's scores, if the conv has scores.
    fn scores_dim(&self) -> Option<usize> {
        None
    }

    /// Computes the scores of projected rows; called only if there is a
    /// [`scores_dim`](Conv::scores_dim).
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if parameters cannot be read.
    fn scores(&self, _scope: &Scope<'_>, rows: &Dense) -> Result<Dense, GnnError> {
        Ok(Dense::zeros(rows.rows, 0))
    }

    /// Aggregates the rows of each dst node's in-edges: `[num_dst, _]`.
    ///
    /// The dst nodes are the first rows of `own`, if the conv [reads](Conv::reads_own) them.
    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, own: &Features) -> Tensor<2>;

    /// Turns aggregated rows into the output, `[num_dst, out_dim]`.
    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        own: &Features,
    ) -> Summed;

    /// Tells whether there are [`linear_terms`](Conv::linear_terms).
    fn is_linear(&self) -> bool {
        false
    }

    /// Returns the terms of the output, if it is linear in a sum over in-edges. The conv of a
    /// relation then runs only on nodes that its in-edges touch.
    fn linear_terms(&self, _scope: &Scope<'_>, _block: &Block) -> Option<LinearTerms> {
        None
    }

    /// Returns the partial aggregation that inference uses for hubs, of rows `src_dim` wide; none
    /// if the conv has none.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if parameters cannot be read.
    fn partial(
        &self,
        _scope: &Scope<'_>,
        _src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        Ok(None)
    }

    /// Returns the query of a dst node for [`PartialAggregation::state`], computed from its scores
    /// or from its row, which is the only row of `own`.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if parameters cannot be read.
    fn query(
        &self,
        _scope: &Scope<'_>,
        _scores: Option<&[f32]>,
        _own: Option<&Features>,
    ) -> Result<Vec<f32>, GnnError> {
        Ok(Vec::new())
    }
}
