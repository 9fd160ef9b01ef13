//! Products of one row of weights with the activations of some tokens.

pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_layouts;

use crate::q8::Q8;

/// `out[t] = row . x[t]` for each token of `out`.
///
/// A token's result does not depend on which tokens stand beside it, so batching never changes an answer.
#[derive(Clone, Copy)]
pub(crate) enum LinearKernel {
    /// Integer codes against int8 activations.
    Q8(fn(row: &Row<'_>, x: &Q8<'_>, out: &mut [f32])),
    /// Floats against f32 activations, `cols` a token.
    F32(fn(row: &[u8], x: &[f32], out: &mut [f32])),
}

/// A row of blocks and what a general kernel must know of them.
pub(crate) struct Row<'a> {
    pub(crate) quant: &'static tern_quant::Quant,
    pub(crate) blocks: &'a [u8],
    pub(crate) tail: &'a [u8],
}
