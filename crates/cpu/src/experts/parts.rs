//! The parts of a step by expert.

use std::ops::Range;

use tern_graph::{Graph, Op, Val};

/// The parts of a step, one per token and chosen expert, by expert. Every thread groups them for itself,
/// which takes less time than a barrier.
#[derive(Default)]
pub(crate) struct PartsByExpert {
    /// The route and the number of experts that they are of.
    of: Option<(Option<Val>, usize)>,
    /// `token * used + place`, in order of the experts. `[tokens * used]`
    pub(super) parts: Vec<u32>,
    /// The first part of each expert, and the end. `[experts + 1]`
    starts: Vec<u32>,
    /// Experts that have parts.
    pub(super) active: Vec<u32>,
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
    pub(super) fn set(&mut self, experts: ExpertShape, tokens: usize, route: &[f32]) {
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
    pub(super) fn range(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

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
