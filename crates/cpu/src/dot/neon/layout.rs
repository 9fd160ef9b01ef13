//! What a format must say of its blocks for the NEON loop.

use std::arch::aarch64::float32x4_t;
use std::arch::aarch64::uint8x16_t;

/// Scales and offsets of a chunk: one a group of 32 in the first two vectors, or one a group of 16 in all four.
pub(crate) struct Scales {
    pub(crate) scales: [float32x4_t; 4],
    pub(crate) offsets: [float32x4_t; 4],
}

/// How the codes and scales of a format come into registers.
pub(crate) trait Layout {
    /// Bytes of a block.
    const BYTES: usize;
    /// Weights of a block: 32, 64, 128 or 256.
    const LEN: usize;
    /// Codes reach beyond 64, and four products beyond 16 bits.
    const WIDE: bool;
    /// Each 16 codes have their own scale, and not each 32.
    const HALVES: bool;
    /// Codes `32 * i ..` of a block, as the bytes of signed ones.
    unsafe fn codes(block: *const u8, i: usize) -> [uint8x16_t; 2];
    /// Scales of a chunk of which `groups` groups of 32 are there, and of the tensor's tail. The rest must be finite.
    unsafe fn scales(chunk: *const u8, groups: usize, tail: &[u8]) -> Scales;
}
