//! A model as a list of ops, with checked shapes and a printable form.

mod adapters;
mod linear_inputs;
mod plan;
mod print;
mod recurrent;
mod role;
mod rotation;

use std::collections::HashMap;

use crate::op::{
    Activation, Attention, Function, KeysAndValues, NormKind, Op, RopeStyle, TableRow, Val, WeightId,
};
use crate::{KvLayer, StateLayer};

pub use adapters::{AdaptedLinear, AdapterScales, AdapterSet};
pub use linear_inputs::{LinearInput, LinearInputs};
pub use plan::{Plan, Work};
pub use recurrent::{
    DeltaRule, DeltaWeights, KeyHeads, MAX_TAPS, ScanWeights, SelectiveScan, sigmoid, softplus,
};
pub use role::{Role, Roles};
pub use rotation::{Basis, HeadOrder, Rotation};

/// A weight that the graph reads: its name in the checkpoint and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Name in the checkpoint.
    pub name: String,
    /// Rows of all experts; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Matrices, one below the other; 1 for most weights.
    pub experts: usize,
    /// The rotation in which it is stored, an index into [`Graph::rotations`].
    pub rotation: Option<usize>,
}

impl Weight {
    /// `[rows, cols]`, or `[experts, rows, cols]`
    pub fn shape(&self) -> String {
        let Weight { rows, cols, experts, .. } = self;
        if *experts == 1 {
            return format!("[{rows}, {cols}]");
        }
        format!("[{experts}, {}, {cols}]", rows / experts)
    }

    /// Refuses a tensor of another shape.
    pub fn check_shape(&self, [rows, cols]: [usize; 2]) -> Result<()> {
        let (want, file) = ([self.rows, self.cols], [rows, cols]);
        if want != file {
            return Err(GraphError::Shape { name: self.name.clone(), want, file });
        }
        Ok(())
    }
}

/// One op and the width of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Its result.
    pub value: Value,
}

/// The shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Columns.
    pub width: usize,
    /// Rows are the step's outputs instead of all its tokens.
    pub outputs_only: bool,
}

/// Frequencies of a rotary embedding: pair `i` turns by `position * freqs[i]`.
///
/// Linear, YaRN, llama3 and longrope scaling are all expressed by such a table and one magnitude.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position, one per pair; columns past the pairs are not rotated.
    pub freqs: Vec<f32>,
    /// Factor on the rotated columns.
    pub magnitude: f32,
}

/// What the sequences of a step must be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceRules {
    /// Positions must be below: the rows of the smallest table of positions.
    pub positions: Option<usize>,
    /// All tokens of a sequence are in one step, since tokens see later ones; nothing is kept after it.
    pub whole: bool,
    /// Adapters that a sequence may use.
    pub adapters: usize,
}

/// Why a graph cannot be built, or not with these weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The bytes of a weight cannot be used.
    #[error(transparent)]
    Weight(#[from] crate::WeightError),
    /// A weight has another shape than the graph.
    #[error("{name}: want {want:?}, file has {file:?}")]
    Shape {
        /// The weight.
        name: String,
        /// Rows and columns in the graph.
        want: [usize; 2],
        /// Rows and columns in the file.
        file: [usize; 2],
    },
    /// Ops, their values and their weights do not fit each other: how.
    #[error("{0}")]
    Mismatch(String),
}

pub(crate) type Result<T> = std::result::Result<T, GraphError>;

/// A whole model. Nodes are in order of execution; the last one is the result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Weights by [`WeightId`].
    pub weights: Vec<Weight>,
    /// Ops in order.
    pub nodes: Vec<Node>,
    /// Rotary tables by index.
    pub ropes: Vec<RopeTable>,
    /// KV layers by index.
    pub kv: Vec<KvLayer>,
    /// State layers by index.
    pub states: Vec<StateLayer>,
    /// Rotations of weights by index.
    pub rotations: Vec<Rotation>,
    /// Bases of weights, and the basis of each name.
    pub(crate) bases: Vec<Basis>,
    pub(crate) rotated: HashMap<String, usize>,
    /// Rows of the result are vectors or scores, not logits of the vocabulary.
    pub vectors: bool,
    pub(crate) by_name: HashMap<String, WeightId>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Declares a matrix of the checkpoint; the same name is the same weight.
    pub fn matrix(&mut self, name: impl Into<String>, rows: usize, cols: usize) -> Result<WeightId> {
        self.declare(Weight { name: name.into(), rows, cols, experts: 1, rotation: None })
    }

    pub(crate) fn is_declared(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn declare(&mut self, weight: Weight) -> Result<WeightId> {
        let rotation = self.rotation_of(&weight.name, weight.cols)?;
        let weight = Weight { rotation, ..weight };
        if let Some(&id) = self.by_name.get(&weight.name) {
            let w = self.weight(id);
            if *w != weight {
                let name = &w.name;
                return fail(format!("{name}: declared as {} and as {}", w.shape(), weight.shape()));
            }
            return Ok(id);
        }
        let id = WeightId(self.weights.len() as u32);
        self.by_name.insert(weight.name.clone(), id);
        self.weights.push(weight);
        Ok(id)
    }

    /// Declares a vector of the checkpoint.
    pub fn vector(&mut self, name: impl Into<String>, len: usize) -> Result<WeightId> {
        self.matrix(name, 1, len)
    }

    /// Registers a rotary table.
    pub fn rope_table(&mut self, table: RopeTable) -> usize {
        if let Some(i) = self.ropes.iter().position(|t| *t == table) {
            return i;
        }
        self.ropes.push(table);
        self.ropes.len() - 1
    }

    /// The weight with this id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }

    /// How the ops read each weight, in the order of `weights`.
    pub fn roles(&self) -> Vec<Roles> {
        let mut roles = vec![Roles::default(); self.weights.len()];
        for (node, chooses) in self.nodes.iter().zip(self.feeds_a_router()) {
            for (id, role) in node.op.weights() {
                let of = &mut roles[id.index()];
                *of = of.with(role, self.weight(id).experts);
                of.chooses |= chooses && matches!(role, Role::Matrix | Role::Experts);
            }
        }
        roles
    }

    /// Whether the logits of a router depend on each node's value.
    fn feeds_a_router(&self) -> Vec<bool> {
        let mut feeds = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            match node.op {
                Op::Route { logits, .. } | Op::HostExperts { logits, .. } => feeds[logits.index()] = true,
                _ => {}
            }
            if feeds[i] {
                node.op.inputs().into_iter().for_each(|x| feeds[x.index()] = true);
            }
        }
        feeds
    }

    /// The value of node `i`.
    pub fn val(&self, i: usize) -> Val {
        Val(i as u32)
    }

    /// The shape of a value.
    pub fn value(&self, v: Val) -> Value {
        self.nodes[v.index()].value
    }

    /// Columns of a value.
    pub fn width(&self, v: Val) -> usize {
        self.value(v).width
    }

    /// Columns of the result: the vocabulary, in a whole model.
    pub fn output_width(&self) -> usize {
        self.nodes.last().map_or(0, |n| n.value.width)
    }

    /// The same model up to the input of its last matrix: the hidden state of each requested row. It declares the same
    /// weights. `None` without such a matrix.
    pub fn hidden(&self) -> Option<Graph> {
        let head = self.nodes.iter().rev().find_map(|n| match n.op {
            Op::Linear { x, .. } => Some(x),
            _ => None,
        })?;
        let mut graph = self.clone();
        graph.nodes.truncate(head.index() + 1);
        graph.value(head).outputs_only.then_some(graph)
    }

    /// The keys that any reader of a KV layer sees, one entry per layer: the largest window, or `None` if one sees all.
    pub fn windows(&self) -> Vec<Option<usize>> {
        let mut windows = vec![Some(0); self.kv.len()];
        for node in &self.nodes {
            if let Op::Attend { layer, args, .. } = &node.op {
                let window = args.window.filter(|_| args.causal); // other windows hold later keys too
                windows[*layer] = windows[*layer].zip(window).map(|(a, b)| a.max(b));
            }
        }
        windows
    }

    /// The largest window of the layers that have one; `None` if all see all keys.
    pub fn window(&self) -> Option<usize> {
        self.windows().into_iter().flatten().max()
    }

    /// The layers with a window, which may have their own pages.
    pub fn window_layers(&self) -> Vec<usize> {
        let windows = self.windows().into_iter().enumerate();
        windows.filter_map(|(layer, window)| window.map(|_| layer)).collect()
    }

    /// Rows of the embedding table: token ids must be below. Without one they have no effect.
    pub fn vocab(&self) -> usize {
        let tables = self.nodes.iter().filter_map(|n| match n.op {
            Op::Embed { table, .. } => Some(self.weight(table).rows),
            _ => None,
        });
        tables.min().unwrap_or(usize::MAX)
    }

    /// See [`Op::Embed`].
    pub fn embed(&mut self, table: WeightId, scale: f32) -> Val {
        let Weight { cols: width, rotation, .. } = *self.weight(table);
        let x = self.push(Op::Embed { table, scale }, Value { width, outputs_only: false });
        match rotation {
            Some(rotation) => self.push(Op::Rotate { x, rotation, inverse: true }, self.value(x)),
            None => x,
        }
    }

    /// What the sequences of a step must be like.
    pub fn sequence_rules(&self) -> SequenceRules {
        let tables = self.nodes.iter().filter_map(|n| match n.op {
            Op::AddRow { table, row: TableRow::Position, .. } => Some(self.weight(table).rows),
            _ => None,
        });
        let mut ops = self.nodes.iter().map(|n| &n.op);
        let whole = ops.any(|op| match op {
            Op::Attend { args, .. } => !args.causal,
            op => matches!(op, Op::Means { .. } | Op::Conv { layer: None, .. }),
        });
        SequenceRules { positions: tables.min(), whole, adapters: self.adapters() }
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

    /// See [`Op::Rope`].
    pub fn rope(&mut self, x: Val, head_dim: usize, style: RopeStyle, table: usize) -> Result<Val> {
        self.check_tokens("rope", x)?;
        let pairs = self.ropes[table].freqs.len();
        if head_dim == 0 || !self.width(x).is_multiple_of(head_dim) || pairs * 2 > head_dim {
            return fail(format!(
                "rope of {} dimensions on heads of {head_dim} in a value of {}",
                pairs * 2,
                self.width(x)
            ));
        }
        Ok(self.push(Op::Rope { x, head_dim, style, table }, self.value(x)))
    }

    /// See [`Op::Attend`]. Opens a new KV layer.
    pub fn attend(&mut self, q: Val, k: Val, v: Val, args: Attention) -> Result<Val> {
        self.attend_with(q, k, v, args, None)
    }

    /// See [`Op::Attend`]. Opens a new KV layer.
    pub fn attend_with(
        &mut self,
        q: Val,
        k: Val,
        v: Val,
        args: Attention,
        sinks: Option<WeightId>,
    ) -> Result<Val> {
        self.check_heads("q", q, args.heads * args.head_dim)?;
        self.check_heads("k", k, args.kv_heads * args.head_dim)?;
        self.check_heads("v", v, args.kv_heads * args.v_dim)?;
        self.check_attention(&args)?;
        self.check_vector(sinks, args.heads)?;
        let layer = self.kv_layer_of(&args);
        let value = Value { width: args.heads * args.v_dim, outputs_only: false };
        Ok(self.push(Op::Attend { q, kv: Some(KeysAndValues { k, v }), layer, args, sinks }, value))
    }

    /// A new KV layer. Attentions that are not causal keep nothing for later steps: those of one shape share a layer.
    fn kv_layer_of(&mut self, args: &Attention) -> usize {
        let kept = args.kv_layer();
        let shared = |layer: usize| {
            let nodes = self.nodes.iter();
            let mut readers = nodes.filter_map(|n| match &n.op {
                Op::Attend { layer: of, args, .. } if *of == layer => Some(args),
                _ => None,
            });
            self.kv[layer] == kept && readers.all(|args| !args.causal)
        };
        if let Some(layer) = (0..self.kv.len()).find(|layer| !args.causal && shared(*layer)) {
            return layer;
        }
        self.kv.push(kept);
        self.kv.len() - 1
    }

    /// See [`Op::Attend`]. Attends to the keys and values of a KV layer that an earlier node stores.
    pub fn attend_to(&mut self, q: Val, layer: usize, args: Attention) -> Result<Val> {
        self.check_heads("q", q, args.heads * args.head_dim)?;
        self.check_attention(&args)?;
        let (layers, kept) = (self.kv.len(), args.kv_layer());
        match self.kv.get(layer) {
            None => return fail(format!("attend: KV layer {layer} of {layers}")),
            Some(kv) if *kv != kept => {
                return fail(format!("attend: want {kept}, KV layer {layer} has {kv}"));
            }
            Some(_) => {}
        }
        let value = Value { width: args.heads * args.v_dim, outputs_only: false };
        Ok(self.push(Op::Attend { q, kv: None, layer, args, sinks: None }, value))
    }

    fn check_attention(&self, args: &Attention) -> Result<()> {
        if args.alibi.is_some() && (args.causal || args.softcap.is_some()) {
            return fail("attend: slopes are for attention that is not causal and has no soft cap".into());
        }
        if args.kv_heads == 0 || !args.heads.is_multiple_of(args.kv_heads) {
            return fail(format!(
                "attend: {} heads are not a multiple of {} kv heads",
                args.heads, args.kv_heads
            ));
        }
        if args.temperature.is_some_and(|t| t.length == 0) {
            return fail("attend: a temperature that grows every 0 positions".into());
        }
        Ok(())
    }

    fn check_heads(&self, name: &str, value: Val, width: usize) -> Result<()> {
        self.check_tokens("attend", value)?;
        if self.width(value) != width {
            return fail(format!("attend: want {name} of {width} columns, got {}", self.width(value)));
        }
        Ok(())
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

    /// Columns of each input of a step, by index.
    pub fn input_widths(&self) -> Vec<usize> {
        let mut widths = vec![];
        for node in &self.nodes {
            if let Op::Input { index } = node.op {
                widths.resize(widths.len().max(index + 1), 0);
                widths[index] = node.value.width;
            }
        }
        widths
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

pub(crate) fn fail<T>(text: String) -> Result<T> {
    Err(GraphError::Mismatch(text))
}
