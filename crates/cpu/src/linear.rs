//! Linears: a thread's rows of weights times all rows of the activations.

use std::ops::Range;

use tern_graph::{Op, Val, WeightId};

use crate::dot::{
    IntegerKernel, LinearKernel, PANEL, PANELS, PackedWorkspace, ROWS, Rows, Target, Workspace,
};
use crate::memory::lines::Line;
use crate::phases::{Link, width};
use crate::run::{Run, Scratch};

/// Bytes of weights that one thread takes at a time.
const LINEAR_BYTES: usize = 64 * 1024;
/// Tokens that share a pass over a thread's rows of weights.
const LINEAR_TOKENS: usize = 32;
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
                    self.run(*link, row * width + range.start, range.len(), &mut workspace.halves);
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
        workspace.reads(Some(x));
        let scale = scale.map_or(1.0, |s| program.vector(s)[0]);
        let bias = bias.map(|b| program.vector(b));
        let (out, tail) = (program.value(node), w.tail());
        let panel = |r: usize| {
            let count = PANEL.min(range.end - r);
            Rows { quant: w.quant(), count, blocks: w.row_range(r..r + count), tail }
        };
        let ints = program.ints(x.index());
        let low = program.roundings[x.index()].map_or(8, |r| r.low);
        let to = |r: usize| Target { out, stride: w.rows(), first: r, scale, bias: bias.map(|b| &b[r..]) };
        match (program.kernels[node], ints) {
            (Some(LinearKernel::Integer(IntegerKernel { many: Some(dot), .. })), Some((_, tiles)))
                if program.is_many(rows) =>
            {
                // SAFETY: see `work`; no two threads share a row of weights.
                let x = unsafe { tiles.view(rows, w.cols(), low) };
                for r in range.clone().step_by(PANEL) {
                    dot(&panel(r), &x, workspace, &to(r));
                }
            }
            (Some(LinearKernel::Integer(kernel)), Some((ints, _))) => {
                let mut results = [0.0f32; PANEL * LINEAR_TOKENS];
                for first in (0..rows).step_by(LINEAR_TOKENS) {
                    let tokens = LINEAR_TOKENS.min(rows - first);
                    for r in range.clone().step_by(PANEL) {
                        let tile = panel(r);
                        let results = &mut results[..tile.count * tokens]; // [count, tokens]
                        // SAFETY: see `work`.
                        let x = unsafe { ints.view(rows, w.cols(), low) };
                        (kernel.few)(&tile, &x.skip(first), workspace, results);
                        for t in 0..tokens {
                            // SAFETY: see `work`; no two threads share a row of weights.
                            unsafe { to(r).write(first + t, results[t..].iter().step_by(tokens)) };
                        }
                    }
                }
            }
            (Some(LinearKernel::Packed(kernel)), Some((ints, tiles))) => {
                // SAFETY: see `work`; no two threads share a row of weights.
                let dot = |panels: &[Line],
                           rows_of: usize,
                           workspace: &mut PackedWorkspace,
                           to: &Target<'_>| unsafe {
                    match kernel.many {
                        Some(many) if program.is_many(rows) => {
                            many(panels, rows_of, &tiles.view(rows, w.cols(), low), workspace, to);
                        }
                        _ => (kernel.few)(panels, rows_of, &ints.view(rows, w.cols(), low), workspace, to),
                    }
                };
                for r in range.clone().step_by(PANELS * PANEL) {
                    let end = range.end.min(r + PANELS * PANEL);
                    let panels = r / PANEL..end.div_ceil(PANEL);
                    if let Some(packed) = program.packed(weight) {
                        // SAFETY: packed at load.
                        let panels = unsafe { packed.panels(panels) };
                        dot(panels, end - r, &mut workspace.packed, &to(r));
                        continue;
                    }
                    let each = (kernel.lines)(w.cols());
                    let mut made = std::mem::take(&mut workspace.packed.panels);
                    made.clear();
                    made.resize(panels.len() * each, Line::default());
                    for (i, made) in made.chunks_exact_mut(each).enumerate() {
                        (kernel.pack)(&panel(r + i * PANEL), w.cols(), made);
                    }
                    dot(&made, end - r, &mut workspace.packed, &to(r));
                    workspace.packed.panels = made;
                }
            }
            (Some(LinearKernel::F32(dot)), _) => {
                let x = self.read(x, 0, rows * w.cols());
                let rows =
                    Rows { quant: w.quant(), count: range.len(), blocks: w.row_range(range.clone()), tail };
                dot(&rows, x, workspace, &to(range.start));
            }
            (None, _) | (Some(LinearKernel::Integer(_) | LinearKernel::Packed(_)), None) => self.refuse(node),
        }
    }
}
