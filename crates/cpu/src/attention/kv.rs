//! KV pages: a page holds `page_len` tokens of every layer, head by head, as floats, halves or bytes. Layers
//! with a window may have their own pages, which follow those of the others.

use std::ops::Range;

use tern_graph::{KvCells, KvLayer, KvSpec};

use crate::activations::quantized_rows::largest;
use crate::memory::lines::{LARGE, Refused, want_large_pages};
use crate::memory::shared::{LINE, Shared, Zeroed};
use crate::vectors::Cell;

/// Positions of a run, whose results are joined with those of other runs afterwards.
const RUN: usize = 512;

/// Keys and values of all layers.
pub(crate) struct Kv {
    pub(crate) spec: KvSpec,
    pub(crate) layers: Vec<LayerKv>,
    /// Cells and scales of a page of the layers that keep all tokens, and of those with a window.
    groups: [[Place; 2]; 2],
    floats: Shared<f32>,
    halves: Shared<u16>,
    bytes: Shared<i8>,
    /// The scale of each slot of bytes: `[kv_head][slot]`
    scales: Shared<f32>,
}

/// A layer's cells in a page: keys `[kv_head][dim][slot]`, so that a vector holds one column of many keys,
/// and values `[kv_head][slot][dim]`.
pub(crate) struct LayerKv {
    /// Whether it has the page tables of the window.
    pub(crate) windowed: bool,
    pub(crate) keys: Side,
    pub(crate) values: Side,
}

/// Keys or values of one layer.
pub(crate) struct Side {
    dim: usize,
    /// A slot's numbers are `page_len` cells apart, as those of keys are.
    spread: bool,
    cells: Place,
    scales: Place,
}

/// Where the cells or scales of one side are.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Index of the first one in page 0.
    first: usize,
    /// How many a page has.
    each: usize,
}

impl Place {
    #[inline(always)]
    fn at(self, page: u32, index: usize) -> usize {
        self.first + page as usize * self.each + index
    }
}

/// One slot of a head.
pub(crate) struct Slot {
    pub(crate) page: u32,
    pub(crate) head: usize,
    pub(crate) slot: usize,
}

/// What the pages of a group of layers have: cells, and scales if the cells need them.
#[derive(Clone, Copy, Default)]
struct Counts {
    cells: usize,
    scales: usize,
}

impl Kv {
    /// Pages whose bytes fit a `usize`.
    pub(crate) fn new(spec: &KvSpec) -> Result<Kv, Refused> {
        let scaled = is_scaled(spec.cells);
        // of a page of layers that keep all tokens, and of one of layers with a window
        let mut each = [Counts::default(); 2];
        let mut side = |shape: &KvLayer, dim: usize, spread: bool, windowed: bool| {
            let (slots, counts) = (spec.page_len * shape.kv_heads, &mut each[usize::from(windowed)]);
            let [cells, scales] =
                [counts.cells, counts.scales].map(|first| Place { first, ..Place::default() });
            counts.cells += slots * dim;
            counts.scales += if scaled { slots } else { 0 };
            Side { dim, spread, cells, scales }
        };
        let layers = spec.layers.iter().enumerate().map(|(i, shape)| {
            let windowed = spec.is_windowed(i);
            let keys = side(shape, shape.k_dim, true, windowed);
            LayerKv { windowed, keys, values: side(shape, shape.v_dim, false, windowed) }
        });
        let mut layers: Vec<LayerKv> = layers.collect();
        let pages = [spec.pages, spec.window.as_ref().map_or(0, |window| window.pages)];
        let before = Counts { cells: each[0].cells * pages[0], scales: each[0].scales * pages[0] };
        for layer in &mut layers {
            let (begins, each) =
                if layer.windowed { (before, each[1]) } else { (Counts::default(), each[0]) };
            for side in [&mut layer.keys, &mut layer.values] {
                side.cells = Place { first: side.cells.first + begins.cells, each: each.cells };
                side.scales = Place { first: side.scales.first + begins.scales, each: each.scales };
            }
        }
        let group = |begins: Counts, each: Counts| {
            let cells = Place { first: begins.cells, each: each.cells };
            [cells, Place { first: begins.scales, each: each.scales }]
        };
        let groups = [group(Counts::default(), each[0]), group(before, each[1])];
        let cells = before.cells + each[1].cells * pages[1];
        let scales = before.scales + each[1].scales * pages[1];
        let (floats, halves, bytes) = match spec.cells {
            KvCells::F32 => (cells, 0, 0),
            KvCells::F16 => (0, cells, 0),
            KvCells::Int8 | KvCells::Fp8 => (0, 0, cells), // no fp8 is reserved
        };
        Ok(Kv {
            spec: spec.clone(),
            layers,
            groups,
            floats: zeroed(floats)?,
            halves: zeroed(halves)?,
            bytes: zeroed(bytes)?,
            scales: zeroed(scales)?,
        })
    }

    /// Tokens per page.
    #[inline(always)]
    pub(crate) fn page_len(&self) -> usize {
        self.spec.page_len
    }

    /// Positions per run: whole pages, and the same in every step.
    pub(crate) fn run_len(&self) -> usize {
        (RUN / self.page_len()).max(1) * self.page_len()
    }

    /// A head's cells in a page; `C` must be the cache's cell type.
    ///
    /// # Safety
    /// No thread writes them before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn page<C: KvCell>(&self, side: &Side, page: u32, head: usize) -> &[C] {
        let len = self.page_len() * side.dim;
        let first = side.cells.at(page, head * len);
        // SAFETY: the contract of this function.
        unsafe { C::cells(self).get(first..first + len) }
    }

    /// The scales of their slots, if the cell type has them.
    ///
    /// # Safety
    /// That of [`Kv::page`].
    #[inline(always)]
    pub(crate) unsafe fn scales(&self, side: &Side, page: u32, head: usize) -> Option<&[f32]> {
        let first = side.scales.at(page, head * self.page_len());
        // SAFETY: the contract of this function.
        is_scaled(self.spec.cells).then(|| unsafe { self.scales.get(first..first + self.page_len()) })
    }

    /// Where the cells and scales of a whole page are, all layers of its group together.
    fn whole(&self, windowed: bool, page: u32) -> [Range<usize>; 2] {
        self.groups[usize::from(windowed)].map(|place| {
            let first = place.at(page, 0);
            first..first + place.each
        })
    }

    /// Appends the bytes of a whole page, of the layers with a window or of the others.
    ///
    /// # Safety
    /// No step is running.
    pub(crate) unsafe fn read_page(&self, windowed: bool, page: u32, to: &mut Vec<u8>) {
        let [cells, scales] = self.whole(windowed, page);
        // SAFETY: the contract of this function.
        unsafe {
            to.extend_from_slice(match self.spec.cells {
                KvCells::F32 => self.floats.bytes(cells),
                KvCells::F16 => self.halves.bytes(cells),
                KvCells::Int8 | KvCells::Fp8 => self.bytes.bytes(cells),
            });
            to.extend_from_slice(self.scales.bytes(scales));
        }
    }

    /// Overwrites a whole page by bytes that were read, as many as [`KvSpec::page_bytes`].
    ///
    /// # Safety
    /// No step is running.
    pub(crate) unsafe fn write_page(&self, windowed: bool, page: u32, bytes: &[u8]) {
        let [cells, scales] = self.whole(windowed, page);
        let (of_cells, of_scales) = bytes.split_at(bytes.len() - scales.len() * size_of::<f32>());
        // SAFETY: the contract of this function.
        unsafe {
            match self.spec.cells {
                KvCells::F32 => self.floats.set_bytes(cells, of_cells),
                KvCells::F16 => self.halves.set_bytes(cells, of_cells),
                KvCells::Int8 | KvCells::Fp8 => self.bytes.set_bytes(cells, of_cells),
            }
            self.scales.set_bytes(scales, of_scales);
        }
    }

    /// Stores a slot's key, whose numbers are `page_len` cells apart, or its value,
    /// whose numbers are adjacent.
    ///
    /// # Safety
    /// No other thread accesses the slot before the next barrier.
    pub(crate) unsafe fn store(
        &self,
        store_f16: fn(&[f32], &mut [u16]),
        x: &[f32],
        side: &Side,
        at: &Slot,
        workspace: &mut Vec<u16>,
    ) {
        let (stride, of_slot) = if side.spread { (self.page_len(), 1) } else { (1, side.dim) };
        let first = side.cells.at(at.page, at.head * self.page_len() * side.dim + at.slot * of_slot);
        // SAFETY: the contract of this function.
        unsafe {
            match self.spec.cells {
                KvCells::F32 => {
                    x.iter().enumerate().for_each(|(i, x)| self.floats.set(first + i * stride, *x));
                }
                KvCells::F16 => {
                    let halves = &self.halves;
                    if !side.spread {
                        return store_f16(x, halves.get_mut(first..first + x.len()));
                    }
                    workspace.resize(x.len(), 0);
                    store_f16(x, workspace);
                    workspace.iter().enumerate().for_each(|(i, half)| halves.set(first + i * stride, *half));
                }
                KvCells::Int8 | KvCells::Fp8 => {
                    let bytes = &self.bytes;
                    let most = largest(x);
                    let by = if most > 0.0 { 127.0 / most } else { 0.0 };
                    for (i, x) in x.iter().enumerate() {
                        // 0 if it is not finite, and the scale is then not finite
                        bytes.set(first + i * stride, (x * by).round() as i8);
                    }
                    let scale = side.scales.at(at.page, at.head * self.page_len() + at.slot);
                    self.scales.set(scale, most / 127.0);
                }
            }
        }
    }
}

/// Whether each slot has a scale.
fn is_scaled(cells: KvCells) -> bool {
    matches!(cells, KvCells::Int8 | KvCells::Fp8)
}

/// Zeroed memory, which is not allocated until it is used; in large pages, since a step reads all over it.
fn zeroed<C: Zeroed>(count: usize) -> Result<Shared<C>, Refused> {
    let bytes = count * size_of::<C>();
    let all = Shared::<C>::aligned(count, if bytes >= LARGE { LARGE } else { LINE })?;
    want_large_pages(all.pointer().addr(), bytes);
    Ok(all)
}

/// The cell type of a page.
pub(crate) trait KvCell: Cell {
    fn cells(kv: &Kv) -> &Shared<Self>;
}

impl KvCell for f32 {
    fn cells(kv: &Kv) -> &Shared<f32> {
        &kv.floats
    }
}

impl KvCell for u16 {
    fn cells(kv: &Kv) -> &Shared<u16> {
        &kv.halves
    }
}

impl KvCell for i8 {
    fn cells(kv: &Kv) -> &Shared<i8> {
        &kv.bytes
    }
}
