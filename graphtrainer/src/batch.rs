//! Turns shards and targets into the blocks that a model runs on.

mod columns;
mod walk;

use std::sync::Arc;

use gnn::kernel::Partitioning;
use gnn::typed::{RelationEnds, Schema, TypedBlock, TypedBlockData};
use gnn::{Block, Input};
use schemas::{Features, GraphShard, HopFanouts, Sampling, keep_at_hop, use_at_layer};

use crate::any_model::{typed_blocks, untyped_blocks};
use crate::{TrainError, convert};

use columns::NodeColumns;
pub(crate) use walk::LeftOut;
use walk::{Edges, Walk};

/// Some targets of one shard.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The shard.
    pub shard: &'a GraphShard,
    /// Positions of the targets among the shard's nodes of the target type, each at most once.
    pub targets: &'a [u32],
}

/// Settings for making blocks of neighbourhoods.
#[derive(Clone, Debug)]
pub struct BlockOptions {
    /// In-edges per node, hop 1 first; as many as the model has layers.
    pub fanouts: Vec<HopFanouts>,
    /// How the in-edges were drawn.
    pub sampling: Sampling,
    /// Whether each layer computes only the rows that the targets need. Without pruning every layer
    /// runs on the whole union of the neighbourhoods, as in AGL's base version.
    pub pruning: bool,
    /// How the kernels split a block's rows over threads.
    pub partitioning: Partitioning,
    /// The columns of edges that the model reads, by relation.
    pub edges: Vec<EdgeColumns>,
    /// Whether nodes have the keys that dropout masks depend on. Without, all keys are 0.
    pub node_keys: bool,
    /// Whether the model reads degrees, sums of weights or self-loops of sources. Without, and with
    /// pruning, those of the nodes that no layer computes are 0.
    pub source_degrees: bool,
}

/// The columns of a relation's edges that a model reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeColumns {
    /// Whether the model uses edge weights.
    pub weight: bool,
    /// Number of features of an edge, if the model uses edge features.
    pub dim: Option<usize>,
}

/// The blocks of some targets of an untyped graph, and the input of layer 1.
#[derive(Clone, Debug)]
pub struct Vectorised {
    /// Layer 1 first. The first dst nodes of the last block are the targets, in the given order.
    pub blocks: Vec<Block>,
    /// `[num_src of blocks[0], dim]`.
    pub input: Input,
    /// The src nodes of the first block: piece and position in its shard.
    pub nodes: Vec<Place>,
}

/// The blocks of some targets of a typed graph, and the input of layer 1.
#[derive(Clone, Debug)]
pub struct TypedVectorised {
    /// Layer 1 first. The first dst nodes of the target type of the last block are the targets, in
    /// the given order.
    pub blocks: Vec<TypedBlock>,
    /// By type, `[num_src of blocks[0], dim]`; none for a type without features.
    pub input: Vec<Option<Input>>,
    /// By type, the src nodes of the first block: piece and position in its shard.
    pub nodes: Vec<Vec<Place>>,
}

/// The origin of a node of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the piece.
    pub piece: u32,
    /// Position of the node among the nodes of its type in the piece's shard.
    pub node: u32,
}

/// The data of some targets' blocks.
#[derive(Debug)]
pub(crate) struct Layers {
    /// Layer 1 first.
    pub(crate) data: Vec<TypedBlockData>,
    /// By type, the src nodes of the first block.
    pub(crate) nodes: Vec<Vec<Place>>,
}

/// Makes the blocks of some targets of an untyped graph: the disjoint union of the nodes that each
/// piece's targets need.
///
/// Layer l reads the in-edges of rank below `use_at_layer(fanouts, 0, l)`. So a target's neighbourhood
/// in the blocks is the one that flatten drew, whatever other targets are in its shard or batch.
///
/// # Errors
///
/// [`TrainError::Gnn`] if a shard contradicts itself.
///
/// # Panics
///
/// If pieces have different columns, or no features.
pub fn blocks_of(pieces: &[Piece<'_>], options: &BlockOptions) -> Result<Vectorised, TrainError> {
    let Layers { data, mut nodes } = layers_of(pieces, &untyped_schema(), options);
    let nodes = nodes.pop().expect("an untyped graph has one type");
    Ok(Vectorised {
        blocks: untyped_blocks(data, options.partitioning)?,
        input: features_of(pieces, 0, &nodes),
        nodes,
    })
}

/// Makes the blocks of some targets of a typed graph, as [`blocks_of`] does. A node of a layer reads
/// the in-edges of each relation into its type, of rank below the relation's fan-out.
///
/// # Errors
///
/// As [`blocks_of`].
///
/// # Panics
///
/// If pieces have different columns, or are of a graph with other types and relations.
pub fn typed_blocks_of(
    schema: &Arc<Schema>,
    pieces: &[Piece<'_>],
    options: &BlockOptions,
) -> Result<TypedVectorised, TrainError> {
    let Layers { data, nodes } = layers_of(pieces, schema, options);
    let input = |(node_type, places): (usize, &Vec<Place>)| {
        let features = features_of(pieces, node_type, places);
        (features.cols() > 0).then_some(features)
    };
    Ok(TypedVectorised {
        blocks: typed_blocks(schema, data, options.partitioning)?,
        input: nodes.iter().enumerate().map(input).collect(),
        nodes,
    })
}

/// Returns the types and relations of an untyped graph: one of each, without a name.
fn untyped_schema() -> Schema {
    Schema {
        types: vec![String::new()],
        relations: vec![RelationEnds {
            name: String::new(),
            from: 0,
            to: 0,
        }],
    }
}

/// A layer during the walk: it computes the rows that the next layer reads.
struct PrunedLayer {
    /// Number of dst and of src nodes, by type.
    num_dst: Vec<usize>,
    num_src: Vec<usize>,
    /// By relation.
    edges: Vec<Edges>,
}

/// Collects the nodes and in-edges that each layer reads.
pub(crate) fn layers_of(pieces: &[Piece<'_>], schema: &Schema, options: &BlockOptions) -> Layers {
    layers_from(Walk::new(pieces, schema), options)
}

/// Collects the nodes and in-edges that each layer reads, from targets of several types, which are
/// given by type, each at most once.
pub(crate) fn layers_of_roots(
    pieces: &[Piece<'_>],
    schema: &Schema,
    (roots, left_out): (Vec<Vec<Place>>, Option<&LeftOut>),
    options: &BlockOptions,
) -> Layers {
    let walk = Walk::from_roots(pieces, schema, roots).without(left_out);
    layers_from(walk, options)
}

/// Collects the nodes and in-edges that each layer reads, from the targets where a walk starts.
fn layers_from(walk: Walk<'_>, options: &BlockOptions) -> Layers {
    let (pieces, schema) = (walk.pieces(), walk.schema());
    let (mut walk, layers) = walk_layers(walk, &options.fanouts);
    let num_nodes = walk.num_nodes();
    // Where the nodes of each distance end; the last layer computes the targets.
    let ends_of_hops: Vec<Vec<usize>> = layers.iter().map(|layer| layer.num_dst.clone()).collect();
    let num_computed = ends_of_hops.last().unwrap_or(&num_nodes);
    let columns = NodeColumns::gather(pieces, schema, &walk.places, num_computed, options);
    let mut data = Vec::with_capacity(layers.len());
    for (layer, pruned) in (1..).zip(layers.into_iter().rev()) {
        data.push(if options.pruning {
            let PrunedLayer {
                num_dst,
                num_src,
                edges,
            } = pruned;
            columns.block(&num_dst, (&num_dst, &num_src), edges, options.sampling)
        } else {
            let known = |(relation, ends): (usize, &RelationEnds)| {
                let limit = use_at_layer(&options.fanouts, relation, layer);
                // A shard may list more in-edges of a node that is nearer to another target.
                let inner = (0..).zip(&ends_of_hops).map(|(hop, of_types)| {
                    let kept = keep_at_hop(&options.fanouts, relation, hop);
                    (of_types[ends.to], limit.min(kept))
                });
                let inner: Vec<(usize, usize)> = inner.collect();
                walk.known(relation, &inner, num_nodes[ends.to])
            };
            let edges = schema.relations.iter().enumerate().map(known).collect();
            columns.block(
                &pruned.num_dst,
                (&num_nodes, &num_nodes),
                edges,
                options.sampling,
            )
        });
    }
    let nodes = std::mem::take(&mut walk.places);
    Layers { data, nodes }
}

/// Collects the nodes of some targets' neighbourhoods, by type, as the targets are.
pub(crate) fn nodes_of(
    pieces: &[Piece<'_>],
    schema: &Schema,
    roots: Vec<Vec<Place>>,
    fanouts: &[HopFanouts],
) -> Vec<Vec<Place>> {
    let walk = Walk::from_roots(pieces, schema, roots);
    walk_layers(walk, fanouts).0.places
}

/// Walks from the targets against the edges, last layer first.
fn walk_layers<'a>(mut walk: Walk<'a>, fanouts: &[HopFanouts]) -> (Walk<'a>, Vec<PrunedLayer>) {
    let schema = walk.schema();
    let num_layers = fanouts.len();
    let mut layers = Vec::with_capacity(num_layers);
    for layer in (1..=num_layers).rev() {
        let num_dst = walk.num_nodes();
        let discover = |(relation, ends): (usize, &RelationEnds)| {
            let limit = use_at_layer(fanouts, relation, layer);
            walk.discover(relation, num_dst[ends.to], limit)
        };
        let edges = schema.relations.iter().enumerate().map(discover).collect();
        layers.push(PrunedLayer {
            num_src: walk.num_nodes(),
            num_dst,
            edges,
        });
    }
    (walk, layers)
}

/// Gathers the features of a batch's nodes of one type; sparse ones stay sparse.
pub(crate) fn features_of(pieces: &[Piece<'_>], node_type: usize, places: &[Place]) -> Input {
    let meta = pieces
        .first()
        .map(|piece| piece.shard.nodes[node_type].features.meta())
        .unwrap_or_default();
    let mut gathered = Features::empty(meta);
    // Consecutive nodes mostly belong to one piece, so a gather copies many rows.
    for run in places.chunk_by(|a, b| a.piece == b.piece) {
        let nodes: Vec<u32> = run.iter().map(|place| place.node).collect();
        gathered.extend_gather(
            &pieces[run[0].piece as usize].shard.nodes[node_type].features,
            &nodes,
        );
    }
    convert::input(gathered, places.len())
}

/// Narrows a position in a shard or batch, which fits 32 bits as in the tables' own columns.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a shard has fewer than 2^32 nodes and edges")
}

#[cfg(test)]
mod tests;
