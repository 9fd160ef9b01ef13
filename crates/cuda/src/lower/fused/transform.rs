//! Norm, gate and rotation of a value as one phase.

use tern_graph::{Activation, Graph, NormKind, Rotation, Val, WeightId};

use super::view::resolve_view;

/// A norm of rows or heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Norm {
    /// Columns that are normalised together.
    pub(crate) len: usize,
    pub(crate) weight: Option<WeightId>,
    pub(crate) bias: Option<WeightId>,
    pub(crate) eps: f32,
    pub(crate) kind: NormKind,
}

/// `rotation(act(gate) * norm(x))`; each of the three may be missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transform {
    pub(crate) x: Val,
    /// Rows of x are the output rows of the step.
    pub(crate) gather: bool,
    pub(crate) norm: Option<Norm>,
    pub(crate) gate: Option<Gate>,
    pub(crate) rotation: Option<Rotated>,
    pub(crate) out: Val,
}

/// What a value is gated with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gate {
    pub(crate) value: Val,
    /// The columns of each head of `value`; all of them if this is missing.
    pub(crate) heads: Option<HeadColumns>,
    pub(crate) act: Activation,
}

/// Some columns of each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadColumns {
    pub(in crate::lower) every: usize,
    pub(in crate::lower) start: usize,
    pub(in crate::lower) len: usize,
}

/// A rotation of the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotated {
    pub(in crate::lower) index: usize,
    pub(in crate::lower) inverse: bool,
}

/// Whether rows of a value can be read in pieces of four floats.
fn has_quads(graph: &Graph, v: Val) -> bool {
    let (base, first) = resolve_view(graph, v);
    first.is_multiple_of(4) && graph.width(base).is_multiple_of(4)
}

impl Transform {
    pub(in crate::lower) fn of(x: Val, rotation: Option<Rotated>, out: Val) -> Transform {
        Transform { x, gather: false, norm: None, gate: None, rotation, out }
    }

    pub(in crate::lower) fn reads(&self) -> Vec<Val> {
        [self.x].into_iter().chain(self.gate.map(|gate| gate.value)).collect()
    }

    pub(in crate::lower) fn rotation<'a>(&self, graph: &'a Graph) -> Option<&'a Rotation> {
        self.rotation.map(|rotated| &graph.rotations[rotated.index])
    }

    /// Whether eight neighbouring columns can be read together everywhere.
    pub(in crate::lower) fn is_wide(&self, graph: &Graph) -> bool {
        let heads = |h: HeadColumns| {
            h.len.is_multiple_of(8) && h.start.is_multiple_of(4) && h.every.is_multiple_of(4)
        };
        let gate = |gate: Gate| has_quads(graph, gate.value) && gate.heads.is_none_or(heads);
        let rotation = |r: &Rotation| {
            let each = r.heads.map_or(r.width(), |h| r.width() / (h.outer * h.inner));
            r.width().is_multiple_of(8) && each.is_multiple_of(8)
        };
        graph.width(self.out).is_multiple_of(8)
            && has_quads(graph, self.x)
            && self.gate.is_none_or(gate)
            && self.rotation(graph).is_none_or(rotation)
    }

    /// Whether a warp can transform a span, four columns per lane at a time.
    pub(in crate::lower) fn fits_fused_step(&self, graph: &Graph) -> bool {
        let width = graph.width(self.out);
        let is_factor = |gate: Gate| matches!(gate.act, Activation::Silu | Activation::Sigmoid); // of x
        let norm = self.norm.is_none_or(|norm| norm.len == width || norm.len <= 128);
        self.is_wide(graph) && norm && self.gate.is_none_or(is_factor)
    }

    /// Whether the norm of groups of `len` columns can be part of it: lanes of a warp
    /// have the columns of a group.
    pub(in crate::lower) fn takes_norm(&self, graph: &Graph, len: usize) -> bool {
        let lanes = len / 8;
        let heads = self.rotation(graph).and_then(|r| Some((r.width(), r.heads?)));
        let whole = heads.is_none_or(|(width, h)| (width / (h.outer * h.inner)).is_multiple_of(len));
        let of_lanes = len.is_multiple_of(8) && lanes.is_power_of_two() && lanes <= 32;
        len == graph.width(self.out) || of_lanes && whole && self.is_wide(graph)
    }
}
