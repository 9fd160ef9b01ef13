//! The instruction sets that kernels are written for, and those that this machine has.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::kernels::Kernels;

/// The kernels this machine can run, best first; the last is always the scalar one.
pub fn available() -> Vec<&'static Kernels> {
    let mut found = vec![];
    #[cfg(target_arch = "x86_64")]
    found.extend(x86::available());
    #[cfg(target_arch = "aarch64")]
    found.push(&neon::NEON);
    found.push(&scalar::SCALAR);
    found
}
