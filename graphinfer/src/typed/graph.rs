//! The nodes of each type and the in-edges of each relation, in blocks.

use crate::InferError;
use crate::graph::{EDGES_MAX, NODES_MAX};
use crate::locate::{locate, narrow};
use gnn::typed::{RelationRange, Schema, TypedArchitecture, TypedBlock};
use gnn::{Dense, Input, NodeColumns, RangeData, Transform};
use graphtrainer::convert;
use rayon::prelude::*;
use schemas::{FeatureMeta, Features, Ids, LocalIdx, NodeIdx, Row};
use std::ops::Range;
use std::sync::Arc;
use store::{InEdges, Partition, Store};

/// A store with the node columns that all blocks share. Every node has a row, whose number is the
/// node's number.
pub(super) struct TypedGraph<'a> {
    store: &'a Store,
    arch: &'a TypedArchitecture,
    schema: Arc<Schema>,
    /// By type: the numbers of its nodes.
    nodes: Vec<Range<usize>>,
    /// By relation: columns of the nodes of its `to` type.
    columns: Vec<Arc<NodeColumns>>,
}

impl<'a> TypedGraph<'a> {
    /// Collects the columns that a model reads.
    pub(super) fn new(
        store: &'a Store,
        arch: &'a TypedArchitecture,
        schema: &Arc<Schema>,
    ) -> Result<Self, InferError> {
        let nodes: Vec<Range<usize>> = (0..schema.types.len())
            .map(|node_type| {
                let range = store.placement().type_range(node_type);
                range.start.index()..range.end.index()
            })
            .collect();
        let columns = schema.relations.iter().enumerate().map(|(relation, ends)| {
            let columns = node_columns(store, arch, (relation, nodes[ends.to].clone()));
            columns.map(Arc::new)
        });
        Ok(Self {
            columns: columns.collect::<Result<_, _>>()?,
            store,
            arch,
            schema: Arc::clone(schema),
            nodes,
        })
    }

    pub(super) fn store(&self) -> &Store {
        self.store
    }

    /// Returns the number of nodes of all types, which is the number of rows.
    pub(super) fn num_rows(&self) -> usize {
        self.store.placement().num_nodes()
    }

    /// Returns the rows of a type's nodes.
    pub(super) fn rows_of(&self, node_type: usize) -> Range<usize> {
        self.nodes[node_type].clone()
    }

    /// Returns the rows of some types.
    pub(super) fn rows_of_types(&self, types: &Range<usize>) -> Range<usize> {
        self.nodes[types.start].start..self.nodes[types.end - 1].end
    }

    /// Returns the number of in-edges that a layer reads for all nodes of a type; `limits` are
    /// those of the relations.
    pub(super) fn num_in_edges(&self, node_type: usize, limits: &[usize]) -> u64 {
        let of_relation = |relation: usize| -> u64 {
            let degrees = self.columns[relation].in_degree().iter();
            let read = degrees.map(|&degree| u64::from(degree).min(limits[relation] as u64));
            read.sum()
        };
        self.schema.into_type(node_type).map(of_relation).sum()
    }

    /// Cuts some rows of a type into blocks of bounded size. Only the in-degrees and the limits of
    /// the relations decide the cuts; without limits no in-edge is read.
    pub(super) fn ranges(
        &self,
        node_type: usize,
        rows: Range<usize>,
        limits: Option<&[usize]>,
    ) -> Vec<Range<usize>> {
        let read: Vec<(&[u32], usize)> = match limits {
            Some(limits) => {
                let relations = self.schema.into_type(node_type);
                let read = |at: usize| (self.columns[at].in_degree(), limits[at]);
                relations.map(read).collect()
            }
            None => Vec::new(),
        };
        let first = self.nodes[node_type].start;
        let mut ranges = Vec::new();
        let (mut start, mut edges) = (rows.start, 0);
        for row in rows.clone() {
            let of_row = read
                .iter()
                .map(|(degrees, limit)| (degrees[row - first] as usize).min(*limit));
            edges += of_row.sum::<usize>();
            let end = row + 1;
            if end - start == NODES_MAX || edges >= EDGES_MAX || end == rows.end {
                ranges.push(start..end);
                (start, edges) = (end, 0);
            }
        }
        ranges
    }

    /// Builds the block of some rows of a type: the first in-edges of each relation and row in rank
    /// order, as many as `limits` has for the relation.
    pub(super) fn block(
        &self,
        node_type: usize,
        rows: Range<usize>,
        limits: &[usize],
    ) -> Result<TypedBlock, InferError> {
        let places: Vec<(&Partition, LocalIdx)> = self.places(rows.clone()).collect();
        let first = self.nodes[node_type].start;
        let in_type = rows.start - first..rows.end - first;
        let edges = self.schema.into_type(node_type).map(|relation| {
            // Looks up all lists before it reads them, so that their cache misses overlap.
            let list = |&(partition, local): &(&'a Partition, LocalIdx)| {
                partition.in_edges(relation, 0, local, limits[relation])
            };
            let lists: Vec<InEdges<'_>> = places.iter().map(list).collect();
            RelationRange {
                relation,
                edges: self.range_data(relation, in_type.start, &lists),
                nodes: Arc::clone(&self.columns[relation]),
            }
        });
        let num_nodes: Vec<usize> = self.nodes.iter().map(ExactSizeIterator::len).collect();
        let edges = edges.collect();
        let range = (node_type, in_type);
        Ok(TypedBlock::of_range(
            &self.schema,
            &num_nodes,
            range,
            edges,
        )?)
    }

    /// Joins the lists of a relation's in-edges of consecutive nodes.
    fn range_data(&self, relation: usize, first: usize, lists: &[InEdges<'_>]) -> RangeData {
        let read = &self.arch.relations[relation];
        let first_src = narrow(self.nodes[self.schema.relations[relation].from].start);
        let num_edges = lists.iter().map(|list| list.src.len()).sum();
        let mut in_offset = Vec::with_capacity(lists.len() + 1);
        let mut in_src = Vec::with_capacity(num_edges);
        in_offset.push(0);
        for list in lists {
            in_src.extend(list.src.iter().map(|src| src.raw() - first_src));
            in_offset.push(narrow(in_src.len()));
        }
        let checked = "checked against the store";
        let weights = || lists.iter().flat_map(|list| list.weight.expect(checked));
        let features = || lists.iter().flat_map(|list| list.feature.expect(checked));
        RangeData {
            first,
            in_offset,
            in_src,
            edge_weight: read.edge_weight.then(|| weights().copied().collect()),
            edge_feature: read.edge_dim.map(|cols| Dense {
                rows: num_edges,
                cols,
                values: features().copied().collect(),
            }),
            sampling: convert::sampling(self.store.meta().sampling),
        }
    }

    /// Gathers the raw features of some rows of a type and applies the type's transform; none if
    /// the type has no features.
    pub(super) fn input(
        &self,
        node_type: usize,
        rows: Range<usize>,
        transform: &Transform,
    ) -> Result<Option<Input>, InferError> {
        let meta = self.store.meta().graph.types[node_type].features;
        if meta == FeatureMeta::None {
            return Ok(None);
        }
        let num_rows = rows.len();
        let mut features = Features::with_capacity(meta, num_rows);
        for (partition, local) in self.places(rows) {
            partition.features_into(local, &mut features);
        }
        let mut input = convert::input(features, num_rows);
        transform.apply(&mut input)?;
        Ok(Some(input))
    }

    /// Returns the ids of some rows of a type.
    pub(super) fn ids(&self, node_type: usize, rows: &[Row]) -> Ids {
        let id_type = self.store.meta().graph.types[node_type].id_type;
        let mut ids = Ids::with_capacity(id_type, rows.len());
        for &row in rows {
            let (partition, local) = locate(self.store, NodeIdx::from_raw(row.raw()));
            let (of_type, at) = partition.id(local);
            ids.push_from(of_type, at);
        }
        ids
    }

    /// Returns the rows of the nodes of a type with some ids, ascending and without duplicates. The
    /// inner error is the position of an id that no node of the type has.
    pub(super) fn find(&self, node_type: usize, ids: &Ids) -> Result<Vec<Row>, usize> {
        let find = |at: usize| {
            let Range { start, end } = self.rows_of(node_type);
            let (mut low, mut high) = (start, end);
            while low < high {
                let middle = low + (high - low) / 2;
                let (partition, local) = locate(self.store, NodeIdx::from_index(middle));
                let (of_type, own) = partition.id(local);
                match of_type.cmp(own, ids, at) {
                    std::cmp::Ordering::Less => low = middle + 1,
                    std::cmp::Ordering::Equal => return Ok(Row::from_index(middle)),
                    std::cmp::Ordering::Greater => high = middle,
                }
            }
            Err(at)
        };
        let found: Vec<Result<Row, usize>> = (0..ids.len()).into_par_iter().map(find).collect();
        let mut found: Vec<Row> = found.into_iter().collect::<Result<_, _>>()?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn places(&self, rows: Range<usize>) -> impl Iterator<Item = (&'a Partition, LocalIdx)> {
        let store = self.store;
        rows.map(move |row| locate(store, NodeIdx::from_index(row)))
    }
}

/// Collects the columns of a relation's dst nodes that a model reads.
fn node_columns(
    store: &Store,
    arch: &TypedArchitecture,
    (relation, nodes): (usize, Range<usize>),
) -> Result<NodeColumns, InferError> {
    let places = || {
        let nodes = nodes.clone().into_par_iter();
        nodes.map(|node| locate(store, NodeIdx::from_index(node)))
    };
    let weighted = arch.relations[relation].edge_weight;
    let meta = &store.meta().graph.relations[relation];
    let has_loops = meta.self_loops && meta.from == meta.to;
    let in_weight = |(partition, local): (&Partition, LocalIdx)| {
        partition.in_weight(relation, local).unwrap_or_default()
    };
    let self_loops = |(partition, local): (&Partition, LocalIdx)| {
        partition.self_loops(relation, local).unwrap_or_default()
    };
    let self_weight = |(partition, local): (&Partition, LocalIdx)| {
        partition.self_weight(relation, local).unwrap_or_default()
    };
    let in_degree = places().map(|(partition, local)| partition.in_degree(relation, local));
    Ok(NodeColumns::new(
        in_degree.collect(),
        weighted.then(|| places().map(in_weight).collect()),
        has_loops.then(|| places().map(self_loops).collect()),
        (has_loops && weighted).then(|| places().map(self_weight).collect()),
    )?)
}
