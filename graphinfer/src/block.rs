//! Blocks of inference: a range of a worker's own nodes with all their sources.

use crate::halo::{Halo, PORTION_ROWS};
use gnn::{Architecture, BlockData, Dense, Input, SparseRows};
use graphflat::{Partition, Store};
use schemas::{Features, Sampling};
use std::ops::Range;

/// Own nodes in a block at most.
///
/// A source is gathered once for each block that reads it, so larger blocks gather less and hold
/// more. With 2^20 nodes, 2^24 edges and two workers, 2^13, 2^15 and 2^18 nodes a block took 13.2,
/// 11.7 and 10.5 s of processor time for GCN, and 1.2, 1.4 and 2.5 GB at the most for SAGE.
const NODES_MAX: usize = 1 << 15;

/// In-edges in a block, and at most one node's beyond: bounds the memory of edge features.
const EDGES_MAX: usize = 1 << 21;

/// Rows of a block at least.
///
/// A product of few rows may take another way through the matrix library (one row; up to 64 rows
/// by 64 columns; up to 256 results) and round differently. With at least so many rows it never
/// does, so a node's embedding is the same to the bit in whichever block it stands.
pub(crate) const ROWS_MIN: usize = 512;

/// Not in the block.
const ABSENT: u32 = u32::MAX;

/// What the blocks of a worker are made of.
#[derive(Clone, Copy)]
pub(crate) struct BlockContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) partition: &'a Partition,
    pub(crate) halo: &'a Halo,
    pub(crate) arch: &'a Architecture,
}

/// A range of own nodes, and how many of their in-edges the block has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub(crate) nodes: Range<usize>,
    /// In-edges of a node, those of the lowest ranks.
    limit: usize,
}

/// Memory that the blocks of a worker use one after the other.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// `[rows held]`: position in the block.
    position: Vec<u32>,
}

/// The data of a block, and which rows its src nodes are.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) data: BlockData,
    /// `[num_src]` at most: rows held; src nodes beyond them are filled in.
    pub(crate) rows: Vec<u32>,
}

/// Rows of one layer, own ones and those of peers.
pub(crate) struct LayerRows<'a> {
    pub(crate) own: OwnRows<'a>,
    /// Portions of [`PORTION_ROWS`] rows, by row after the own ones.
    pub(crate) halo: Vec<Option<Features>>,
}

/// Rows of own nodes.
#[derive(Clone, Copy)]
pub(crate) enum OwnRows<'a> {
    /// Raw features.
    Store(&'a Partition),
    /// Embeddings, `[num_own * dim]`.
    Embedding(&'a [f32]),
}

/// Cuts own nodes into blocks of bounded size.
pub(crate) fn block_ranges(partition: &Partition, limit: usize) -> Vec<BlockRange> {
    let mut ranges = Vec::new();
    let (mut start, mut edges) = (0, 0);
    for local in 0..partition.num_nodes() {
        edges += partition.in_edges(0, local, limit).src.len();
        let end = local + 1;
        if end - start == NODES_MAX || edges >= EDGES_MAX || end == partition.num_nodes() {
            ranges.push(BlockRange {
                nodes: start..end,
                limit,
            });
            (start, edges) = (end, 0);
        }
    }
    ranges
}

impl Scratch {
    pub(crate) fn new(halo: &Halo) -> Self {
        Self {
            position: vec![ABSENT; halo.num_rows()],
        }
    }
}

impl BlockContext<'_> {
    /// Builds the block of some own nodes; their in-edges stand in rank order.
    pub(crate) fn gather(&self, range: &BlockRange, scratch: &mut Scratch) -> Gathered {
        let mut rows: Vec<u32> = range.nodes.clone().map(narrow).collect();
        for (position, &row) in (0u32..).zip(&rows) {
            scratch.position[row as usize] = position;
        }
        let mut data = BlockData {
            in_offset: vec![0],
            ..BlockData::default()
        };
        let (use_weight, edge_dim) = (self.arch.edge_weight, self.arch.edge_dim);
        let (mut weight, mut feature) = (Vec::new(), Vec::new());
        for local in range.nodes.clone() {
            let in_edges = self.partition.in_edges(0, local, range.limit);
            for &src in in_edges.src {
                let row = self.halo.row(src);
                let position = &mut scratch.position[row as usize];
                if *position == ABSENT {
                    *position = narrow(rows.len());
                    rows.push(row);
                }
                data.in_src.push(*position);
            }
            if use_weight {
                weight.extend_from_slice(in_edges.weight.expect("checked against the store"));
            }
            if edge_dim.is_some() {
                feature.extend_from_slice(in_edges.feature.expect("checked against the store"));
            }
            data.in_offset.push(narrow(data.in_src.len()));
        }
        rows.iter()
            .for_each(|&row| scratch.position[row as usize] = ABSENT);
        data.edge_weight = use_weight.then_some(weight);
        let num_edges = data.in_src.len();
        data.edge_feature = edge_dim.map(|cols| Dense {
            rows: num_edges,
            cols,
            values: feature,
        });
        self.gather_columns(&mut data, &rows, range.nodes.len());
        Gathered { data, rows }
    }

    /// Fills in the columns of the src nodes, and missing rows.
    ///
    /// Where dst nodes are missing, src nodes that follow them count as such, without in-edges;
    /// their output is cut off.
    fn gather_columns(&self, data: &mut BlockData, rows: &[u32], num_dst: usize) {
        let columns = &self.halo.columns;
        let num_src = rows.len().max(ROWS_MIN);
        let (has_loops, use_weight) = (self.store.meta().graph.self_loops, self.arch.edge_weight);
        data.in_degree = pick(&columns.in_degree, rows, num_src);
        data.in_weight = use_weight.then(|| pick(&columns.in_weight, rows, num_src));
        data.self_loops = has_loops.then(|| pick(&columns.self_loops, rows, num_src));
        data.self_weight =
            (has_loops && use_weight).then(|| pick(&columns.self_weight, rows, num_src));
        data.num_src = num_src;
        data.num_dst = num_dst.max(ROWS_MIN);
        data.num_active = num_dst;
        let last = data.in_offset.last().copied().unwrap_or(0);
        data.in_offset.resize(data.num_dst + 1, last);
        // Only dropout reads keys, and inference has none.
        data.node_key = vec![0; data.num_src];
        data.sampling = match self.store.meta().sampling {
            Sampling::Uniform => gnn::Sampling::Uniform,
            Sampling::Weighted => gnn::Sampling::Weighted,
            Sampling::Top => gnn::Sampling::Top,
        };
    }

    /// Gathers the rows that a block reads, and fills up to `num_src` with zeros.
    pub(crate) fn input(&self, from: &LayerRows<'_>, gathered: &Gathered, dim: usize) -> Input {
        let num_src = gathered.data.num_src;
        let mut rows = match from.own {
            OwnRows::Store(_) => Features::empty(self.store.meta().graph.features),
            OwnRows::Embedding(_) => {
                let values = Vec::with_capacity(num_src * dim);
                Features::Dense { dim, values }
            }
        };
        for &row in &gathered.rows {
            from.push_to(row as usize, self.halo.num_own(), &mut rows);
        }
        match rows {
            Features::Dense {
                dim: cols,
                mut values,
            } => {
                values.resize(num_src * cols, 0.0);
                Input::Dense(Dense {
                    rows: num_src,
                    cols,
                    values,
                })
            }
            Features::Sparse {
                dim: cols,
                offset,
                index,
                value,
            } => {
                let end = |at: u64| u32::try_from(at).expect("a block stores below 2^32 values");
                let mut offset: Vec<u32> = offset.into_iter().map(end).collect();
                offset.resize(num_src + 1, narrow(index.len()));
                Input::Sparse(SparseRows {
                    rows: num_src,
                    cols,
                    offset,
                    index,
                    value,
                })
            }
            Features::None => unreachable!("a model reads features, which the check asked for"),
        }
    }
}

impl LayerRows<'_> {
    /// Appends a row.
    fn push_to(&self, row: usize, num_own: usize, out: &mut Features) {
        if let Some(at) = row.checked_sub(num_own) {
            let portion = self.halo[at / PORTION_ROWS].as_ref();
            let portion = portion.expect("owners sent what the layer reads");
            return out.push_from(portion, narrow(at % PORTION_ROWS));
        }
        self.own.push_to(row, out);
    }
}

impl OwnRows<'_> {
    /// Appends an own node's row.
    pub(crate) fn push_to(self, local: usize, out: &mut Features) {
        match (self, out) {
            (Self::Store(partition), out) => partition.features_into(local, out),
            (Self::Embedding(own), Features::Dense { dim, values }) => {
                values.extend_from_slice(&own[local * *dim..(local + 1) * *dim]);
            }
            (Self::Embedding(_), _) => unreachable!("embeddings are dense"),
        }
    }
}

/// Picks the values of some rows and fills up to `num_src`.
fn pick<T: Copy + Default>(column: &[T], rows: &[u32], num_src: usize) -> Vec<T> {
    let mut picked: Vec<T> = rows.iter().map(|&row| column[row as usize]).collect();
    picked.resize(num_src, T::default());
    picked
}

/// Positions within a block fit 32 bits, as a block's own columns do.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a block has fewer than 2^32 rows and edges")
}
