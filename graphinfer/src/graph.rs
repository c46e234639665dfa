//! The graph as inference reads it: nodes in the order of ids, in blocks that share all rows.

use crate::InferError;
use gnn::{Architecture, Block, Dense, Input, NodeColumns, RangeData, SparseRows, Transform};
use graphflat::store::InEdges;
use graphflat::{Partition, Store};
use rayon::prelude::*;
use schemas::{FeatureMeta, Features, Ids, Sampling};
use std::ops::Range;
use std::sync::Arc;

/// Nodes in a block at most: their rows lie in the cache from one step of a layer to the next.
pub(crate) const NODES_MAX: usize = 1 << 10;

/// In-edges in a block, and at most one node's beyond.
const EDGES_MAX: usize = 1 << 16;

/// A store with what all blocks share.
pub(crate) struct Graph {
    store: Store,
    columns: Arc<NodeColumns>,
}

impl Graph {
    /// Collects the columns of all nodes that a model reads.
    pub(crate) fn new(store: &Store, arch: &Architecture) -> Result<Self, InferError> {
        let has_loops = store.meta().graph.self_loops;
        let columns = NodeColumns::new(
            column(store, Partition::in_degree),
            arch.edge_weight
                .then(|| column(store, |p, local| p.in_weight(local).unwrap_or_default())),
            has_loops.then(|| column(store, |p, local| p.self_loops(local).unwrap_or_default())),
            (has_loops && arch.edge_weight)
                .then(|| column(store, |p, local| p.self_weight(local).unwrap_or_default())),
        )?;
        Ok(Self {
            store: store.clone(),
            columns: Arc::new(columns),
        })
    }

    /// Returns the number of nodes.
    pub(crate) fn num_nodes(&self) -> usize {
        self.store.placement().num_nodes()
    }

    /// Returns the number of in-edges that a layer reads of some nodes, the first `limit` of each.
    pub(crate) fn num_in_edges(&self, nodes: Range<usize>, limit: usize) -> u64 {
        let degrees = self.columns.in_degree()[nodes].iter();
        degrees
            .map(|&degree| u64::from(degree).min(limit as u64))
            .sum()
    }

    /// Cuts some nodes into blocks of bounded size, a function of the graph alone.
    pub(crate) fn ranges(&self, nodes: Range<usize>, limit: usize) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let (mut start, mut edges) = (nodes.start, 0);
        for node in nodes.clone() {
            edges += (self.columns.in_degree()[node] as usize).min(limit);
            let end = node + 1;
            if end - start == NODES_MAX || edges >= EDGES_MAX || end == nodes.end {
                ranges.push(start..end);
                (start, edges) = (end, 0);
            }
        }
        ranges
    }

    /// Builds the block of some nodes; the first `limit` in-edges of each stand in rank order.
    pub(crate) fn block(
        &self,
        nodes: Range<usize>,
        limit: usize,
        arch: &Architecture,
    ) -> Result<Block, InferError> {
        // Lists first, so that they are on their way from memory side by side.
        let lists: Vec<InEdges<'_>> = self
            .places(nodes.clone())
            .map(|(partition, local)| partition.in_edges(0, local, limit))
            .collect();
        let num_edges = lists.iter().map(|list| list.src.len()).sum();
        let mut in_offset = Vec::with_capacity(lists.len() + 1);
        let mut in_src = Vec::with_capacity(num_edges);
        in_offset.push(0);
        for list in &lists {
            in_src.extend_from_slice(list.src);
            in_offset.push(narrow(in_src.len()));
        }
        let checked = "checked against the store";
        let weights = || lists.iter().flat_map(|list| list.weight.expect(checked));
        let features = || lists.iter().flat_map(|list| list.feature.expect(checked));
        let data = RangeData {
            first: nodes.start,
            in_offset,
            in_src,
            edge_weight: arch.edge_weight.then(|| weights().copied().collect()),
            edge_feature: arch.edge_dim.map(|cols| Dense {
                rows: num_edges,
                cols,
                values: features().copied().collect(),
            }),
            sampling: match self.store.meta().sampling {
                Sampling::Uniform => gnn::Sampling::Uniform,
                Sampling::Weighted => gnn::Sampling::Weighted,
                Sampling::Top => gnn::Sampling::Top,
            },
        };
        Ok(Block::of_range(data, &self.columns)?)
    }

    /// Tells whether raw features are sparse.
    pub(crate) fn is_sparse(&self) -> bool {
        matches!(self.store.meta().graph.features, FeatureMeta::Sparse { .. })
    }

    /// Gathers the raw features of some nodes, as a model reads them.
    pub(crate) fn input(
        &self,
        nodes: Range<usize>,
        transform: &Transform,
    ) -> Result<Input, InferError> {
        let num_rows = nodes.len();
        let mut features = Features::with_capacity(self.store.meta().graph.features, num_rows);
        for (partition, local) in self.places(nodes) {
            partition.features_into(local, &mut features);
        }
        let mut input = match features {
            Features::Dense { dim, values } => Input::Dense(Dense {
                rows: num_rows,
                cols: dim,
                values,
            }),
            Features::Sparse {
                dim,
                offset,
                index,
                value,
            } => Input::Sparse(SparseRows {
                rows: num_rows,
                cols: dim,
                offset: offset.into_iter().map(narrow_u64).collect(),
                index,
                value,
            }),
            Features::None => unreachable!("a model reads features, which the check asked for"),
        };
        transform.apply(&mut input)?;
        Ok(input)
    }

    /// Returns the ids of some nodes.
    pub(crate) fn ids(&self, nodes: &[u32]) -> Ids {
        let mut ids = Ids::with_capacity(self.store.meta().graph.id_type, nodes.len());
        for &node in nodes {
            let (partition, local) = place(&self.store, node as usize);
            ids.push_from(partition.ids(), local);
        }
        ids
    }

    /// Finds the nodes of some ids, in ascending order and each once; the row of one that is no
    /// node's is the error.
    pub(crate) fn find(&self, ids: &Ids) -> Result<Vec<u32>, usize> {
        let find = |row: usize| {
            let compare = |node: usize| {
                let (partition, local) = place(&self.store, node);
                partition.ids().cmp(local, ids, row)
            };
            let (mut low, mut high) = (0, self.num_nodes());
            while low < high {
                let middle = low + (high - low) / 2;
                match compare(middle) {
                    std::cmp::Ordering::Less => low = middle + 1,
                    std::cmp::Ordering::Equal => return Ok(narrow(middle)),
                    std::cmp::Ordering::Greater => high = middle,
                }
            }
            Err(row)
        };
        let found: Vec<Result<u32, usize>> = (0..ids.len()).into_par_iter().map(find).collect();
        let mut nodes = found.into_iter().collect::<Result<Vec<u32>, usize>>()?;
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }

    fn places(&self, nodes: Range<usize>) -> impl Iterator<Item = (&Partition, usize)> {
        nodes.map(|node| place(&self.store, node))
    }
}

/// The partition of a node and its position there.
fn place(store: &Store, node: usize) -> (&Partition, usize) {
    let (owner, local) = store.placement().owner_and_local(narrow(node));
    (store.partition(owner), local)
}

/// Collects a number of every node, in the order of ids.
fn column<T: Send>(store: &Store, value: impl Fn(&Partition, usize) -> T + Sync) -> Vec<T> {
    let nodes = (0..store.placement().num_nodes()).into_par_iter();
    let values = nodes.with_min_len(NODES_MAX).map(|node| {
        let (partition, local) = place(store, node);
        value(partition, local)
    });
    values.collect()
}

/// Nodes fit 32 bits, and so does what a block holds.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a block has fewer than 2^32 rows and edges")
}

fn narrow_u64(position: u64) -> u32 {
    u32::try_from(position).expect("a block stores below 2^32 values")
}
