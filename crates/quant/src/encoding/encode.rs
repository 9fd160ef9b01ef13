//! Weights to blocks, for formats that Tern can write.

use crate::encoding::importance::squares;
use crate::encoding::rounding::farthest;
use crate::{Encode, Importance, Quant};

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
    /// The importance has not one value per column.
    #[error("the row has {columns} columns, its importance {importance}")]
    Columns {
        /// Columns of the row.
        columns: usize,
        /// Values of the importance.
        importance: usize,
    },
}

impl Quant {
    /// Appends `weights`, encoded, to `out`: any whole number of blocks, so rows or a whole tensor. Formats
    /// with a tail need the whole tensor, and the tail follows its blocks.
    ///
    /// ```
    /// let mut blocks = Vec::new();
    /// tern_quant::Q8_0.encode(&[0.5; 64], &mut blocks)?;
    /// assert_eq!(blocks.len(), 2 * 34);
    /// # Ok::<(), tern_quant::EncodeError>(())
    /// ```
    pub fn encode(&self, weights: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let begin = self.reserve(weights.len(), out)?;
        self.encode_blocks(weights, None, &mut out[begin..]);
        if let Some(Encode::Shared(_)) = self.encode {
            let tail = out.len();
            out.resize(tail + self.tail, 0);
            out[tail..tail + 4].copy_from_slice(&farthest(weights).abs().to_le_bytes());
        }
        Ok(())
    }

    /// Appends one row, encoded, whose columns matter as much as `importance` says: one value per column, of
    /// which only the ratios matter. Formats without a search ignore it.
    ///
    /// ```
    /// let mut blocks = Vec::new();
    /// tern_quant::Q4_K.encode_row(&[0.5; 256], &[1.0; 256], &mut blocks)?;
    /// assert_eq!(blocks.len(), 144);
    /// # Ok::<(), tern_quant::EncodeError>(())
    /// ```
    pub fn encode_row(&self, row: &[f32], importance: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if importance.len() != row.len() {
            return Err(EncodeError::Columns { columns: row.len(), importance: importance.len() });
        }
        let begin = self.reserve(row.len(), out)?;
        self.encode_blocks(row, Some(importance), &mut out[begin..]);
        Ok(())
    }

    /// Appends space for `weights` weights; returns its first byte.
    fn reserve(&self, weights: usize, out: &mut Vec<u8>) -> Result<usize, EncodeError> {
        if self.encode.is_none() {
            return Err(EncodeError::NoEncoder(self.name));
        }
        let ragged = EncodeError::Ragged { name: self.name, weights, block_len: self.block_len };
        let begin = out.len();
        out.resize(begin + self.row_bytes(weights).ok_or(ragged)?, 0);
        Ok(begin)
    }

    fn encode_blocks(&self, weights: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        let row_square = importance.map_or(0.0, |_| squares(weights) / weights.len() as f32);
        let scale = if let Some(Encode::Shared(_)) = self.encode { farthest(weights).abs() } else { 0.0 };
        let blocks = out.chunks_exact_mut(self.block_bytes());
        for (i, (weights, block)) in weights.chunks_exact(self.block_len).zip(blocks).enumerate() {
            match self.encode {
                Some(Encode::Plain(encode)) => encode(weights, block),
                Some(Encode::Shared(encode)) => encode(weights, scale, block),
                Some(Encode::Searched(encode)) => {
                    let columns = importance.map(|all| &all[i * self.block_len..][..self.block_len]);
                    let importance = columns.map(|columns| Importance { columns, row_square });
                    encode(weights, importance.as_ref(), block);
                }
                None => {}
            }
        }
    }
}
