//! Compressed rows on a GPU.

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::memory::Upload;
use crate::kernel::Csr;

/// The buffers that were uploaded for a `Csr`.
#[derive(Debug, Default)]
pub(crate) struct GraphOnGpu {
    offset: Upload,
    col: Upload,
    edge_row: Upload,
    slot_row: Upload,
    col_offset: Upload,
    col_edge: Upload,
    col_row: Upload,
}

/// The edges by row.
pub(super) struct Rows {
    /// `[num_rows + 1]`: where the edges of each row start.
    pub(super) offset: CubeTensor,
    /// `[num_edges]`: column of each edge.
    pub(super) col: CubeTensor,
}

/// The edges by column.
pub(super) struct Cols {
    /// `[num_cols + 1]`: where the edges of each column start.
    pub(super) offset: CubeTensor,
    /// `[num_edges]`: position of each edge in the rows' order.
    pub(super) edge: CubeTensor,
    /// `[num_edges]`: row of each edge.
    pub(super) row: CubeTensor,
}

/// Returns the edges by row on a device.
pub(super) fn by_row(csr: &Csr, device: &CubeDevice) -> Rows {
    let graph = csr.on_gpu();
    Rows {
        offset: graph.offset.get(device, || &csr.offset),
        col: graph.col.get(device, || &csr.col),
    }
}

/// Returns the edges by column on a device.
pub(super) fn by_col(csr: &Csr, device: &CubeDevice) -> Cols {
    let (graph, transposed) = (csr.on_gpu(), csr.transposed());
    Cols {
        offset: graph.col_offset.get(device, || &transposed.offset),
        edge: graph.col_edge.get(device, || &transposed.edge),
        row: graph.col_row.get(device, || &transposed.row),
    }
}

/// Returns the row of each edge.
pub(super) fn edge_rows(csr: &Csr, device: &CubeDevice) -> CubeTensor {
    csr.on_gpu().edge_row.get(device, || row_of_each(csr, 0))
}

/// Returns the row of each slot of attention: the edges of a row, then the self-loop added to it.
pub(super) fn slot_rows(csr: &Csr, device: &CubeDevice) -> CubeTensor {
    csr.on_gpu().slot_row.get(device, || row_of_each(csr, 1))
}

/// Repeats each row's number once for each of its edges and `more` times more.
fn row_of_each(csr: &Csr, more: usize) -> Vec<u32> {
    let rows = (0_u32..).zip(csr.offset.windows(2));
    rows.flat_map(|(v, pair)| std::iter::repeat_n(v, (pair[1] - pair[0]) as usize + more))
        .collect()
}
