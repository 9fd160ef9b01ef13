//! Packed weights, in the order in which a kernel reads them: panels of 16 rows, one per lane of a vector.
//!
//! A panel holds scales and codes, group after group of 32 columns. The four bytes of a row's lane
//! hold the codes of four neighbouring columns, so that one broadcast of four activations is
//! multiplied with 16 rows at once.

use std::ops::Range;

use crate::activations::quantized_rows::QuantizedRows;
use crate::activations::token_tiles::TokenTiles;
use crate::dot::{Rows, Target};
use crate::memory::lines::Line;
use crate::memory::lines::Lines;

/// Panels that share each read of the activations of many tokens.
pub(crate) const PANELS: usize = 4;

/// The product of `rows` rows in panels with few tokens.
pub(crate) type PackedFew =
    fn(panels: &[Line], rows: usize, x: &QuantizedRows<'_>, workspace: &mut PackedWorkspace, to: &Target<'_>);
/// The same with tiles of tokens, for at most [`PANELS`] panels.
pub(crate) type PackedMany =
    fn(panels: &[Line], rows: usize, x: &TokenTiles<'_>, workspace: &mut PackedWorkspace, to: &Target<'_>);
/// The product of `[rows, cols]` floats in panels with all tokens.
pub(crate) type PackedFloats =
    fn(panels: &[Line], shape: (usize, usize), x: &[f32], workspace: &mut PackedWorkspace, to: &Target<'_>);

/// The product of packed panels, by the form of the activations that it reads.
#[derive(Clone, Copy)]
pub(crate) enum PackedDot {
    /// With few tokens and, if there is a matrix unit, with many: the same bits.
    Integers {
        few: PackedFew,
        many: Option<PackedMany>,
    },
    Floats(PackedFloats),
}

/// How a format is packed, and the product of a packed panel.
#[derive(Clone, Copy)]
pub(crate) struct PackedKernel {
    /// Lines of a panel of `cols` columns.
    pub(crate) lines: fn(cols: usize) -> usize,
    /// Packs up to [`PANEL`](crate::dot::PANEL) rows into a panel.
    pub(crate) pack: fn(rows: &Rows<'_>, cols: usize, out: &mut [Line]),
    pub(crate) dot: PackedDot,
    /// Panels are about as small as the rows and replace them at load; if false, they are made in each step.
    pub(crate) at_load: bool,
}

/// A thread's workspace.
#[derive(Default)]
pub(crate) struct PackedWorkspace {
    /// Panels that are made in a step.
    pub(crate) panels: Vec<Line>,
    /// Codes of some columns, one per byte, or float weights as the matrix unit reads them.
    pub(crate) codes: Vec<Line>,
    /// Sums of all tokens with a panel, and intermediate products.
    pub(crate) sums: Vec<Line>,
    pub(crate) products: Vec<Line>,
    /// Lookup tables of one-bit codes: sums of a token's columns, and whether they are
    /// those of the current value.
    pub(crate) tables: Vec<Line>,
    pub(crate) has_tables: bool,
    /// Activations in the order of the matrix unit, and whether they are those of the current value.
    pub(crate) x: Vec<Line>,
    pub(crate) has_x: bool,
}

/// A packed tensor.
pub(crate) struct Packed {
    lines: Lines,
    each: usize,
}

impl Packed {
    /// Memory for some panels; `None` if the system has too little.
    pub(crate) fn new(kernel: &PackedKernel, panels: usize, cols: usize) -> Option<Packed> {
        let each = (kernel.lines)(cols);
        Some(Packed { lines: Lines::new(panels.checked_mul(each)?)?, each })
    }

    /// Bytes of memory for some panels.
    pub(crate) fn bytes(kernel: &PackedKernel, panels: usize, cols: usize) -> u64 {
        (panels * (kernel.lines)(cols) * size_of::<Line>()) as u64
    }

    fn range(&self, panels: Range<usize>) -> Range<usize> {
        panels.start * self.each..panels.end * self.each
    }

    /// # Safety
    /// These panels were filled, and no thread writes them.
    pub(crate) unsafe fn panels(&self, panels: Range<usize>) -> &[Line] {
        // SAFETY: the contract of this function.
        unsafe { self.lines.get(self.range(panels)) }
    }

    /// A zeroed panel to fill.
    ///
    /// # Safety
    /// No other thread accesses this panel meanwhile.
    #[expect(clippy::mut_from_ref, reason = "disjoint panels, by the contract")]
    pub(crate) unsafe fn clear(&self, panel: usize) -> &mut [Line] {
        // SAFETY: the contract of this function.
        unsafe { self.lines.clear(self.range(panel..panel + 1)) }
    }
}
