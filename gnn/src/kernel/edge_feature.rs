//! The features of a block's edges, as kernels read them.

use std::ops::Deref;

use crate::Dense;

/// A row of features for each edge, uploaded to a GPU once for all operations.
#[derive(Debug)]
pub struct EdgeFeatures {
    rows: Dense,
    #[cfg(feature = "gpu")]
    on_gpu: crate::gpu::Upload,
}

impl From<Dense> for EdgeFeatures {
    fn from(rows: Dense) -> EdgeFeatures {
        EdgeFeatures {
            rows,
            #[cfg(feature = "gpu")]
            on_gpu: crate::gpu::Upload::default(),
        }
    }
}

impl Deref for EdgeFeatures {
    type Target = Dense;

    fn deref(&self) -> &Dense {
        &self.rows
    }
}

#[cfg(feature = "gpu")]
impl EdgeFeatures {
    /// Returns the features on a device.
    pub(crate) fn on_gpu(
        &self,
        device: &burn_cubecl::CubeDevice,
    ) -> burn_cubecl::tensor::CubeTensor {
        self.on_gpu.get(device, || &self.rows.values)
    }
}
