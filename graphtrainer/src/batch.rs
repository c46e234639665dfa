//! Turns shards and targets into the blocks that a model runs on.

use gnn::kernel::Partitioning;
use gnn::{Block, BlockData, Dense, Input};
use schemas::{Features, GraphShard, HopFanouts, Sampling, ShardEdges, use_at_layer};

use crate::{TrainError, convert};

/// Some targets of one shard.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The shard.
    pub shard: &'a GraphShard,
    /// Positions of the targets in the shard, each at most once.
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
    /// Whether the model uses edge weights.
    pub edge_weight: bool,
    /// Number of features of an edge, if the model uses edge features.
    pub edge_dim: Option<usize>,
}

/// The blocks of some targets, and the input of layer 1.
#[derive(Clone, Debug)]
pub struct Vectorised {
    /// Layer 1 first. The first dst nodes of the last block are the targets, in the given order.
    pub blocks: Vec<Block>,
    /// `[num_src of blocks[0], dim]`.
    pub input: Input,
    /// The src nodes of the first block: piece and position in its shard.
    pub nodes: Vec<Place>,
}

/// The origin of a node of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the piece.
    pub piece: u32,
    /// Position of the node in the piece's shard.
    pub node: u32,
}

/// Makes the blocks of some targets: the disjoint union of the nodes that each piece's targets
/// need.
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
    let mut walk = Walk::new(pieces);
    let num_layers = options.fanouts.len();
    // Pruned edges and numbers of nodes, last layer first: layer l computes the rows that layer l +
    // 1 reads.
    let mut layers = Vec::with_capacity(num_layers);
    for layer in (1..=num_layers).rev() {
        let num_dst = walk.places.len();
        let edges = walk.discover(num_dst, use_at_layer(&options.fanouts, 0, layer));
        layers.push((num_dst, walk.places.len(), edges));
    }
    let num_src = walk.places.len();
    let num_inner = layers.last().map_or(0, |(num_dst, ..)| *num_dst);
    let mut blocks = Vec::with_capacity(num_layers);
    let nodes = NodeColumns::gather(pieces, &walk.places, options.edge_weight);
    for (layer, (num_dst, pruned_src, edges)) in (1..=num_layers).zip(layers.into_iter().rev()) {
        let data = if options.pruning {
            nodes.block(num_dst, (num_dst, pruned_src), edges, pieces, options)
        } else {
            let limit = use_at_layer(&options.fanouts, 0, layer);
            let whole = walk.known(num_inner, num_src, limit);
            nodes.block(num_dst, (num_src, num_src), whole, pieces, options)
        };
        blocks.push(Block::new(data)?.with_partitioning(options.partitioning));
    }
    Ok(Vectorised {
        blocks,
        input: features_of(pieces, &walk.places),
        nodes: walk.places,
    })
}

/// In-edges of the first nodes of a batch.
#[derive(Debug, Default)]
struct Edges {
    /// `[num_dst + 1]`
    offset: Vec<u32>,
    /// `[num_edges]`: position in the batch.
    src: Vec<u32>,
    /// `[num_edges]`: position in the shard's edge columns; sorted into runs by dst node.
    origin: Vec<u32>,
}

/// Position of a node that is not in the batch.
const ABSENT: u32 = u32::MAX;

/// A breadth-first walk against the edges, with the nodes in order of first appearance.
struct Walk<'a> {
    pieces: &'a [Piece<'a>],
    places: Vec<Place>,
    /// Position in `places`, by piece and node.
    position: Vec<Vec<u32>>,
}

impl<'a> Walk<'a> {
    /// Starts a walk at the targets.
    fn new(pieces: &'a [Piece<'a>]) -> Self {
        let position = pieces
            .iter()
            .map(|piece| vec![ABSENT; piece.shard.nodes[0].len()])
            .collect();
        let mut walk = Self {
            pieces,
            places: Vec::new(),
            position,
        };
        for (idx, piece) in pieces.iter().enumerate() {
            for &node in piece.targets {
                let known = walk.places.len();
                walk.enter(Place {
                    piece: narrow(idx),
                    node,
                });
                assert_eq!(walk.places.len(), known + 1, "a piece lists a target twice");
            }
        }
        walk
    }

    /// Returns the position of a node; a new node gets the next position.
    fn enter(&mut self, place: Place) -> u32 {
        let position = &mut self.position[place.piece as usize][place.node as usize];
        if *position == ABSENT {
            *position = narrow(self.places.len());
            self.places.push(place);
        }
        *position
    }

    /// Collects the first `limit` in-edges of the first `num_dst` nodes; new sources are appended
    /// to the batch.
    fn discover(&mut self, num_dst: usize, limit: usize) -> Edges {
        let mut edges = Edges {
            offset: Vec::with_capacity(num_dst + 1),
            ..Edges::default()
        };
        edges.offset.push(0);
        for dst in 0..num_dst {
            let Place { piece, node } = self.places[dst];
            let all = &self.pieces[piece as usize].shard.edges[0];
            for edge in in_edges(all, node, limit) {
                let src = self.enter(Place {
                    piece,
                    node: all.in_src[edge],
                });
                edges.src.push(src);
                edges.origin.push(narrow(edge));
            }
            edges.offset.push(narrow(edges.src.len()));
        }
        edges
    }

    /// Collects the first `limit` in-edges of the first `num_inner` of `num_dst` nodes, without
    /// in-edges whose sources are not in the batch. The other nodes are the last hop and have no
    /// in-edges.
    fn known(&self, num_inner: usize, num_dst: usize, limit: usize) -> Edges {
        let mut edges = Edges {
            offset: vec![0],
            ..Edges::default()
        };
        for &Place { piece, node } in &self.places[..num_inner] {
            let all = &self.pieces[piece as usize].shard.edges[0];
            for edge in in_edges(all, node, limit) {
                let src = self.position[piece as usize][all.in_src[edge] as usize];
                if src != ABSENT {
                    edges.src.push(src);
                    edges.origin.push(narrow(edge));
                }
            }
            edges.offset.push(narrow(edges.src.len()));
        }
        edges.offset.resize(num_dst + 1, narrow(edges.src.len()));
        edges
    }
}

/// Returns the positions of a node's first `limit` in-edges.
fn in_edges(edges: &ShardEdges, node: u32, limit: usize) -> std::ops::Range<usize> {
    let all = edges.in_edges(node);
    all.start..all.end.min(all.start.saturating_add(limit))
}

/// Columns of the nodes of a batch, for its blocks.
struct NodeColumns<'a> {
    places: &'a [Place],
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
    node_key: Vec<u64>,
}

impl<'a> NodeColumns<'a> {
    fn gather(pieces: &[Piece<'_>], places: &'a [Place], edge_weight: bool) -> Self {
        let shards = || {
            places
                .iter()
                .map(|place| (pieces[place.piece as usize].shard, place.node))
        };
        let degrees = || shards().map(|(shard, node)| (&shard.edges[0], node as usize));
        let weights = |of: fn(&ShardEdges) -> Option<&Vec<f32>>| -> Option<Vec<f32>> {
            let all = degrees().map(|(edges, node)| of(edges).map(|all| all[node]));
            all.collect::<Option<_>>().filter(|_| edge_weight)
        };
        Self {
            places,
            in_degree: degrees()
                .map(|(edges, node)| edges.in_degree[node])
                .collect(),
            in_weight: weights(|edges| edges.in_weight.as_ref()),
            self_loops: degrees()
                .map(|(edges, node)| edges.self_loops.as_ref().map(|all| all[node]))
                .collect(),
            self_weight: weights(|edges| edges.self_weight.as_ref()),
            node_key: shards()
                .map(|(shard, node)| shard.nodes[0].ids.hash(node as usize))
                .collect(),
        }
    }

    /// Makes the block of `edges` between the first nodes of the batch.
    fn block(
        &self,
        num_active: usize,
        (num_dst, num_src): (usize, usize),
        edges: Edges,
        pieces: &[Piece<'_>],
        options: &BlockOptions,
    ) -> BlockData {
        let prefix = |column: &Option<Vec<f32>>| column.as_ref().map(|v| v[..num_src].to_vec());
        let in_weight = prefix(&self.in_weight);
        BlockData {
            num_src,
            num_dst,
            edge_weight: in_weight
                .is_some()
                .then(|| self.edge_weights(&edges, pieces)),
            edge_feature: options
                .edge_dim
                .map(|dim| self.edge_features(&edges, pieces, dim)),
            in_offset: edges.offset,
            in_src: edges.src,
            in_degree: self.in_degree[..num_src].to_vec(),
            in_weight,
            self_loops: self.self_loops.as_ref().map(|all| all[..num_src].to_vec()),
            self_weight: prefix(&self.self_weight),
            node_key: self.node_key[..num_src].to_vec(),
            num_active,
            sampling: convert::sampling(options.sampling),
        }
    }

    fn edge_weights(&self, edges: &Edges, pieces: &[Piece<'_>]) -> Vec<f32> {
        let mut weights = Vec::with_capacity(edges.src.len());
        self.for_each_row(edges, pieces, |shard, run| {
            let all = shard.edges[0]
                .edge_weight
                .as_ref()
                .expect("in_weight comes with edge_weight");
            weights.extend(run.iter().map(|&edge| all[edge as usize]));
        });
        weights
    }

    fn edge_features(&self, edges: &Edges, pieces: &[Piece<'_>], cols: usize) -> Dense {
        let mut values = Vec::with_capacity(edges.src.len() * cols);
        self.for_each_row(edges, pieces, |shard, run| {
            let all = shard.edges[0]
                .edge_feature
                .as_ref()
                .expect("edge features are used where present");
            for &edge in run {
                values.extend_from_slice(&all[edge as usize * cols..(edge as usize + 1) * cols]);
            }
        });
        Dense {
            rows: edges.src.len(),
            cols,
            values,
        }
    }

    /// Calls `row` with the shard and the edges of each dst node that has edges.
    fn for_each_row(
        &self,
        edges: &Edges,
        pieces: &[Piece<'_>],
        mut row: impl FnMut(&GraphShard, &[u32]),
    ) {
        for (place, pair) in self.places.iter().zip(edges.offset.windows(2)) {
            let run = &edges.origin[pair[0] as usize..pair[1] as usize];
            if !run.is_empty() {
                row(pieces[place.piece as usize].shard, run);
            }
        }
    }
}

/// Gathers the features of a batch's nodes; sparse ones stay sparse.
fn features_of(pieces: &[Piece<'_>], places: &[Place]) -> Input {
    let meta = pieces
        .first()
        .map(|piece| piece.shard.nodes[0].features.meta())
        .unwrap_or_default();
    let mut gathered = Features::empty(meta);
    // Consecutive nodes mostly belong to one piece, so a gather copies many rows.
    for run in places.chunk_by(|a, b| a.piece == b.piece) {
        let nodes: Vec<u32> = run.iter().map(|place| place.node).collect();
        gathered.extend_gather(
            &pieces[run[0].piece as usize].shard.nodes[0].features,
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
