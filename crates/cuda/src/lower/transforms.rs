//! Norm, gate and rotation of a value on its way to linears, as one phase.

use tern_graph::{Activation, BackendError, Graph, NormKind, Op, Rotation, Val};

use super::fuse::{Fused, Fuser, Norm, activation, resolve_view};
use super::lowering::Lowering;
use crate::shared::{CHUNK, NormArgs, TRANSFORM_SPAN, TransformArgs};

type Result<T> = std::result::Result<T, BackendError>;

/// Columns from which on kernels would divide them inexactly (`small_quotient` of `kernels/base/common.cuh`).
const MOST_WIDTH: usize = 1 << 20;

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
    /// Of each head of `value`: all columns if it is missing.
    pub(crate) heads: Option<HeadColumns>,
    pub(crate) act: Activation,
}

/// Some columns of each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadColumns {
    every: usize,
    start: usize,
    len: usize,
}

/// A rotation of the graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotated {
    index: usize,
    inverse: bool,
}

/// Whether rows of a value can be read in pieces of four floats.
fn has_quads(graph: &Graph, v: Val) -> bool {
    let (base, first) = resolve_view(graph, v);
    first.is_multiple_of(4) && graph.width(base).is_multiple_of(4)
}

impl Transform {
    pub(super) fn of(x: Val, rotation: Option<Rotated>, out: Val) -> Transform {
        Transform { x, gather: false, norm: None, gate: None, rotation, out }
    }

    pub(super) fn reads(&self) -> Vec<Val> {
        [self.x].into_iter().chain(self.gate.map(|gate| gate.value)).collect()
    }

    fn rotation<'a>(&self, graph: &'a Graph) -> Option<&'a Rotation> {
        self.rotation.map(|rotated| &graph.rotations[rotated.index])
    }

    /// Whether eight neighbouring columns can be read together everywhere.
    fn is_wide(&self, graph: &Graph) -> bool {
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
    pub(super) fn fits_fused_step(&self, graph: &Graph) -> bool {
        let width = graph.width(self.out);
        let is_factor = |gate: Gate| matches!(gate.act, Activation::Silu | Activation::Sigmoid); // of x
        let norm = self.norm.is_none_or(|norm| norm.len == width || norm.len <= 128);
        self.is_wide(graph) && norm && self.gate.is_none_or(is_factor)
    }

    /// Whether the norm of groups of `len` columns can be part of it: lanes of a warp have the columns of a group.
    fn takes_norm(&self, graph: &Graph, len: usize) -> bool {
        let lanes = len / 8;
        let heads = self.rotation(graph).and_then(|r| Some((r.width(), r.heads?)));
        let whole = heads.is_none_or(|(width, h)| (width / (h.outer * h.inner)).is_multiple_of(len));
        let of_lanes = len.is_multiple_of(8) && lanes.is_power_of_two() && lanes <= 32;
        len == graph.width(self.out) || of_lanes && whole && self.is_wide(graph)
    }
}

impl Fuser<'_> {
    /// A rotation, with the gate before it and the norm before that.
    pub(super) fn rotate(&mut self, x: Val, index: usize, inverse: bool, out: Val) -> Fused {
        let mut transform = Transform::of(x, Some(Rotated { index, inverse }), out);
        if let Op::Gated { gate, up, act } = *self.op(x)
            && !inverse
            && self.is_read_once(x)
            && !self.absorbed[x.index()]
            && !self.absorbed[gate.index()]
        // otherwise it is part of a linear
        {
            self.absorbed[x.index()] = true;
            self.absorb_gate(&mut transform, gate, up, act);
        }
        Fused::Transform(transform)
    }

    /// A gate on its way to a linear of a graph whose small steps are launches.
    pub(super) fn gate_before_linear(
        &mut self,
        gate: Val,
        up: Val,
        act: Activation,
        out: Val,
    ) -> Option<Fused> {
        let is_codes = |v: &Val| match *self.op(*v) {
            Op::Linear { weight, .. } => (self.layout)(weight).is_some(),
            _ => false,
        };
        let [reader] = self.readers[out.index()][..] else { return None };
        let passed = is_codes(&reader) && self.graph.width(out).is_multiple_of(CHUNK);
        if self.graph.states.is_empty() || !passed || self.absorbed[gate.index()] {
            return None;
        }
        let mut transform = Transform::of(up, None, out);
        self.absorb_gate(&mut transform, gate, up, act);
        Some(Fused::Transform(transform))
    }

    fn absorb_gate(&mut self, transform: &mut Transform, gate: Val, up: Val, act: Activation) {
        let mut value = Gate { value: gate, heads: None, act };
        if let Op::HeadColumns { x, every, start, len } = *self.op(gate)
            && self.is_read_once(gate)
        {
            self.absorbed[gate.index()] = true;
            value = Gate { value: x, heads: Some(HeadColumns { every, start, len }), act };
        }
        (transform.x, transform.gate) = (up, Some(value));
        if let Op::Norm { x, len, weight: Some(weight), bias: None, eps, kind: NormKind::Rms } = *self.op(up)
            && self.is_read_once(up)
            && !self.absorbed[up.index()]
            && self.graph.weight(weight).rows == 1
            && (Transform { x, ..*transform }).takes_norm(self.graph, len)
        {
            self.absorbed[up.index()] = true;
            let norm = Norm { len, weight: Some(weight), bias: None, eps, kind: NormKind::Rms };
            (transform.x, transform.norm) = (x, Some(norm));
        }
    }

    /// Absorbs the norm of whole rows before a rotation, and the gather of output rows before the norm.
    pub(super) fn transform_with_prologue(&self, mut transform: Transform) -> Transform {
        if transform.norm.is_none()
            && transform.gate.is_none()
            && let Some((x, norm)) = self.absorbed_norm(transform.x)
        {
            (transform.x, transform.norm) = (x, Some(norm));
            if let Op::Outputs { x: all } = *self.op(x)
                && self.absorbed[x.index()]
            {
                (transform.x, transform.gather) = (all, true);
            }
        }
        transform
    }
}

impl Lowering<'_> {
    pub(super) fn transform(&mut self, t: &Transform) -> Result<TransformArgs> {
        let (graph, width) = (self.graph, self.graph.width(t.out));
        let rotation = t.rotation(graph);
        let block = rotation.map_or(0, |r| r.block);
        if block > TRANSFORM_SPAN {
            return Err(BackendError::Unsupported(format!(
                "rotated weights in blocks of {block}: at most {TRANSFORM_SPAN} are supported on GPUs"
            )));
        }
        if width >= MOST_WIDTH {
            return Err(BackendError::Unsupported(format!(
                "a norm, gate or rotation of {width} columns: fewer than {MOST_WIDTH} are supported on GPUs"
            )));
        }
        let heads = t.gate.and_then(|gate| gate.heads);
        let order = rotation.and_then(|r| r.heads);
        let (act, limit) = t.gate.map_or((0, 0.0), |gate| {
            let (kind, limit) = activation(gate.act);
            (1 + kind as i32, limit)
        });
        Ok(TransformArgs {
            x: self.view(t.x),
            gate: t.gate.map(|gate| self.view(gate.value)).unwrap_or_default(),
            y: self.out(t.out),
            norm: t.norm.map_or(Ok(NormArgs::default()), |n| self.norm(&n))?,
            signs: t.rotation.map_or(0, |rotated| self.addresses.signs[rotated.index]),
            group: t.norm.map_or(width, |norm| norm.len) as i32,
            width: width as i32,
            group_width: rotation.map_or(width, Rotation::width) as i32,
            block: block as i32,
            outer: order.map_or(0, |h| h.outer) as i32,
            inner: order.map_or(0, |h| h.inner) as i32,
            inverse: i32::from(t.rotation.is_some_and(|r| r.inverse)),
            act,
            gate_len: heads.map_or(0, |h| h.len) as i32,
            gate_every: heads.map_or(0, |h| h.every) as i32,
            gate_first: heads.map_or(0, |h| h.start) as i32,
            wide: i32::from(t.is_wide(graph)),
            outputs_only: self.outputs_only(t.out),
            gather: i32::from(t.gather),
            limit,
            first_block: self.take_blocks(TransformArgs::blocks(width)),
        })
    }
}
