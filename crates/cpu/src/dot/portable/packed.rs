//! Weights in the order in which a kernel streams them: panels of 16 rows that stand in the lanes of a vector.
//!
//! A panel is its codes, group after group of 32 columns, then its scales. Four codes of neighbouring columns stand
//! in the four bytes of a row's lane, so that one broadcast of four activations meets 16 rows at once.

use std::ops::Range;

use crate::activations::quantized_rows::QuantizedRows;
use crate::activations::token_tiles::TokenTiles;
use crate::dot::{PANEL, Rows, Target};
use crate::memory::lines::Line;
use crate::memory::lines::Lines;

/// Panels that share what they read of the activations of many tokens.
pub(crate) const PANELS: usize = 4;

/// The product of so many rows in panels with few tokens.
pub(crate) type PackedFew =
    fn(panels: &[Line], rows: usize, x: &QuantizedRows<'_>, workspace: &mut PackedWorkspace, to: &Target<'_>);
/// The same of [`PANELS`] at most with tiles of tokens.
pub(crate) type PackedMany =
    fn(panels: &[Line], rows: usize, x: &TokenTiles<'_>, workspace: &mut PackedWorkspace, to: &Target<'_>);

/// How a format is packed, and the product of a packed panel.
#[derive(Clone, Copy)]
pub(crate) struct PackedKernel {
    /// Lines of a panel of so many columns.
    pub(crate) lines: fn(cols: usize) -> usize,
    /// Up to [`PANEL`] rows become a panel.
    pub(crate) pack: fn(rows: &Rows<'_>, cols: usize, out: &mut [Line]),
    /// Their product with few tokens and, where there is a matrix unit, with many: the same bits.
    pub(crate) few: PackedFew,
    pub(crate) many: Option<PackedMany>,
    /// The panel is as small as the rows, so it may take their place; if not, it is made when it is used.
    pub(crate) at_load: bool,
}

/// What a thread works in.
#[derive(Default)]
pub(crate) struct PackedWorkspace {
    /// Panels that are made when they are used.
    pub(crate) panels: Vec<Line>,
    /// Codes of some columns, one a byte.
    pub(crate) codes: Vec<Line>,
    /// Sums of all tokens with a panel, and products on their way.
    pub(crate) sums: Vec<Line>,
    pub(crate) products: Vec<Line>,
    /// Sums of a token's columns that codes of one bit look up, and whether they are those of the value that is read.
    pub(crate) tables: Vec<Line>,
    pub(crate) has_tables: bool,
}

/// A packed tensor.
pub(crate) struct Packed {
    lines: Lines,
    each: usize,
}

impl Packed {
    /// Room for so many rows; none where memory is short.
    pub(crate) fn new(kernel: &PackedKernel, rows: usize, cols: usize) -> Option<Packed> {
        let each = (kernel.lines)(cols);
        Some(Packed { lines: Lines::new(rows.div_ceil(PANEL).checked_mul(each)?)?, each })
    }

    /// Bytes of such room.
    pub(crate) fn bytes(kernel: &PackedKernel, rows: usize, cols: usize) -> u64 {
        (rows.div_ceil(PANEL) * (kernel.lines)(cols) * size_of::<Line>()) as u64
    }

    fn range(&self, panels: Range<usize>) -> Range<usize> {
        panels.start * self.each..panels.end * self.each
    }

    /// # Safety
    /// These panels were filled, and no thread writes them.
    pub(crate) unsafe fn panels(&self, panels: Range<usize>) -> &[Line] {
        // SAFETY: the caller's promise.
        unsafe { self.lines.get(self.range(panels)) }
    }

    /// A panel to fill, zero for now.
    ///
    /// # Safety
    /// No other thread touches this panel meanwhile.
    #[expect(clippy::mut_from_ref, reason = "disjoint panels, by the caller's promise")]
    pub(crate) unsafe fn clear(&self, panel: usize) -> &mut [Line] {
        // SAFETY: the caller's promise.
        unsafe { self.lines.clear(self.range(panel..panel + 1)) }
    }
}
