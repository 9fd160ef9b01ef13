//! Plain Rust, which every machine runs and every other instruction set must equal.

use crate::activations::quantized_rows;
use crate::attention::attend::AttentionKernels;
use crate::attention::softmax::softmax;
use crate::dot::portable::scalar;
use crate::kernels::Kernels;
use crate::math;
use crate::recurrent::columns;
use crate::rotation;
use crate::vectors::Plain;

pub(super) static SCALAR: Kernels = Kernels {
    name: "scalar",
    linear: scalar::kernel,
    exact_f32: None,
    attention: AttentionKernels {
        run: |attend, block, run, workspace| {
            // SAFETY: the contract; plain vectors are everywhere.
            unsafe { attend.run::<Plain>(block, run, workspace) }
        },
        softmax: softmax::<false>,
        store_f16: scalar::store_f16,
    },
    gated: math::gated,
    apply: math::apply,
    norm: |norm, x, out| norm.apply(x, out),
    quantize: quantized_rows::quantize,
    tiles: None,
    advance: columns::advance::<false>,
    convolve: columns::convolve::<false>,
    hadamard: rotation::hadamard,
    sums: math::sums,
};
