//! NEON, which every aarch64 has.

use super::scalar::SCALAR;
use crate::attention::attend::AttentionKernels;
use crate::attention::softmax::softmax;
use crate::dot::neon;
use crate::kernels::Kernels;

/// The other loops are those of plain Rust: NEON is on in all code for aarch64.
static NEON: Kernels = Kernels {
    name: "neon",
    linear: neon::kernel,
    attention: AttentionKernels {
        run: |attend, block, run, workspace| {
            // SAFETY: the contract; every aarch64 has NEON.
            unsafe { attend.run::<std::arch::aarch64::float32x4_t>(block, run, workspace) }
        },
        softmax: softmax::<true>,
        store_f16: neon::floats::store_f16,
    },
    advance: crate::recurrent::columns::advance::<true>,
    convolve: crate::recurrent::columns::convolve::<true>,
    ..SCALAR
};

/// The ones this machine can run.
pub(super) fn vectorised() -> Vec<&'static Kernels> {
    vec![&NEON]
}
