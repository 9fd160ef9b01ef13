//! Which device runs a model, and what is known about the GPUs of this machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tern_cpu::Cpu;
use tern_cuda::{Cuda, SearchPaths};
use tern_graph::Backend;

use crate::error::CliResult;

/// `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Auto,
    Cpu,
    Cuda(usize),
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
                None => Err("want auto, cpu, cuda or cuda:N".into()),
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
    /// Opens it. `auto` is the first GPU where there is one; a GPU that was asked for is never replaced by the processor.
    pub(crate) fn open(self, threads: Option<usize>) -> CliResult<Box<dyn Backend>> {
        match self.gpu() {
            Some(ordinal) => Ok(Box::new(Cuda::open(ordinal, places(), cache())?)),
            None => Ok(Box::new(Cpu::new(crate::load::threads(threads))?)),
        }
    }

    /// The GPU it means; none is the processor.
    pub(crate) fn gpu(self) -> Option<usize> {
        match self {
            Device::Cuda(ordinal) => Some(ordinal),
            Device::Auto if tern_cuda::devices().is_ok_and(|(_, gpus)| !gpus.is_empty()) => Some(0),
            Device::Auto | Device::Cpu => None,
        }
    }
}

/// Where NVRTC may be: toolkits and Python environments that the environment or custom names.
pub(crate) fn places() -> SearchPaths {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(var).collect();
    let mut site_packages = vec![PathBuf::from("/usr/lib/python3/dist-packages")];
    let homes = [var("VIRTUAL_ENV"), var("CONDA_PREFIX"), var("HOME").map(|home| home.join(".local"))];
    for prefix in homes.into_iter().flatten().chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]) {
        site_packages.extend(pythons(&prefix.join("lib")));
    }
    SearchPaths { toolkits, site_packages }
}

/// The package folders of every Python below a `lib` folder.
fn pythons(lib: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with("python3"));
    named.flat_map(|e| ["site-packages", "dist-packages"].map(|sub| e.path().join(sub))).collect()
}

/// Where compiled kernels are kept.
pub(crate) fn cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    cache.map(|cache| cache.join("tern/kernels"))
}
