//! The NVIDIA GPU backend. The driver and NVRTC are opened at run time, so the same binary runs where there is neither;
//! kernels are compiled for this GPU and this model's shapes, and kept.

mod args;
mod backend;
mod build;
mod compiler;
mod driver;
mod layout;
mod linear;
mod nvrtc;
mod program;
mod weight;

pub use backend::Cuda;
pub use driver::{DeviceFacts, devices};
pub use nvrtc::{Nvrtc, Places};
