//! The instruction sets that kernels are written for, and those that this machine has.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use neon::vectorised;
#[cfg(target_arch = "x86_64")]
use x86::vectorised;

use crate::kernels::Kernels;

/// The kernels this machine can run, best first; the last is always the scalar one.
pub fn available() -> Vec<&'static Kernels> {
    vectorised().into_iter().chain([&scalar::SCALAR]).collect()
}

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
fn vectorised() -> Vec<&'static Kernels> {
    vec![]
}
