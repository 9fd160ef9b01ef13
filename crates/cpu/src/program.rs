//! A graph made ready: which kernel each op uses, where values live, and where threads must wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tern_graph::{Graph, HostTensor, Op, Plan, Val, WeightId};
use tern_quant::{Codec, DotWith, INT_BLOCK};

use crate::backend::Weight;
use crate::dot::{LinearKernel, Packed};
use crate::ints::{IntsBuffer, Rounding};
use crate::kernels::{Kernels, QuantizeTiles, Tiles};
use crate::kv::Kv;
use crate::lanes::{LanesBuffer, MAX_LANES};
use crate::shared::Shared;

/// Most columns that share a scale; pieces that threads take are multiples of it.
pub(crate) const MAX_SPAN: usize = 128;

/// What a thread does at one place of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Sines and cosines of the step's positions for one rotary table.
    Rotations(usize),
    /// Keys and values of an attention into their pages.
    StoreKv,
    /// The node's op.
    Compute,
    /// Integer activations of the node's value, where the op could not make them on the way.
    Quantize,
    /// Integer activations of many tokens, in tiles.
    QuantizeTiles,
}

/// One piece of work for all threads.
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) node: usize,
    /// Threads meet before it: it needs what was just made, or overwrites what was just read.
    pub(crate) barrier: bool,
    /// The op leaves integer activations beside its value.
    pub(crate) with_ints: bool,
}

/// A compiled graph with its memory.
pub(crate) struct Compiled {
    pub(crate) graph: Graph,
    /// Tasks of a step with few or many tokens, and few or many outputs.
    tasks: [[Vec<Task>; 2]; 2],
    /// Items of each task that threads have taken.
    pub(crate) taken: Vec<AtomicUsize>,
    weights: Vec<Weight>,
    /// Vectors (norms, biases, scales) decoded once.
    pub(crate) vectors: HashMap<WeightId, Vec<f32>>,
    /// The kernel of each linear node.
    pub(crate) kernels: Vec<Option<LinearKernel>>,
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) max_tokens: usize,
    pub(crate) max_outputs: usize,
    plan: Plan,
    values: Vec<Shared<f32>>,
    /// Integer activations of few rows, and of many.
    ints: Vec<Option<(IntsBuffer, LanesBuffer)>>,
    /// How each node's value is rounded to integers, where one wants them.
    pub(crate) roundings: Vec<Option<Rounding>>,
    /// Where there are kernels for many rows.
    tiles: Option<Tiles>,
    pub(crate) rotations: Vec<Shared<f32>>,
}

impl Compiled {
    pub(crate) fn new(
        graph: &Graph,
        weights: Vec<Weight>,
        kv: Option<Arc<Kv>>,
        (max_tokens, max_outputs): (usize, usize),
        kernels: &Kernels,
    ) -> Compiled {
        let plan = Plan::new(graph);
        let roundings = roundings(graph, &weights);
        let mut needs = vec![false; plan.width.len()];
        roundings
            .iter()
            .zip(&plan.slot)
            .filter(|(r, _)| r.is_some())
            .for_each(|(_, slot)| needs[*slot] = true);
        let room = |s: usize| plan.room(s, max_tokens, max_outputs);
        let ints = |s: usize| {
            let [(few, outputs), (many, many_outputs)] =
                rows_in_integers(kernels.tiles, (max_tokens, max_outputs));
            let few = IntsBuffer::new(plan.room(s, few, outputs));
            (few, LanesBuffer::new(plan.room(s, many, many_outputs)))
        };
        let tasks =
            [false, true].map(|t| [false, true].map(|o| tasks(graph, &plan, &roundings, [t, o], kernels)));
        let longest = tasks.iter().flatten().map(Vec::len).max().unwrap_or(0);
        Compiled {
            taken: (0..longest).map(|_| AtomicUsize::new(0)).collect(),
            tasks,
            vectors: vectors(graph, &weights),
            kernels: linear_kernels(graph, &weights, kernels),
            values: (0..needs.len()).map(|s| Shared::new(room(s))).collect(),
            ints: (0..needs.len()).map(|s| needs[s].then(|| ints(s))).collect(),
            roundings,
            tiles: kernels.tiles,
            rotations: graph.ropes.iter().map(|t| Shared::new(max_tokens * t.freqs.len() * 2)).collect(),
            graph: graph.clone(),
            weights,
            kv,
            max_tokens,
            max_outputs,
            plan,
        }
    }

    /// Bytes of values, of their integers (as if every slot had them) and of rotations.
    pub(crate) fn scratch(graph: &Graph, max_tokens: usize, max_outputs: usize, kernels: &Kernels) -> u64 {
        let plan = Plan::new(graph);
        let most = rows_in_integers(kernels.tiles, (max_tokens, max_outputs));
        let [few, many] = most.map(|(tokens, outputs)| plan.bytes(tokens, outputs) / 4);
        let turns: usize = graph.ropes.iter().map(|t| max_tokens * t.freqs.len() * 2).sum();
        let values = plan.bytes(max_tokens, max_outputs);
        (values + IntsBuffer::bytes(few) + LanesBuffer::bytes(many) + turns * 4) as u64
    }

    /// Whether so many rows become tiles.
    pub(crate) fn is_many(&self, rows: usize) -> bool {
        self.tiles.is_some_and(|t| rows >= t.from)
    }

    /// What threads do in a step of so many tokens and outputs.
    pub(crate) fn tasks(&self, tokens: usize, outputs: usize) -> &[Task] {
        &self.tasks[usize::from(self.is_many(tokens))][usize::from(self.is_many(outputs))]
    }

    /// The memory of a node's value.
    pub(crate) fn value(&self, node: usize) -> &Shared<f32> {
        &self.values[self.plan.slot[node]]
    }

    /// The integer activations of a node's value: of few rows, or of many.
    pub(crate) fn ints(&self, node: usize) -> Option<&(IntsBuffer, LanesBuffer)> {
        self.ints[self.plan.slot[node]].as_ref()
    }

    /// A weight by id.
    pub(crate) fn weight(&self, id: WeightId) -> &HostTensor {
        &self.weights[id.index()].tensor
    }

    /// Its panels.
    pub(crate) fn packed(&self, id: WeightId) -> Option<&Packed> {
        self.weights[id.index()].packed.as_deref()
    }

    /// A decoded vector.
    pub(crate) fn vector(&self, id: WeightId) -> &[f32] {
        self.vectors.get(&id).map_or(&[], Vec::as_slice)
    }
}

/// Most tokens and outputs that are kept as few, and as many.
fn rows_in_integers(tiles: Option<Tiles>, (tokens, outputs): (usize, usize)) -> [(usize, usize); 2] {
    let Some(Tiles { from, .. }) = tiles else { return [(tokens, outputs), (0, 0)] };
    let pad = |n: usize| n.next_multiple_of(MAX_LANES);
    [(tokens.min(from), outputs.min(from)), (pad(tokens), pad(outputs))]
}

/// Formats whose codes leave room for so many bits of the activations' low plane beside them: one product takes both
/// planes then, and sums of four activations fit 16 bits.
const ROOM: [(&str, u32); 4] = [("Q1_0", 6), ("Q4_0", 4), ("Q4_1", 4), ("Q4_K", 4)];

/// How each value becomes integers: with one scale for more columns where weights do so, too, and with a low plane
/// that its weights have room for.
fn roundings(graph: &Graph, weights: &[Weight]) -> Vec<Option<Rounding>> {
    let mut roundings = vec![None; graph.nodes.len()];
    for node in &graph.nodes {
        let Op::Linear { x, weight, .. } = node.op else { continue };
        let tensor = &weights[weight.index()].tensor;
        if tensor.quant.dot_with != DotWith::Ints {
            continue;
        }
        let wanted = match tensor.quant.codec {
            Codec::Codes { group, .. } if group > INT_BLOCK => MAX_SPAN,
            _ => INT_BLOCK,
        };
        // a span ends where the row does: 128, 64 or 32
        let whole = 1 << tensor.cols.trailing_zeros();
        let low = ROOM.iter().find(|(name, _)| *name == tensor.quant.name).map_or(8, |(_, low)| *low);
        let span = wanted.min(whole);
        let other = roundings[x.index()].unwrap_or(Rounding { span, low });
        // all of them must have the room
        let low = if low == 8 || other.low == 8 { 8 } else { low.min(other.low) };
        roundings[x.index()] = Some(Rounding { span: span.max(other.span), low });
    }
    roundings
}

fn vectors(graph: &Graph, weights: &[Weight]) -> HashMap<WeightId, Vec<f32>> {
    let mut wanted = vec![];
    for node in &graph.nodes {
        match node.op {
            Op::Norm { weight, bias, .. } => wanted.extend([Some(weight), bias]),
            Op::Linear { scale, bias, .. } => wanted.extend([scale, bias]),
            _ => {}
        }
    }
    wanted.into_iter().flatten().map(|id| (id, weights[id.index()].tensor.to_f32())).collect()
}

fn linear_kernels(graph: &Graph, weights: &[Weight], kernels: &Kernels) -> Vec<Option<LinearKernel>> {
    let linear = |node: &tern_graph::Node| match node.op {
        Op::Linear { weight, .. } => Some((kernels.linear)(weights[weight.index()].tensor.quant)),
        _ => None,
    };
    graph.nodes.iter().map(linear).collect()
}

/// Ops that finish whole spans of columns on one thread can quantise them at once.
fn quantizes_on_the_way(op: &Op, span: usize) -> bool {
    match op {
        Op::Attend { args, .. } => args.v_dim.is_multiple_of(span),
        Op::Norm { .. } | Op::Gated { .. } | Op::Add { .. } | Op::Embed { .. } => true,
        _ => false,
    }
}

/// The tasks in order, with barriers only where memory demands them, for few or many tokens and outputs.
fn tasks(
    graph: &Graph,
    plan: &Plan,
    roundings: &[Option<Rounding>],
    many: [bool; 2],
    kernels: &Kernels,
) -> Vec<Task> {
    let whole_tiles = matches!(kernels.tiles, Some(Tiles { quantize: QuantizeTiles::Whole(_), .. }));
    // places: value slots, then KV, then one rotary table each
    let (kv, rope) = (plan.width.len(), plan.width.len() + 1);
    let mut tasks: Vec<Task> = vec![];
    let (mut written, mut read): (Vec<usize>, Vec<usize>) = (vec![], vec![]);
    let mut push = |work: Work, node: usize, with_ints: bool, reads: Vec<usize>, writes: usize| {
        let barrier =
            reads.iter().any(|r| written.contains(r)) || written.contains(&writes) || read.contains(&writes);
        if barrier {
            written.clear();
            read.clear();
        }
        read.extend(reads);
        written.push(writes);
        tasks.push(Task { work, node, barrier, with_ints });
    };
    for table in 0..graph.ropes.len() {
        push(Work::Rotations(table), 0, false, vec![], rope + table);
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        let slot = |v: &Val| plan.slot[v.index()];
        let mut reads: Vec<usize> = node.op.inputs().iter().map(slot).collect();
        match &node.op {
            Op::Attend { k, v, .. } => {
                push(Work::StoreKv, i, false, vec![slot(k), slot(v)], kv);
                reads.push(kv);
            }
            Op::Rope { table, .. } => reads.push(rope + table),
            _ => {}
        }
        let in_tiles = whole_tiles && many[usize::from(node.value.outputs_only)];
        let on_the_way = !in_tiles && roundings[i].is_some_and(|r| quantizes_on_the_way(&node.op, r.span));
        push(Work::Compute, i, on_the_way, reads, plan.slot[i]);
        if roundings[i].is_some() && !on_the_way {
            let work = if in_tiles { Work::QuantizeTiles } else { Work::Quantize };
            push(work, i, false, vec![plan.slot[i]], plan.slot[i]);
        }
    }
    tasks
}
