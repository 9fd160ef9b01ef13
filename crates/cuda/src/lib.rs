//! The NVIDIA GPU backend. The driver and NVRTC are opened at run time, so that the same binary runs without
//! them; kernels are compiled for this GPU and this model's shapes, and cached.

mod arithmetic;
mod backend;
mod bandwidth;
mod driver;
#[cfg(test)]
mod kernel_tests;
mod kv;
mod launch;
mod lower;
mod programs;
mod sampling;
mod shared;
mod state;
mod weights;

pub use arithmetic::{Activations, Arithmetic};
pub use backend::{Cuda, CudaOptions};
pub use driver::{DeviceFacts, Nvrtc, SearchPaths, devices};
pub use programs::{WrittenPrograms, write_programs};
