//! A weight on the host: its format, its shape and its bytes, usually part of a mapped file.

use bytes::Bytes;
use tern_quant::Quant;

/// Rows of weights in one format. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct HostTensor {
    /// Name for messages.
    pub name: String,
    /// Format of the blocks.
    pub quant: &'static Quant,
    /// Rows (outputs of a linear, entries of a table).
    pub rows: usize,
    /// Weights per row; a multiple of the format's block length.
    pub cols: usize,
    /// `rows * row_bytes` and the format's tail.
    pub data: Bytes,
}

impl HostTensor {
    /// A tensor of f32 values.
    pub fn from_f32(name: &str, rows: usize, cols: usize, values: &[f32]) -> HostTensor {
        assert_eq!(values.len(), rows * cols, "{name}: {} values for [{rows}, {cols}]", values.len());
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        HostTensor { name: name.into(), quant: &tern_quant::F32, rows, cols, data: data.into() }
    }

    /// Bytes of one row.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.cols / self.quant.block_len * self.quant.block_bytes()
    }

    /// The bytes of row `i`.
    pub fn row(&self, i: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.data[i * n..(i + 1) * n]
    }

    /// The bytes of consecutive rows.
    #[inline]
    pub fn rows(&self, range: std::ops::Range<usize>) -> &[u8] {
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
