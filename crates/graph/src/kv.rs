//! The KV cache of a model: what a layer keeps per token, in which type, and in how many pages.

use std::fmt;

/// What one attention layer keeps per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Columns of a key head.
    pub k_dim: usize,
    /// Columns of a value head.
    pub v_dim: usize,
}

/// `2 kv heads of 64 and 64 columns`
impl fmt::Display for KvLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kv heads of {} and {} columns", self.kv_heads, self.k_dim, self.v_dim)
    }
}

/// The type in which keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvCells {
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit integers with one scale per head and token: about half the memory, slightly less exact.
    Int8,
    /// 8-bit floats (e4m3) with one scale per head and token: as much memory as integers, finer for small values and coarser
    /// for large ones.
    Fp8,
}

/// A KV cache to reserve: `pages` pages of `page_len` tokens for every layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// The graph's attention layers, in order.
    pub layers: Vec<KvLayer>,
    /// The type of keys and values.
    pub cells: KvCells,
    /// Number of pages.
    pub pages: usize,
    /// Tokens per page.
    pub page_len: usize,
}

impl KvLayer {
    /// Bytes kept per token, keys and values together.
    pub fn bytes_per_token(&self, cells: KvCells) -> usize {
        let values = self.kv_heads * (self.k_dim + self.v_dim);
        match cells {
            KvCells::F16 => values * 2,
            KvCells::Int8 | KvCells::Fp8 => values + self.kv_heads * 2 * size_of::<f32>(),
        }
    }
}

impl KvSpec {
    /// Bytes of all pages; `None` if they exceed 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        let token: usize = self.layers.iter().map(|layer| layer.bytes_per_token(self.cells)).sum();
        (token as u64).checked_mul(self.pages as u64)?.checked_mul(self.page_len as u64)
    }
}
