//! A walk from the targets of a batch against the edges of their shards.

use gnn::typed::Schema;
use schemas::ShardEdges;

use super::{Piece, Place, narrow};

/// In-edges of one relation into the first nodes of a type of a batch.
#[derive(Debug, Default)]
pub(super) struct Edges {
    /// `[num_dst + 1]`
    pub(super) offset: Vec<u32>,
    /// `[num_edges]`: position among the batch's nodes of type `from`.
    pub(super) src: Vec<u32>,
    /// `[num_edges]`: position in the shard's edge columns; sorted into runs by dst node.
    pub(super) origin: Vec<u32>,
}

/// Position of a node that is not in the batch.
const ABSENT: u32 = u32::MAX;

/// A breadth-first walk against the edges, with the nodes of a type in order of first appearance.
pub(super) struct Walk<'a> {
    pieces: &'a [Piece<'a>],
    schema: &'a Schema,
    /// By type.
    pub(super) places: Vec<Vec<Place>>,
    /// Position in `places`, by piece and type (one list for each pair), and by node.
    position: Vec<Vec<u32>>,
}

impl<'a> Walk<'a> {
    /// Starts a walk at the targets.
    pub(super) fn new(pieces: &'a [Piece<'a>], schema: &'a Schema) -> Self {
        let num_types = schema.types.len();
        let types = pieces.iter().flat_map(|piece| &piece.shard.nodes);
        let mut position: Vec<Vec<u32>> = types.map(|nodes| vec![ABSENT; nodes.len()]).collect();
        let mut places = vec![Vec::new(); num_types];
        for (idx, piece) in pieces.iter().enumerate() {
            assert_eq!(
                (piece.shard.nodes.len(), piece.shard.edges.len()),
                (num_types, schema.relations.len()),
                "a shard is of a graph with other types and relations"
            );
            let target_type = piece.shard.target_type;
            let own = &mut places[target_type];
            for &node in piece.targets {
                let at = &mut position[idx * num_types + target_type][node as usize];
                assert_eq!(*at, ABSENT, "a piece lists a target twice");
                *at = narrow(own.len());
                own.push(Place {
                    piece: narrow(idx),
                    node,
                });
            }
        }
        Self {
            pieces,
            schema,
            places,
            position,
        }
    }

    /// Returns the number of nodes of each type that the walk has met.
    pub(super) fn num_nodes(&self) -> Vec<usize> {
        self.places.iter().map(Vec::len).collect()
    }

    /// Collects the first `limit` in-edges of a relation of the first `num_dst` nodes of its type;
    /// new sources are appended to the batch.
    pub(super) fn discover(&mut self, relation: usize, num_dst: usize, limit: usize) -> Edges {
        let mut edges = Edges {
            offset: Vec::with_capacity(num_dst + 1),
            ..Edges::default()
        };
        edges.offset.push(0);
        let ends = &self.schema.relations[relation];
        for dst in 0..num_dst {
            let Place { piece, node } = self.places[ends.to][dst];
            let all = &self.pieces[piece as usize].shard.edges[relation];
            let position = &mut self.position[piece as usize * self.places.len() + ends.from];
            let places = &mut self.places[ends.from];
            for edge in in_edges(all, node, limit) {
                let src = all.in_src[edge];
                let at = &mut position[src as usize];
                if *at == ABSENT {
                    *at = narrow(places.len());
                    places.push(Place { piece, node: src });
                }
                edges.src.push(*at);
                edges.origin.push(narrow(edge));
            }
            edges.offset.push(narrow(edges.src.len()));
        }
        edges
    }

    /// Collects the first `limit` in-edges of a relation of the first `num_inner` of `num_dst` nodes
    /// of its type, without in-edges whose sources are not in the batch. The other nodes are the
    /// last hop and have no in-edges.
    pub(super) fn known(
        &self,
        relation: usize,
        num_inner: usize,
        num_dst: usize,
        limit: usize,
    ) -> Edges {
        let mut edges = Edges {
            offset: vec![0],
            ..Edges::default()
        };
        let ends = &self.schema.relations[relation];
        for &Place { piece, node } in &self.places[ends.to][..num_inner] {
            let all = &self.pieces[piece as usize].shard.edges[relation];
            let position = &self.position[piece as usize * self.places.len() + ends.from];
            for edge in in_edges(all, node, limit) {
                let src = position[all.in_src[edge] as usize];
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
