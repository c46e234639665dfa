//! Where models compute: the processor, or a GPU in programs that were built for one.

use burn::tensor::Device as Backend;

use crate::GnnError;

/// A device that models compute on.
///
/// Results of a GPU differ from the processor's in the last bits.
#[derive(Clone, Debug)]
pub struct Device {
    backend: Backend,
    name: String,
    is_gpu: bool,
    is_software: bool,
}

impl Default for Device {
    fn default() -> Device {
        Device::cpu()
    }
}

impl Device {
    /// Whether the program was built with the feature `gpu`.
    pub const HAS_GPU: bool = cfg!(feature = "gpu");

    /// Returns the processor.
    #[must_use]
    pub fn cpu() -> Device {
        Device {
            backend: Backend::flex(),
            name: "cpu".to_owned(),
            is_gpu: false,
            is_software: false,
        }
    }

    /// Returns the best GPU of the machine, an adapter in software if there is no other.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if there is none, if it cannot be opened, or if the program was built
    /// without the feature `gpu`.
    pub fn gpu() -> Result<Device, GnnError> {
        gpu::open().map_err(|problem| GnnError::Device { problem })
    }

    /// Returns a GPU in hardware if there is one that can be opened, else the processor.
    #[must_use]
    pub fn auto() -> Device {
        gpu::open_hardware().unwrap_or_default()
    }

    /// Returns the kind, `cpu` or `gpu`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.is_gpu { "gpu" } else { "cpu" }
    }

    /// Returns the name: that of the adapter for a GPU, else `cpu`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells whether it is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.is_gpu
    }

    /// Tells whether it is a GPU that a program on the processor stands in for, which is for tests:
    /// it is slow, and Mesa's ends a shader after 65,535 iterations of its loops.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.is_software
    }

    /// Returns what tensors are made on.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }
}

#[cfg(not(feature = "gpu"))]
mod gpu {
    use super::Device;

    pub(super) fn open() -> Result<Device, String> {
        Err("this program was built without the feature `gpu`".to_owned())
    }

    pub(super) fn open_hardware() -> Option<Device> {
        None
    }
}

#[cfg(feature = "gpu")]
mod gpu {
    use std::sync::OnceLock;

    use burn::backend::DispatchDevice;
    use burn::tensor::{Device as Backend, DeviceType};
    use burn_cubecl::CubeDevice;
    use cubecl::wgpu::WgpuDeviceKind;

    use super::Device;

    /// Opened once: the runtime below belongs to the process, and cannot be opened again.
    static OPENED: OnceLock<Result<Device, String>> = OnceLock::new();

    pub(super) fn open() -> Result<Device, String> {
        OPENED.get_or_init(open_first).clone()
    }

    pub(super) fn open_hardware() -> Option<Device> {
        let found = Backend::enumerate(DeviceType::Wgpu).into_vec();
        // An adapter in software is not opened, since that alone takes time and memory.
        if found.iter().all(is_software) {
            return None;
        }
        open().ok().filter(|device| !device.is_software)
    }

    fn is_software(device: &Backend) -> bool {
        match device.as_dispatch() {
            DispatchDevice::Cube(CubeDevice::Wgpu(device)) => device.kind == WgpuDeviceKind::Cpu,
            _ => false,
        }
    }

    fn open_first() -> Result<Device, String> {
        // The runtime panics on one of its own threads if it is asked for an adapter in vain.
        if Backend::enumerate(DeviceType::Wgpu).into_vec().is_empty() {
            return Err("no GPU was found through Vulkan, Metal, DirectX or OpenGL".to_owned());
        }
        let backend = Backend::wgpu_options()
            .init()
            .map_err(|error| format!("the GPU cannot be opened: {error}"))?;
        let identity = backend.identity();
        Ok(Device {
            name: identity
                .as_ref()
                .map_or_else(|| "unnamed".to_owned(), |identity| identity.name.clone()),
            is_software: identity.is_none_or(|identity| identity.physical.is_none()),
            backend,
            is_gpu: true,
        })
    }
}
