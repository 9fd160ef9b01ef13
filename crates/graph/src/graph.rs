//! A model as a list of ops, with checked shapes and a printable form.

mod adapters;
mod attention;
mod builder;
mod linear_inputs;
mod plan;
mod print;
mod recurrent;
mod role;
mod rotation;
mod subgraph;

use std::collections::HashMap;

use crate::op::{ImageOrder, Op, TableRow, Val, WeightId};
use crate::{KvLayer, StateLayer};

pub use adapters::{AdaptedLinear, AdapterScales, AdapterSet};
pub use linear_inputs::{LinearInput, LinearInputs};
pub use plan::{Plan, Work};
pub use recurrent::{
    DeltaRule, DeltaWeights, KeyHeads, MAX_TAPS, ScanWeights, SelectiveScan, sigmoid, softplus,
};
pub use role::{Role, Roles};
pub use rotation::{Basis, HeadOrder, Rotation};
pub(crate) use subgraph::{KeptLayer, Subgraph};

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
    /// Which part of a position each pair turns by ([`crate::Images::turns`]): 0 along the sequence, 1 the
    /// row and 2 the column in an image. Empty: all along the sequence.
    pub parts: Vec<u8>,
}

impl RopeTable {
    /// A table whose pairs all turn by the position along the sequence.
    pub fn new(freqs: Vec<f32>, magnitude: f32) -> RopeTable {
        RopeTable { freqs, magnitude, parts: vec![] }
    }

    /// The angle of a pair, by the parts of a position.
    pub fn angle(&self, pair: usize, turns: [usize; 3]) -> f32 {
        turns[self.parts.get(pair).map_or(0, |part| usize::from(*part))] as f32 * self.freqs[pair]
    }
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

    /// The same model up to the input of its last matrix: the hidden state of each requested row. It declares
    /// the same weights. `None` without such a matrix.
    pub fn hidden(&self) -> Option<Graph> {
        let head = self.nodes.iter().rev().find_map(|n| match n.op {
            Op::Linear { x, .. } => Some(x),
            _ => None,
        })?;
        let mut graph = self.clone();
        graph.nodes.truncate(head.index() + 1);
        graph.value(head).outputs_only.then_some(graph)
    }

    /// The keys that any reader of a KV layer sees, one entry per layer: the largest window,
    /// or `None` if one sees all.
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

    /// Whether all tokens of an image must be in one step: they see each other.
    pub fn keeps_images_whole(&self) -> bool {
        self.nodes
            .iter()
            .any(|n| matches!(&n.op, Op::Attend { args, .. } if args.images == ImageOrder::Whole))
    }

    /// Columns that the rows of images must have at least; 0 if the graph takes no images.
    pub fn image_width(&self) -> usize {
        let ends = self.nodes.iter().filter_map(|n| match n.op {
            Op::ImageRows { start, .. } => Some(start + n.value.width),
            _ => None,
        });
        ends.max().unwrap_or(0)
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
}

pub(crate) fn fail<T>(text: String) -> Result<T> {
    Err(GraphError::Mismatch(text))
}
