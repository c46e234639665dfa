//! A conv for each relation, whose outputs are joined by type.

use burn::tensor::Tensor;

use super::architecture::relation_prefix;
use super::block::TypedBlock;
use super::kind::{RelationAggregator, TypedKind};
use super::linear;
use super::stack::{Rows, Source, TypedStack, layer_prefix};
use crate::kernel::{count_of, mix};
use crate::layer::{Aggregated, Conv, Features, Scope, Src, Summed};
use crate::{Dense, GnnError};

/// Rows are projected before any conv, so no conv reads sparse rows.
const IS_SPARSE: bool = false;

pub(super) fn conv<'a>(stack: &TypedStack<'a>, layer: usize, relation: usize) -> &'a dyn Conv {
    &*stack.convs[layer - 1][relation]
}

/// Runs `work` in the scope of a relation's conv.
pub(super) fn in_scope<R>(
    stack: &TypedStack<'_>,
    layer: usize,
    relation: usize,
    work: impl FnOnce(&Scope<'_>) -> R,
) -> R {
    let prefix = match stack.arch.layer {
        TypedKind::Rgcn => layer_prefix(layer),
        _ => relation_prefix(stack.schema, layer, relation),
    };
    let salt = salt(&stack.schema.relations[relation].name);
    work(&Scope::of_relation(&stack.pass, layer, &prefix, salt))
}

/// Returns the salt of a relation's dropout masks: a hash of its name, 0 for the unnamed one.
fn salt(name: &str) -> u64 {
    name.bytes()
        .fold(0, |state, byte| mix(state ^ mix(u64::from(byte))))
}

/// Lists one source for each relation: the rows of its `from` type.
pub(super) fn sources(stack: &TypedStack<'_>, layer: usize) -> Vec<Source> {
    let source = |(relation, ends): (usize, &super::RelationEnds)| {
        let conv = conv(stack, layer, relation);
        let projected = conv.projected_dim(IS_SPARSE);
        Source {
            types: ends.from..ends.from + 1,
            dim: projected.unwrap_or_else(|| stack.arch.input_dim(layer)),
            scores_dim: conv.scores_dim(),
            projects: projected.is_some(),
        }
    };
    let relations = stack.schema.relations.iter().enumerate();
    relations.map(source).collect()
}

/// Computes the rows that a relation's conv aggregates.
pub(super) fn project(
    stack: &TypedStack<'_>,
    layer: usize,
    relation: usize,
    (rows, num_rows): (&Features, usize),
) -> Src {
    let conv = conv(stack, layer, relation);
    let projected = conv.projected_dim(IS_SPARSE).map(|_| {
        in_scope(stack, layer, relation, |scope| {
            Features::Dense(conv.project(scope, rows, num_rows))
        })
    });
    Src {
        rows: projected.unwrap_or_else(|| rows.clone()),
        scores: None,
    }
}

/// Runs the convs into a type and joins their outputs; none if the block has no dst node of it.
pub(super) fn run(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    node_type: usize,
    (src, given): (&[Option<Src>], Rows<'_>),
    own: Option<&Features>,
) -> Option<Summed> {
    let num_dst = block.num_dst(node_type);
    let own = own.filter(|_| num_dst > 0)?;
    if let Some(summed) = stack.passed_by(layer, node_type, own, num_dst) {
        return Some(summed);
    }
    let relations: Vec<usize> = stack.schema.into_type(node_type).collect();
    if stack.arch.layer != TypedKind::Rgcn && relations.is_empty() {
        return Some(match stack.arch.is_light() {
            true => {
                let cols = stack.arch.output_dim(stack.arch.num_layers);
                let zeros = vec![0.0; num_dst * cols];
                Summed::of(stack.pass.constant(num_dst, cols, &zeros))
            }
            false => stack.skip(layer, node_type, own, num_dst),
        });
    }
    if linear::is_linear(stack.arch, &stack.convs[layer - 1]) {
        return Some(linear::run(
            stack,
            layer,
            block,
            node_type,
            (src, given),
            own,
        ));
    }
    let relations = relations.into_iter();
    let outs: Vec<Summed> = relations
        .map(|relation| {
            let src = (src[relation].as_ref(), None);
            of_relation(stack, layer, block, relation, src, own)
        })
        .collect();
    Some(joined(stack, outs))
}

/// Runs the conv of a relation, whose in-edges may be aggregated already.
pub(super) fn of_relation(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    relation: usize,
    (src, aggregated): (Option<&Src>, Option<Tensor<2>>),
    own: &Features,
) -> Summed {
    let conv = conv(stack, layer, relation);
    let edges = block.relation(relation);
    let edges = edges.expect("a block has the relations into the types of its dst nodes");
    let source = &sources(stack, layer)[relation];
    in_scope(stack, layer, relation, |scope| {
        let rows = match (aggregated, src.filter(|_| edges.num_src() > 0)) {
            (Some(rows), _) => rows,
            (None, Some(src)) => conv.aggregate(scope, edges, src.clone(), own),
            (None, None) => {
                let (rows, cols) = (edges.num_dst(), source.dim);
                scope.constant(rows, cols, &vec![0.0; rows * cols])
            }
        };
        let is_projected = source.projects;
        conv.update(scope, edges, Aggregated { rows, is_projected }, own)
    })
}

/// Joins the outputs of a type's relations, of which there is at least one.
pub(super) fn joined(stack: &TypedStack<'_>, mut outs: Vec<Summed>) -> Summed {
    if outs.len() == 1 {
        return outs.swap_remove(0);
    }
    let count = count_of(outs.len());
    let outs = outs.into_iter().map(|out| stack.pass.sum(out, None, None));
    let aggregator = stack.arch.relation_aggregator;
    let both = |a: Tensor<2>, b: Tensor<2>| match aggregator {
        RelationAggregator::Sum | RelationAggregator::Mean => a + b,
        RelationAggregator::Max => a.max_pair(b),
    };
    let all = outs.reduce(both).expect("there is at least one");
    Summed::of(match aggregator {
        RelationAggregator::Mean => all.div_scalar(count),
        RelationAggregator::Sum | RelationAggregator::Max => all,
    })
}

/// Computes the scores of a relation's projected rows, if its conv has scores.
pub(super) fn scores(
    stack: &TypedStack<'_>,
    layer: usize,
    relation: usize,
    rows: &Dense,
) -> Result<Option<Dense>, GnnError> {
    let conv = conv(stack, layer, relation);
    let of_rows = conv
        .scores_dim()
        .map(|_| in_scope(stack, layer, relation, |scope| conv.scores(scope, rows)));
    of_rows.transpose()
}
