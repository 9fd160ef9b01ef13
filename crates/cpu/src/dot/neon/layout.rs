//! The interface of a format to the NEON loop.
//!
//! # Safety
//! Every `unsafe` function of this module requires pointers that are valid for the bytes that its comment
//! names: one block for codes, `groups` groups of 32 columns for scales. Every aarch64 has NEON.

use std::arch::aarch64::float32x4_t;
use std::arch::aarch64::uint8x16_t;

/// Scales and offsets of a chunk: one per group of 32 in the first two vectors, or one per
/// group of 16 in all four.
pub(crate) struct Scales {
    pub(crate) scales: [float32x4_t; 4],
    pub(crate) offsets: [float32x4_t; 4],
}

/// How the codes and scales of a format are loaded into registers.
pub(crate) trait Layout {
    /// Bytes per block.
    const BYTES: usize;
    /// Weights per block: 32, 64, 128 or 256.
    const LEN: usize;
    /// Codes exceed 64, so that four products exceed 16 bits.
    const WIDE: bool;
    /// A scale per 16 codes instead of per 32.
    const HALVES: bool;
    /// Codes `32 * i ..` of a block, as the bytes of signed ones.
    unsafe fn codes(block: *const u8, i: usize) -> [uint8x16_t; 2];
    /// Scales of a chunk of which `groups` groups of 32 exist, and of the tensor's tail.
    /// The rest must be finite.
    unsafe fn scales(chunk: *const u8, groups: usize, tail: &[u8]) -> Scales;
}
