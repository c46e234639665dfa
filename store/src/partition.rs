//! One worker's part of the graph, in mapped files.

use crate::arrow_file::{NODES_PER_BATCH, map_batches};
use crate::edge_columns::{DegreeColumns, EdgeLists, InEdges};
use crate::error::StoreCause;
use crate::meta::{degrees_path, in_edges_path, nodes_path};
use crate::node_columns::NodeColumns;
use crate::{StoreError, StoreMeta};
use schemas::{Features, Ids, Labels, LocalIdx, NodeIdx, Split};
use std::path::Path;

/// One worker's nodes with their in-edges.
pub struct Partition {
    num_nodes: usize,
    ids: Ids,
    nodes: Vec<NodeColumns>,
    degrees: Vec<DegreeColumns>,
    /// By sample, then by record batch; after the samples comes the list of all in-edges, if it is
    /// kept.
    in_edges: Vec<Vec<EdgeLists>>,
    edge_dim: usize,
    has_self_loops: bool,
}

impl Partition {
    pub(crate) fn open(
        dir: &Path,
        worker: usize,
        num_nodes: usize,
        meta: &StoreMeta,
    ) -> Result<Self, StoreError> {
        let path = nodes_path(dir, worker);
        let damaged = |file: &Path| StoreError::File {
            verb: "read",
            path: file.to_owned(),
            source: StoreCause::Damaged("a column is missing".into()),
        };
        let mut ids = Ids::new(meta.graph.types[0].id_type);
        let mut nodes = Vec::new();
        for batch in map_batches(&path)? {
            let column = batch.column_by_name("id").ok_or_else(|| damaged(&path))?;
            let more = Ids::from_array(column)?;
            ids.extend_from(&more, 0..more.len());
            nodes.push(NodeColumns::of(&batch).ok_or_else(|| damaged(&path))?);
        }
        let degree_path = degrees_path(dir, worker);
        let degrees = map_batches(&degree_path)?
            .iter()
            .map(DegreeColumns::of)
            .collect();
        let degrees = Option::<Vec<_>>::ok_or_else(degrees, || damaged(&degree_path))?;
        let mut in_edges = Vec::new();
        for list in 0..meta.samples as usize + usize::from(meta.redraw) {
            let list_path = in_edges_path(dir, worker, list);
            let lists = map_batches(&list_path)?.iter().map(EdgeLists::of).collect();
            in_edges.push(Option::<Vec<_>>::ok_or_else(lists, || damaged(&list_path))?);
        }
        let edge_dim = meta.graph.relations[0].edge_feature_dim.unwrap_or(0);
        Ok(Self {
            num_nodes,
            ids,
            nodes,
            degrees,
            in_edges,
            edge_dim,
            has_self_loops: meta.graph.relations[0].self_loops,
        })
    }

    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    /// Returns the positions of the nodes.
    pub fn locals(&self) -> impl ExactSizeIterator<Item = LocalIdx> + Clone + use<> {
        (0..self.num_nodes).map(LocalIdx::from_index)
    }

    /// Returns the ids of the nodes, by position.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Returns a node's in-degree in the input graph.
    pub fn in_degree(&self, local: LocalIdx) -> u32 {
        self.degrees[local.index() / NODES_PER_BATCH].in_degree[local.index() % NODES_PER_BATCH]
    }

    /// Returns the first of a node's sources in the order of ids; the greatest number if it has
    /// none.
    pub fn least_src(&self, local: LocalIdx) -> NodeIdx {
        self.degrees[local.index() / NODES_PER_BATCH].least_src()[local.index() % NODES_PER_BATCH]
    }

    /// Returns the sum of the weights of a node's in-edges, where the input has weights.
    pub fn in_weight(&self, local: LocalIdx) -> Option<f32> {
        let degrees = &self.degrees[local.index() / NODES_PER_BATCH];
        Some(degrees.in_weight.as_ref()?[local.index() % NODES_PER_BATCH])
    }

    /// Returns the number of a node's self-loops; none if no node has any.
    pub fn self_loops(&self, local: LocalIdx) -> Option<u32> {
        let degrees = &self.degrees[local.index() / NODES_PER_BATCH];
        self.has_self_loops
            .then(|| degrees.self_loops[local.index() % NODES_PER_BATCH])
    }

    /// Returns the sum of the weights of a node's self-loops, where they have weights.
    pub fn self_weight(&self, local: LocalIdx) -> Option<f32> {
        let degrees = &self.degrees[local.index() / NODES_PER_BATCH];
        let weights = degrees.self_weight.as_ref().filter(|_| self.has_self_loops);
        Some(weights?[local.index() % NODES_PER_BATCH])
    }

    /// Returns a node's split.
    pub fn split(&self, local: LocalIdx) -> Split {
        self.nodes[local.index() / NODES_PER_BATCH].split(local.index() % NODES_PER_BATCH)
    }

    /// Returns the bytes of a node's id, features, degree, label and split.
    pub fn row_bytes(&self, local: LocalIdx) -> usize {
        let id = self.ids.key_bytes(local.index()).map_or(8, <[u8]>::len);
        let features = self.nodes[local.index() / NODES_PER_BATCH]
            .feature_bytes(local.index() % NODES_PER_BATCH);
        id + features + 9
    }

    /// Returns the bytes of all sparse features; 0 where features are not sparse.
    pub fn sparse_bytes(&self) -> usize {
        self.nodes.iter().map(NodeColumns::sparse_bytes).sum()
    }

    /// Returns a node's dense features, `[dim]`; nothing where features are not dense.
    pub fn dense(&self, local: LocalIdx) -> &[f32] {
        self.nodes[local.index() / NODES_PER_BATCH].dense(local.index() % NODES_PER_BATCH)
    }

    /// Appends a node's features.
    pub fn features_into(&self, local: LocalIdx, out: &mut Features) {
        self.nodes[local.index() / NODES_PER_BATCH]
            .features_into(local.index() % NODES_PER_BATCH, out);
    }

    /// Appends a node's label.
    pub fn label_into(&self, local: LocalIdx, out: &mut Labels) {
        self.nodes[local.index() / NODES_PER_BATCH]
            .label_into(local.index() % NODES_PER_BATCH, out);
    }

    /// Returns a node's first in-edges in rank order, at most `limit` of them.
    pub fn in_edges(&self, sample: usize, local: LocalIdx, limit: usize) -> InEdges<'_> {
        let lists = &self.in_edges[sample][local.index() / NODES_PER_BATCH];
        lists.in_edges(local.index() % NODES_PER_BATCH, limit, self.edge_dim)
    }

    /// Returns all of a node's in-edges by source and ordinal, from a store built with `redraw`.
    pub fn unranked(&self, local: LocalIdx) -> InEdges<'_> {
        self.in_edges(self.in_edges.len() - 1, local, usize::MAX)
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("num_nodes", &self.num_nodes)
            .finish_non_exhaustive()
    }
}
