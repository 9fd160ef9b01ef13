//! Patterns of nodes that become one phase: a norm before linears, linears of one input, a gate between two
//! of them, a residual after one, and attention with the norms and rotations of its heads.

use tern_graph::{Activation, Attention, KeysAndValues, NormKind, Op, Routing, Val, WeightId};

use super::fuse::Fuser;
use super::fused::{
    Attend, FloatLinear, Fused, Heads, Linear, Matrices, Matrix, Norm, Rope, Route, StoredHeads,
};
use crate::shared::{MOST_PARTS, MOST_ROUTER_COLS, TILE};
use crate::weights::{FEWEST_PACKED_ROWS, Layout};

impl Fuser<'_> {
    pub(super) fn op(&self, v: Val) -> &Op {
        &self.graph.nodes[v.index()].op
    }

    pub(super) fn is_read_once(&self, v: Val) -> bool {
        self.readers[v.index()].len() == 1
    }

    /// A linear of codes that is in no phase yet, as a part.
    fn matrix(&self, v: Val) -> Option<(Val, Matrix)> {
        let &Op::Linear { x, weight, scale, bias } = self.op(v) else { return None };
        if self.absorbed[v.index()] {
            return None;
        }
        (self.layout)(weight)?;
        Some((x, Matrix::new(self.graph, weight, scale, bias, v)))
    }

    /// A linear of experts that is in no phase yet, and one expert's rows as a part.
    pub(super) fn experts(&self, v: Val) -> Option<(Val, Matrices, Matrix)> {
        let &Op::ExpertLinear { x, route, weight, scale, bias } = self.op(v) else { return None };
        if self.absorbed[v.index()] {
            return None;
        }
        (self.layout)(weight)?;
        Some((x, Matrices::of(route), Matrix::new(self.graph, weight, scale, bias, v)))
    }

    /// The layout of a matrix that needs x as bits.
    fn bits(&self, weight: WeightId) -> Option<Layout> {
        (self.layout)(weight).filter(Layout::is_signs)
    }

    /// Phases that absorb earlier nodes: a gate, a residual, attention.
    pub(super) fn absorbing(&mut self, v: Val) -> Option<Fused> {
        match *self.op(v) {
            Op::Gated { gate, up, act } => {
                self.gated(gate, up, act, v).or_else(|| self.gate_before_linear(gate, up, act, v))
            }
            Op::Rotate { x, rotation, inverse } => Some(self.rotate(x, rotation, inverse, v)),
            Op::Add { a, b } => self.residual(a, b, v).or_else(|| self.residual(b, a, v)),
            Op::Attend { q, kv, layer, args, sinks } => {
                let heads = |x| Heads { x, norm: None };
                let stored = kv.map(|KeysAndValues { k, v }| StoredHeads { k: heads(k), v });
                Some(self.attend(Attend { q: heads(q), stored, rope: None, layer, args, sinks, out: v }))
            }
            Op::Route { logits, bias, args } => self.route(logits, bias, args, v),
            // `alone` lists all ops
            _ => None,
        }
    }

    fn gated(&mut self, gate: Val, up: Val, act: Activation, out: Val) -> Option<Fused> {
        let (x, matrices, parts) = match (self.op(gate), self.op(up)) {
            // two halves of one matrix
            (&Op::Columns { x: a, start: 0, len }, &Op::Columns { x: b, start, len: second }) if a == b => {
                let whole = start == len && len == second && len.is_multiple_of(TILE);
                let alone =
                    self.readers[a.index()].len() == 2 && self.is_read_once(gate) && self.is_read_once(up);
                let (x, m) = self.matrix(a).filter(|(_, m)| whole && alone && m.rows == 2 * len)?;
                self.absorbed[a.index()] = true;
                (x, Matrices::One, [Matrix { rows: len, ..m }, Matrix { first_row: len, rows: len, ..m }])
            }
            // the same of each expert
            (
                &Op::HeadColumns { x: a, every, start: 0, len },
                &Op::HeadColumns { x: b, every: other, start, len: second },
            ) if (a, every) == (b, other) => {
                let whole = start == len && len == second && every == 2 * len && len.is_multiple_of(TILE);
                let alone =
                    self.readers[a.index()].len() == 2 && self.is_read_once(gate) && self.is_read_once(up);
                let fits = |m: &Matrix| whole && alone && m.rows == every && m.bias.is_none();
                let (x, matrices, m) = self.experts(a).filter(|(_, _, m)| fits(m))?;
                self.absorbed[a.index()] = true;
                (x, matrices, [Matrix { rows: len, ..m }, Matrix { first_row: len, rows: len, ..m }])
            }
            _ => {
                let part = |v: Val| {
                    let one = self.matrix(v).map(|(x, m)| (x, Matrices::One, m));
                    one.or_else(|| self.experts(v))
                };
                let ((x, matrices, first), (other, others, second)) = (part(gate)?, part(up)?);
                let alike = (self.layout)(first.weight) == (self.layout)(second.weight);
                let once = self.is_read_once(gate) && self.is_read_once(up);
                if x != other || matrices != others || !alike || !once {
                    return None;
                }
                (x, matrices, [first, second])
            }
        };
        self.absorbed[gate.index()] = true;
        self.absorbed[up.index()] = true;
        let parts = parts.map(|part| Matrix { out, ..part }).to_vec();
        Some(Fused::Linear(Linear { gated: Some(act), matrices, ..Linear::of(x, parts) }))
    }

    /// The choice of experts from the results of a linear of f32.
    fn route(&mut self, logits: Val, bias: Option<WeightId>, args: Routing, out: Val) -> Option<Fused> {
        let (logits, factor, scaled) = match *self.op(logits) {
            Op::Scale { x, by } if self.is_read_once(logits) => (x, by, Some(logits)),
            _ => (logits, 1.0, None),
        };
        let &Op::Linear { x, weight, scale: None, bias: router_bias } = self.op(logits) else { return None };
        let cols = self.graph.weight(weight).cols;
        let fits = cols.is_multiple_of(4) && cols <= MOST_ROUTER_COLS;
        let is_f32 = (self.layout)(weight).is_none(); // floats of 16 bits have a layout as matrices
        if !fits || !is_f32 || !self.is_read_once(logits) || self.absorbed[logits.index()] {
            return None;
        }
        [logits].into_iter().chain(scaled).for_each(|v| self.absorbed[v.index()] = true);
        let router = Some(Matrix::new(self.graph, weight, None, router_bias, logits));
        Some(Fused::Route(Route { x, norm: None, router, factor, bias, args, out }))
    }

    /// `a + linear`, or `a +` the sum of experts
    fn residual(&mut self, a: Val, linear: Val, out: Val) -> Option<Fused> {
        if let Op::Mix { x, route } = *self.op(linear)
            && self.is_read_once(linear)
        {
            self.absorbed[linear.index()] = true;
            return Some(Fused::Mix { x, route, add: Some(a), out });
        }
        let (x, part) = self.matrix(linear).filter(|_| self.is_read_once(linear))?;
        self.absorbed[linear.index()] = true;
        let parts = vec![Matrix { out, ..part }];
        Some(Fused::Linear(Linear { add: Some(a), ..Linear::of(x, parts) }))
    }

    /// Attention, with the rotation and the norms that only it reads.
    fn attend(&mut self, attend: Attend) -> Fused {
        let Attend { q, stored, args, .. } = attend;
        let rotated = |v: Val| match *self.op(v) {
            Op::Rope { x, head_dim, style, table } if head_dim == args.head_dim && self.is_read_once(v) => {
                Some((x, Rope { table, style }))
            }
            _ => None,
        };
        let given: Vec<Val> = [q.x].into_iter().chain(stored.map(|s| s.k.x)).collect();
        let plain: Option<Vec<_>> = given.iter().map(|&v| rotated(v)).collect();
        let (mut heads, mut rope) = (given.clone(), None);
        if let Some(plain) = plain.filter(|all| all.iter().all(|(_, rope)| *rope == all[0].1)) {
            given.iter().for_each(|v| self.absorbed[v.index()] = true);
            (heads, rope) = (plain.iter().map(|(x, _)| *x).collect(), Some(plain[0].1));
        }
        let mut heads = heads.into_iter().map(|v| self.normed_heads(v, &args));
        let q = heads.next().unwrap_or(q);
        let stored = stored.map(|s| StoredHeads { k: heads.next().unwrap_or(s.k), ..s });
        Fused::Attend(Attend { q, stored, rope, ..attend })
    }

    fn normed_heads(&mut self, v: Val, args: &Attention) -> Heads {
        match *self.op(v) {
            Op::Norm { x, len, weight: weight @ Some(_), bias: None, eps, kind: kind @ NormKind::Rms }
                if len == args.head_dim && self.is_read_once(v) =>
            {
                self.absorbed[v.index()] = true;
                Heads { x, norm: Some(Norm { len, weight, bias: None, eps, kind }) }
            }
            _ => Heads { x: v, norm: None },
        }
    }

    /// A root-mean-square norm of whole rows that only linears of codes or of few rows, routers and rotations
    /// read: its factor can be applied to the products.
    pub(super) fn is_prologue(&self, v: Val) -> bool {
        let &Op::Norm { x, len, weight: Some(_), bias: None, kind: NormKind::Rms, .. } = self.op(v) else {
            return false;
        };
        let is_small =
            |weight: WeightId| self.graph.weight(weight).rows < FEWEST_PACKED_ROWS && !self.is_gather(x);
        let codes = |&r: &Val| match *self.op(r) {
            Op::Linear { weight, .. } => {
                (self.layout)(weight).is_some()
                    || self.is_router(r)
                    || is_small(weight) && !self.absorbed[r.index()]
            }
            Op::ExpertLinear { weight, .. } => (self.layout)(weight).is_some(),
            Op::Rotate { inverse, .. } => !inverse,
            _ => false,
        };
        let readers = &self.readers[v.index()];
        let whole = len == self.graph.width(v);
        whole && !readers.is_empty() && readers.iter().all(codes) && !self.absorbed[v.index()]
    }

    /// A linear that the choice of experts has absorbed.
    fn is_router(&self, v: Val) -> bool {
        let chooses = |&r: &Val| match self.op(r) {
            Op::Scale { .. } => self.absorbed[r.index()], // only routers absorb one
            op => matches!(op, Op::Route { .. }),
        };
        self.absorbed[v.index()] && self.readers[v.index()].iter().all(chooses)
    }

    pub(super) fn is_gather(&self, v: Val) -> bool {
        matches!(self.op(v), Op::Outputs { .. }) && self.is_read_once(v)
    }

    /// A linear, and those with the same input.
    pub(super) fn linears(&mut self, x: Val, matrix: Matrix) -> Fused {
        let Some((_, first)) = self.matrix(matrix.out) else {
            return Fused::FloatLinear(FloatLinear { x, norm: None, matrix, matrices: Matrices::One });
        };
        self.absorbed[matrix.out.index()] = true;
        let mut parts = vec![first];
        for reader in self.readers[x.index()].clone() {
            // a phase prepares x in one form
            if parts.len() < MOST_PARTS
                && let Some((_, part)) = self.matrix(reader)
                && self.bits(part.weight) == self.bits(matrix.weight)
            {
                self.absorbed[reader.index()] = true;
                parts.push(part);
            }
        }
        Fused::Linear(Linear::of(x, parts))
    }

    /// The norm that a value is the result of, and what it normalises, if the readers of the value absorb it.
    pub(super) fn absorbed_norm(&self, v: Val) -> Option<(Val, Norm)> {
        match *self.op(v) {
            Op::Norm { x, len, weight, bias, eps, kind } if self.absorbed[v.index()] => {
                Some((x, Norm { len, weight, bias, eps, kind }))
            }
            _ => None,
        }
    }

    /// Absorbs the norm before a linear or a router, and before a linear of codes also the gather of output
    /// rows before the norm.
    pub(super) fn with_prologue(&self, phase: Fused) -> Fused {
        if let Fused::Route(mut route) = phase {
            if let Some((x, norm)) = self.absorbed_norm(route.x) {
                (route.x, route.norm) = (x, Some(norm));
            }
            return Fused::Route(route);
        }
        if let Fused::Transform(transform) = phase {
            return Fused::Transform(self.transform_with_prologue(transform));
        }
        if let Fused::FloatLinear(mut linear) = phase {
            if let Some((x, norm)) = self.absorbed_norm(linear.x) {
                (linear.x, linear.norm) = (x, Some(norm));
            }
            return Fused::FloatLinear(linear);
        }
        let Fused::Linear(mut linear) = phase else { return phase };
        if let Some((x, norm)) = self.absorbed_norm(linear.x) {
            (linear.x, linear.norm) = (x, Some(norm));
            if let Op::Outputs { x: all } = *self.op(x)
                && self.absorbed[x.index()]
            {
                (linear.x, linear.gather) = (all, true);
            }
        }
        Fused::Linear(linear)
    }
}
