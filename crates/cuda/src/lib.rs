//! The NVIDIA GPU backend. The driver and NVRTC are opened at run time, so the same binary runs where there is neither;
//! kernels are compiled for this GPU and this model's shapes, and kept.

mod backend;
mod bandwidth;
mod chooser;
mod compiler;
mod driver;
mod exchange;
mod few;
mod fuse;
mod layout;
mod lower;
mod many;
mod nvrtc;
mod program;
mod sampler;
mod shape;
mod shared;
mod staging;
mod weight;

pub use backend::Cuda;
pub use driver::{DeviceFacts, devices};
pub use nvrtc::{Nvrtc, Places};
