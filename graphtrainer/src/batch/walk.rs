//! A walk from the targets of a batch against the edges of their shards.

use std::collections::HashSet;
use std::ops::Range;

use gnn::kernel::prefetch;
use gnn::typed::{RelationEnds, Schema};
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

/// Nodes whose in-edges are loaded into the cache together, and how many of each.
const AHEAD: usize = 32;

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
    /// Edges that are not walked.
    left_out: Option<&'a LeftOut>,
}

/// Edges that a batch does not read: those between the ends of its own pairs.
#[derive(Debug)]
pub(crate) struct LeftOut {
    /// Types of the ends of a pair.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// By relation: whether its edges between the ends of a pair are left out.
    pub(crate) relations: Vec<bool>,
    /// Piece, src node and dst node of each pair.
    pub(crate) pairs: HashSet<(u32, u32, u32)>,
}

impl LeftOut {
    /// Tells whether an edge of a relation joins the ends of a pair, in either direction.
    fn has(
        &self,
        (relation, ends): (usize, &RelationEnds),
        piece: u32,
        (src, dst): (u32, u32),
    ) -> bool {
        let is_along = (ends.from, ends.to) == (self.from, self.to);
        let is_against = (ends.from, ends.to) == (self.to, self.from);
        self.relations[relation]
            && ((is_along && self.pairs.contains(&(piece, src, dst)))
                || (is_against && self.pairs.contains(&(piece, dst, src))))
    }
}

impl<'a> Walk<'a> {
    /// Starts a walk at the targets of the pieces.
    pub(super) fn new(pieces: &'a [Piece<'a>], schema: &'a Schema) -> Self {
        let mut roots = vec![Vec::new(); schema.types.len()];
        for (idx, piece) in pieces.iter().enumerate() {
            let place = |&node| Place {
                piece: narrow(idx),
                node,
            };
            roots[piece.shard.target_type].extend(piece.targets.iter().map(place));
        }
        Self::from_roots(pieces, schema, roots)
    }

    /// Starts a walk at some nodes, by type, each at most once.
    pub(super) fn from_roots(
        pieces: &'a [Piece<'a>],
        schema: &'a Schema,
        roots: Vec<Vec<Place>>,
    ) -> Self {
        let num_types = schema.types.len();
        for piece in pieces {
            assert_eq!(
                (piece.shard.nodes.len(), piece.shard.edges.len()),
                (num_types, schema.relations.len()),
                "a shard is of a graph with other types and relations"
            );
        }
        let types = pieces.iter().flat_map(|piece| &piece.shard.nodes);
        let mut position: Vec<Vec<u32>> = types.map(|nodes| vec![ABSENT; nodes.len()]).collect();
        for (node_type, own) in roots.iter().enumerate() {
            for (root, place) in own.iter().enumerate() {
                let of_piece = &mut position[place.piece as usize * num_types + node_type];
                let at = &mut of_piece[place.node as usize];
                assert_eq!(*at, ABSENT, "a piece lists a target twice");
                *at = narrow(root);
            }
        }
        Self {
            pieces,
            schema,
            places: roots,
            position,
            left_out: None,
        }
    }

    /// Returns the pieces that it walks in.
    pub(super) fn pieces(&self) -> &'a [Piece<'a>] {
        self.pieces
    }

    /// Returns the types and relations of the graph.
    pub(super) fn schema(&self) -> &'a Schema {
        self.schema
    }

    /// Leaves out the edges between the ends of pairs.
    pub(super) fn without(self, left_out: Option<&'a LeftOut>) -> Self {
        Self { left_out, ..self }
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
        let left_out = self.left_out;
        let mut ranges = Vec::with_capacity(AHEAD);
        for start in (0..num_dst).step_by(AHEAD) {
            let group = start..num_dst.min(start + AHEAD);
            self.prefetch(relation, (group.clone(), limit), &mut ranges);
            for (dst, range) in group.zip(ranges.drain(..)) {
                let Place { piece, node } = self.places[ends.to][dst];
                let all = &self.pieces[piece as usize].shard.edges[relation];
                let position = &mut self.position[piece as usize * self.places.len() + ends.from];
                let places = &mut self.places[ends.from];
                let mut number = |src: u32| {
                    let at = &mut position[src as usize];
                    if *at == ABSENT {
                        *at = narrow(places.len());
                        places.push(Place { piece, node: src });
                    }
                    *at
                };
                match left_out {
                    None => {
                        edges.origin.extend(range.clone().map(narrow));
                        let sources = all.in_src[range].iter();
                        edges.src.extend(sources.map(|&src| number(src)));
                    }
                    Some(of) => {
                        let is_read = |&edge: &usize| {
                            !of.has((relation, ends), piece, (all.in_src[edge], node))
                        };
                        for edge in range.filter(is_read) {
                            edges.src.push(number(all.in_src[edge]));
                            edges.origin.push(narrow(edge));
                        }
                    }
                }
                edges.offset.push(narrow(edges.src.len()));
            }
        }
        edges
    }

    /// Lists the first `limit` in-edges of a relation of each node of a group, and loads what
    /// [`Self::discover`] reads for them into the cache: the loads overlap, as none waits for
    /// another node.
    fn prefetch(
        &self,
        relation: usize,
        (group, limit): (Range<usize>, usize),
        ranges: &mut Vec<Range<usize>>,
    ) {
        let ends = &self.schema.relations[relation];
        let group = &self.places[ends.to][group];
        let edges = |place: &Place| &self.pieces[place.piece as usize].shard.edges[relation];
        for place in group {
            let range = in_edges(edges(place), place.node, limit);
            prefetch(&edges(place).in_src[range.clone()], Some(&0), range.len());
            ranges.push(range);
        }
        for (place, range) in group.iter().zip(&*ranges) {
            let position = &self.position[place.piece as usize * self.places.len() + ends.from];
            for src in edges(place).in_src[range.clone()].iter().take(AHEAD) {
                prefetch(position, Some(src), 1);
            }
        }
    }

    /// Collects the first in-edges of a relation of `num_dst` nodes of its type, without in-edges
    /// whose sources are not in the batch. `inner` has, for each distance from the targets, the end
    /// of its nodes and the most in-edges that one of them has here; the last hop has none.
    pub(super) fn known(&self, relation: usize, inner: &[(usize, usize)], num_dst: usize) -> Edges {
        let mut edges = Edges {
            offset: vec![0],
            ..Edges::default()
        };
        let ends = &self.schema.relations[relation];
        let starts = std::iter::once(0).chain(inner.iter().map(|&(end, _)| end));
        let hops = starts.zip(inner);
        let limited = hops.flat_map(|(start, &(end, limit))| {
            let places = &self.places[ends.to][start..end];
            places.iter().map(move |place| (place, limit))
        });
        for (&Place { piece, node }, limit) in limited {
            let all = &self.pieces[piece as usize].shard.edges[relation];
            let position = &self.position[piece as usize * self.places.len() + ends.from];
            for edge in in_edges(all, node, limit) {
                let ends_of_edge = (all.in_src[edge], node);
                let is_left_out = |of: &LeftOut| of.has((relation, ends), piece, ends_of_edge);
                let src = position[all.in_src[edge] as usize];
                if src != ABSENT && !self.left_out.is_some_and(is_left_out) {
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
fn in_edges(edges: &ShardEdges, node: u32, limit: usize) -> Range<usize> {
    let all = edges.in_edges(node);
    all.start..all.end.min(all.start.saturating_add(limit))
}
