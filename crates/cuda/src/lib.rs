//! The NVIDIA GPU backend. The driver and NVRTC are opened at run time, so the same binary runs where there is neither;
//! kernels are compiled for this GPU and this model's shapes, and kept.

mod backend;
mod bandwidth;
mod driver;
mod launch;
mod lower;
mod sampling;
mod shared;
mod weights;

pub use backend::Cuda;
pub use driver::{DeviceFacts, Nvrtc, Places, devices};
