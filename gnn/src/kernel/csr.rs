//! Compressed rows, their transpose and how rows are split over threads.

use std::ops::Range;
use std::sync::OnceLock;

/// How the rows of a kernel are split over threads; never changes a result.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Partitioning {
    /// Pieces of about equally many edges, so that a hub does not delay one thread.
    #[default]
    EdgeBalanced,
    /// Pieces of equally many rows.
    Off,
}

/// Compressed rows: edges grouped by row, each with the column it reads.
///
/// For a block the rows are dst nodes and the columns src nodes.
///
/// # Shapes
///
/// - `offset`: `[num_rows + 1]`, ascending from 0
/// - `col`: `[num_edges]`, each less than `num_cols`
#[derive(Debug)]
pub struct Csr {
    /// Where the edges of each row start.
    pub offset: Vec<u32>,
    /// Column of each edge.
    pub col: Vec<u32>,
    /// Number of columns.
    pub num_cols: usize,
    /// How kernels split the rows over threads.
    pub partitioning: Partitioning,
    /// Position of the node of row 0 among the nodes of its type; the nodes of the next rows have
    /// the next positions.
    pub first: usize,
    /// Whether rows and columns are nodes of two types, so that no column is a row's own node.
    pub bipartite: bool,
    transposed: OnceLock<Transposed>,
    #[cfg(feature = "gpu")]
    on_gpu: crate::gpu::GraphOnGpu,
}

/// The same edges grouped by column.
///
/// # Shapes
///
/// - `offset`: `[num_cols + 1]`
/// - `edge`, `row`: `[num_edges]`; edges of a column are in ascending order
#[derive(Debug)]
pub struct Transposed {
    /// Where the edges of each column start.
    pub offset: Vec<u32>,
    /// Position of each edge in the rows' order.
    pub edge: Vec<u32>,
    /// Row of each edge.
    pub row: Vec<u32>,
}

impl Csr {
    /// Makes rows of lists that the caller has checked.
    #[must_use]
    pub fn new(offset: Vec<u32>, col: Vec<u32>, num_cols: usize) -> Csr {
        debug_assert_eq!(offset.last().map(|&end| end as usize), Some(col.len()));
        let (partitioning, transposed) = (Partitioning::default(), OnceLock::new());
        Csr {
            offset,
            col,
            num_cols,
            partitioning,
            first: 0,
            bipartite: false,
            transposed,
            #[cfg(feature = "gpu")]
            on_gpu: crate::gpu::GraphOnGpu::default(),
        }
    }

    /// Returns the position of a row's own node among the nodes of its type. It is the node's
    /// column, unless the rows are [bipartite](Csr::bipartite).
    #[must_use]
    #[inline(always)]
    pub fn own(&self, row: usize) -> usize {
        self.first + row
    }

    /// Returns the column of a row's own node, if there is one.
    #[must_use]
    #[inline(always)]
    pub fn own_col(&self, row: usize) -> Option<usize> {
        (!self.bipartite).then_some(self.first + row)
    }

    /// Returns the row whose own node a column is, if there is one; for rows with `first` 0.
    #[must_use]
    #[inline(always)]
    pub fn own_row(&self, col: usize) -> Option<usize> {
        (!self.bipartite && col < self.num_rows()).then_some(col)
    }

    /// Returns where a row's own node is in a list of keys: of the columns, and, if the rows are
    /// [bipartite](Csr::bipartite), of the rows after them.
    #[inline(always)]
    pub(crate) fn own_key(&self, row: usize) -> usize {
        if self.bipartite {
            self.num_cols + row
        } else {
            self.first + row
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.offset.len() - 1
    }

    /// Returns the number of edges.
    #[must_use]
    pub fn num_edges(&self) -> usize {
        self.col.len()
    }

    /// Returns the positions of the edges of one row.
    #[must_use]
    #[inline(always)]
    pub fn row(&self, row: usize) -> Range<usize> {
        self.offset[row] as usize..self.offset[row + 1] as usize
    }

    /// Returns the edges grouped by column, sorted at the first call.
    ///
    /// # Panics
    ///
    /// If `first` is not 0: only backward passes need this, and they run on blocks with `first` 0.
    pub fn transposed(&self) -> &Transposed {
        assert_eq!(self.first, 0, "dst nodes come first where gradients flow");
        self.transposed.get_or_init(|| self.transpose())
    }

    /// Returns the buffers that were uploaded for the rows.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_gpu(&self) -> &crate::gpu::GraphOnGpu {
        &self.on_gpu
    }

    /// Sorts edges by column with a stable counting sort.
    fn transpose(&self) -> Transposed {
        let mut offset = vec![0_u32; self.num_cols + 1];
        for &col in &self.col {
            offset[col as usize + 1] += 1;
        }
        for col in 0..self.num_cols {
            offset[col + 1] += offset[col];
        }
        let mut next = offset.clone();
        let mut edge = vec![0_u32; self.num_edges()];
        let mut row = vec![0_u32; self.num_edges()];
        for (v, pair) in (0_u32..).zip(self.offset.windows(2)) {
            for e in pair[0]..pair[1] {
                let slot = &mut next[self.col[e as usize] as usize];
                edge[*slot as usize] = e;
                row[*slot as usize] = v;
                *slot += 1;
            }
        }
        Transposed { offset, edge, row }
    }
}

impl Transposed {
    /// Returns the positions of one column's edges in `edge` and `row`.
    #[must_use]
    #[inline(always)]
    pub fn col(&self, col: usize) -> Range<usize> {
        self.offset[col] as usize..self.offset[col + 1] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_groups_edges_by_column_in_order() {
        let csr = Csr::new(vec![0, 2, 2, 5], vec![3, 0, 0, 3, 0], 4);
        let transposed = csr.transposed();
        assert_eq!(transposed.offset, [0, 3, 3, 3, 5]);
        assert_eq!(transposed.edge, [1, 2, 4, 0, 3]);
        assert_eq!(transposed.row, [0, 2, 2, 0, 2]);
    }
}
