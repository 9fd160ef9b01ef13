//! Experts: the tokens of a step grouped by expert, and the linears of each group.

use std::ops::Range;

use tern_graph::{Graph, Op, Val};

use crate::activations::gathered_rows::{EXPERT_ROWS, Form, GatherKey, GatheredSet};
use crate::activations::quantized_rows::Rounding;
use crate::dot::{PANEL, PANELS, Target};
use crate::linear::LINEAR_BYTES;
use crate::phases::Link;
use crate::product::{Activations, Product};
use crate::run::{Run, Scratch};

/// The parts of a step, one per token and chosen expert, by expert. Every thread groups them for itself,
/// which takes less time than a barrier.
#[derive(Default)]
pub(crate) struct PartsByExpert {
    /// The route and the number of experts that they are of.
    of: Option<(Option<Val>, usize)>,
    /// `token * used + place`, in order of the experts. `[tokens * used]`
    parts: Vec<u32>,
    /// The first part of each expert, and the end. `[experts + 1]`
    starts: Vec<u32>,
    /// Experts that have parts.
    active: Vec<u32>,
}

/// What the experts of a chain have in common.
#[derive(Clone, Copy)]
pub(crate) struct ExpertShape {
    pub(crate) route: Option<Val>,
    pub(crate) count: usize,
    pub(crate) used: usize,
    /// Columns of each result.
    pub(crate) each: usize,
}

impl ExpertShape {
    /// Those of a node, if it is a linear of experts.
    pub(crate) fn of(graph: &Graph, node: usize) -> Option<ExpertShape> {
        let Op::ExpertLinear { route, weight, .. } = graph.nodes[node].op else { return None };
        let w = graph.weight(weight);
        let used = route.map_or(w.experts, |r| graph.width(r) / 2);
        Some(ExpertShape { route, count: w.experts, used, each: w.rows / w.experts })
    }
}

impl PartsByExpert {
    /// Forgets the parts: all values of the next step are new.
    pub(crate) fn forget(&mut self) {
        self.of = None;
    }

    /// Groups the parts of all tokens by a counting sort, unless it was done. `route`
    /// is `[tokens, 2 * used]`.
    fn set(&mut self, experts: ExpertShape, tokens: usize, route: &[f32]) {
        let of = Some((experts.route, experts.count));
        if self.of == of {
            return;
        }
        self.of = of;
        let ExpertShape { count, used, .. } = experts;
        let expert = |part: usize| match experts.route {
            Some(_) => (route[part / used * 2 * used + part % used] as usize).min(count - 1),
            None => part % used,
        };
        let parts = tokens * used;
        self.starts.clear();
        self.starts.resize(count + 2, 0);
        (0..parts).for_each(|part| self.starts[expert(part) + 2] += 1);
        (2..count + 2).for_each(|e| self.starts[e] += self.starts[e - 1]);
        self.parts.resize(parts, 0);
        for part in 0..parts {
            let at = &mut self.starts[expert(part) + 1];
            self.parts[*at as usize] = part as u32;
            *at += 1;
        }
        self.active.clear();
        let used = self.starts.windows(2).take(count).enumerate().filter(|(_, ends)| ends[0] < ends[1]);
        self.active.extend(used.map(|(e, _)| e as u32));
    }

    /// The range of an expert's parts.
    fn range(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

impl Run<'_> {
    /// Linears of experts and the elementwise ops after them: some columns of all
    /// parts of an expert at a time.
    pub(crate) fn experts<I: Iterator<Item = Range<usize>>>(
        &self,
        links: &[Link],
        workspace: &mut Scratch,
        share: impl Fn(usize, usize, usize) -> I,
    ) {
        let graph = &self.program.graph;
        let Some(experts) = ExpertShape::of(graph, links[0].node) else { return self.refuse(links[0].node) };
        let tokens = self.rows(links[0].node);
        // the number of experts that may have parts: how many there are is unknown to a thread
        // that arrives after the phase
        let places = experts.count.min(tokens * experts.used);
        let unit = (PANELS * PANEL).min(experts.each.next_multiple_of(PANEL));
        let units = experts.each.div_ceil(unit); // per expert
        let bytes = |link: &Link| match graph.nodes[link.node].op {
            Op::ExpertLinear { weight, .. } => self.program.weight(weight).row_bytes(),
            _ => 0,
        };
        let most = match links.iter().map(bytes).sum::<usize>() * unit {
            // whole experts, so that few threads gather the same rows
            _ if tokens * experts.used >= GATHERED * places => units,
            bytes => (LINEAR_BYTES / bytes.max(1)).max(1),
        };
        for range in share(places * units, 1, most) {
            // only now: values are those of this phase as long as a thread has an item of it
            let route = experts.route.map_or(&[][..], |r| self.read(r, 0, tokens * graph.width(r)));
            workspace.parts.set(experts, tokens, route);
            let mut at = range.start;
            while at < range.end.min(workspace.parts.active.len() * units) {
                let (i, first) = (at / units, at % units);
                let end = (i * units + units).min(range.end);
                let columns = first * unit..((end - i * units) * unit).min(experts.each);
                self.expert(links, experts, workspace.parts.active[i] as usize, columns, workspace);
                at = end;
            }
        }
    }

    /// One expert's parts, some columns of each.
    fn expert(
        &self,
        links: &[Link],
        experts: ExpertShape,
        expert: usize,
        columns: Range<usize>,
        workspace: &mut Scratch,
    ) {
        let all = workspace.parts.range(expert);
        for first in all.clone().step_by(EXPERT_ROWS) {
            let parts = first..all.end.min(first + EXPERT_ROWS);
            for link in links {
                if matches!(self.program.graph.nodes[link.node].op, Op::ExpertLinear { .. }) {
                    self.expert_linear(link.node, experts, expert, parts.clone(), columns.clone(), workspace);
                    continue;
                }
                for i in parts.clone() {
                    let at = workspace.parts.parts[i] as usize * experts.each + columns.start;
                    self.run(*link, at, columns.len(), &mut workspace.rows);
                }
            }
        }
    }

    fn expert_linear(
        &self,
        node: usize,
        experts: ExpertShape,
        expert: usize,
        range: Range<usize>,
        columns: Range<usize>,
        workspace: &mut Scratch,
    ) {
        let program = self.program;
        let Op::ExpertLinear { x, weight, scale, bias, route } = program.graph.nodes[node].op else { return };
        let ExpertShape { used, each, .. } = experts;
        let Scratch { parts, gathered, unpacked, .. } = workspace;
        let (w, count) = (program.weight(weight), range.len());
        let cols = w.cols();
        let parts = &parts.parts[range.clone()];
        let shared = program.graph.width(x) == cols;
        let row_of = |i: usize| parts[i] as usize / if shared { used } else { 1 };
        let row = |i: usize| self.read(x, row_of(i) * cols, cols);
        let form = match program.kernels[node] {
            Some(kernel) if kernel.reads_floats() => Form::Floats,
            Some(kernel) if kernel.has_tiles() && program.is_many(count) => Form::Tiles,
            _ => Form::Rows,
        };
        let rows = match count {
            1 => GatheredSet::Row(row_of(0)),
            _ => GatheredSet::Expert { route, expert, first: range.start },
        };
        let rounding = program.gathered[x.index()].unwrap_or(Rounding { span: cols, low: 8 });
        gathered.gather(GatherKey { x, rows, form }, (count, cols), rounding, self.kernels, row);
        unpacked.reads(Some((x, gathered.number())));
        let activations = match gathered.view(form, count, cols, rounding.low) {
            Some(activations) => activations,
            None => Activations::Floats(&[]),
        };
        let product = Product {
            kernel: program.kernels[node],
            weight: w,
            packed: program.packed(weight),
            first_row: expert * each,
            first_panel: expert * each.div_ceil(PANEL),
            x: activations,
            to: Target {
                out: program.value(node),
                rows: Some(parts),
                stride: each,
                first: 0,
                scale: scale.map_or(1.0, |s| program.vector(s)[expert]),
                bias: bias.map(|b| &program.vector(b)[expert * each..]),
            },
        };
        if !product.run(columns, unpacked) {
            self.refuse(node);
        }
    }
}

/// Parts per expert from which gathering them takes noticeable time.
const GATHERED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_grouped_in_order() {
        let mut graph = Graph::new();
        let table = graph.matrix("table", 3, 4).unwrap();
        let route = Some(graph.embed(table, 1.0));
        let experts = ExpertShape { route, count: 4, used: 2, each: 1 };
        let mut parts = PartsByExpert::default();
        let values = [3.0, 0.0, 0.5, 0.5, 0.0, 3.0, 0.5, 0.5, 3.0, 9.0, 0.5, 0.5]; // the last id is not valid
        parts.set(experts, 3, &values);
        assert_eq!([0, 1, 2, 3].map(|e| parts.range(e)), [0..2, 2..2, 2..2, 2..6]);
        assert_eq!((&parts.parts[..], &parts.active[..]), (&[1, 2, 0, 3, 4, 5][..], &[0, 3][..]));
        parts.forget();
        parts.set(ExpertShape { route: None, count: 2, ..experts }, 2, &[]);
        assert_eq!((&parts.parts[..], &parts.active[..]), (&[0, 2, 1, 3][..], &[0, 1][..]));
    }
}
