//! Fuses the nodes of a graph to phases: what a phase is, and the phase of a node by itself.
//!
//! Patterns (`patterns.rs`) make several nodes one phase; a node that fits no pattern is a phase by itself.

use tern_graph::{
    Activation, Attention, BackendError, Function, Graph, NormKind, Op, RopeStyle, Routing, TableRow, Val,
    WeightId, Work,
};

use super::host_phases::{HostPhase, receive_late};
use super::recurrent::{Conv, Recurrent, RecurrentRule};
use super::transforms::Transform;
use crate::shared::{ElementKind, TableRows};
use crate::weights::{FEWEST_PACKED_ROWS, Layout};

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

/// A matrix, or some rows of one, and the value it computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) weight: WeightId,
    pub(crate) scale: Option<WeightId>,
    pub(crate) bias: Option<WeightId>,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) out: Val,
}

impl Matrix {
    /// All rows of a weight, or those of one of its experts.
    pub(super) fn new(
        graph: &Graph,
        weight: WeightId,
        scale: Option<WeightId>,
        bias: Option<WeightId>,
        out: Val,
    ) -> Matrix {
        let w = graph.weight(weight);
        Matrix { weight, scale, bias, first_row: 0, rows: w.rows / w.experts, out }
    }
}

/// Matrices of codes with one input: `add + (act(part 0) * part 1, or each part) (norm(x))`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linear {
    pub(crate) x: Val,
    /// Rows of x are the output rows of the step.
    pub(crate) gather: bool,
    pub(crate) norm: Option<Norm>,
    pub(crate) parts: Vec<Matrix>,
    pub(crate) gated: Option<Activation>,
    pub(crate) add: Option<Val>,
    pub(crate) matrices: Matrices,
    /// In a fused step of one token: the convolution that the results of the first part go through.
    pub(crate) conv: Option<Conv>,
}

/// Which matrices of a weight a token is multiplied with; a part has the rows of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Matrices {
    /// The weight is one matrix.
    One,
    /// Those of the experts that this value has chosen.
    Chosen(Val),
    /// The same, and their results are added with the weights of the choice: in a fused step.
    Mixed(Val),
    /// All, each with a part of x.
    Each,
}

impl Matrices {
    /// Of an `Op::ExpertLinear`.
    pub(super) fn of(route: Option<Val>) -> Matrices {
        route.map_or(Matrices::Each, Matrices::Chosen)
    }

    pub(crate) fn route(self) -> Option<Val> {
        match self {
            Matrices::Chosen(route) | Matrices::Mixed(route) => Some(route),
            Matrices::One | Matrices::Each => None,
        }
    }
}

impl Linear {
    pub(super) fn of(x: Val, parts: Vec<Matrix>) -> Linear {
        let matrices = Matrices::One;
        Linear { x, gather: false, norm: None, parts, gated: None, add: None, matrices, conv: None }
    }
}

/// A matrix of floats: `matrix (norm(x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FloatLinear {
    pub(crate) x: Val,
    /// Of whole rows.
    pub(crate) norm: Option<Norm>,
    pub(crate) matrix: Matrix,
    pub(crate) matrices: Matrices,
}

impl FloatLinear {
    /// Whether a block of a fused step has a row at a time, so that a value with tags is read once: few rows of whole pieces of 16 bytes.
    pub(crate) fn has_few_rows(&self, graph: &Graph) -> bool {
        let (base, first) = resolve_view(graph, self.x);
        let quads = [first, graph.width(base), graph.width(self.x)].iter().all(|n| n.is_multiple_of(4));
        quads && self.matrices == Matrices::One && self.matrix.rows < FEWEST_PACKED_ROWS
    }
}

/// Heads of q or k before attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Heads {
    pub(crate) x: Val,
    pub(crate) norm: Option<Norm>,
}

/// A rotation of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rope {
    /// The index of its table.
    pub(crate) table: usize,
    pub(crate) style: RopeStyle,
}

/// Keys and values that attention stores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StoredHeads {
    pub(crate) k: Heads,
    pub(crate) v: Val,
}

/// Attention, with the norm and rotation of its heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attend {
    pub(crate) q: Heads,
    /// `None` if it reads what another one stores.
    pub(crate) stored: Option<StoredHeads>,
    pub(crate) rope: Option<Rope>,
    pub(crate) layer: usize,
    pub(crate) args: Attention,
    pub(crate) sinks: Option<WeightId>,
    pub(crate) out: Val,
}

/// Chooses experts from logits, or from the results of a linear of f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Route {
    /// Logits, or x of the router.
    pub(crate) x: Val,
    pub(crate) norm: Option<Norm>,
    pub(crate) router: Option<Matrix>,
    /// On the results of the router.
    pub(crate) factor: f32,
    pub(crate) bias: Option<WeightId>,
    pub(crate) args: Routing,
    pub(crate) out: Val,
}

/// One phase of a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fused {
    Embed {
        table: WeightId,
        rows: TableRows,
        scale: f32,
        add: Option<Val>,
        out: Val,
    },
    Linear(Linear),
    FloatLinear(FloatLinear),
    Norm {
        x: Val,
        norm: Norm,
        out: Val,
    },
    Rope {
        x: Val,
        head_dim: usize,
        rope: Rope,
        out: Val,
    },
    Attend(Attend),
    Route(Route),
    /// `add + ` the weighted sum of the results of experts.
    Mix {
        x: Val,
        route: Val,
        add: Option<Val>,
        out: Val,
    },
    /// `by` is of a scale, a soft cap or a clamped activation, or the rank of adapters.
    Elements {
        a: Val,
        b: Option<Val>,
        kind: ElementKind,
        by: f32,
        out: Val,
    },
    /// Some columns of each head of `a`, and then those of the same head of `b`.
    JoinHeads {
        a: Val,
        every: usize,
        start: usize,
        len: usize,
        b: Option<Val>,
        heads: usize,
        out: Val,
    },
    /// Rows that the step requests, or the means of the rows up to them.
    Outputs {
        x: Val,
        mean: bool,
        out: Val,
    },
    Conv(Conv),
    Recurrent(Recurrent),
    Transform(Transform),
    /// What the host does between launches.
    Host(HostPhase),
}

/// What a phase reads and writes, for the plan of its memory.
pub(crate) fn work(graph: &Graph, phase: &Fused) -> Work {
    let (reads, writes) = match phase {
        Fused::Embed { add, out, .. } => (add.iter().copied().collect(), vec![*out]),
        Fused::Linear(l) => {
            let outs = if l.gated.is_some() { &l.parts[..1] } else { &l.parts[..] };
            let reads = l.add.iter().copied().chain(l.matrices.route()).chain([l.x]);
            (reads.collect(), outs.iter().map(|p| p.out).collect())
        }
        Fused::FloatLinear(l) => (l.matrices.route().into_iter().chain([l.x]).collect(), vec![l.matrix.out]),
        Fused::Norm { x, out, .. } | Fused::Rope { x, out, .. } | Fused::Outputs { x, out, .. } => {
            (vec![*x], vec![*out])
        }
        Fused::Attend(a) => {
            let stored = a.stored.into_iter().flat_map(|s| [s.k.x, s.v]);
            ([a.q.x].into_iter().chain(stored).collect(), vec![a.out])
        }
        Fused::Route(r) => (vec![r.x], vec![r.out]),
        Fused::JoinHeads { a, b, out, .. } => (b.iter().copied().chain([*a]).collect(), vec![*out]),
        Fused::Mix { x, route, add, out } => (add.iter().copied().chain([*x, *route]).collect(), vec![*out]),
        Fused::Elements { a, b, out, .. } => (b.iter().copied().chain([*a]).collect(), vec![*out]),
        Fused::Conv(c) => (vec![c.x], vec![c.out]),
        Fused::Recurrent(r) => (r.reads(), vec![r.out]),
        Fused::Transform(t) => (t.reads(), vec![t.out]),
        Fused::Host(host) => (host.reads(), host.writes()),
    };
    Work { reads: reads.into_iter().map(|v| resolve_view(graph, v).0).collect(), writes }
}

/// The value whose columns `v` is a view of, and the first of these columns; `v` itself if it is no view.
pub(crate) fn resolve_view(graph: &Graph, v: Val) -> (Val, usize) {
    match graph.nodes[v.index()].op {
        Op::Columns { x, start, .. } => {
            let (x, first) = resolve_view(graph, x);
            (x, first + start)
        }
        _ => (v, 0),
    }
}

/// The kernels' number of an activation, and its limit.
pub(super) fn activation(act: Activation) -> (ElementKind, f32) {
    match act {
        Activation::Silu => (ElementKind::Silu, 0.0),
        Activation::GeluTanh => (ElementKind::GeluTanh, 0.0),
        Activation::Gelu => (ElementKind::Gelu, 0.0),
        Activation::Relu2 => (ElementKind::Relu2, 0.0),
        Activation::SwigluOai => (ElementKind::SwigluOai, Activation::OAI_LIMIT),
        Activation::SwigluClamp(limit) => (ElementKind::SwigluClamp, limit),
        Activation::Sigmoid => (ElementKind::Sigmoid, 0.0),
        Activation::Product => (ElementKind::Product, 0.0),
        Activation::Relu => (ElementKind::Relu, 0.0),
    }
}

/// The phases of a graph. `layout` gives a weight's layout on the device, `None` for floats.
pub(crate) fn fuse(
    graph: &Graph,
    layout: impl Fn(WeightId) -> Option<Layout>,
) -> Result<Vec<Fused>, BackendError> {
    Fuser { graph, layout: &layout, readers: readers(graph), absorbed: vec![false; graph.nodes.len()] }.run()
}

fn readers(graph: &Graph) -> Vec<Vec<Val>> {
    let mut readers = vec![vec![]; graph.nodes.len()];
    for (i, node) in (0..).zip(&graph.nodes) {
        node.op.inputs().iter().for_each(|v| readers[v.index()].push(graph.val(i)));
    }
    readers
}

pub(super) struct Fuser<'a> {
    pub(super) graph: &'a Graph,
    pub(super) layout: &'a dyn Fn(WeightId) -> Option<Layout>,
    /// The nodes that read each node.
    pub(super) readers: Vec<Vec<Val>>,
    /// Nodes that are part of another node's phase.
    pub(super) absorbed: Vec<bool>,
}

impl Fuser<'_> {
    fn run(mut self) -> Result<Vec<Fused>, BackendError> {
        let all: Vec<Val> = (0..self.graph.nodes.len()).map(|i| self.graph.val(i)).collect();
        // which nodes a later node absorbs must be known before the nodes are walked
        let absorbing: Vec<Option<Fused>> = all.iter().map(|&v| self.absorbing(v)).collect();
        let norms: Vec<Val> = all.iter().copied().filter(|&v| self.is_prologue(v)).collect();
        for v in norms {
            self.absorbed[v.index()] = true;
            if let Op::Norm { x, .. } = self.graph.nodes[v.index()].op
                && self.is_gather(x)
            {
                self.absorbed[x.index()] = true;
            }
        }
        let mut phases = vec![];
        for (v, absorbing) in all.into_iter().zip(absorbing) {
            match absorbing {
                Some(phase) => phases.push(phase),
                None if self.absorbed[v.index()] => {}
                None => phases.extend(self.alone(v)?),
            }
        }
        let phases = phases.into_iter().map(|phase| self.with_prologue(phase)).collect();
        Ok(receive_late(self.graph, phases))
    }

    /// The phase of a node that no other absorbs; `None` for a view.
    fn alone(&mut self, out: Val) -> Result<Option<Fused>, BackendError> {
        let elements = |a, b, kind, by| Fused::Elements { a, b, kind, by, out };
        Ok(Some(match *self.op(out) {
            Op::Embed { table, scale } => {
                Fused::Embed { table, rows: TableRows::Token, scale, add: None, out }
            }
            Op::AddRow { x, table, row } => {
                let rows = match row {
                    TableRow::Position => TableRows::Position,
                    TableRow::First => TableRows::First,
                    TableRow::Type => TableRows::Type,
                };
                Fused::Embed { table, rows, scale: 1.0, add: Some(x), out }
            }
            Op::Apply { x, function } => match function {
                Function::Gelu => elements(x, None, ElementKind::ApplyGelu, 0.0),
                Function::GeluTanh => elements(x, None, ElementKind::ApplyGeluTanh, 0.0),
                Function::Tanh => elements(x, None, ElementKind::SoftCap, 1.0),
            },
            Op::Norm { x, len, weight, bias, eps, kind } => {
                Fused::Norm { x, norm: Norm { len, weight, bias, eps, kind }, out }
            }
            Op::Linear { x, weight, scale, bias } => {
                self.linears(x, Matrix::new(self.graph, weight, scale, bias, out))
            }
            Op::Rope { x, head_dim, style, table } => {
                Fused::Rope { x, head_dim, rope: Rope { table, style }, out }
            }
            Op::Gated { gate, up, act } => {
                let (kind, limit) = activation(act);
                elements(gate, Some(up), kind, limit)
            }
            Op::Route { logits: x, bias, args } => {
                Fused::Route(Route { x, norm: None, router: None, factor: 1.0, bias, args, out })
            }
            Op::ExpertLinear { x, route, weight, scale, bias } => {
                let (matrix, matrices) =
                    (Matrix::new(self.graph, weight, scale, bias, out), Matrices::of(route));
                match (self.layout)(weight) {
                    Some(_) => Fused::Linear(Linear { matrices, ..Linear::of(x, vec![matrix]) }),
                    None => Fused::FloatLinear(FloatLinear { x, norm: None, matrix, matrices }),
                }
            }
            Op::Mix { x, route } => Fused::Mix { x, route, add: None, out },
            Op::HeadColumns { x: a, every, start, len } => {
                Fused::JoinHeads { a, every, start, len, b: None, heads: self.graph.width(out) / len, out }
            }
            Op::JoinHeads { a, b, heads } => {
                let every = self.graph.width(a) / heads;
                Fused::JoinHeads { a, every, start: 0, len: every, b: Some(b), heads, out }
            }
            Op::Add { a, b } => elements(a, Some(b), ElementKind::Add, 0.0),
            Op::Scale { x, by } => elements(x, None, ElementKind::Scale, by),
            Op::SoftCap { x, cap } => elements(x, None, ElementKind::SoftCap, cap),
            Op::ScaleAdapters { x, rank } => elements(x, None, ElementKind::ScaleAdapters, rank as f32),
            // readers use the columns in place; a result is copied
            Op::Columns { .. } if !self.readers[out.index()].is_empty() => return Ok(None),
            Op::Columns { .. } => elements(out, None, ElementKind::Scale, 1.0),
            Op::Outputs { x } => Fused::Outputs { x, mean: false, out },
            Op::Means { x } => Fused::Outputs { x, mean: true, out },
            Op::Input { index } => Fused::Host(HostPhase::Write { index, out }),
            Op::HostExperts { x, logits, piece } => Fused::Host(HostPhase::Send { x, logits, piece, out }),
            Op::Conv { x, weight, bias, layer, silu } => {
                Fused::Conv(Conv { x, weight, bias, layer, silu, out })
            }
            Op::Delta { qkv: x, decay: gate, beta, weights, layer, args } => {
                let rule = RecurrentRule::Delta { beta, weights, args };
                Fused::Recurrent(Recurrent { x, gate, rule, layer, out })
            }
            Op::Scan { xbc: x, dt: gate, weights, layer, args } => Fused::Recurrent(Recurrent {
                x,
                gate,
                rule: RecurrentRule::Scan { weights, args },
                layer,
                out,
            }),
            Op::GateRows { x, gate } => elements(x, Some(gate), ElementKind::GateRows, 0.0),
            Op::Rotate { x, rotation, inverse } => self.rotate(x, rotation, inverse, out),
            Op::Attend { layer, .. } => {
                return Err(BackendError::Other(format!("attention of layer {layer} was not lowered")));
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use tern_quant::{Q1_0, Q2_0, Q8_0};

    use super::super::test_graphs::decoder;
    use super::*;

    #[test]
    fn a_layer_is_five_phases() {
        let g = decoder();
        let phases = fuse(&g, |_| Layout::of(&Q1_0)).unwrap();
        let names: Vec<String> = phases
            .iter()
            .map(|p| match p {
                Fused::Linear(l) => format!(
                    "linear x {}{}{}{}{}",
                    l.parts.len(),
                    if l.norm.is_some() { ", normed" } else { "" },
                    if l.gather { ", gathered" } else { "" },
                    if l.gated.is_some() { ", gated" } else { "" },
                    if l.add.is_some() { ", added" } else { "" }
                ),
                Fused::Attend(Attend { q, stored: Some(stored), rope, .. }) => {
                    format!("attend {} {} {}", q.norm.is_some(), stored.k.norm.is_some(), rope.is_some())
                }
                Fused::Embed { .. } => "embed".into(),
                other => format!("{other:?}"),
            })
            .collect();
        let want = [
            "embed",
            "linear x 3, normed",
            "attend true true true",
            "linear x 1, added",
            "linear x 2, normed, gated",
            "linear x 1, added",
            "linear x 1, normed, gathered",
        ];
        assert_eq!(names, want);
    }

    #[test]
    fn matrices_of_bits_of_other_codes_and_of_floats_are_not_fused() {
        let g = decoder();
        let mixed = |id: WeightId| Layout::of(if g.weight(id).name == "v" { &Q8_0 } else { &Q1_0 });
        let parts = |p: &Fused| if let Fused::Linear(l) = p { l.parts.len() } else { 0 };
        assert_eq!(fuse(&g, mixed).unwrap().iter().map(parts).collect::<Vec<_>>()[1..3], [2, 1]);
        let bits = |id: WeightId| Layout::of(if g.weight(id).name == "v" { &Q2_0 } else { &Q1_0 });
        assert_eq!(fuse(&g, bits).unwrap().iter().map(parts).collect::<Vec<_>>()[1..3], [2, 1]);
        let floats = fuse(&g, |_| None).unwrap();
        assert!(!floats.iter().any(|p| matches!(p, Fused::Linear(_))));
        assert_eq!(floats.iter().filter(|p| matches!(p, Fused::Norm { .. })).count(), 3);
    }

    #[test]
    fn no_phase_writes_over_what_it_reads() {
        let g = decoder();
        let work: Vec<Work> = fuse(&g, |_| Layout::of(&Q1_0)).unwrap().iter().map(|p| work(&g, p)).collect();
        let plan = tern_graph::Plan::of(&g, &work);
        for w in &work {
            let slots = |vals: &[Val]| vals.iter().map(|v| plan.slot[v.index()]).collect::<Vec<_>>();
            let (reads, writes) = (slots(&w.reads), slots(&w.writes));
            assert!(reads.iter().all(|s| *s != usize::MAX && !writes.contains(s)), "{w:?}");
        }
    }
}
