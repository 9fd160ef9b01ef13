//! NVIDIA's libraries, opened at run time: the driver with its device, memory and kernels, and the compiler NVRTC.

mod compiler;
mod device;
mod nvrtc;
mod staging;

pub(crate) use compiler::{Compiler, Source};
pub(crate) use device::{Device, Event, Grid, Kernel, Memory, Module, Pinned};
pub use device::{DeviceFacts, devices};
pub use nvrtc::{Nvrtc, Places};
pub(crate) use staging::Staging;
