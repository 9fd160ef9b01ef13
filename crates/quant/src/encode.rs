//! Weights to blocks, for formats that Tern can write.

use crate::Quant;

/// Why weights were not encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// There is no encoder for the format.
    #[error("{0} can be read but not written")]
    NoEncoder(&'static str),
    /// The weights are no whole number of blocks.
    #[error("{name}: {weights} weights are not whole blocks of {block_len}")]
    Ragged {
        /// The format.
        name: &'static str,
        /// Weights given.
        weights: usize,
        /// Weights per block.
        block_len: usize,
    },
}

impl Quant {
    /// Appends `weights`, encoded, to `out`: any whole number of blocks, so rows or a whole tensor.
    ///
    /// ```
    /// let mut blocks = Vec::new();
    /// tern_quant::Q8_0.encode(&[0.5; 64], &mut blocks)?;
    /// assert_eq!(blocks.len(), 2 * 34);
    /// # Ok::<(), tern_quant::EncodeError>(())
    /// ```
    pub fn encode(&self, weights: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let encode = self.encode.ok_or(EncodeError::NoEncoder(self.name))?;
        let ragged =
            EncodeError::Ragged { name: self.name, weights: weights.len(), block_len: self.block_len };
        let begin = out.len();
        let bytes = self.row_bytes(weights.len()).ok_or(ragged)?;
        out.resize(begin + bytes, 0);
        let blocks = out[begin..].chunks_exact_mut(self.block_bytes());
        for (weights, block) in weights.chunks_exact(self.block_len).zip(blocks) {
            encode(weights, block);
        }
        Ok(())
    }
}
