//! What a phase is: some nodes of a graph that one kernel, or the host, computes together.

mod host;
mod recurrent;
mod transform;
mod view;

use tern_graph::{Activation, Attention, Graph, RopeStyle, Routing, Val, WeightId, Work};

pub(crate) use self::host::HostPhase;
pub(crate) use self::recurrent::{Conv, Recurrent, RecurrentRule};
pub(crate) use self::transform::{Gate, HeadColumns, Norm, Rotated, Transform};
pub(crate) use self::view::resolve_view;
use crate::shared::{ElementKind, TableRows};
use crate::weights::FEWEST_PACKED_ROWS;

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
    /// The matrices of an `Op::ExpertLinear` with this route.
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
    /// The norm of whole rows.
    pub(crate) norm: Option<Norm>,
    pub(crate) matrix: Matrix,
    pub(crate) matrices: Matrices,
}

impl FloatLinear {
    /// Whether a block of a fused step has a row at a time, so that a value with tags is read once: few rows
    /// of whole pieces of 16 bytes.
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
    /// Each value within bounds.
    Clamp {
        x: Val,
        low: f32,
        high: f32,
        out: Val,
    },
    /// Each column times its entry of a vector.
    ScaleColumns {
        x: Val,
        by: WeightId,
        out: Val,
    },
    /// Columns from `start` on of the rows of images, in place of x of their tokens or added to it.
    ImageRows {
        x: Val,
        start: usize,
        adds: bool,
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
        Fused::Norm { x, out, .. }
        | Fused::Rope { x, out, .. }
        | Fused::Clamp { x, out, .. }
        | Fused::ScaleColumns { x, out, .. }
        | Fused::ImageRows { x, out, .. }
        | Fused::Outputs { x, out, .. } => (vec![*x], vec![*out]),
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

/// The kernels' number of an activation, and its limit.
pub(in crate::lower) fn activation(act: Activation) -> (ElementKind, f32) {
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
