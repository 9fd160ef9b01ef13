//! Which device runs a model.

use std::fmt;
use std::str::FromStr;

use tern_cpu::Cpu;
use tern_cuda::{Activations, Arithmetic, Cuda, CudaOptions};
use tern_graph::Backend;

use crate::{Error, GpuLayers, environment, machine};

/// Where a model runs. As text: `auto`, `cpu`, `cuda` or `cuda:N`.
///
/// ```
/// use tern::Device;
/// assert_eq!("cuda:1".parse(), Ok(Device::Cuda(1)));
/// assert_eq!(Device::default(), Device::Auto);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The first GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU, by number.
    Cuda(usize),
}

/// How a device is opened.
///
/// ```
/// use tern::{Device, DeviceOptions};
/// let options = DeviceOptions { reproducible: true, ..DeviceOptions::default() };
/// assert!(Device::Cpu.open(options).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// CPU threads; one per core if not set.
    pub threads: Option<usize>,
    /// Whether a sequence's results are independent of the other sequences of a step on a GPU, bit for bit.
    /// On the CPU they always are.
    pub reproducible: bool,
    /// The inputs of linears in large steps on a GPU.
    pub activations: Activations,
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => match text.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                Some(ordinal) => Ok(Device::Cuda(ordinal)),
                None => Err("expected auto, cpu, cuda or cuda:N".into()),
            },
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl Device {
    /// Opens it. A GPU that was requested is never replaced by the CPU.
    pub fn open(self, options: DeviceOptions) -> Result<Box<dyn Backend>, Error> {
        let DeviceOptions { threads, reproducible, activations } = options;
        match self.gpu() {
            Some(ordinal) => {
                let (paths, cache) = (environment::nvrtc_paths(), environment::kernel_cache());
                let arithmetic = Arithmetic { reproducible, activations };
                Ok(Box::new(Cuda::open(ordinal, CudaOptions { paths, cache, arithmetic })?))
            }
            None => Ok(Box::new(Cpu::new(machine::threads(threads))?)),
        }
    }

    /// The device for this number of layers on a GPU: the CPU for none. A number is refused without a GPU.
    pub fn with_layers(self, layers: GpuLayers) -> Result<Device, Error> {
        match layers {
            GpuLayers::Count(0) => Ok(Device::Cpu),
            GpuLayers::Count(_) | GpuLayers::All if self.gpu().is_none() => Err(Error::NoGpu { layers }),
            _ => Ok(self),
        }
    }

    /// The number of the GPU it selects; none is the CPU.
    pub fn gpu(self) -> Option<usize> {
        match self {
            Device::Cuda(ordinal) => Some(ordinal),
            Device::Auto if tern_cuda::devices().is_ok_and(|(_, gpus)| !gpus.is_empty()) => Some(0),
            Device::Auto | Device::Cpu => None,
        }
    }
}
