//! Attention over all in-edges of a hub, whose in-edges of some relations are aggregated to states.
//!
//! A softmax over in-edges of several relations is merged from one softmax state for each relation.
//! The states of `simple_hgn` consist of one part for each layer whose attention is mixed, the
//! newest first.

use burn::tensor::Tensor;

use super::block::TypedBlock;
use super::hgt::{self, KEYS, VALUES};
use super::hub::Aggregated;
use super::kind::TypedKind;
use super::simple_hgn::{edge_scores, relation_scores};
use super::stack::TypedStack;
use crate::kernel::partial::{
    dot_scores, gat_scores, merge_softmax, merge_states, softmax_rows, softmax_shares,
};
use crate::kernel::{Csr, Float, HeadSum, Relational};
use crate::layer::{Features, PartialAggregation, SomeInEdges, Src, SrcRows, plain};
use crate::ops::Fused;
use crate::shared_rows::on_values;
use crate::{GnnError, NodeColumns};
use std::sync::Arc;

/// Aggregates the in-edges of a relation to states of the softmax over all in-edges of a node.
#[derive(Debug)]
pub(super) struct RelationStates {
    heads: usize,
    /// Width of all heads.
    width: usize,
    scores: Scores,
}

/// How in-edges are scored.
#[derive(Debug)]
enum Scores {
    /// By the sum of the scores of both ends and of the relation; by mixed layer, the relation's
    /// scores, `[heads]`.
    Sums(Vec<Vec<f32>>),
    /// By the product of the dst node's query and the src node's key.
    Products,
}

impl RelationStates {
    pub(super) fn new(
        stack: &TypedStack<'_>,
        layer: usize,
        relation: usize,
    ) -> Result<RelationStates, GnnError> {
        if stack.arch.layer == TypedKind::Hgt {
            return Ok(RelationStates {
                heads: stack.arch.heads_of(layer),
                width: stack.arch.output_dim(layer),
                scores: Scores::Products,
            });
        }
        let (heads, dim) = stack.arch.simple_hgn_heads(layer);
        let of_layer = |back: usize| {
            let all = plain(relation_scores(stack, layer - back))?;
            Ok(all.row(relation).to_vec())
        };
        let parts = 0..stack.arch.mixed_layers(layer);
        let parts = parts.map(of_layer).collect::<Result<_, GnnError>>()?;
        Ok(RelationStates {
            heads,
            width: heads * dim,
            scores: Scores::Sums(parts),
        })
    }

    fn part_dim(&self) -> usize {
        2 * self.heads + self.width
    }

    fn num_parts(&self) -> usize {
        match &self.scores {
            Scores::Sums(parts) => parts.len(),
            Scores::Products => 1,
        }
    }

    /// Returns the scores of in-edges in one of the mixed layers.
    fn of_part(
        &self,
        part: usize,
        edges: &SomeInEdges,
        src: SrcRows<'_>,
        query: &[f32],
    ) -> Vec<f32> {
        let of_nodes = src.scores.expect("the caller passes scores, or keys");
        let heads = self.heads;
        match &self.scores {
            Scores::Sums(parts) => {
                let of_dst = query[part * heads..][..heads].iter().zip(&parts[part]);
                let of_dst: Vec<f32> = of_dst.map(|(dst, relation)| dst + relation).collect();
                let stride = 2 * heads * parts.len();
                let place = (of_nodes.f32(), stride, 2 * heads * part);
                gat_scores(place, &edges.src, &of_dst, None)
            }
            Scores::Products => {
                on_values!(of_nodes, keys => dot_scores(keys, &edges.src, query, heads))
            }
        }
    }
}

impl PartialAggregation for RelationStates {
    fn state_dim(&self) -> usize {
        self.num_parts() * self.part_dim()
    }

    fn query_dim(&self) -> usize {
        match &self.scores {
            Scores::Sums(parts) => parts.len() * self.heads,
            Scores::Products => self.width,
        }
    }

    /// The one self-loop of `simple_hgn` belongs to no relation: the layer adds it to the states.
    fn adds_loop(&self) -> bool {
        matches!(self.scores, Scores::Sums(_))
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.state_dim()];
        for (part, state) in out.chunks_exact_mut(self.part_dim()).enumerate() {
            let scores = self.of_part(part, edges, src, query);
            on_values!(src.rows, rows => {
                softmax_rows((rows, &edges.src), scores, None, state, self.heads);
            });
        }
        out
    }

    fn merge(&self, _row: u32, states: &[&[f32]], _nodes: &NodeColumns) -> Vec<f32> {
        let mut out = vec![0.0; self.state_dim()];
        let dim = self.part_dim();
        for (part, merged) in out.chunks_exact_mut(dim).enumerate() {
            let of_part = states.iter().map(|state| &state[part * dim..][..dim]);
            merge_states(&of_part.collect::<Vec<_>>(), self.heads, merged);
        }
        out
    }
}

/// Returns the scores of a node as dst node of `simple_hgn`, by mixed layer, from its scores as src
/// and dst node.
pub(super) fn dst_scores(stack: &TypedStack<'_>, layer: usize, scores: &[f32]) -> Vec<f32> {
    let (heads, _) = stack.arch.simple_hgn_heads(layer);
    let parts = scores.chunks_exact(2 * heads);
    parts.flat_map(|part| part[heads..].to_vec()).collect()
}

/// Returns the query of a node in hgt for a relation.
pub(super) fn query(
    stack: &TypedStack<'_>,
    layer: usize,
    relation: usize,
    own: &Features,
) -> Result<Vec<f32>, GnnError> {
    let node_type = stack.schema.relations[relation].to;
    let all = plain(hgt::queries(stack, layer, node_type, (own, 1)))?;
    let mut into = stack.schema.into_type(node_type);
    let at = into.position(|of| of == relation);
    Ok(all.row(at.expect("it leads into the type")).to_vec())
}

/// The largest score and the sum of exponentials of each head, and the coefficients before the
/// division by the sum, of the in-edges of one row of a block.
struct Shares {
    greatest: Vec<f32>,
    sums: Vec<f32>,
    /// `[num_edges, heads]`.
    of_edges: Vec<f32>,
}

impl Shares {
    fn of(mut scores: Vec<f32>, heads: usize) -> Shares {
        let (mut greatest, mut sums) = (vec![0.0; heads], vec![0.0; heads]);
        softmax_shares(&mut scores, None, (&mut greatest, &mut sums));
        Shares {
            greatest,
            sums,
            of_edges: scores,
        }
    }
}

/// Sums rows of `x` over the in-edges of each row: `[num_rows, width]`.
fn head_sum(
    stack: &TypedStack<'_>,
    csr: &Arc<Csr>,
    (heads, width): (usize, usize),
    (alpha, x): (&[f32], Tensor<2>),
) -> Result<Vec<f32>, GnnError> {
    let sum = Relational::HeadSum(HeadSum {
        csr: Arc::clone(csr),
        heads,
        width,
    });
    let alpha = stack.pass.constant(csr.num_edges(), heads, alpha);
    Ok(plain(Fused::Relational(sum).apply_2([alpha, x]))?.values)
}

/// Sums the rows of a hub's in-edges in `simple_hgn`: `[1, heads * dim]`. The block has the in-edges
/// of the relations without a state, and the self-loop.
pub(super) fn simple_hgn(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    (src, given): (&[Option<Src>], &Aggregated),
) -> Result<Tensor<2>, GnnError> {
    let (heads, dim) = stack.arch.simple_hgn_heads(layer);
    let (width, count) = (heads * dim, stack.arch.mixed_layers(layer));
    let Some(Src {
        rows: Features::Dense(h),
        scores: Some(scores),
    }) = &src[0]
    else {
        return Ok(stack.pass.constant(1, width, &vec![0.0; width]));
    };
    let union = block.union(true);
    let part_dim = 2 * heads + width;
    let of_part = |back: usize| {
        let of_edges = plain(edge_scores(stack, (layer - back, back), union, scores))?;
        let shares = Shares::of(of_edges.values, heads);
        let alpha = (&shares.of_edges[..], h.clone());
        let rows = head_sum(stack, &union.csr, (heads, width), alpha)?;
        let rest = [shares.greatest, shares.sums, rows].concat();
        let given = given.iter().map(|(_, state)| &state[back * part_dim..]);
        let given = given.map(|state| &state[..part_dim]);
        let states: Vec<&[f32]> = std::iter::once(&rest[..]).chain(given).collect();
        let out = merge_softmax(&states, heads);
        Ok(stack.pass.constant(1, width, &out))
    };
    let parts = (0..count).rev().map(of_part);
    let parts = parts.collect::<Result<Vec<Tensor<2>>, GnnError>>()?;
    let share = f64::from(stack.arch.attention_residual);
    let mix =
        |before: Tensor<2>, own: Tensor<2>| own.mul_scalar(1.0 - share) + before.mul_scalar(share);
    let mixed = parts.into_iter().reduce(mix);
    Ok(mixed.expect("a layer mixes at least its own attention"))
}

/// Sums the values of a hub's in-edges in hgt, relation by relation: `[1, num_relations * width]`.
/// The block has the in-edges of the relations without a state.
pub(super) fn hgt(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    (src, given): (&[Option<Src>], &Aggregated),
    (node_type, own): (usize, &Features),
) -> Result<Tensor<2>, GnnError> {
    let (heads, width) = (stack.arch.heads_of(layer), stack.arch.output_dim(layer));
    let relations: Vec<usize> = stack.schema.into_type(node_type).collect();
    let cols = relations.len() * width;
    let union = block.union(false);
    let mut all = vec![0.0; cols];
    let mut rest = Shares::of(Vec::new(), heads);
    if let (Some(keys), Some(values)) = (&src[KEYS], &src[VALUES])
        && union.csr.num_edges() > 0
    {
        let dense = |of: &Src| stack.pass.dense(of.rows.clone());
        let queries = hgt::queries(stack, layer, node_type, (own, 1));
        let scores = hgt::dot_scores(union, (heads, width), queries, dense(keys));
        rest = Shares::of(plain(scores)?.values, heads);
        let alpha = (&rest.of_edges[..], dense(values));
        all = head_sum(stack, &union.segments, (heads, width), alpha)?;
    }
    for (relation, state) in given {
        let at = relations.iter().position(|of| of == relation);
        let at = at.expect("it leads into the type");
        all[at * width..(at + 1) * width].copy_from_slice(&state[2 * heads..]);
    }
    // The scores and sums of the block's in-edges, and then of each relation with a state.
    let parts = given.iter().map(|(_, state)| state.split_at(heads));
    let parts = parts.map(|(greatest, sums)| (greatest, &sums[..heads]));
    let parts: Vec<(&[f32], &[f32])> = std::iter::once((&rest.greatest[..], &rest.sums[..]))
        .chain(parts)
        .collect();
    for head in 0..heads {
        let of_head = parts.iter().map(|(greatest, _)| greatest[head]);
        let most = of_head.fold(f32::NEG_INFINITY, f32::max);
        let shares = parts.iter().map(|(m, _)| Float::exp(m[head] - most));
        let shares: Vec<f32> = shares.collect();
        let sums = parts.iter().zip(&shares);
        let total: f32 = sums.map(|((_, sums), share)| sums[head] * share).sum();
        let dim = width / heads;
        for (at, row) in all.chunks_exact_mut(width).enumerate() {
            let state = given.iter().position(|(of, _)| *of == relations[at]);
            let share = shares[state.map_or(0, |state| state + 1)];
            let of_relation = &mut row[head * dim..(head + 1) * dim];
            of_relation.iter_mut().for_each(|x| *x = *x * share / total);
        }
    }
    Ok(stack.pass.constant(1, cols, &all))
}
