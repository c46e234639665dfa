//! Devices that models compute on: the processor, or a GPU in programs built with the feature
//! `gpu`.

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
    /// Bytes of the largest matrix.
    matrix_bytes: u64,
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
            matrix_bytes: u64::MAX,
        }
    }

    /// Returns the best GPU that Vulkan, Metal or DirectX 12 reaches.
    ///
    /// A software GPU is returned only if there is no other. A GPU that only OpenGL reaches is
    /// never returned.
    ///
    /// # Errors
    ///
    /// [`GnnError::Device`] if there is none, if it cannot be opened, or if the program was built
    /// without the feature `gpu`.
    pub fn gpu() -> Result<Device, GnnError> {
        gpu::open().map_err(|problem| GnnError::Device { problem })
    }

    /// Returns the best hardware GPU.
    ///
    /// # Errors
    ///
    /// As [`Device::gpu`].
    pub fn hardware() -> Result<Device, GnnError> {
        gpu::open_hardware().map_err(|problem| GnnError::Device { problem })
    }

    /// Returns a hardware GPU if there is one that can be opened, else the processor.
    #[must_use]
    pub fn auto() -> Device {
        Device::hardware().unwrap_or_default()
    }

    /// Returns the kind, `cpu` or `gpu`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.is_gpu { "gpu" } else { "cpu" }
    }

    /// Returns the name: for a GPU the adapter and its graphics API, else `cpu`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells whether the device is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.is_gpu
    }

    /// Tells whether the device is a GPU emulated on the processor.
    ///
    /// Such a GPU is for tests: it is slow, and Mesa's ends a shader after 65,535 iterations of its
    /// loops.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.is_software
    }

    /// Returns how many bytes a matrix may have on the device.
    #[must_use]
    pub fn matrix_bytes(&self) -> u64 {
        self.matrix_bytes
    }

    /// Limits the bytes of a matrix.
    #[must_use]
    pub fn with_matrix_bytes(mut self, bytes: u64) -> Device {
        self.matrix_bytes = self.matrix_bytes.min(bytes);
        self
    }

    /// Returns how many rows of `cols` numbers a matrix may have on the device.
    #[must_use]
    pub fn matrix_rows(&self, cols: usize) -> usize {
        let row_bytes = 4 * cols.max(1) as u64;
        usize::try_from(self.matrix_bytes / row_bytes).unwrap_or(usize::MAX)
    }

    /// Returns burn's device, on which tensors are made.
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

    pub(super) fn open_hardware() -> Result<Device, String> {
        open()
    }
}

#[cfg(feature = "gpu")]
mod gpu {
    use std::sync::OnceLock;

    use burn::tensor::Device as Backend;
    use burn::tensor::wgpu::WgpuBackend;
    use burn::tensor::wgpu::wgpu::DeviceType;
    use burn_cubecl::CubeDevice;
    use cubecl::wgpu::{WgpuDevice, WgpuDeviceKind};

    use super::Device;

    /// The graphics APIs that kernels run through. OpenGL is not among them: no test runs kernels
    /// there.
    const APIS: [WgpuBackend; 3] = [WgpuBackend::Metal, WgpuBackend::Vulkan, WgpuBackend::Dx12];

    /// The kinds of hardware adapters.
    const HARDWARE: [WgpuDeviceKind; 4] = [
        WgpuDeviceKind::DiscreteGpu(0),
        WgpuDeviceKind::IntegratedGpu(0),
        WgpuDeviceKind::VirtualGpu(0),
        WgpuDeviceKind::Other(0),
    ];

    /// The GPU, opened once: the runtime belongs to the process and cannot be opened again.
    static OPENED: OnceLock<Result<Device, String>> = OnceLock::new();

    pub(super) fn open() -> Result<Device, String> {
        OPENED.get_or_init(open_first).clone()
    }

    pub(super) fn open_hardware() -> Result<Device, String> {
        // Opening a software adapter takes time and memory, so look for hardware first.
        if !APIS.into_iter().any(reaches_hardware) {
            return Err(none_through("no GPU in hardware"));
        }
        match open()? {
            device if device.is_software => Err(format!("{} is software", device.name)),
            device => Ok(device),
        }
    }

    fn reaches(api: WgpuBackend, kind: WgpuDeviceKind) -> bool {
        let any_of_kind = CubeDevice::Wgpu(WgpuDevice::new(kind).on(api));
        !CubeDevice::enumerate(any_of_kind.to_id()).is_empty()
    }

    fn reaches_hardware(api: WgpuBackend) -> bool {
        HARDWARE.into_iter().any(|kind| reaches(api, kind))
    }

    fn none_through(what: &str) -> String {
        let mut text = format!("{what} was found through Vulkan, Metal or DirectX 12");
        if reaches(WgpuBackend::Gl, WgpuDeviceKind::DefaultDevice) {
            text.push_str("; an adapter for OpenGL was found, which is not supported");
        }
        text
    }

    fn open_first() -> Result<Device, String> {
        // The runtime panics on one of its own threads if the API has no adapter: look before
        // opening.
        let reached = |api: &WgpuBackend| reaches(*api, WgpuDeviceKind::DefaultDevice);
        let hardware = APIS.into_iter().find(|api| reaches_hardware(*api));
        let api = hardware.or_else(|| APIS.into_iter().find(reached));
        let api = api.ok_or_else(|| none_through("no GPU"))?;
        let (backend, setup) = Backend::wgpu_options()
            .graphics_api(api)
            .init_with_setup()
            .map_err(|error| format!("the GPU cannot be opened: {error}"))?;
        let adapter = setup.adapter.get_info();
        let limits = setup.device.limits();
        let largest = limits.max_storage_buffer_binding_size;
        Ok(Device {
            // Kernels number the values of a matrix in 32 bits.
            matrix_bytes: largest
                .min(limits.max_buffer_size)
                .min(4 * u64::from(u32::MAX)),
            name: format!("{} ({})", adapter.name, adapter.backend),
            is_software: adapter.device_type == DeviceType::Cpu,
            backend,
            is_gpu: true,
        })
    }
}
