//! The KV cache of a model: what a layer keeps per token, in which type, and in how many pages.

use std::fmt;

use crate::Graph;

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
    /// 32-bit floats, for layers whose keys and values last as long as a step.
    F32,
    /// 8-bit integers with one scale per head and token: about half the memory, slightly less exact.
    Int8,
    /// 8-bit floats (e4m3) with one scale per head and token: as much memory as integers, finer for small
    /// values and coarser for large ones.
    Fp8,
}

/// A KV cache to reserve: pages of `page_len` tokens, `pages` of them for every layer
/// that is not in `window`.
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
    /// Layers with their own pages and page tables, which lose the pages that fall out of the layers' window;
    /// without it, all layers keep all tokens.
    pub window: Option<WindowLayers>,
}

/// The layers of a graph that attend to a window, and their pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowLayers {
    /// Indices of the layers.
    pub layers: Vec<usize>,
    /// Number of pages.
    pub pages: usize,
}

/// The page tables of a KV cache, as a step must fill them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvSize {
    /// Tokens per page.
    pub page_len: usize,
    /// Pages of layers that keep all tokens.
    pub pages: usize,
    /// Pages of the layers with a window, if they have their own.
    pub window_pages: Option<usize>,
}

impl KvLayer {
    /// Bytes kept per token, keys and values together.
    pub fn bytes_per_token(&self, cells: KvCells) -> usize {
        let values = self.kv_heads * (self.k_dim + self.v_dim);
        match cells {
            KvCells::F16 => values * 2,
            KvCells::F32 => values * 4,
            KvCells::Int8 | KvCells::Fp8 => values + self.kv_heads * 2 * size_of::<f32>(),
        }
    }
}

impl KvSpec {
    /// Whether a graph can use it: the same layers, and those in `window` are read through a window only.
    pub fn fits(&self, graph: &Graph) -> bool {
        let windows = graph.windows();
        self.layers == graph.kv && (0..windows.len()).all(|i| !self.is_windowed(i) || windows[i].is_some())
    }

    /// Whether a layer has the page tables of the window.
    pub fn is_windowed(&self, layer: usize) -> bool {
        self.window.as_ref().is_some_and(|window| window.layers.contains(&layer))
    }

    /// Pages of a layer.
    pub fn pages_of(&self, layer: usize) -> usize {
        self.window.as_ref().filter(|_| self.is_windowed(layer)).map_or(self.pages, |window| window.pages)
    }

    /// What a step needs to know of it.
    pub fn size(&self) -> KvSize {
        let window_pages = self.window.as_ref().map(|window| window.pages);
        KvSize { page_len: self.page_len, pages: self.pages, window_pages }
    }

    /// Bytes of one page of the layers that keep all tokens, or of those with a window.
    pub fn page_bytes(&self, windowed: bool) -> usize {
        let layers = self.layers.iter().enumerate().filter(|(i, _)| self.is_windowed(*i) == windowed);
        layers.map(|(_, layer)| layer.bytes_per_token(self.cells) * self.page_len).sum()
    }

    /// Bytes of all pages; `None` if they exceed 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        let layers = self.layers.iter().enumerate().map(|(i, layer)| {
            let page = (layer.bytes_per_token(self.cells) as u64).checked_mul(self.page_len as u64)?;
            page.checked_mul(self.pages_of(i) as u64)
        });
        layers.reduce(|sum, bytes| sum?.checked_add(bytes?)).unwrap_or(Some(0))
    }
}
