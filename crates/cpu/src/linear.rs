//! Linears: a thread's rows of weights times all rows of the activations.

use std::ops::Range;

use tern_graph::{Op, Val, WeightId};

use crate::dot::{LinearKernel, PANEL, PANELS, ROWS, Target, Workspace};
use crate::phases::{Link, width};
use crate::product::{Activations, Product};
use crate::run::{Run, Scratch};

/// Bytes of weights that one thread takes at a time.
pub(crate) const LINEAR_BYTES: usize = 64 * 1024;
/// Number of tokens from which more rows of float weights share each read of the activations.
const FLOATS_MANY: usize = 64;

/// The node of a linear and what it reads.
struct Linear {
    node: usize,
    x: Val,
    weight: WeightId,
    scale: Option<WeightId>,
    bias: Option<WeightId>,
}

impl Run<'_> {
    /// Linears and the elementwise ops after them, some columns of all rows at a time.
    pub(crate) fn columns<I: Iterator<Item = Range<usize>>>(
        &self,
        links: &[Link],
        workspace: &mut Scratch,
        share: impl Fn(usize, usize, usize) -> I,
    ) {
        let graph = &self.program.graph;
        let (width, rows) = (width(graph, links[0]), self.rows(links[0].node));
        if rows == 0 {
            return; // a step without outputs: the prompt continues
        }
        let (unit, most) = self.units(links, width, rows);
        for range in share(width, unit, most) {
            for link in links {
                if let Op::Linear { x, weight, scale, bias } = graph.nodes[link.node].op {
                    let linear = Linear { node: link.node, x, weight, scale, bias };
                    self.linear(linear, range.clone(), &mut workspace.unpacked);
                    continue;
                }
                for row in 0..rows {
                    self.run(*link, row * width + range.start, range.len(), &mut workspace.rows);
                }
            }
        }
    }

    /// The unit of columns, and how many columns a thread takes at a time.
    fn units(&self, links: &[Link], width: usize, rows: usize) -> (usize, usize) {
        let program = self.program;
        let (mut unit, mut whole, mut bytes) = (ROWS, PANELS * PANEL, 0);
        for link in links {
            let Op::Linear { weight, .. } = program.graph.nodes[link.node].op else {
                let span = program.roundings[link.node].filter(|_| link.with_ints).map_or(1, |r| r.span);
                unit = unit.max(span);
                continue;
            };
            bytes += program.weight(weight).row_bytes();
            let kernel = program.kernels[link.node];
            unit = unit.max(match kernel {
                Some(LinearKernel::Integer(_)) if !program.is_many(rows) => ROWS,
                Some(LinearKernel::Integer(_)) => PANEL,
                // two panels at a time are faster, if there are enough of them
                _ if width >= 8 * PANEL * self.workspaces.len() => 2 * PANEL,
                _ => PANEL,
            });
            if matches!(kernel, Some(LinearKernel::F32(_))) && rows >= FLOATS_MANY {
                whole = 4 * PANELS * PANEL;
            }
        }
        (unit, (LINEAR_BYTES / bytes.max(1)).max(unit).next_multiple_of(whole))
    }

    /// Some rows of weights times all rows of `x`.
    fn linear(&self, linear: Linear, range: Range<usize>, workspace: &mut Workspace) {
        let Linear { node, x, weight, scale, bias } = linear;
        let program = self.program;
        let (w, rows) = (program.weight(weight), self.rows(node));
        workspace.reads(Some((x, 0)));
        let low = program.roundings[x.index()].map_or(8, |r| r.low);
        let many = program.is_many(rows);
        // SAFETY (both views): see `work`.
        let activations = match (program.kernels[node], program.ints(x.index())) {
            (Some(kernel), _) if kernel.reads_floats() => {
                Activations::Floats(self.read(x, 0, rows * w.cols()))
            }
            (Some(kernel), Some((_, tiles))) if many && kernel.has_tiles() => {
                // SAFETY: as above.
                Activations::Tiles(unsafe { tiles.view(rows, w.cols(), low) })
            }
            (Some(_), Some((ints, _))) => {
                // SAFETY: as above.
                Activations::Rows(unsafe { ints.view(rows, w.cols(), low) })
            }
            (None, _) | (Some(_), None) => return self.refuse(node),
        };
        let product = Product {
            kernel: program.kernels[node],
            weight: w,
            packed: program.packed(weight),
            first_row: 0,
            first_panel: 0,
            x: activations,
            to: Target {
                out: program.value(node),
                rows: None,
                stride: w.rows(),
                first: 0,
                scale: scale.map_or(1.0, |s| program.vector(s)[0]),
                bias: bias.map(|b| program.vector(b)),
            },
        };
        if !product.run(range, workspace) {
            self.refuse(node);
        }
    }
}
