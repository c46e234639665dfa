//! Heterogeneous graph transformer: attention over all in-edges of a node, whatever their relation.
//!
//! Keys and values are computed once for each node. The maps of a relation are applied to the
//! queries of its dst nodes, and to the values after they are summed by relation, so that no row is
//! computed for each relation of a src node. The result is `PyG`'s `HGTConv` up to rounding.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use super::block::TypedBlock;
use super::simple_hgn::softmax;
use super::stack::{Source, TypedStack, layer_prefix};
use super::union::Union;
use crate::kernel::{DotScores, HeadSum, Linear, Relational, count_of};
use crate::layer::{Features, MaskKind, Scope, Src, Summed};
use crate::ops::Fused;

/// Positions of the two sources.
pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;

/// Positions of keys, queries and values in the output of `kqv_lin`.
const PLACES: [usize; 2] = [0, 2];
const QUERIES: usize = 1;

/// Lists two sources: the keys and the values of all types.
pub(super) fn sources(stack: &TypedStack<'_>, layer: usize) -> Vec<Source> {
    let source = Source {
        types: 0..stack.schema.types.len(),
        dim: stack.arch.output_dim(layer),
        scores_dim: None,
        projects: true,
    };
    vec![source.clone(), source]
}

/// Computes keys or values.
pub(super) fn project(
    stack: &TypedStack<'_>,
    layer: usize,
    source: usize,
    node_type: usize,
    (rows, num_rows): (&Features, usize),
) -> Src {
    let out = kqv(stack, layer, PLACES[source], node_type, (rows, num_rows));
    Src {
        rows: Features::Dense(out),
        scores: None,
    }
}

/// Computes the keys, queries or values of a type: `place` is 0, 1 or 2.
fn kqv(
    stack: &TypedStack<'_>,
    layer: usize,
    place: usize,
    node_type: usize,
    (rows, num_rows): (&Features, usize),
) -> Tensor<2> {
    let prefix = layer_prefix(layer);
    let scope = stack.scope(layer, &prefix);
    let cols = stack.arch.output_dim(layer);
    let name = format!("kqv_lin.lins.{}", stack.schema.types[node_type]);
    let weight = scope.parameter(&format!("{name}.weight"));
    let bias = scope.parameter(&format!("{name}.bias"));
    let rows = scope.dense(rows.clone());
    let product = Fused::Linear(Linear {
        rows: num_rows,
        cols,
    });
    let weight = weight.narrow(0, place * cols, cols);
    let summed = Summed {
        bias: Some(bias.narrow(1, place * cols, cols)),
        ..Summed::of(product.apply_2([rows, weight]))
    };
    scope.sum(summed, None)
}

/// Runs the layer for the dst nodes of all types.
pub(super) fn run(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    src: &[Option<Src>],
    own: &[Option<Features>],
) -> Vec<Option<Summed>> {
    let types = 0..own.len();
    let mut aggregated = aggregated(stack, layer, block, src, own).into_iter();
    let of_type = |t: usize| {
        let rows = block.num_dst(t);
        let own = own[t].as_ref().filter(|_| rows > 0)?;
        if stack.arch.has_skip(stack.schema, t) {
            return Some(stack.skip(layer, t, own, rows));
        }
        let sums = aggregated
            .next()
            .expect("one for each type with in-relations");
        Some(update(stack, layer, t, sums, (own, rows)))
    };
    types.map(of_type).collect()
}

/// Sums the values of each node's in-edges by relation: for each type with dst nodes and relations
/// into it, `[num_dst, num_relations * width]`.
fn aggregated(
    stack: &TypedStack<'_>,
    layer: usize,
    block: &TypedBlock,
    src: &[Option<Src>],
    own: &[Option<Features>],
) -> Vec<Tensor<2>> {
    let (heads, width) = (stack.arch.heads_of(layer), stack.arch.output_dim(layer));
    let union = block.union(false);
    let into = |t: usize| stack.schema.into_type(t).count();
    let types: Vec<usize> = (0..own.len())
        .filter(|&t| block.num_dst(t) > 0 && into(t) > 0)
        .collect();
    let sums = match (&src[KEYS], &src[VALUES]) {
        (Some(keys), Some(values)) if union.csr.num_edges() > 0 => {
            let queries = types.iter().filter_map(|&t| {
                let own = own[t].as_ref()?;
                Some(queries(stack, layer, t, (own, block.num_dst(t))))
            });
            let queries = Tensor::cat(queries.collect(), 0); // [num_segments, width]
            let csr = || Arc::clone(&union.segments);
            let keys = stack.pass.dense(keys.rows.clone());
            let scores = dot_scores(union, (heads, width), queries, keys);
            let rate = stack.arch.attention_dropout;
            let mask = stack.pass.mask(layer, MaskKind::Attention, rate);
            let alpha = softmax(union, heads, mask, scores);
            let sum = Relational::HeadSum(HeadSum {
                csr: csr(),
                heads,
                width,
            });
            let values = stack.pass.dense(values.rows.clone());
            Fused::Relational(sum).apply_2([alpha, values])
        }
        _ => {
            let rows = union.segments.num_rows();
            stack.pass.constant(rows, width, &vec![0.0; rows * width])
        }
    }; // [num_segments, width]
    let mut first = 0;
    let of_type = |t: &usize| {
        let (rows, count) = (block.num_dst(*t), into(*t));
        let part = sums.clone().narrow(0, first, rows * count);
        first += rows * count;
        part.reshape([rows, count * width])
    };
    types.iter().map(of_type).collect()
}

/// Returns the products of queries, `[num_segments, width]`, and keys: `[num_edges, heads]`.
pub(super) fn dot_scores(
    union: &Union,
    (heads, width): (usize, usize),
    queries: Tensor<2>,
    keys: Tensor<2>,
) -> Tensor<2> {
    let dot = Relational::DotScores(DotScores {
        csr: Arc::clone(&union.segments),
        heads,
        width,
    });
    Fused::Relational(dot).apply_2([queries, keys])
}

/// Computes the query of each dst node of a type for each relation into the type, mapped by the
/// relation and scaled: `[num_dst * num_relations, width]`.
pub(super) fn queries(
    stack: &TypedStack<'_>,
    layer: usize,
    node_type: usize,
    (own, rows): (&Features, usize),
) -> Tensor<2> {
    let prefix = layer_prefix(layer);
    let scope = stack.scope(layer, &prefix);
    let (heads, width) = (stack.arch.heads_of(layer), stack.arch.output_dim(layer));
    let root = count_of(width / heads).sqrt();
    let relations: Vec<usize> = stack.schema.into_type(node_type).collect();
    let maps = relations.iter().map(|&relation| {
        let map = relation_map(stack, &scope, "k_rel.weight", layer, relation); // [width, width]
        let name = format!("p_rel.{}", stack.schema.joined(relation, "__"));
        let scale = scope.parameter(&name).div_scalar(root); // [1, heads]
        let scale = scale.reshape([heads, 1]).repeat_dim(1, width / heads);
        map * scale.reshape([width, 1])
    });
    let maps = Tensor::cat(maps.collect(), 0); // [num_relations * width, width]
    let query = kqv(stack, layer, QUERIES, node_type, (own, rows)); // [rows, width]
    let cols = relations.len() * width;
    let mapped = Fused::Linear(Linear { rows, cols }).apply_2([query, maps]);
    mapped.reshape([rows * relations.len(), width])
}

/// Returns the maps of a relation's heads as one block-diagonal matrix, `[width, width]`; a row
/// times it is mapped head by head.
fn relation_map(
    stack: &TypedStack<'_>,
    scope: &Scope<'_>,
    name: &str,
    layer: usize,
    relation: usize,
) -> Tensor<2> {
    let (heads, width) = (stack.arch.heads_of(layer), stack.arch.output_dim(layer));
    let (dim, num_relations) = (width / heads, stack.schema.relations.len());
    let all = scope.parameter(name); // [heads * num_relations * dim, dim]
    let of_heads = (0..heads).map(|head| {
        let first = (head * num_relations + relation) * dim;
        all.clone().narrow(0, first, dim)
    });
    let stacked = Tensor::cat(of_heads.collect(), 0); // [width, dim]
    let mut mask = vec![0.0; width * width];
    for row in 0..width {
        let head = row / dim;
        mask[row * width + head * dim..row * width + (head + 1) * dim].fill(1.0);
    }
    stacked.repeat_dim(1, heads) * scope.constant(width, width, &mask)
}

/// Maps summed values by relation, and turns their sum into the output of a type.
pub(super) fn update(
    stack: &TypedStack<'_>,
    layer: usize,
    node_type: usize,
    sums: Tensor<2>,
    (own, rows): (&Features, usize),
) -> Summed {
    let prefix = layer_prefix(layer);
    let scope = stack.scope(layer, &prefix);
    let (cols, name) = (stack.arch.output_dim(layer), &stack.schema.types[node_type]);
    let relations = stack.schema.into_type(node_type);
    let maps =
        relations.map(|relation| relation_map(stack, &scope, "v_rel.weight", layer, relation));
    let maps = Tensor::cat(maps.collect(), 0).transpose(); // [width, num_relations * width]
    let sum = Fused::Linear(Linear { rows, cols }).apply_2([sums, maps]);
    let out = scope.linear(
        &format!("out_lin.lins.{name}"),
        &Features::Dense(gelu(sum)),
        rows,
    );
    if stack.arch.input_dim(layer) != cols {
        return Summed::of(out);
    }
    let share = sigmoid(scope.parameter(&format!("skip.{name}"))); // [1, 1]
    let own = scope.dense(own.clone()).narrow(0, 0, rows);
    let rest = share.clone().neg().add_scalar(1.0);
    Summed::of(out * share).plus(Some(own * rest))
}

/// Returns `x` times the normal distribution function of `x`. burn's own has the slope of another
/// function.
fn gelu(x: Tensor<2>) -> Tensor<2> {
    let share = x.clone().div_scalar(std::f64::consts::SQRT_2).erf();
    x * share.add_scalar(1.0).mul_scalar(0.5)
}
