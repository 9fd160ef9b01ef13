//! KV pages: a page holds `page_len` tokens of every layer, head by head, as halves or as bytes.

use tern_graph::{KvCells, KvLayer, KvSpec};

use crate::activations::quantized_rows::largest;
use crate::memory::lines::{LARGE, Refused, want_large_pages};
use crate::memory::shared::{LINE, Shared, Zeroed};
use crate::vectors::Cell;

/// Positions of a run, whose results are joined with those of other runs afterwards.
const RUN: usize = 512;

/// Keys and values of all layers.
pub(crate) struct Kv {
    pub(crate) cells: KvCells,
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    pub(crate) layers: Vec<LayerKv>,
    halves: Pages<u16>,
    bytes: Pages<i8>,
    /// The scale of each slot of bytes: `[kv_head][slot]`
    scales: Pages<f32>,
}

/// A layer's cells in a page: keys `[kv_head][dim][slot]`, so that a vector holds one column of many keys, and values
/// `[kv_head][slot][dim]`.
pub(crate) struct LayerKv {
    pub(crate) shape: KvLayer,
    pub(crate) keys: Side,
    pub(crate) values: Side,
}

/// Keys or values of one layer.
pub(crate) struct Side {
    cells: KvCells,
    dim: usize,
    /// A slot's numbers are `page_len` cells apart, as those of keys are.
    spread: bool,
    /// Index of the first cell in a page.
    first: usize,
    /// Index of the first scale in a page.
    first_scale: usize,
}

/// One slot of a head.
pub(crate) struct Slot {
    pub(crate) page: u32,
    pub(crate) head: usize,
    pub(crate) slot: usize,
}

/// The cells of one type, page after page, so that the used ones are contiguous.
pub(crate) struct Pages<C> {
    each: usize,
    all: Shared<C>,
}

impl Kv {
    /// Pages whose bytes fit a `usize`.
    pub(crate) fn new(spec: &KvSpec) -> Result<Kv, Refused> {
        let KvSpec { ref layers, cells: kind, pages, page_len } = *spec;
        let [mut halves, mut bytes, mut scales] = [0; 3];
        let mut side = |shape: &KvLayer, dim: usize, spread: bool| {
            let slots = page_len * shape.kv_heads;
            let (cells, new_scales) = match kind {
                KvCells::F16 => (&mut halves, 0),
                KvCells::Int8 | KvCells::Fp8 => (&mut bytes, slots), // no fp8 is reserved
            };
            let side = Side { cells: kind, dim, spread, first: *cells, first_scale: scales };
            (*cells, scales) = (*cells + slots * dim, scales + new_scales);
            side
        };
        let layers = layers.iter().map(|shape| LayerKv {
            shape: *shape,
            keys: side(shape, shape.k_dim, true),
            values: side(shape, shape.v_dim, false),
        });
        let layers = layers.collect();
        let (halves, bytes, scales) =
            (Pages::new(halves, pages)?, Pages::new(bytes, pages)?, Pages::new(scales, pages)?);
        Ok(Kv { cells: kind, pages, page_len, layers, halves, bytes, scales })
    }

    /// Positions per run: whole pages, and the same in every step.
    pub(crate) fn run_len(&self) -> usize {
        (RUN / self.page_len).max(1) * self.page_len
    }

    /// A head's cells in a page; `C` must be the cache's cell type.
    ///
    /// # Safety
    /// No thread writes them before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn page<C: KvCell>(&self, side: &Side, page: u32, head: usize) -> &[C] {
        let (pages, len) = (C::pages(self), self.page_len * side.dim);
        let first = pages.at(page, side.first + head * len);
        // SAFETY: the contract of this function.
        unsafe { pages.all.get(first..first + len) }
    }

    /// The scales of their slots, if the cell type has them.
    ///
    /// # Safety
    /// That of [`Kv::page`].
    #[inline(always)]
    pub(crate) unsafe fn scales(&self, side: &Side, page: u32, head: usize) -> Option<&[f32]> {
        let first = self.scales.at(page, side.first_scale + head * self.page_len);
        // SAFETY: the contract of this function.
        (side.cells != KvCells::F16).then(|| unsafe { self.scales.all.get(first..first + self.page_len) })
    }

    /// Stores a slot's key, whose numbers are `page_len` cells apart, or its value, whose numbers are adjacent.
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
        let (stride, of_slot) = if side.spread { (self.page_len, 1) } else { (1, side.dim) };
        let first = side.first + at.head * self.page_len * side.dim + at.slot * of_slot;
        // SAFETY: the contract of this function.
        unsafe {
            match side.cells {
                KvCells::F16 => {
                    let (halves, first) = (&self.halves.all, self.halves.at(at.page, first));
                    if !side.spread {
                        return store_f16(x, halves.get_mut(first..first + x.len()));
                    }
                    workspace.resize(x.len(), 0);
                    store_f16(x, workspace);
                    workspace.iter().enumerate().for_each(|(i, half)| halves.set(first + i * stride, *half));
                }
                KvCells::Int8 | KvCells::Fp8 => {
                    let (bytes, first) = (&self.bytes.all, self.bytes.at(at.page, first));
                    let most = largest(x);
                    let by = if most > 0.0 { 127.0 / most } else { 0.0 };
                    for (i, x) in x.iter().enumerate() {
                        bytes.set(first + i * stride, (x * by).round() as i8); // not finite: 0, with a scale that is not finite
                    }
                    let scale = side.first_scale + at.head * self.page_len + at.slot;
                    self.scales.all.set(self.scales.at(at.page, scale), most / 127.0);
                }
            }
        }
    }
}

impl<C: Zeroed> Pages<C> {
    /// Zeroed memory, which is not allocated until it is used; in large pages, since a step reads all over it.
    fn new(each: usize, pages: usize) -> Result<Pages<C>, Refused> {
        let bytes = each * pages * size_of::<C>();
        let all = Shared::<C>::aligned(each * pages, if bytes >= LARGE { LARGE } else { LINE })?;
        want_large_pages(all.pointer().addr(), bytes);
        Ok(Pages { each, all })
    }
}

impl<C> Pages<C> {
    fn at(&self, page: u32, cell: usize) -> usize {
        page as usize * self.each + cell
    }
}

/// The cell type of a page.
pub(crate) trait KvCell: Cell {
    fn pages(kv: &Kv) -> &Pages<Self>;
}

impl KvCell for u16 {
    fn pages(kv: &Kv) -> &Pages<u16> {
        &kv.halves
    }
}

impl KvCell for i8 {
    fn pages(kv: &Kv) -> &Pages<i8> {
        &kv.bytes
    }
}
