//! The nodes of each type and the in-edges of each relation, in blocks.

use super::halo::TypedHalo;
use super::hubs::relation_uses;
use super::reads::Read;
use crate::InferError;
use crate::exchange::Exchange;
use crate::gather::find;
use crate::graph::{BlockSize, completed, cut_blocks};
use crate::hubs::{Hubs, ReadColumns};
use crate::lists;
use crate::local::own_nodes;
use crate::locate::{locate, narrow};
use crate::model::TypedTrained;
use crate::node_columns::with_halo;
use gnn::typed::{RelationRange, Schema, TypedArchitecture, TypedBlock};
use gnn::{Input, NodeColumns, RangeData, Sampling};
use graphtrainer::convert;
use rayon::prelude::*;
use schemas::{FeatureMeta, Features, Ids, LocalIdx, NodeIdx, Row};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use store::{InEdges, Partition, Store};

/// A store with the node columns that all blocks share.
///
/// In one process every node has a row, whose number is the node's number. Of several processes,
/// each has rows of its own nodes and of the nodes that these read, type by type.
pub(super) struct TypedGraph<'a> {
    store: &'a Store,
    arch: &'a TypedArchitecture,
    schema: Arc<Schema>,
    /// By type: the numbers of its nodes.
    nodes: Vec<Range<usize>>,
    /// By type: its rows.
    rows: Vec<Range<usize>>,
    /// By relation: columns of the nodes of its `to` type that have a row.
    columns: Vec<Arc<NodeColumns>>,
    hubs: Hubs,
    /// None in one process.
    halo: Option<TypedHalo>,
    blocks: BlockSize,
}

impl<'a> TypedGraph<'a> {
    /// Numbers the rows and collects the columns that a model reads. `reads` has the lists of
    /// in-edges whose sources processes exchange.
    pub(super) fn new(
        store: &'a Store,
        arch: &'a TypedArchitecture,
        (schema, reads): (&Arc<Schema>, BTreeSet<Vec<Read>>),
        blocks: BlockSize,
    ) -> Result<Self, InferError> {
        let nodes = (0..schema.types.len()).map(|node_type| {
            let range = store.placement().type_range(node_type);
            range.start.index()..range.end.index()
        });
        let nodes: Vec<Range<usize>> = nodes.collect();
        let is_alone = store.cluster().num_processes() == 1;
        let own = (!is_alone).then(|| own_nodes(store));
        let mut hubs = Hubs::find(store, relation_uses(arch, &reads), own.as_deref())?;
        let halo = own.map(|own| TypedHalo::new(store, schema, (own, reads), &mut hubs));
        let halo = halo.transpose()?;
        let mut graph = Self {
            store,
            arch,
            schema: Arc::clone(schema),
            rows: halo.as_ref().map_or(nodes.clone(), TypedHalo::rows),
            nodes,
            columns: Vec::new(),
            hubs,
            halo,
            blocks,
        };
        let relations = 0..schema.relations.len();
        let columns = relations.map(|relation| graph.node_columns(relation).map(Arc::new));
        graph.columns = columns.collect::<Result<_, InferError>>()?;
        Ok(graph)
    }

    pub(super) fn store(&self) -> &Store {
        self.store
    }

    /// Returns the relations and nodes whose in-edges are aggregated in segments.
    pub(super) fn hubs(&self) -> &Hubs {
        &self.hubs
    }

    /// Returns the columns of the nodes of a relation's `to` type that have a row.
    pub(super) fn columns(&self, relation: usize) -> &NodeColumns {
        &self.columns[relation]
    }

    /// Returns the row of a node of a type among the rows of the type; the node has a row here and
    /// is numbered in the whole graph.
    pub(super) fn row_of_type(&self, node_type: usize, node: NodeIdx) -> u32 {
        let in_type = node.raw() - narrow(self.nodes[node_type].start);
        match &self.halo {
            Some(halo) => halo.types[node_type].row(NodeIdx::from_raw(in_type)).raw(),
            None => in_type,
        }
    }

    /// Returns the number of rows of all types.
    pub(super) fn num_rows(&self) -> usize {
        self.rows.last().map_or(0, |rows| rows.end)
    }

    /// Returns the number of nodes of a type in the whole graph.
    pub(super) fn num_nodes(&self, node_type: usize) -> usize {
        self.nodes[node_type].len()
    }

    /// Returns the rows of the own nodes of a type, which come before those of its halo.
    pub(super) fn own_rows_of(&self, node_type: usize) -> Range<usize> {
        let rows = self.rows[node_type].clone();
        match &self.halo {
            Some(halo) => rows.start..rows.start + halo.types[node_type].own().len(),
            None => rows,
        }
    }

    /// Returns the rows of some types.
    pub(super) fn rows_of_types(&self, types: &Range<usize>) -> Range<usize> {
        self.rows[types.start].start..self.rows[types.end - 1].end
    }

    /// Returns the own rows among some nodes of a type, which are numbered from its first node.
    pub(super) fn own_rows_among(&self, node_type: usize, nodes: Range<usize>) -> Range<usize> {
        let first = self.rows[node_type].start;
        let there = |end: usize| match &self.halo {
            Some(halo) => {
                let own = halo.types[node_type].own();
                own.partition_point(|&node| node.index() < end)
            }
            None => end,
        };
        first + there(nodes.start)..first + there(nodes.end)
    }

    /// Returns the row of a node of a type, numbered from the type's first node; none if another
    /// process owns the node.
    pub(super) fn own_row(&self, node_type: usize, node: NodeIdx) -> Option<Row> {
        let place = match &self.halo {
            Some(halo) => halo.types[node_type].own().binary_search(&node).ok()?,
            None => node.index(),
        };
        Some(Row::from_index(self.rows[node_type].start + place))
    }

    /// Returns the node of an own row of a type, numbered from the type's first node.
    pub(super) fn node(&self, node_type: usize, row: Row) -> NodeIdx {
        let place = row.index() - self.rows[node_type].start;
        match &self.halo {
            Some(halo) => halo.types[node_type].own()[place],
            None => NodeIdx::from_index(place),
        }
    }

    /// Lists the own rows of all types with their nodes, numbered in the whole graph.
    pub(super) fn own(&self) -> impl Iterator<Item = (Row, NodeIdx)> {
        let types = 0..self.nodes.len();
        types.flat_map(move |node_type| {
            let rows = self.own_rows_of(node_type).map(Row::from_index);
            rows.map(move |row| {
                let in_type = self.node(node_type, row).index();
                (
                    row,
                    NodeIdx::from_index(self.nodes[node_type].start + in_type),
                )
            })
        })
    }

    /// Returns the exchange of the rows that some in-edges read; none in one process.
    pub(super) fn exchange(&self, reads: &[Read]) -> Option<&Arc<Exchange>> {
        self.halo.as_ref().map(|halo| halo.exchange(reads))
    }

    /// Returns the number of in-edges that a layer reads for all own nodes of a type; `limits` are
    /// those of the relations.
    pub(super) fn num_in_edges(&self, node_type: usize, limits: &[usize]) -> u64 {
        let num_own = self.own_rows_of(node_type).len();
        let of_relation = |relation: usize| -> u64 {
            let degrees = self.columns[relation].in_degree()[..num_own].iter();
            let read = degrees.map(|&degree| u64::from(degree).min(limits[relation] as u64));
            read.sum()
        };
        self.schema.into_type(node_type).map(of_relation).sum()
    }

    /// Returns the in-degrees of some own rows of a type, in all relations together.
    pub(super) fn in_degrees(&self, node_type: usize, rows: Range<usize>) -> Vec<f64> {
        let first = self.rows[node_type].start;
        let degree = |row: usize| {
            let relations = self.schema.into_type(node_type);
            let of = |at: usize| f64::from(self.columns[at].in_degree()[row - first]);
            relations.map(of).sum()
        };
        rows.map(degree).collect()
    }

    /// Cuts some own rows of a type into blocks of bounded size. Only the in-degrees and the limits of
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
        let first = self.rows[node_type].start;
        cut_blocks(rows, self.blocks, |row| {
            let of_row = read
                .iter()
                .map(|(degrees, limit)| (degrees[row - first] as usize).min(*limit));
            of_row.sum()
        })
    }

    /// Builds the block of some own rows of a type: the first in-edges of each relation and row in rank
    /// order, as many as `limits` has for the relation, and no in-edges of hubs.
    pub(super) fn block(
        &self,
        node_type: usize,
        rows: Range<usize>,
        limits: &[usize],
    ) -> Result<TypedBlock, InferError> {
        let places: Vec<(&Partition, LocalIdx)> = self.places(node_type, rows.clone()).collect();
        let first = self.rows[node_type].start;
        let in_type = rows.start - first..rows.end - first;
        let edges = self.schema.into_type(node_type).map(|relation| {
            let in_degrees = &self.columns[relation].in_degree()[in_type.clone()];
            let lists = lists::look_up(&places, in_degrees, (relation, limits[relation]));
            RelationRange {
                relation,
                edges: self.range_data(relation, in_type.start, &lists),
                nodes: Arc::clone(&self.columns[relation]),
            }
        });
        let num_rows: Vec<usize> = self.rows.iter().map(ExactSizeIterator::len).collect();
        let edges = edges.collect();
        let range = (node_type, in_type);
        Ok(TypedBlock::of_range(&self.schema, &num_rows, range, edges)?)
    }

    /// Joins the lists of a relation's in-edges of consecutive nodes.
    fn range_data(&self, relation: usize, first: usize, lists: &[InEdges<'_>]) -> RangeData {
        let columns = ReadColumns::of_relation(&self.arch.relations[relation]);
        let from = self.schema.relations[relation].from;
        let first_src = narrow(self.nodes[from].start);
        let add_rows = |to: &mut Vec<u32>, list: &[NodeIdx]| {
            let srcs = list.iter().map(|src| src.raw() - first_src);
            match &self.halo {
                None => to.extend(srcs),
                Some(halo) => {
                    let row = |src| halo.types[from].row(NodeIdx::from_raw(src)).raw();
                    to.extend(srcs.map(row));
                }
            }
        };
        lists::join(first, lists, columns, self.sampling(), add_rows)
    }

    /// Returns how the store's in-edges were drawn.
    pub(super) fn sampling(&self) -> Sampling {
        convert::sampling(self.store.meta().sampling)
    }

    /// Gathers the raw features of some own rows of a type and applies the type's transform;
    /// learnable rows come after the features. None if the type has neither.
    pub(super) fn input(
        &self,
        node_type: usize,
        rows: Range<usize>,
        trained: &TypedTrained,
    ) -> Result<Option<Input>, InferError> {
        self.input_of_rows(node_type, rows, trained)
    }

    /// As [`input`](Self::input), of listed rows, which are numbered from the first row of the type.
    pub(super) fn input_of(
        &self,
        node_type: usize,
        rows: &[usize],
        trained: &TypedTrained,
    ) -> Result<Option<Input>, InferError> {
        let first = self.rows[node_type].start;
        self.input_of_rows(node_type, rows.iter().map(|row| first + row), trained)
    }

    /// Tells whether nodes of a type have features or learnable rows.
    pub(super) fn has_input(&self, node_type: usize, trained: &TypedTrained) -> bool {
        let meta = self.store.meta().graph.types[node_type].features;
        meta != FeatureMeta::None || trained.embeddings[node_type].is_some()
    }

    fn input_of_rows(
        &self,
        node_type: usize,
        rows: impl ExactSizeIterator<Item = usize> + Clone,
        trained: &TypedTrained,
    ) -> Result<Option<Input>, InferError> {
        if !self.has_input(node_type, trained) {
            return Ok(None);
        }
        let meta = self.store.meta().graph.types[node_type].features;
        let embedding = trained.embeddings[node_type].as_ref();
        let num_rows = rows.len();
        let mut features = Features::with_capacity(meta, num_rows);
        for (partition, local) in self.places(node_type, rows.clone()) {
            partition.features_into(local, &mut features);
        }
        let mut input = convert::input(features, num_rows);
        trained.transforms[node_type].apply(&mut input)?;
        let ids = self
            .places(node_type, rows)
            .map(|(partition, local)| partition.id(local));
        Ok(Some(match embedding {
            Some(embedding) => completed(input, embedding, ids),
            None => input,
        }))
    }

    /// Returns the ids of some own rows of a type.
    pub(super) fn ids(&self, node_type: usize, rows: &[Row]) -> Ids {
        let id_type = self.store.meta().graph.types[node_type].id_type;
        let mut ids = Ids::with_capacity(id_type, rows.len());
        for &row in rows {
            let (partition, local) = self.place(node_type, row);
            let (of_type, at) = partition.id(local);
            ids.push_from(of_type, at);
        }
        ids
    }

    /// Returns the nodes of a type with some ids, ascending and without duplicates, numbered from
    /// the type's first node. The inner error is the position of an id that no node of the type
    /// has.
    pub(super) fn find(
        &self,
        node_type: usize,
        ids: &Ids,
    ) -> Result<Result<Vec<NodeIdx>, usize>, InferError> {
        let id = |row| {
            let (partition, local) = self.place(node_type, row);
            partition.id(local)
        };
        let own_rows = self.own_rows_of(node_type);
        find(self.store.cluster(), ids, own_rows, id, |row| {
            self.node(node_type, row)
        })
    }

    fn places(
        &self,
        node_type: usize,
        rows: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = (&'a Partition, LocalIdx)> {
        rows.map(move |row| self.place(node_type, Row::from_index(row)))
    }

    /// Returns the partition of an own row of a type and the row's position there.
    fn place(&self, node_type: usize, row: Row) -> (&'a Partition, LocalIdx) {
        let node = self.nodes[node_type].start + self.node(node_type, row).index();
        locate(self.store, NodeIdx::from_index(node))
    }

    /// Collects the columns of a relation's dst nodes that a model reads. In a relation within a
    /// type, they are also the src nodes, so that processes exchange the columns of their halos.
    fn node_columns(&self, relation: usize) -> Result<NodeColumns, InferError> {
        let weighted = self.arch.relations[relation].edge_weight;
        let meta = &self.store.meta().graph.relations[relation];
        let has_loops = meta.self_loops && meta.from == meta.to;
        let column = |value: &Column<'_>| self.column(relation, value);
        let weights = |value: &(dyn Fn(&Partition, LocalIdx) -> Option<f32> + Sync)| {
            let bits =
                column(&|partition, local| value(partition, local).unwrap_or_default().to_bits())?;
            Ok::<Vec<f32>, InferError>(bits.into_iter().map(f32::from_bits).collect())
        };
        let loops = |partition: &Partition, local| partition.self_loops(relation, local);
        Ok(NodeColumns::new(
            column(&|partition, local| partition.in_degree(relation, local))?,
            weighted
                .then(|| weights(&|partition, local| partition.in_weight(relation, local)))
                .transpose()?,
            has_loops
                .then(|| column(&|partition, local| loops(partition, local).unwrap_or_default()))
                .transpose()?,
            (has_loops && weighted)
                .then(|| weights(&|partition, local| partition.self_weight(relation, local)))
                .transpose()?,
        )?)
    }

    /// Collects one number of each node of a relation's `to` type, in the order of rows.
    fn column(&self, relation: usize, value: &Column<'_>) -> Result<Vec<u32>, InferError> {
        let ends = &self.schema.relations[relation];
        let own_rows = self.own_rows_of(ends.to);
        let of_row = |row: usize| {
            let (partition, local) = self.place(ends.to, Row::from_index(row));
            value(partition, local)
        };
        let mut own: Vec<u32> = own_rows.clone().into_par_iter().map(of_row).collect();
        let num_rows = self.rows[ends.to].len();
        let halo = self.halo.as_ref().filter(|_| ends.from == ends.to);
        match halo.and_then(|halo| halo.of_relation(relation)) {
            Some(exchange) => {
                let num_halo = num_rows - own.len();
                with_halo(own, exchange, (own_rows.start, num_halo))
            }
            // No in-edge of the relation comes from the halo.
            None => {
                own.resize(num_rows, 0);
                Ok(own)
            }
        }
    }
}

/// Returns one number of a node, from its partition and its position there.
type Column<'a> = dyn Fn(&Partition, LocalIdx) -> u32 + Sync + 'a;
