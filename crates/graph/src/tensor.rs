//! A weight on the host: its format, its shape and its bytes, usually part of a mapped file.

use std::ops::Range;

use bytes::Bytes;
use tern_quant::Quant;

use crate::WeightError;

/// Rows of weights in one format, with as many bytes as they need. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct HostTensor {
    name: String,
    quant: &'static Quant,
    rows: usize,
    cols: usize,
    data: Bytes,
}

impl HostTensor {
    /// A tensor of `[rows, cols]` weights; refuses rows that are not whole blocks, and data of another size.
    pub fn new(
        name: impl Into<String>,
        quant: &'static Quant,
        [rows, cols]: [usize; 2],
        data: Bytes,
    ) -> Result<HostTensor, WeightError> {
        let (name, format) = (name.into(), quant.name);
        let want = HostTensor::bytes_of(&name, quant, [rows, cols])?;
        if want != Some(data.len()) {
            return Err(WeightError::Bytes { name, want, rows, cols, format, got: data.len() });
        }
        Ok(HostTensor { name, quant, rows, cols, data })
    }

    /// Bytes that a shape needs, if they can be counted; refuses rows that are not whole blocks.
    pub(crate) fn bytes_of(
        name: &str,
        quant: &'static Quant,
        [rows, cols]: [usize; 2],
    ) -> Result<Option<usize>, WeightError> {
        let Some(row_bytes) = quant.row_bytes(cols) else {
            let (name, format, block) = (name.to_string(), quant.name, quant.block_len);
            return Err(WeightError::PartialBlocks { name, cols, format, block });
        };
        Ok(rows.checked_mul(row_bytes).and_then(|bytes| bytes.checked_add(quant.tail)))
    }

    /// A tensor of f32 values.
    ///
    /// # Panics
    ///
    /// If the number of values is not `rows * cols`.
    pub fn from_f32(name: &str, rows: usize, cols: usize, values: &[f32]) -> HostTensor {
        assert_eq!(values.len(), rows * cols, "{name}: {} values for [{rows}, {cols}]", values.len());
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        HostTensor { name: name.into(), quant: &tern_quant::F32, rows, cols, data: data.into() }
    }

    /// Name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Format of the blocks.
    #[inline]
    pub fn quant(&self) -> &'static Quant {
        self.quant
    }

    /// Rows (outputs of a linear, entries of a table).
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights per row; a multiple of the format's block length.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All bytes: the rows, then the format's tail.
    #[inline]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Bytes of one row.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.cols / self.quant.block_len * self.quant.block_bytes()
    }

    /// The bytes of row `i`.
    pub fn row(&self, i: usize) -> &[u8] {
        self.row_range(i..i + 1)
    }

    /// The bytes of consecutive rows.
    #[inline]
    pub fn row_range(&self, range: Range<usize>) -> &[u8] {
        let n = self.row_bytes();
        &self.data[range.start * n..range.end * n]
    }

    /// The bytes that belong to the whole tensor (empty for all formats but I2_S).
    pub fn tail(&self) -> &[u8] {
        &self.data[self.rows * self.row_bytes()..]
    }

    /// Decodes row `i`.
    pub fn decode_row(&self, i: usize, out: &mut [f32]) {
        self.quant.decode(self.row(i), self.tail(), out);
    }

    /// All values, row after row.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        self.quant.decode(&self.data[..self.rows * self.row_bytes()], self.tail(), &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_does_not_fit_the_data_is_refused() {
        let message = |shape, bytes: usize| {
            let tensor = HostTensor::new("w", &tern_quant::Q8_0, shape, vec![0; bytes].into());
            tensor.map_or_else(|e| e.to_string(), |t| format!("{} bytes per row", t.row_bytes()))
        };
        assert_eq!(message([2, 64], 136), "68 bytes per row");
        assert_eq!(message([2, 48], 136), "w: rows of 48 weights are not whole Q8_0 blocks of 32");
        assert_eq!(message([3, 64], 136), "w: want 204 bytes for [3, 64] in Q8_0, got 136");
        let many = "w: want too many bytes for [18446744073709551615, 64] in Q8_0, got 136";
        assert_eq!(message([usize::MAX, 64], 136), many);
    }
}
