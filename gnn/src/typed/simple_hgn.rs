//! Simple-HGN: graph attention over all in-edges of a node, with a score for each relation.
//!
//! One self-loop takes the place of a node's own ones; it is a relation of its own. All types share
//! the weights of a layer. With an attention residual `b`, the coefficients of a hidden layer are
//! `(1 - b)` times its own plus `b` times those of the layer before, over the in-edges that the
//! layer reads (Lv et al., "Are we really making much progress?", 2021).

use std::sync::Arc;

use burn::tensor::Tensor;

use super::block::TypedBlock;
use super::stack::{Source, TypedStack, layer_prefix};
use super::union::Union;
use crate::kernel::{
    EdgeDropout, EdgeScores, EdgeSoftmax, EdgeTerm, HeadSum, NodeScores, Relational,
};
use crate::layer::attention::{mean_of_heads, score_map};
use crate::layer::{Features, MaskKind, Src, Summed};
use crate::ops::Fused;

/// Lists one source: the projected rows of all types, with their scores as src and as dst.
pub(super) fn sources(stack: &TypedStack<'_>, layer: usize) -> Vec<Source> {
    let (heads, dim) = stack.arch.simple_hgn_heads(layer);
    vec![Source {
        types: 0..stack.schema.types.len(),
        dim: heads * dim,
        scores_dim: Some(2 * heads * stack.arch.mixed_layers(layer)),
        projects: true,
    }]
}

/// Computes rows and scores; the scores of earlier layers, `carried`, come last.
pub(super) fn project(
    stack: &TypedStack<'_>,
    layer: usize,
    (rows, num_rows): (&Features, usize),
    carried: Option<Tensor<2>>,
) -> Src {
    let prefix = layer_prefix(layer);
    let scope = stack.scope(layer, &prefix);
    let (heads, _) = stack.arch.simple_hgn_heads(layer);
    let h = scope.product(rows, num_rows, "fc.weight"); // [num_rows, heads * dim]
    let scores = Relational::NodeScores(NodeScores { heads });
    let vectors = [scope.parameter("attn_l"), scope.parameter("attn_r")];
    let [left, right] = vectors;
    let scores = Fused::Relational(scores).apply_3([h.clone(), left, right]);
    let mixes = stack.arch.mixed_layers(layer) > 1;
    let scores = match carried.filter(|_| mixes) {
        Some(carried) => Tensor::cat(vec![scores, carried], 1),
        None => scores,
    };
    Src {
        rows: Features::Dense(h),
        scores: Some(scores),
    }
}

/// Runs the layer for the dst nodes of all types.
pub(super) fn run(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    src: &[Option<Src>],
    own: &[Option<Features>],
) -> Vec<Option<Summed>> {
    let (heads, dim) = stack.arch.simple_hgn_heads(layer);
    let union = block.union(true);
    let src = src[0].as_ref().filter(|_| !union.own.is_empty());
    let Some(Src {
        rows: Features::Dense(h),
        scores: Some(scores),
    }) = src
    else {
        return vec![None; own.len()];
    };
    let alpha = mixed_attention(stack, layer, union, scores);
    let sum = Relational::HeadSum(HeadSum {
        csr: Arc::clone(&union.csr),
        heads,
        width: heads * dim,
    });
    let all = Fused::Relational(sum).apply_2([alpha, h.clone()]); // [num_dst, heads * dim]
    outputs(stack, layer, block, &all, own)
}

/// Turns the summed rows of the dst nodes of all types, `[num_dst, heads * dim]`, into outputs by
/// type.
pub(super) fn outputs(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    all: &Tensor<2>,
    own: &[Option<Features>],
) -> Vec<Option<Summed>> {
    let (heads, _) = stack.arch.simple_hgn_heads(layer);
    let mut first = 0;
    let of_type = |t: usize| {
        let rows = block.num_dst(t);
        let own = own[t].as_ref().filter(|_| rows > 0)?;
        let mut out = all.clone().narrow(0, first, rows);
        first += rows;
        if stack.arch.has_residual(layer) {
            let map = format!("{}res_fc.weight", layer_prefix(layer));
            out = out + stack.residual(&map, own, rows);
        }
        let averages = !stack.arch.is_hidden(layer);
        Some(Summed::of(if averages {
            mean_of_heads(out, heads)
        } else {
            out
        }))
    };
    (0..own.len()).map(of_type).collect()
}

/// Returns the coefficients of a layer's edges, `[num_edges, heads]`.
fn mixed_attention(
    stack: &TypedStack<'_>,
    layer: usize,
    union: &Union,
    scores: &Tensor<2>,
) -> Tensor<2> {
    let share = f64::from(stack.arch.attention_residual);
    let count = stack.arch.mixed_layers(layer);
    // The scores of the newest layer come first.
    let layers = (0..count).rev().map(|back| {
        let at = (layer - back, back);
        attention(stack, at, union, scores)
    });
    let mix =
        |before: Tensor<2>, own: Tensor<2>| own.mul_scalar(1.0 - share) + before.mul_scalar(share);
    layers
        .reduce(mix)
        .expect("a layer mixes at least its own attention")
}

/// Returns the coefficients of one layer, whose scores come after those of `back` newer ones.
fn attention(
    stack: &TypedStack<'_>,
    (layer, back): (usize, usize),
    union: &Union,
    scores: &Tensor<2>,
) -> Tensor<2> {
    let (heads, _) = stack.arch.simple_hgn_heads(layer);
    let of_edges = edge_scores(stack, (layer, back), union, scores);
    let rate = stack.arch.attention_dropout;
    let mask = stack.pass.mask(layer, MaskKind::Attention, rate);
    softmax(union, heads, mask, of_edges)
}

/// Returns the scores of the relations in a layer, `[num_relations + 1, heads]`; those of added
/// self-loops come last.
pub(super) fn relation_scores(stack: &TypedStack<'_>, layer: usize) -> Tensor<2> {
    let prefix = layer_prefix(layer);
    let scope = stack.scope(layer, &prefix);
    let map = scope.parameter("fc_e.weight").transpose(); // [relation_dim, heads * relation_dim]
    let map = map.matmul(score_map(&scope, "attn_e")); // [relation_dim, heads]
    scope.parameter("edge_emb.weight").matmul(map)
}

/// Returns the scores of edges in one layer, `[num_edges, heads]`, as [`attention`] reads them.
pub(super) fn edge_scores(
    stack: &TypedStack<'_>,
    (layer, back): (usize, usize),
    union: &Union,
    scores: &Tensor<2>,
) -> Tensor<2> {
    let (heads, _) = stack.arch.simple_hgn_heads(layer);
    let z = relation_scores(stack, layer);
    let first = 2 * heads * back;
    let dst = scores.clone().narrow(0, union.own.start, union.own.len());
    let dst = dst.narrow(1, first + heads, heads); // [num_dst, heads]
    let of_edges = Relational::EdgeScores(EdgeScores {
        csr: Arc::clone(&union.csr),
        heads,
        first,
        term: EdgeTerm::Relation(union.relation.clone()),
    });
    Fused::Relational(of_edges).apply_3([scores.clone(), dst, z])
}

/// Takes the softmax over the edges of each row of a union.
pub(super) fn softmax(
    union: &Union,
    heads: usize,
    mask: Option<crate::kernel::Mask>,
    scores: Tensor<2>,
) -> Tensor<2> {
    let softmax = Relational::EdgeSoftmax(EdgeSoftmax {
        csr: Arc::clone(&union.csr),
        heads,
        weight: None,
        dropout: mask.map(|mask| EdgeDropout {
            mask,
            key: union.key.clone(),
            relation: Some(union.relation.clone()),
        }),
    });
    Fused::Relational(softmax).apply(scores)
}
