//! Products: rows of one matrix times activations, in the form that its kernel reads.

use std::ops::Range;

use tern_graph::HostTensor;

use crate::activations::quantized_rows::QuantizedRows;
use crate::activations::token_tiles::TokenTiles;
use crate::dot::{
    IntegerKernel, LinearKernel, PANEL, PANELS, Packed, PackedDot, PackedKernel, PackedWorkspace, Rows,
    Target, Workspace,
};
use crate::memory::lines::Line;

/// Tokens that share a pass over a thread's rows of weights.
const LINEAR_TOKENS: usize = 32;

/// Activations of some tokens.
pub(crate) enum Activations<'a> {
    Floats(&'a [f32]),
    Rows(QuantizedRows<'a>),
    Tiles(TokenTiles<'a>),
}

/// A matrix and what it is multiplied with.
pub(crate) struct Product<'a> {
    pub(crate) kernel: Option<LinearKernel>,
    pub(crate) weight: &'a HostTensor,
    pub(crate) packed: Option<&'a Packed>,
    /// Where the matrix begins in the tensor, and in its panels.
    pub(crate) first_row: usize,
    pub(crate) first_panel: usize,
    pub(crate) x: Activations<'a>,
    /// Destination of row 0.
    pub(crate) to: Target<'a>,
}

impl Product<'_> {
    /// Some rows of the matrix times all tokens. No other thread has these rows. `false` if the kernel cannot
    /// read the activations.
    pub(crate) fn run(&self, range: Range<usize>, workspace: &mut Workspace) -> bool {
        match (self.kernel, &self.x) {
            (Some(LinearKernel::Integer(IntegerKernel { many: Some(dot), .. })), Activations::Tiles(x)) => {
                for r in range.clone().step_by(PANEL) {
                    dot(&self.panel(r, &range), x, workspace, &self.to.skip(r));
                }
            }
            (Some(LinearKernel::Integer(kernel)), Activations::Rows(x)) => {
                self.integers(kernel, x, range, workspace);
            }
            (Some(LinearKernel::Packed(kernel)), x) => return self.packed(&kernel, x, range, workspace),
            (Some(LinearKernel::F32(dot)), Activations::Floats(x)) => {
                dot(&self.rows(range.clone()), x, workspace, &self.to.skip(range.start));
            }
            _ => return false,
        }
        true
    }

    /// Rows of the tensor.
    fn rows(&self, range: Range<usize>) -> Rows<'_> {
        let (w, first) = (self.weight, self.first_row);
        let blocks = w.row_range(first + range.start..first + range.end);
        Rows { quant: w.quant(), count: range.len(), blocks, tail: w.tail() }
    }

    /// Up to [`PANEL`] rows of a range.
    fn panel(&self, r: usize, range: &Range<usize>) -> Rows<'_> {
        self.rows(r..range.end.min(r + PANEL))
    }

    fn integers(
        &self,
        kernel: IntegerKernel,
        x: &QuantizedRows<'_>,
        range: Range<usize>,
        workspace: &mut Workspace,
    ) {
        let mut results = [0.0f32; PANEL * LINEAR_TOKENS];
        for first in (0..x.rows()).step_by(LINEAR_TOKENS) {
            let tokens = LINEAR_TOKENS.min(x.rows() - first);
            for r in range.clone().step_by(PANEL) {
                let tile = self.panel(r, &range);
                let results = &mut results[..tile.count * tokens]; // [count, tokens]
                (kernel.few)(&tile, &x.skip(first), workspace, results);
                for t in 0..tokens {
                    // SAFETY: no two threads share a row of weights.
                    unsafe { self.to.skip(r).write(first + t, results[t..].iter().step_by(tokens)) };
                }
            }
        }
    }

    fn packed(
        &self,
        kernel: &PackedKernel,
        x: &Activations<'_>,
        range: Range<usize>,
        workspace: &mut Workspace,
    ) -> bool {
        match (kernel.dot, x) {
            (PackedDot::Integers { many: Some(dot), .. }, Activations::Tiles(x)) => {
                self.panels(kernel, range, workspace, |panels, rows, workspace, to| {
                    dot(panels, rows, x, workspace, to);
                });
            }
            (PackedDot::Integers { few, .. }, Activations::Rows(x)) => {
                self.panels(kernel, range, workspace, |panels, rows, workspace, to| {
                    few(panels, rows, x, workspace, to);
                });
            }
            (PackedDot::Floats(dot), Activations::Floats(x)) => {
                self.panels(kernel, range, workspace, |panels, rows, workspace, to| {
                    dot(panels, (rows, self.weight.cols()), x, workspace, to);
                });
            }
            _ => return false,
        }
        true
    }

    /// Panels of the range, packed at load or here.
    fn panels(
        &self,
        kernel: &PackedKernel,
        range: Range<usize>,
        workspace: &mut Workspace,
        dot: impl Fn(&[Line], usize, &mut PackedWorkspace, &Target<'_>),
    ) {
        let workspace = &mut workspace.packed;
        for r in range.clone().step_by(PANELS * PANEL) {
            let end = range.end.min(r + PANELS * PANEL);
            let panels = self.first_panel + r / PANEL..self.first_panel + end.div_ceil(PANEL);
            if let Some(packed) = self.packed {
                // SAFETY: packed at load.
                dot(unsafe { packed.panels(panels) }, end - r, workspace, &self.to.skip(r));
                continue;
            }
            let each = (kernel.lines)(self.weight.cols());
            let mut made = std::mem::take(&mut workspace.panels);
            made.clear();
            made.resize(panels.len() * each, Line::default());
            for (i, made) in made.chunks_exact_mut(each).enumerate() {
                (kernel.pack)(&self.panel(r + i * PANEL, &range), self.weight.cols(), made);
            }
            dot(&made, end - r, workspace, &self.to.skip(r));
            workspace.panels = made;
        }
    }
}
