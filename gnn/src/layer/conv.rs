//! What a layer is: the trait that models, training and inference call.

use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::Tensor;

use super::partial::PartialAggregation;
use super::pass::{Features, Summed};
use super::scope::Scope;
use crate::parameter::ParameterList;
use crate::{Activation, Aggregator, Block, Dense, GnnError, Norm};

/// A kind of layer: what its options are, and how a conv of it is made.
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
    /// Makes a conv.
    pub conv: fn(ConvConfig) -> Arc<dyn Conv>,
}

impl PartialEq for LayerType {
    fn eq(&self, other: &LayerType) -> bool {
        self.name == other.name
    }
}

impl Eq for LayerType {}

/// What a conv is made of, as its place in the model decides it.
#[derive(Clone, Copy, Debug)]
pub struct ConvConfig {
    /// Width of the rows that it reads.
    pub in_dim: usize,
    /// Width of its output.
    pub out_dim: usize,
    /// Width of the edge features, where they are read.
    pub edge_dim: Option<usize>,
    /// Whether edge weights are used.
    pub edge_weight: bool,
    /// How messages are joined, for kinds that have a choice.
    pub aggregator: Aggregator,
    /// Attention heads; 1 for kinds without.
    pub heads: usize,
    /// Whether outputs of heads are averaged; else they stand side by side.
    pub averages_heads: bool,
    /// Dropout on attention coefficients.
    pub attention_dropout: f32,
    /// Normalisation of the model, for kinds that have a norm inside.
    pub norm: Norm,
    /// Non-linearity of the model, for kinds that have one inside.
    pub activation: Activation,
}

impl ConvConfig {
    /// Tells whether a linear map should come before a linear aggregation, which is then narrower.
    ///
    /// Depends on nothing but the shapes of weights and the kind of input, so that training and
    /// inference agree to the bit.
    #[must_use]
    pub fn product_first(&self, is_sparse: bool) -> bool {
        self.out_dim < self.in_dim || is_sparse
    }
}

/// What a conv aggregates: a row for each src node, as it came or projected.
#[derive(Clone, Debug)]
pub struct Src {
    /// `[num_src, _]`.
    pub rows: Features,
    /// Scores of each row, `[num_src, scores_dim]`, where they were computed before.
    pub scores: Option<Tensor<2>>,
}

/// What a conv has aggregated for each dst node.
#[derive(Clone, Debug)]
pub struct Aggregated {
    /// `[num_dst, _]`.
    pub rows: Tensor<2>,
    /// Whether rows were projected before they were aggregated.
    pub is_projected: bool,
}

/// One conv of a model: its parameters, and its output in three steps.
///
/// *Project* makes of each src node's row what is aggregated; *aggregate* joins the rows of a dst
/// node's in-edges; *update* turns that into the output. The trainer runs them on a batch. Inference
/// runs the first once a node, and the others on ranges of nodes whose src nodes are all nodes, so a
/// conv reads dst nodes through `own` and [`Csr::own`](crate::kernel::Csr::own) only.
///
/// Residual, norm, activation and dropout around a conv belong to the model.
pub trait Conv: Debug + Send + Sync {
    /// Lists the parameters in the order of the flat vector, with their names in `PyG`.
    fn parameters(&self, list: &mut ParameterList);

    /// Computes coefficients that the first pass over a block would compute; blocks keep them.
    fn prepare(&self, _block: &Block) {}

    /// Returns the width of what [`project`](Conv::project) makes; none where rows are aggregated as
    /// they come.
    fn projected_dim(&self, _is_sparse: bool) -> Option<usize> {
        None
    }

    /// Turns the first `rows` rows into what is aggregated; called where there is a
    /// [`projected_dim`](Conv::projected_dim).
    fn project(&self, scope: &Scope<'_>, input: &Features, _rows: usize) -> Tensor<2> {
        scope.dense(input.clone())
    }

    /// Tells whether a parameter stands before the aggregation. Where none does, no gradient flows
    /// through the aggregation of raw features.
    fn has_parameters_before(&self, _is_sparse: bool) -> bool {
        true
    }

    /// Tells whether the conv reads the rows of its dst nodes besides what it aggregates.
    fn reads_own(&self) -> bool {
        false
    }

    /// Returns the width of the scores of a row, where the conv has such.
    fn scores_dim(&self) -> Option<usize> {
        None
    }

    /// Computes the scores of rows that were projected; called where there is a
    /// [`scores_dim`](Conv::scores_dim).
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if parameters cannot be read.
    fn scores(&self, _scope: &Scope<'_>, rows: &Dense) -> Result<Dense, GnnError> {
        Ok(Dense::zeros(rows.rows, 0))
    }

    /// Joins the rows of each dst node's in-edges: `[num_dst, _]`.
    ///
    /// The dst nodes are the first rows of `own`, where the conv [reads](Conv::reads_own) them.
    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, own: &Features) -> Tensor<2>;

    /// Turns what was aggregated into the output, `[num_dst, out_dim]`.
    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        own: &Features,
    ) -> Summed;

    /// Returns how some in-edges of a node are aggregated at a time, which inference does at hubs;
    /// none if the conv cannot. What it aggregates is `src_dim` wide.
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

    /// Returns what [`PartialAggregation::state`] reads of a dst node: of its scores, or of its row,
    /// the only one of `own`.
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
