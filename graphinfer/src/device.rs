//! The device that computes the layers: opening it, and whether rows fit its buffers.

use crate::InferError;
use crate::graph::Graph;
use crate::model::TrainedModel;
use crate::plan::InferPlan;
use gnn::Device;
use graphtrainer::report_device;
use schemas::{FeatureMeta, Progress};
use std::sync::Arc;
use store::Store;

/// Bytes of a number of a row on a GPU, whatever [`InferPlan`] says about rows in files.
const NUMBER_BYTES: u64 = 4;

/// Rows that a layer reads as one matrix.
pub(crate) struct Matrix {
    /// The layer, from 1.
    pub(crate) layer: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Matrix {
    fn bytes(&self) -> u64 {
        NUMBER_BYTES * self.rows as u64 * self.cols as u64
    }

    /// Returns the error of a matrix that does not fit a buffer of the device.
    pub(crate) fn too_large(&self, device: &Device) -> InferError {
        InferError::GpuTooSmall {
            layer: self.layer,
            bytes: self.bytes(),
            most: device.matrix_bytes(),
            device: device.name().to_owned(),
        }
    }
}

/// Opens the device of a plan. Process 0 reports it; each process warns of a software GPU.
pub(crate) fn open_device(
    plan: &InferPlan,
    store: &Store,
    progress: &Progress,
) -> Result<Device, InferError> {
    let device = plan.open_device()?;
    let quiet: Progress = Arc::new(|_| {});
    let progress = match store.cluster().leads() {
        true => progress,
        false => &quiet,
    };
    report_device("infer", &device, progress);
    Ok(device)
}

/// Checks that each matrix fits a buffer of the device.
pub(crate) fn check_fits(device: &Device, matrices: &[Matrix]) -> Result<(), InferError> {
    let largest = matrices.iter().max_by_key(|matrix| matrix.bytes());
    match largest.filter(|matrix| matrix.bytes() > device.matrix_bytes()) {
        None => Ok(()),
        Some(matrix) => Err(matrix.too_large(device)),
    }
}

/// Returns the width of the widest matrix that a layer of a model reads, aggregates or computes, for
/// nodes with these features. Sparse rows are no matrix.
pub(crate) fn widest(trained: &TrainedModel, features: FeatureMeta) -> usize {
    let arch = trained.model.architecture();
    let of_layer = |layer| {
        let is_sparse = trained.reads_sparse(layer, features);
        let own = if is_sparse { 0 } else { arch.input_dim(layer) };
        let ends = own.max(arch.output_dim(layer));
        aggregated(trained, layer, features).max(ends)
    };
    (1..=arch.num_layers).map(of_layer).max().unwrap_or(0)
}

/// Returns the width of the wider one of the matrices that a layer aggregates: rows and scores.
fn aggregated(trained: &TrainedModel, layer: usize, features: FeatureMeta) -> usize {
    let is_sparse = trained.reads_sparse(layer, features);
    let slice = trained.model.layer_slice(layer, is_sparse);
    slice.src_dim().max(slice.scores_dim().unwrap_or(0))
}

/// Returns how many numbers of a node are in the files that a layer reads: what it aggregates, its
/// scores, and its row if the layer reads that beside a projected one.
pub(crate) fn row_numbers(trained: &TrainedModel, layer: usize, features: FeatureMeta) -> usize {
    let slice = trained
        .model
        .layer_slice(layer, trained.reads_sparse(layer, features));
    let own = slice.projects() && slice.reads_own();
    let of_own = if own {
        trained.model.architecture().input_dim(layer)
    } else {
        0
    };
    of_own + slice.src_dim() + slice.scores_dim().unwrap_or(0)
}

/// Checks that the rows that each of the first layers aggregates fit a buffer of the device.
pub(crate) fn check_rows(
    device: &Device,
    trained: &TrainedModel,
    (graph, num_layers): (&Graph, usize),
) -> Result<(), InferError> {
    let of_layer = |layer| Matrix {
        layer,
        rows: graph.num_rows(),
        cols: aggregated(trained, layer, graph.features()),
    };
    let matrices: Vec<Matrix> = (1..=num_layers).map(of_layer).collect();
    check_fits(device, &matrices)
}
