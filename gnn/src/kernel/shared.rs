//! Constant values that several operations share.

use std::ops::Deref;
use std::sync::Arc;

/// Constant values, cheap to clone, uploaded to a GPU once for all operations.
#[derive(Debug)]
pub struct Shared<T>(Arc<Values<T>>);

#[derive(Debug)]
struct Values<T> {
    values: Vec<T>,
    #[cfg(feature = "gpu")]
    on_gpu: crate::gpu::Upload,
}

impl<T> From<Vec<T>> for Shared<T> {
    fn from(values: Vec<T>) -> Shared<T> {
        Shared(Arc::new(Values {
            values,
            #[cfg(feature = "gpu")]
            on_gpu: crate::gpu::Upload::default(),
        }))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0.values
    }
}

#[cfg(feature = "gpu")]
impl<T: bytemuck::Pod> Shared<T> {
    /// Returns the values on a device.
    pub(crate) fn on_gpu(
        &self,
        device: &burn_cubecl::CubeDevice,
    ) -> burn_cubecl::tensor::CubeTensor {
        self.0.on_gpu.get(device, || &self.0.values)
    }
}
