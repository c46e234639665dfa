//! The rows that a relation's in-edges touch: most relations of a batch have in-edges for few of
//! its nodes.

use std::sync::{Arc, OnceLock};

use super::block::TypedBlock;
use crate::Block;
use crate::kernel::{Csr, Partitioning, Shared, Spmm};

/// The rows that a relation's in-edges touch.
#[derive(Debug)]
pub(super) struct Touched {
    /// Dst nodes with in-edges, ascending.
    dst: Vec<u32>,
    /// Their in-edges, in the order of the block.
    csr: Arc<Csr>,
    src: OnceLock<TouchedSrc>,
}

/// The src nodes that a relation's in-edges read.
#[derive(Debug)]
struct TouchedSrc {
    /// Copies their rows, ascending by node.
    gather: Spmm,
    /// The in-edges of [`Touched`], whose columns are those rows.
    csr: Arc<Csr>,
}

impl Touched {
    pub(super) fn of(edges: &Block) -> Touched {
        let all = edges.csr();
        let (mut dst, mut offset) = (Vec::new(), vec![0]);
        for (v, pair) in (0..).zip(all.offset.windows(2)) {
            if pair[0] < pair[1] {
                dst.push(v);
                offset.push(pair[1]);
            }
        }
        Touched {
            dst,
            csr: rows(offset, all.col.clone(), all.num_cols, all.partitioning),
            src: OnceLock::new(),
        }
    }

    /// Returns the number of dst nodes with in-edges.
    pub(super) fn num_dst(&self) -> usize {
        self.dst.len()
    }

    /// Sums the rows of all src nodes over the in-edges of each dst node with in-edges.
    pub(super) fn sum(&self, edge: Shared<f32>) -> Spmm {
        spmm(&self.csr, edge)
    }

    /// Returns the sum of the coefficients of the in-edges of each dst node with in-edges.
    #[expect(clippy::cast_possible_truncation, reason = "coefficients are f32")]
    pub(super) fn coefficient_sums(&self, edge: &[f32]) -> Vec<f32> {
        let ranges = self.csr.offset.windows(2);
        let sums = ranges.map(|range| {
            let of_row = &edge[range[0] as usize..range[1] as usize];
            of_row.iter().copied().map(f64::from).sum::<f64>() as f32
        });
        sums.collect()
    }

    /// Copies the rows of the src nodes that are read.
    pub(super) fn gather(&self) -> Spmm {
        self.src().gather.clone()
    }

    /// As [`sum`](Touched::sum), given the rows that [`gather`](Touched::gather) copies.
    pub(super) fn sum_gathered(&self, edge: Shared<f32>) -> Spmm {
        spmm(&self.src().csr, edge)
    }

    fn src(&self) -> &TouchedSrc {
        self.src.get_or_init(|| {
            let csr = &self.csr;
            let mut read = csr.col.clone();
            read.sort_unstable();
            read.dedup();
            let mut row_of = vec![0; csr.num_cols];
            for (row, &src) in (0..).zip(&read) {
                row_of[src as usize] = row;
            }
            let col = csr.col.iter().map(|&src| row_of[src as usize]).collect();
            let num_read = read.len();
            let ends = (0..=num_read).map(position).collect();
            let copied = rows(ends, read, csr.num_cols, csr.partitioning);
            TouchedSrc {
                gather: spmm(&copied, ones(num_read)),
                csr: rows(csr.offset.clone(), col, num_read, csr.partitioning),
            }
        })
    }

    /// Computes what the backward passes read; `gathers` if rows are projected first.
    pub(super) fn prepare(&self, gathers: bool) {
        if gathers {
            let src = self.src();
            src.gather.csr.transposed();
            src.csr.transposed();
        } else {
            self.csr.transposed();
        }
    }
}

/// Adds up the rows of the relations into a type: row v is the sum of the rows of the relations
/// that have in-edges of v, which stand one relation after the other. None if no relation has
/// in-edges.
pub(super) fn sum_of_relations(block: &TypedBlock, node_type: usize) -> Option<Spmm> {
    let into = block.schema().into_type(node_type);
    let relations: Vec<&Touched> = into.filter_map(|at| block.touched(at)).collect();
    let total: usize = relations.iter().map(|touched| touched.num_dst()).sum();
    if total == 0 {
        return None;
    }
    // Where the next row of each relation is.
    let mut next = vec![0; relations.len()];
    let mut starts = Vec::with_capacity(relations.len());
    let mut start = 0;
    for touched in &relations {
        starts.push(start);
        start += touched.num_dst();
    }
    let num_dst = block.num_dst(node_type);
    let mut offset = Vec::with_capacity(num_dst + 1);
    let mut col = Vec::with_capacity(total);
    offset.push(0);
    for v in 0..num_dst {
        for (at, touched) in relations.iter().enumerate() {
            if touched.dst.get(next[at]) == Some(&position(v)) {
                col.push(position(starts[at] + next[at]));
                next[at] += 1;
            }
        }
        offset.push(position(col.len()));
    }
    let csr = rows(offset, col, total, block.partitioning());
    Some(spmm(&csr, ones(total)))
}

fn rows(offset: Vec<u32>, col: Vec<u32>, num_cols: usize, partitioning: Partitioning) -> Arc<Csr> {
    let mut csr = Csr::new(offset, col, num_cols);
    (csr.partitioning, csr.bipartite) = (partitioning, true);
    Arc::new(csr)
}

fn spmm(csr: &Arc<Csr>, edge: Shared<f32>) -> Spmm {
    Spmm {
        rows: csr.num_rows(),
        csr: Arc::clone(csr),
        edge,
        own: None,
    }
}

fn ones(len: usize) -> Shared<f32> {
    vec![1.0; len].into()
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("a block has fewer than 2^32 src nodes and in-edges")
}
