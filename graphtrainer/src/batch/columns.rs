//! Columns of the nodes and edges of a batch, for its blocks.

use gnn::Dense;
use gnn::typed::{RelationData, Schema, TypeNodes, TypedBlockData};
use schemas::{Sampling, ShardEdges};

use super::walk::Edges;
use super::{BlockOptions, EdgeColumns, Piece, Place};
use crate::convert;

/// Columns of the nodes of a batch, for its blocks.
pub(super) struct NodeColumns<'a> {
    pieces: &'a [Piece<'a>],
    schema: &'a Schema,
    places: &'a [Vec<Place>],
    /// By type.
    node_key: Vec<Vec<u64>>,
    /// By relation, of the nodes that it leads to.
    degrees: Vec<Degrees>,
}

/// Columns of a relation's dst nodes.
struct Degrees {
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
    /// Number of edge features that the model reads.
    edge_dim: Option<usize>,
}

impl<'a> NodeColumns<'a> {
    /// Gathers the columns of the nodes of a batch, of which layers compute the first
    /// `num_computed`, by type.
    pub(super) fn gather(
        pieces: &'a [Piece<'a>],
        schema: &'a Schema,
        places: &'a [Vec<Place>],
        num_computed: &[usize],
        options: &BlockOptions,
    ) -> Self {
        let keys = |(node_type, own): (usize, &Vec<Place>)| {
            if !options.node_keys {
                return vec![0; own.len()];
            }
            let key = |place: &Place| {
                let nodes = &pieces[place.piece as usize].shard.nodes[node_type];
                nodes.ids.hash(place.node as usize)
            };
            own.iter().map(key).collect()
        };
        let relations = schema.relations.iter().zip(&options.edges).enumerate();
        let degrees = relations.map(|(relation, (ends, columns))| {
            let read = match options.source_degrees || !options.pruning {
                true => &places[ends.to][..],
                false => &places[ends.to][..num_computed[ends.to]],
            };
            Degrees::gather(pieces, relation, read, *columns)
        });
        Self {
            pieces,
            schema,
            places,
            node_key: places.iter().enumerate().map(keys).collect(),
            degrees: degrees.collect(),
        }
    }

    /// Makes the block of `edges`, by relation, between the first nodes of each type of the batch.
    pub(super) fn block(
        &self,
        num_active: &[usize],
        (num_dst, num_src): (&[usize], &[usize]),
        edges: Vec<Edges>,
        sampling: Sampling,
    ) -> TypedBlockData {
        let types = self.node_key.iter().enumerate().map(|(at, key)| TypeNodes {
            num_src: num_src[at],
            num_dst: num_dst[at],
            num_active: num_active[at],
            node_key: key[..num_src[at]].to_vec(),
        });
        let relations = edges.into_iter().enumerate().map(|(relation, edges)| {
            let num_nodes = num_src[self.schema.relations[relation].to];
            self.relation(relation, num_nodes, edges, sampling)
        });
        TypedBlockData {
            types: types.collect(),
            relations: relations.collect(),
        }
    }

    fn relation(
        &self,
        relation: usize,
        num_nodes: usize,
        edges: Edges,
        sampling: Sampling,
    ) -> RelationData {
        let columns = &self.degrees[relation];
        let in_weight = first_of(columns.in_weight.as_ref(), num_nodes);
        RelationData {
            edge_weight: in_weight
                .is_some()
                .then(|| self.edge_weights(relation, &edges)),
            edge_feature: columns
                .edge_dim
                .map(|dim| self.edge_features(relation, &edges, dim)),
            in_offset: edges.offset,
            in_src: edges.src,
            in_degree: first(&columns.in_degree, num_nodes),
            in_weight,
            self_loops: first_of(columns.self_loops.as_ref(), num_nodes),
            self_weight: first_of(columns.self_weight.as_ref(), num_nodes),
            sampling: convert::sampling(sampling),
        }
    }

    fn edge_weights(&self, relation: usize, edges: &Edges) -> Vec<f32> {
        let mut weights = Vec::with_capacity(edges.src.len());
        self.for_each_row(relation, edges, |shard, run| {
            let all = shard
                .edge_weight
                .as_ref()
                .expect("in_weight comes with edge_weight");
            weights.extend(run.iter().map(|&edge| all[edge as usize]));
        });
        weights
    }

    fn edge_features(&self, relation: usize, edges: &Edges, cols: usize) -> Dense {
        let mut values = Vec::with_capacity(edges.src.len() * cols);
        self.for_each_row(relation, edges, |shard, run| {
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

    /// Calls `row` with the shard's edges and the edges of each dst node that has edges.
    fn for_each_row(
        &self,
        relation: usize,
        edges: &Edges,
        mut row: impl FnMut(&ShardEdges, &[u32]),
    ) {
        let places = &self.places[self.schema.relations[relation].to];
        for (place, pair) in places.iter().zip(edges.offset.windows(2)) {
            let run = &edges.origin[pair[0] as usize..pair[1] as usize];
            if !run.is_empty() {
                row(
                    &self.pieces[place.piece as usize].shard.edges[relation],
                    run,
                );
            }
        }
    }
}

/// Returns the values of the first `num_nodes` nodes; 0 for those that the column does not have.
fn first<T: Copy + Default>(column: &[T], num_nodes: usize) -> Vec<T> {
    let known = column.len().min(num_nodes);
    let mut values = Vec::with_capacity(num_nodes);
    values.extend_from_slice(&column[..known]);
    values.resize(num_nodes, T::default());
    values
}

/// Returns [`first`] of a column that may be absent.
fn first_of<T: Copy + Default>(column: Option<&Vec<T>>, num_nodes: usize) -> Option<Vec<T>> {
    column.map(|column| first(column, num_nodes))
}

impl Degrees {
    fn gather(
        pieces: &[Piece<'_>],
        relation: usize,
        places: &[Place],
        EdgeColumns { weight, dim }: EdgeColumns,
    ) -> Self {
        let degrees = || {
            places.iter().map(|place| {
                let shard = pieces[place.piece as usize].shard;
                (&shard.edges[relation], place.node as usize)
            })
        };
        let weights = |of: fn(&ShardEdges) -> Option<&Vec<f32>>| -> Option<Vec<f32>> {
            let all = degrees().map(|(edges, node)| of(edges).map(|all| all[node]));
            weight.then(|| all.collect::<Option<_>>()).flatten()
        };
        Self {
            in_degree: degrees()
                .map(|(edges, node)| edges.in_degree[node])
                .collect(),
            in_weight: weights(|edges| edges.in_weight.as_ref()),
            self_loops: degrees()
                .map(|(edges, node)| edges.self_loops.as_ref().map(|all| all[node]))
                .collect(),
            self_weight: weights(|edges| edges.self_weight.as_ref()),
            edge_dim: dim,
        }
    }
}
