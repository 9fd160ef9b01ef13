//! The methods that add an op to a graph: each checks shapes and returns the value of the new node.

use super::{Result, fail};
use crate::op::{Activation, Function, NormKind, Op, TableRow, Val, WeightId};
use crate::{Graph, Node, Value, Weight};

impl Graph {
    /// See [`Op::Embed`].
    pub fn embed(&mut self, table: WeightId, scale: f32) -> Val {
        let Weight { cols: width, rotation, .. } = *self.weight(table);
        let x = self.push(Op::Embed { table, scale }, Value { width, outputs_only: false });
        match rotation {
            Some(rotation) => self.push(Op::Rotate { x, rotation, inverse: true }, self.value(x)),
            None => x,
        }
    }

    /// See [`Op::AddRow`].
    pub fn add_row(&mut self, x: Val, table: WeightId, row: TableRow) -> Result<Val> {
        self.check_tokens("add_row", x)?;
        let Weight { name, rows, cols, .. } = self.weight(table);
        if *cols != self.width(x) || *rows == 0 {
            return fail(format!("{name}: rows of {cols} columns on a value of {}", self.width(x)));
        }
        if row == TableRow::Type && *rows < 2 {
            return fail(format!("{name}: {rows} row, types of tokens have two"));
        }
        Ok(self.push(Op::AddRow { x, table, row }, self.value(x)))
    }

    /// See [`Op::Apply`].
    pub fn apply(&mut self, x: Val, function: Function) -> Val {
        self.push(Op::Apply { x, function }, self.value(x))
    }

    /// `max(x, 0)^2`: the value as its own gate.
    pub fn squared_relu(&mut self, x: Val) -> Result<Val> {
        self.gated(x, x, Activation::Relu)
    }

    /// See [`Op::Norm`].
    pub fn norm(&mut self, x: Val, weight: WeightId, eps: f32) -> Result<Val> {
        self.norm_of_kind(x, weight, None, eps, NormKind::Rms)
    }

    /// See [`Op::Norm`].
    pub fn norm_of_kind(
        &mut self,
        x: Val,
        weight: WeightId,
        bias: Option<WeightId>,
        eps: f32,
        kind: NormKind,
    ) -> Result<Val> {
        let Weight { name, rows, cols: len, .. } = self.weight(weight);
        let len = self.check_groups(name, x, *len)?;
        if *rows != 1 && rows * len != self.width(x) {
            return fail(format!("{name}: {rows} norms of {len} columns on a value of {}", self.width(x)));
        }
        self.check_vector(bias, len)?;
        Ok(self.push(Op::Norm { x, len, weight: Some(weight), bias, eps, kind }, self.value(x)))
    }

    /// See [`Op::Norm`]. Root mean square, without a weight.
    pub fn plain_norm(&mut self, x: Val, len: usize, eps: f32) -> Result<Val> {
        let len = self.check_groups("norm", x, len)?;
        Ok(self.push(Op::Norm { x, len, weight: None, bias: None, eps, kind: NormKind::Rms }, self.value(x)))
    }

    fn check_groups(&self, name: &str, x: Val, len: usize) -> Result<usize> {
        if len == 0 || !self.width(x).is_multiple_of(len) {
            return fail(format!("{name}: a norm of {len} columns on a value of {}", self.width(x)));
        }
        Ok(len)
    }

    /// See [`Op::Linear`].
    pub fn linear(&mut self, x: Val, weight: WeightId) -> Result<Val> {
        self.linear_with(x, weight, None, None)
    }

    /// See [`Op::Linear`].
    pub fn linear_with(
        &mut self,
        x: Val,
        weight: WeightId,
        scale: Option<WeightId>,
        bias: Option<WeightId>,
    ) -> Result<Val> {
        let rotation = self.weight(weight).rotation;
        let x = self.rotated(x, rotation)?;
        let w = self.weight(weight);
        if w.cols != self.width(x) {
            return fail(format!(
                "{}: a linear of {} columns on a value of {}",
                w.name,
                w.cols,
                self.width(x)
            ));
        }
        let value = Value { width: w.rows, ..self.value(x) };
        self.check_vector(scale, 1)?;
        self.check_vector(bias, value.width)?;
        Ok(self.push(Op::Linear { x, weight, scale, bias }, value))
    }

    /// See [`Op::Gated`].
    pub fn gated(&mut self, gate: Val, up: Val, act: Activation) -> Result<Val> {
        self.check_same("gated", gate, up)?;
        Ok(self.push(Op::Gated { gate, up, act }, self.value(gate)))
    }

    /// See [`Op::Add`].
    pub fn add(&mut self, a: Val, b: Val) -> Result<Val> {
        self.check_same("add", a, b)?;
        Ok(self.push(Op::Add { a, b }, self.value(a)))
    }

    /// See [`Op::Scale`].
    pub fn scale(&mut self, x: Val, by: f32) -> Val {
        self.push(Op::Scale { x, by }, self.value(x))
    }

    /// See [`Op::ScaleColumns`].
    pub fn scale_columns(&mut self, x: Val, by: WeightId) -> Result<Val> {
        self.check_vector(Some(by), self.width(x))?;
        Ok(self.push(Op::ScaleColumns { x, by }, self.value(x)))
    }

    /// See [`Op::SoftCap`].
    pub fn softcap(&mut self, x: Val, cap: f32) -> Val {
        self.push(Op::SoftCap { x, cap }, self.value(x))
    }

    /// See [`Op::Columns`].
    pub fn columns(&mut self, x: Val, start: usize, len: usize) -> Result<Val> {
        if start + len > self.width(x) {
            return fail(format!("columns {start}..{} of a value of {}", start + len, self.width(x)));
        }
        let value = Value { width: len, ..self.value(x) };
        Ok(self.push(Op::Columns { x, start, len }, value))
    }

    /// See [`Op::HeadColumns`].
    pub fn head_columns(&mut self, x: Val, every: usize, start: usize, len: usize) -> Result<Val> {
        let width = self.width(x);
        if every == 0 || !width.is_multiple_of(every) || start + len > every {
            let end = start + len;
            return fail(format!("columns {start}..{end} of heads of {every} in a value of {width}"));
        }
        let value = Value { width: width / every * len, ..self.value(x) };
        Ok(self.push(Op::HeadColumns { x, every, start, len }, value))
    }

    /// See [`Op::JoinHeads`].
    pub fn join_heads(&mut self, a: Val, b: Val, heads: usize) -> Result<Val> {
        let (first, second) = (self.value(a), self.value(b));
        let fits = |width: usize| heads > 0 && width.is_multiple_of(heads);
        if !fits(first.width) || !fits(second.width) || first.outputs_only != second.outputs_only {
            return fail(format!(
                "join_heads: {heads} heads in values of {} and {}",
                first.width, second.width
            ));
        }
        let value = Value { width: first.width + second.width, ..first };
        Ok(self.push(Op::JoinHeads { a, b, heads }, value))
    }

    /// See [`Op::Outputs`].
    pub fn outputs(&mut self, x: Val) -> Val {
        let value = Value { width: self.width(x), outputs_only: true };
        self.push(Op::Outputs { x }, value)
    }

    /// See [`Op::Input`].
    pub fn input(&mut self, index: usize, width: usize) -> Val {
        self.push(Op::Input { index }, Value { width, outputs_only: false })
    }

    /// See [`Op::ImageRows`].
    pub fn image_rows(&mut self, x: Val, start: usize, adds: bool) -> Result<Val> {
        self.check_tokens("image_rows", x)?;
        Ok(self.push(Op::ImageRows { x, start, adds }, self.value(x)))
    }

    /// See [`Op::Means`].
    pub fn means(&mut self, x: Val) -> Result<Val> {
        self.check_tokens("means", x)?;
        let value = Value { width: self.width(x), outputs_only: true };
        Ok(self.push(Op::Means { x }, value))
    }

    pub(crate) fn push(&mut self, op: Op, value: Value) -> Val {
        self.nodes.push(Node { op, value });
        Val(self.nodes.len() as u32 - 1)
    }

    /// Refuses output rows, which have no positions.
    pub(crate) fn check_tokens(&self, op: &str, x: Val) -> Result<()> {
        if self.value(x).outputs_only {
            return fail(format!("{op}: want one row per token, got the outputs only"));
        }
        Ok(())
    }

    fn check_same(&self, op: &str, a: Val, b: Val) -> Result<()> {
        if self.value(a).outputs_only != self.value(b).outputs_only {
            return fail(format!("{op}: one value has one row per token, the other one per output"));
        }
        if self.value(a) != self.value(b) {
            return fail(format!("{op}: a value of {} columns and one of {}", self.width(a), self.width(b)));
        }
        Ok(())
    }

    pub(crate) fn check_vector(&self, id: Option<WeightId>, len: usize) -> Result<()> {
        let Some(w) = id.map(|id| self.weight(id)) else { return Ok(()) };
        if (w.rows, w.cols) != (1, len) {
            return fail(format!("{}: want [{len}], declared as [{}, {}]", w.name, w.rows, w.cols));
        }
        Ok(())
    }
}
