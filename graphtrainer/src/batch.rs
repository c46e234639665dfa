//! From shards and targets to the blocks a model runs on.

use gnn::kernel::Partitioning;
use gnn::{Block, BlockData, Dense, Input, SparseRows};
use schemas::{Fanout, Features, GraphShard, Sampling, use_at_layer};

use crate::TrainError;

/// Some targets of one shard.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The shard.
    pub shard: &'a GraphShard,
    /// Positions of the targets in the shard, each at most once.
    pub targets: &'a [u32],
}

/// How neighbourhoods become blocks.
#[derive(Clone, Debug)]
pub struct BlockOptions {
    /// In-edges per node, hop 1 first; as many as the model has layers.
    pub fanouts: Vec<Fanout>,
    /// How the in-edges were drawn.
    pub sampling: Sampling,
    /// Whether each layer computes only what the targets need of it. Without pruning every layer
    /// runs on the whole union of the neighbourhoods, as in AGL's base version.
    pub pruning: bool,
    /// How the kernels split a block's rows over threads.
    pub partitioning: Partitioning,
    /// Whether the model uses edge weights.
    pub edge_weight: bool,
    /// Features an edge, where the model uses them.
    pub edge_dim: Option<usize>,
}

/// The blocks of some targets, with what layer 1 reads.
#[derive(Clone, Debug)]
pub struct Vectorised {
    /// Layer 1 first. The first dst nodes of the last block are the targets, in the order given.
    pub blocks: Vec<Block>,
    /// `[num_src of blocks[0], dim]`.
    pub input: Input,
    /// The src nodes of the first block: piece and position in its shard.
    pub nodes: Vec<Place>,
}

/// Where a node of a batch comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the piece.
    pub piece: u32,
    /// Position of the node in the piece's shard.
    pub node: u32,
}

/// Makes the blocks of some targets: the disjoint union of what each piece's targets need.
///
/// Layer l reads the in-edges of rank below `use_at_layer(fanouts, l)`, so a target's block
/// neighbourhood is what flatten drew for it, whichever other targets share its shard or batch.
///
/// # Errors
///
/// [`TrainError::Gnn`] if a shard contradicts itself.
///
/// # Panics
///
/// If pieces differ in what columns they have, or have no features.
pub fn blocks_of(pieces: &[Piece<'_>], options: &BlockOptions) -> Result<Vectorised, TrainError> {
    let mut walk = Walk::new(pieces);
    let num_layers = options.fanouts.len();
    // Pruned edges and widths, last layer first: layer l computes what layer l + 1 reads.
    let mut layers = Vec::with_capacity(num_layers);
    for layer in (1..=num_layers).rev() {
        let num_dst = walk.places.len();
        let edges = walk.discover(num_dst, use_at_layer(&options.fanouts, layer));
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
            let limit = use_at_layer(&options.fanouts, layer);
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
    /// `[num_edges]`, position in the batch.
    src: Vec<u32>,
    /// `[num_edges]`, position in the shard's edge columns; runs by dst node.
    origin: Vec<u32>,
}

/// Position of a node that is not in the batch.
const ABSENT: u32 = u32::MAX;

/// A breadth-first walk against the edges: nodes in order of first appearance.
struct Walk<'a> {
    pieces: &'a [Piece<'a>],
    places: Vec<Place>,
    /// Position in `places`, by piece and node.
    position: Vec<Vec<u32>>,
}

impl<'a> Walk<'a> {
    /// Starts at the targets.
    fn new(pieces: &'a [Piece<'a>]) -> Self {
        let position = pieces
            .iter()
            .map(|piece| vec![ABSENT; piece.shard.hop.len()])
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
                assert_eq!(
                    walk.places.len(),
                    known + 1,
                    "a target stands in a piece once"
                );
            }
        }
        walk
    }

    /// Returns the position of a node, a new one if it was not met before.
    fn enter(&mut self, place: Place) -> u32 {
        let position = &mut self.position[place.piece as usize][place.node as usize];
        if *position == ABSENT {
            *position = narrow(self.places.len());
            self.places.push(place);
        }
        *position
    }

    /// Collects the first `limit` in-edges of the first `num_dst` nodes; new sources join the
    /// batch behind all others.
    fn discover(&mut self, num_dst: usize, limit: usize) -> Edges {
        let mut edges = Edges {
            offset: Vec::with_capacity(num_dst + 1),
            ..Edges::default()
        };
        edges.offset.push(0);
        for dst in 0..num_dst {
            let Place { piece, node } = self.places[dst];
            let shard = self.pieces[piece as usize].shard;
            for edge in in_edges(shard, node, limit) {
                let src = self.enter(Place {
                    piece,
                    node: shard.in_src[edge],
                });
                edges.src.push(src);
                edges.origin.push(narrow(edge));
            }
            edges.offset.push(narrow(edges.src.len()));
        }
        edges
    }

    /// Collects the first `limit` in-edges of the first `num_inner` of `num_dst` nodes, as far as
    /// their sources are in the batch; the other nodes are the last hop and keep none.
    fn known(&self, num_inner: usize, num_dst: usize, limit: usize) -> Edges {
        let mut edges = Edges {
            offset: vec![0],
            ..Edges::default()
        };
        for &Place { piece, node } in &self.places[..num_inner] {
            let shard = self.pieces[piece as usize].shard;
            for edge in in_edges(shard, node, limit) {
                let src = self.position[piece as usize][shard.in_src[edge] as usize];
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

/// Positions of a node's first `limit` in-edges.
fn in_edges(shard: &GraphShard, node: u32, limit: usize) -> std::ops::Range<usize> {
    let start = shard.in_offset[node as usize] as usize;
    let end = shard.in_offset[node as usize + 1] as usize;
    start..end.min(start.saturating_add(limit))
}

/// What blocks say of each node of a batch.
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
        let weights = |of: fn(&GraphShard) -> Option<&Vec<f32>>| -> Option<Vec<f32>> {
            let all = shards().map(|(shard, node)| of(shard).map(|all| all[node as usize]));
            all.collect::<Option<_>>().filter(|_| edge_weight)
        };
        Self {
            places,
            in_degree: shards()
                .map(|(shard, node)| shard.in_degree[node as usize])
                .collect(),
            in_weight: weights(|shard| shard.in_weight.as_ref()),
            self_loops: shards()
                .map(|(shard, node)| shard.self_loops.as_ref().map(|all| all[node as usize]))
                .collect(),
            self_weight: weights(|shard| shard.self_weight.as_ref()),
            node_key: shards()
                .map(|(shard, node)| shard.ids.hash(node as usize))
                .collect(),
        }
    }

    /// Builds the block of some edges between the first nodes of the batch.
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
            sampling: match options.sampling {
                Sampling::Uniform => gnn::Sampling::Uniform,
                Sampling::Weighted => gnn::Sampling::Weighted,
                Sampling::Top => gnn::Sampling::Top,
            },
        }
    }

    fn edge_weights(&self, edges: &Edges, pieces: &[Piece<'_>]) -> Vec<f32> {
        let mut weights = Vec::with_capacity(edges.src.len());
        self.for_each_row(edges, pieces, |shard, run| {
            let all = shard
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
            let all = shard
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

    /// Calls `row` with the shard and the edges of each dst node that has some.
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
        .map(|piece| piece.shard.features.meta())
        .unwrap_or_default();
    let mut gathered = Features::empty(meta);
    // Nodes of one piece follow each other in long runs, so that a gather copies many rows.
    for run in places.chunk_by(|a, b| a.piece == b.piece) {
        let nodes: Vec<u32> = run.iter().map(|place| place.node).collect();
        gathered.extend_gather(&pieces[run[0].piece as usize].shard.features, &nodes);
    }
    match gathered {
        Features::None => Input::Dense(Dense::zeros(places.len(), 0)),
        Features::Dense { dim, values } => Input::Dense(Dense {
            rows: places.len(),
            cols: dim,
            values,
        }),
        Features::Sparse {
            dim,
            offset,
            index,
            value,
        } => {
            let offset = offset
                .iter()
                .map(|&at| u32::try_from(at).expect("fits a batch"))
                .collect();
            Input::Sparse(SparseRows {
                rows: places.len(),
                cols: dim,
                offset,
                index,
                value,
            })
        }
    }
}

/// Positions within a shard or batch fit 32 bits, as the tables' own columns do.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a shard has fewer than 2^32 nodes and edges")
}

#[cfg(test)]
mod tests;
