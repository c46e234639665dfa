//! Buffers on a GPU: uploads, outputs and arguments of kernels.

use std::sync::OnceLock;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::BufferArg;

/// Starts a kernel with one unit for each value that it computes; does nothing for 0 values.
macro_rules! launch {
    ($kernel:ident, $units:expr, $near:expr, $($arg:expr),* $(,)?) => {{
        let (units, client): (usize, _) = ($units, &$near.client);
        if units > 0 {
            let dim = cubecl::CubeDim::new(client, units);
            let count = cubecl::calculate_cube_count_elemwise(client, units, dim);
            $kernel::launch(client, count, dim, $($arg),*);
        }
    }};
}
pub(super) use launch;

/// The copy of a constant on the GPU, kept beside the constant.
#[derive(Debug, Default)]
pub(crate) struct Upload(OnceLock<CubeTensor>);

impl Upload {
    /// Returns the copy on a device; the first call uploads `values`.
    ///
    /// A program uses one GPU. For a second one, every call uploads the values.
    pub(crate) fn get<T: bytemuck::Pod, V: AsRef<[T]>>(
        &self,
        device: &CubeDevice,
        values: impl Fn() -> V,
    ) -> CubeTensor {
        let kept = self.0.get_or_init(|| upload(values().as_ref(), device));
        if kept.device == *device {
            kept.clone()
        } else {
            upload(values().as_ref(), device)
        }
    }
}

/// Copies values of four or eight bytes to a device; eight bytes become two `u32`, the lower first.
pub(super) fn upload<T: bytemuck::Pod>(values: &[T], device: &CubeDevice) -> CubeTensor {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    // A buffer is never empty. No kernel reads the value that fills it.
    let bytes = if bytes.is_empty() { &[0; 4] } else { bytes };
    let client = device.client();
    let handle = client.create_from_slice(bytes);
    // The type does not matter: a kernel reads the buffer as the type of its own argument.
    let shape = Shape::from([bytes.len() / 4]);
    CubeTensor::new_contiguous(client, device.clone(), shape, handle, DType::U32)
}

/// Makes a matrix that a kernel will fill, on the device of another.
pub(super) fn empty(near: &CubeTensor, rows: usize, cols: usize) -> CubeTensor {
    empty_of(near, rows, cols, DType::F32)
}

/// Makes a matrix of positions that a kernel will fill.
pub(super) fn empty_positions(near: &CubeTensor, rows: usize, cols: usize) -> CubeTensor {
    empty_of(near, rows, cols, DType::U32)
}

fn empty_of(near: &CubeTensor, rows: usize, cols: usize, dtype: DType) -> CubeTensor {
    // With more values, 32-bit positions would wrap and results would be silently wrong.
    let fits = rows
        .checked_mul(cols)
        .is_some_and(|len| u32::try_from(len).is_ok());
    assert!(
        fits,
        "{rows} x {cols} values are too many for a GPU: make `train.batch_size` smaller, or layers \
         narrower"
    );
    let handle = near.client.empty((4 * rows * cols).max(4));
    let (client, device) = (near.client.clone(), near.device.clone());
    CubeTensor::new_contiguous(client, device, Shape::from([rows, cols]), handle, dtype)
}

/// Views the values of a contiguous matrix in the shape of another.
pub(super) fn shaped_like(values: CubeTensor, other: &CubeTensor) -> CubeTensor {
    let (shape, dtype) = (other.meta.shape().clone(), values.dtype);
    CubeTensor::new_contiguous(values.client, values.device, shape, values.handle, dtype)
}

/// Passes a contiguous matrix to a kernel.
pub(super) fn arg(matrix: &CubeTensor) -> BufferArg {
    matrix.clone().into_buffer_arg()
}

/// Passes a number to a kernel.
pub(super) fn count(count: usize) -> u32 {
    u32::try_from(count).expect("a batch has fewer than 2^32 values")
}

/// Returns the number of rows of a matrix.
pub(super) fn rows(matrix: &CubeTensor) -> usize {
    matrix.meta.shape()[0]
}

/// Returns the number of columns of a matrix.
pub(super) fn cols(matrix: &CubeTensor) -> usize {
    matrix.meta.shape()[1]
}

/// Returns the number of values of a matrix.
pub(super) fn len(matrix: &CubeTensor) -> usize {
    matrix.meta.shape().num_elements()
}
