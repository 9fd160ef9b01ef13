//! One tensor of a model file: its shape, its format, and its bytes in the mapped file.

use bytes::Bytes;
use tern_quant::Quant;

/// One tensor: a shape, a format, and the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name in the file, `blk.0.attn_q.weight`.
    pub name: String,
    /// The format of its blocks.
    pub quant: &'static Quant,
    /// GGUF order: `dims[0]` is the fastest, the K of a matrix product. Never empty; no dimension is zero.
    pub dims: Vec<u64>,
    /// All blocks and the format's tail: a slice of the file, with no alignment guarantee, so read it bytewise.
    pub data: Bytes,
}

impl Tensor {
    /// Weights per row: `dims[0]`.
    pub fn cols(&self) -> usize {
        self.dims.first().map_or(1, |&k| k as usize)
    }

    /// Rows: the product of all other dimensions.
    pub fn rows(&self) -> usize {
        self.dims.iter().skip(1).product::<u64>() as usize
    }
}
