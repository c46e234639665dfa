//! Hubs: dst nodes whose in-edges of some relations are aggregated in parts, before the layer runs.
//!
//! A kind with a conv for each relation reads the row that the conv aggregates. A kind with
//! attention over all in-edges of a node reads one state for each relation
//! ([`hub_attention`](super::hub_attention)).

use super::block::{TypedBlock, of_relation};
use super::hub_attention::{self, RelationStates};
use super::kind::TypedKind;
use super::per_relation;
use super::slice::TypedLayerSlice;
use super::stack::{TypedStack, layer_prefix};
use super::{hgt, linear};
use crate::kernel::Linear;
use crate::layer::{Features, PartialAggregation, Src, Summed};
use crate::ops::Fused;
use crate::{Dense, GnnError, Projected, ReadyInput};

/// The sources whose rows aggregate the in-edges of a relation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AggregatedSources {
    /// The source of [`SrcRows::rows`](crate::SrcRows::rows).
    pub rows: usize,
    /// The source of [`SrcRows::scores`](crate::SrcRows::scores), if the scores are the rows of
    /// another source; none if they are the scores of the same source.
    pub scores: Option<usize>,
}

/// By relation, the merged states of a node's in-edges.
pub(super) type Aggregated = [(usize, Vec<f32>)];

impl TypedLayerSlice<'_> {
    /// Returns the sources that the [aggregation](Self::aggregation) of a relation reads: their
    /// rows of the relation's `from` type.
    #[must_use]
    pub fn aggregated_sources(&self, relation: usize) -> AggregatedSources {
        let (rows, scores) = match self.stack.arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => (relation, None),
            TypedKind::SimpleHgn => (0, None),
            TypedKind::Hgt => (hgt::VALUES, Some(hgt::KEYS)),
        };
        AggregatedSources { rows, scores }
    }

    /// Returns the partial aggregation of a relation's in-edges, for hubs.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] if the kind of layer has none; [`GnnError::Device`] if parameters
    /// cannot be read.
    pub fn aggregation(&self, relation: usize) -> Result<Box<dyn PartialAggregation>, GnnError> {
        let (stack, layer) = (&self.stack, self.layer);
        if !self.reads_by_relation() {
            let states = RelationStates::new(stack, layer, relation)?;
            return Ok(Box::new(states));
        }
        let width = self.sources()[relation].dim;
        let conv = per_relation::conv(stack, layer, relation);
        let partial =
            per_relation::in_scope(stack, layer, relation, |scope| conv.partial(scope, width))?;
        partial.ok_or_else(|| {
            let problem = format!(
                "{} cannot aggregate the in-edges of a hub in parts",
                stack.arch.layer.name()
            );
            let key = "layer";
            of_relation(
                &stack.schema.relations[relation].name,
                GnnError::Architecture { key, problem },
            )
        })
    }

    /// Returns the query of a dst node for a relation,
    /// [`PartialAggregation::query_dim`] wide, computed from its row `own` or from its `scores` in
    /// the source of the relation's [rows](AggregatedSources::rows), which are none if the source
    /// does not have the node.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if rows cannot be read.
    pub fn query(
        &self,
        relation: usize,
        scores: Option<&[f32]>,
        own: ReadyInput,
    ) -> Result<Vec<f32>, GnnError> {
        let own = self.stack.pass.features(own);
        match self.stack.arch.layer {
            TypedKind::Conv(_) | TypedKind::Rgcn => {
                let conv = per_relation::conv(&self.stack, self.layer, relation);
                per_relation::in_scope(&self.stack, self.layer, relation, |scope| {
                    conv.query(scope, scores, Some(&own))
                })
            }
            TypedKind::SimpleHgn => {
                let scores = scores.unwrap_or_default();
                Ok(hub_attention::dst_scores(&self.stack, self.layer, scores))
            }
            TypedKind::Hgt => hub_attention::query(&self.stack, self.layer, relation, &own),
        }
    }

    /// Runs the layer for one dst node whose in-edges of some relations are already aggregated: by
    /// relation, the [merged](PartialAggregation::merge) states of the in-edges. The block has no
    /// in-edges of these relations.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and if an aggregate is not as wide as its source.
    pub fn run_aggregated(
        &self,
        block: &TypedBlock,
        src: &[Option<Projected<ReadyInput>>],
        own: &ReadyInput,
        aggregated: &[(usize, Vec<f32>)],
    ) -> Result<Dense, GnnError> {
        self.run_with(block, (src, own), aggregated)
    }
}

/// Runs the convs for the only dst node of a block, given aggregates by relation; `own` has the
/// node's row.
pub(super) fn conv(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    (src, aggregated): (&[Option<Src>], &Aggregated),
    own: &[Option<Features>],
) -> Result<Option<Summed>, GnnError> {
    let Some((node_type, _)) = block.range() else {
        return Ok(None);
    };
    let Some(own_row) = &own[*node_type] else {
        return Ok(None);
    };
    let node = (*node_type, own_row);
    match stack.arch.layer {
        TypedKind::Conv(_) | TypedKind::Rgcn => {
            let summed = by_relation(stack, layer, block, (src, aggregated), node);
            Ok(Some(summed))
        }
        TypedKind::SimpleHgn => {
            let all = hub_attention::simple_hgn(stack, layer, block, (src, aggregated))?;
            let mut outs = super::simple_hgn::outputs(stack, layer, block, &all, own);
            Ok(outs.swap_remove(*node_type))
        }
        TypedKind::Hgt => {
            let sums = hub_attention::hgt(stack, layer, block, (src, aggregated), node)?;
            Ok(Some(hgt::update(
                stack,
                layer,
                *node_type,
                sums,
                (own_row, 1),
            )))
        }
    }
}

/// Runs the conv of each relation into the type of a node, and joins their outputs.
fn by_relation(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    (src, aggregated): (&[Option<Src>], &Aggregated),
    (node_type, own): (usize, &Features),
) -> Summed {
    if let Some(summed) = stack.passed_by(layer, node_type, own, 1) {
        return summed;
    }
    let outs = stack.schema.into_type(node_type).map(|relation| {
        let given = aggregated.iter().find(|(of, _)| *of == relation);
        let given = given.map(|(_, row)| stack.pass.constant(1, row.len(), row));
        let given = (src[relation].as_ref(), given);
        per_relation::of_relation(stack, layer, block, relation, given, own)
    });
    let joined = per_relation::joined(stack, outs.collect());
    if stack.arch.layer != TypedKind::Rgcn {
        return joined;
    }
    let prefix = layer_prefix(layer);
    let [root, bias] = linear::rgcn_root(stack, layer, &prefix);
    let (rows, cols) = (1, stack.arch.output_dim(layer));
    let own = stack.pass.dense(own.clone());
    let own = Fused::Linear(Linear { rows, cols }).apply_2([own, root]);
    let joined = Summed {
        bias: Some(bias),
        ..joined
    };
    joined.plus(Some(own))
}
