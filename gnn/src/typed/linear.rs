//! Convs that are linear in what they aggregate, for each relation into a type.
//!
//! The sum over relations of `sums_r * W_r^T + own * R_r^T + b_r` is computed as the sum of
//! `sums_r * W_r^T` over the rows that have in-edges of relation r, and `own * (sum of R_r)^T`. So
//! a relation costs what its in-edges and the nodes that they touch cost.
//!
//! The projection `x * P^T + p` is linear too. Where nothing else lies between it and the first
//! conv, the conv sums raw rows and applies `W_r * P` to the sums: src nodes are not projected, and
//! no gradient flows back over the in-edges.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::architecture::TypedArchitecture;
use super::block::TypedBlock;
use super::kind::{RelationAggregator, TypedKind};
use super::per_relation::{conv, in_scope};
use super::stack::{Rows, TypedStack, layer_prefix};
use crate::kernel::{Linear, count_of};
use crate::layer::{Conv, Features, LinearTerms, Src, Summed};
use crate::ops::Fused;

/// Tells whether the convs of a layer, one for each relation, are run here.
pub(super) fn is_linear(arch: &TypedArchitecture, convs: &[Arc<dyn Conv>]) -> bool {
    let is_sum = match arch.layer {
        TypedKind::Rgcn => true,
        _ => arch.relation_aggregator != RelationAggregator::Max,
    };
    // The relation into graphs has no conv. In the readout no relation has one.
    let into_graphs = |relation: usize| arch.is_graphs(&arch.relations[relation].to);
    let convs = convs.iter().enumerate();
    let mut convs = convs.filter(|(relation, _)| !into_graphs(*relation));
    is_sum && convs.clone().next().is_some() && convs.all(|(_, conv)| conv.is_linear())
}

/// Tells whether the first layer, in training, sums the raw rows of a type, `in_dim` wide, instead
/// of projected ones: the convs are linear, no dropout lies between, and raw rows are not wider
/// than those that the convs would sum.
pub(super) fn sums_raw(arch: &TypedArchitecture, convs: &[Arc<dyn Conv>], in_dim: usize) -> bool {
    let widths = convs.iter().map(|conv| conv.projected_dim(false));
    let width = widths.map(|dim| dim.unwrap_or(arch.projection)).min();
    arch.dropout <= 0.0 && is_linear(arch, convs) && width.is_some_and(|width| in_dim <= width)
}

/// Runs the convs into a type, of which there is at least one, or the layer of rgcn; `own` has the
/// rows of the type's dst nodes first.
pub(super) fn run(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    node_type: usize,
    (src, given): (&[Option<Src>], Rows<'_>),
    own: &Features,
) -> Summed {
    let (mut parts, mut roots, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    let relations: Vec<usize> = stack.schema.into_type(node_type).collect();
    let num_relations = relations.len();
    for relation in relations {
        let terms = terms(stack, layer, block, relation);
        parts.extend(of_relation(
            stack,
            layer,
            block,
            relation,
            (src[relation].as_ref(), given),
            &terms,
        ));
        roots.extend(terms.root);
        biases.extend(terms.bias);
    }
    let scope_name = layer_prefix(layer);
    if stack.arch.layer == TypedKind::Rgcn {
        let [root, bias] = rgcn_root(stack, layer, &scope_name);
        roots.push(root);
        biases.push(bias);
    }
    let (rows, cols) = (block.num_dst(node_type), stack.arch.output_dim(layer));
    let add = |a: Tensor<2>, b: Tensor<2>| a + b;
    let of_own = roots.into_iter().reduce(add).map(|root| {
        let own = stack.pass.dense(own.clone());
        Fused::Linear(Linear { rows, cols }).apply_2([own, root])
    });
    let of_edges = block.sum_of_relations(node_type).map(|sum| {
        let all = if parts.len() == 1 {
            parts.swap_remove(0)
        } else {
            Tensor::cat(parts, 0)
        };
        Fused::Spmm(sum).apply(all)
    });
    let (x, addend) = match (of_edges, of_own) {
        (Some(of_edges), of_own) => (of_edges, of_own),
        (None, Some(of_own)) => (of_own, None),
        (None, None) => (
            stack.pass.constant(rows, cols, &vec![0.0; rows * cols]),
            None,
        ),
    };
    let bias = biases.into_iter().reduce(add);
    let summed = Summed { x, addend, bias };
    let is_mean = stack.arch.relation_aggregator == RelationAggregator::Mean;
    if stack.arch.layer == TypedKind::Rgcn || !is_mean || num_relations == 1 {
        return summed;
    }
    let sum = stack.pass.sum(summed, None, None);
    Summed::of(sum.div_scalar(count_of(num_relations)))
}

/// Returns the map of a node's own row in rgcn, `[out, in]`, and the bias; `prefix` is that of the
/// layer.
pub(super) fn rgcn_root(stack: &TypedStack<'_>, layer: usize, prefix: &str) -> [Tensor<2>; 2] {
    let scope = stack.scope(layer, prefix);
    [scope.parameter("root").transpose(), scope.parameter("bias")]
}

/// Returns what a relation adds to each dst node with in-edges of it; none if there is none.
fn of_relation(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    relation: usize,
    (src, given): (Option<&Src>, Rows<'_>),
    terms: &LinearTerms,
) -> Option<Tensor<2>> {
    let touched = block.touched(relation).filter(|of| of.num_dst() > 0)?;
    let src = stack.pass.dense(src?.rows.clone());
    let (edge, weight) = (terms.edge.clone(), || terms.weight.clone());
    let cols = stack.arch.output_dim(layer);
    let product = |x: Tensor<2>| {
        let rows = x.dims()[0];
        Fused::Linear(Linear { rows, cols }).apply_2([x, weight()])
    };
    let projects = projects(stack, layer, relation);
    let from = stack.schema.relations[relation].from;
    Some(match given {
        Rows::Read { raw } if raw[from] => {
            let [map, bias] = stack.projection_parameters(from);
            let sums = Fused::Spmm(touched.sum(edge)).apply(src); // [rows, in_dim]
            let rows = touched.num_dst();
            let ones = stack
                .pass
                .constant(rows, 1, &touched.coefficient_sums(&terms.edge));
            let map = weight().matmul(map); // [cols, in_dim]
            let bias = weight().matmul(bias.transpose()); // [cols, 1]
            Fused::Linear(Linear { rows, cols }).apply_4([sums, map, ones, bias])
        }
        Rows::Projected if projects => Fused::Spmm(touched.sum(edge)).apply(src),
        Rows::Read { .. } if projects => {
            let projected = product(Fused::Spmm(touched.gather()).apply(src));
            Fused::Spmm(touched.sum_gathered(edge)).apply(projected)
        }
        Rows::Projected | Rows::Read { .. } => product(Fused::Spmm(touched.sum(edge)).apply(src)),
    })
}

/// Tells whether a relation's rows are projected before they are aggregated.
fn projects(stack: &TypedStack<'_>, layer: usize, relation: usize) -> bool {
    conv(stack, layer, relation).projected_dim(false).is_some()
}

fn terms(stack: &TypedStack<'_>, layer: usize, block: &TypedBlock, relation: usize) -> LinearTerms {
    let edges = block.relation(relation);
    let edges = edges.expect("a block has the relations into the types of its dst nodes");
    let terms = in_scope(stack, layer, relation, |scope| {
        conv(stack, layer, relation).linear_terms(scope, edges)
    });
    terms.expect("the conv is linear")
}

/// Computes what the backward pass of a layer reads; `constant` tells, by type, whether no gradient
/// flows to the rows that the relations from it sum.
pub(super) fn prepare(convs: &[Arc<dyn Conv>], block: &TypedBlock, constant: &[bool]) {
    for (relation, of_relation) in convs.iter().enumerate() {
        let from = block.schema().relations[relation].from;
        if let Some(touched) = block.touched(relation).filter(|_| !constant[from]) {
            touched.prepare(of_relation.projected_dim(false).is_some());
        }
    }
    for node_type in 0..block.schema().types.len() {
        if let Some(sum) = block.sum_of_relations(node_type) {
            sum.csr.transposed();
        }
    }
}
