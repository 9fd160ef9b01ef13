//! NVIDIA's libraries, opened at run time: the driver with its device, memory and
//! kernels, and the compiler NVRTC.

mod compiler;
mod device;
mod includes;
mod kernel;
mod memory;
mod nvrtc;
mod recording;
mod source;
mod staging;

#[cfg(test)]
pub(crate) use compiler::compile_options;
pub(crate) use compiler::{Compiler, PendingModule};
pub(crate) use device::Device;
pub use device::{DeviceFacts, devices};
pub(crate) use kernel::{Grid, Kernel};
pub(crate) use memory::{Event, Memory, Pinned};
pub use nvrtc::{Nvrtc, SearchPaths};
pub(crate) use recording::Recording;
pub(crate) use source::{Define, FILES, HOST_FILES, KernelSource, Source, TILE_TOKENS, sizes};
pub(crate) use staging::Staging;
