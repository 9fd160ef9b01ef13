//! Sizes in bytes of blocks, rows and tensors.

use crate::{Codec, Quant};

impl Quant {
    /// Bytes in a block.
    pub const fn block_bytes(&self) -> usize {
        let mut bytes = 0;
        let mut i = 0;
        while i < self.fields.len() {
            bytes += self.fields[i].bytes();
            i += 1;
        }
        bytes
    }

    /// Bytes of a row of `cols` weights, without the tensor's tail; `None` if it is
    /// no whole number of blocks.
    pub const fn row_bytes(&self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len) {
            return None;
        }
        (cols / self.block_len).checked_mul(self.block_bytes())
    }

    /// Bytes of a tensor of `weights` weights, its tail included; `None` if it is no whole number of blocks.
    ///
    /// ```
    /// assert_eq!(tern_quant::Q4_0.tensor_bytes(64), Some(36));
    /// assert_eq!(tern_quant::Q4_0.tensor_bytes(65), None);
    /// ```
    pub const fn tensor_bytes(&self, weights: u64) -> Option<u64> {
        if !weights.is_multiple_of(self.block_len as u64) {
            return None;
        }
        match (weights / self.block_len as u64).checked_mul(self.block_bytes() as u64) {
            Some(bytes) => bytes.checked_add(self.tail as u64),
            None => None,
        }
    }

    /// Bits per weight, including scales.
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.block_bytes() as f64 / self.block_len as f64
    }

    /// Whether weights are plain floats.
    pub const fn is_float(&self) -> bool {
        matches!(self.codec, Codec::Float(_))
    }

    /// Whether weights of this format can be decoded, and therefore run.
    pub const fn is_runnable(&self) -> bool {
        !matches!(self.codec, Codec::Named)
    }

    /// Scales (and offsets) per block; 0 for floats and formats known by name only.
    pub const fn groups_per_block(&self) -> usize {
        match self.codes() {
            Some(codes) => self.block_len / codes.group,
            None => 0,
        }
    }
}
