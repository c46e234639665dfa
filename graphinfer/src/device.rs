//! The device that computes the layers: opening it, and whether rows fit its buffers.

use crate::InferError;
use crate::plan::InferPlan;
use gnn::Device;
use graphtrainer::report_device;
use schemas::Progress;
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
}

/// Opens the device of a plan. Process 0 reports it.
pub(crate) fn open_device(
    plan: &InferPlan,
    store: &Store,
    progress: &Progress,
) -> Result<Device, InferError> {
    let device = plan.open_device()?;
    if store.cluster().leads() {
        report_device("infer", &device, progress);
    }
    Ok(device)
}

/// Checks that each matrix fits a buffer of the device.
pub(crate) fn check_fits(device: &Device, matrices: &[Matrix]) -> Result<(), InferError> {
    let largest = matrices.iter().max_by_key(|matrix| matrix.bytes());
    match largest.filter(|matrix| matrix.bytes() > device.matrix_bytes()) {
        None => Ok(()),
        Some(matrix) => Err(InferError::GpuTooSmall {
            layer: matrix.layer,
            bytes: matrix.bytes(),
            most: device.matrix_bytes(),
            device: device.name().to_owned(),
        }),
    }
}
