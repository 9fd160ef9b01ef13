//! Products of a few rows of weights with the activations of some tokens.

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_floats;
#[cfg(target_arch = "aarch64")]
mod neon_layouts;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_floats;
#[cfg(target_arch = "x86_64")]
mod x86_layouts;
#[cfg(target_arch = "x86_64")]
mod x86_tiles;

use crate::ints::Ints;

/// Rows of weights that share a pass over the activations.
pub(crate) const ROWS: usize = 4;
/// Rows given to a kernel at once.
pub(crate) const ROWS_A_CALL: usize = 16;

/// `out[r][t] = row[r] . x[t]`, for the given rows and as many tokens as `out` has room for.
///
/// A result does not depend on which rows and tokens stand beside it, so batching never changes an answer.
#[derive(Clone, Copy)]
pub(crate) enum LinearKernel {
    /// Integer codes against integer activations.
    Ints(fn(rows: &Rows<'_>, x: &Ints<'_>, out: &mut [f32])),
    /// Floats against f32 activations, `cols` a token.
    F32(fn(rows: &Rows<'_>, x: &[f32], out: &mut [f32])),
}

/// Consecutive rows of blocks.
pub(crate) struct Rows<'a> {
    pub(crate) quant: &'static tern_quant::Quant,
    pub(crate) count: usize,
    pub(crate) blocks: &'a [u8],
    pub(crate) tail: &'a [u8],
}

impl Rows<'_> {
    /// The bytes of each row.
    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.chunks_exact(self.blocks.len() / self.count)
    }
}
