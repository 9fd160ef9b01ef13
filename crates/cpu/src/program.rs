//! A compiled graph: the kernel of each op, the memory of each value, and the phases between barriers.

use std::collections::HashMap;
use std::sync::Arc;

use tern_graph::{Graph, HostTensor, Op, Plan, Role, RopeTable, WeightId};
use tern_quant::INT_BLOCK;

use crate::activations::quantized_rows::{QuantizedRowsBuffer, Rounding};
use crate::activations::token_tiles::{MAX_TILE_TOKENS, TokenTilesBuffer};
use crate::attention::attend_plan::PartialResults;
use crate::attention::kv::Kv;
use crate::dot::{LinearKernel, Packed};
use crate::kernels::{Kernels, QuantizeTiles, Tiles};
use crate::memory::lines::Refused;
use crate::memory::shared::Shared;
use crate::memory::value_memory::{SlotSize, ValueMemory};
use crate::phases::{Chain, Cut, Link, Work, phases, plan};
use crate::state::State;
use crate::weight::Weight;

/// Largest number of columns that share a scale; the columns a thread takes at a time are a multiple of it.
pub(crate) const MAX_SPAN: usize = 128;

/// A compiled graph and its memory.
pub(crate) struct Compiled {
    pub(crate) graph: Graph,
    /// Phases of a step, by whether it has many tokens and many outputs.
    phases: [[Vec<Vec<Chain>>; 2]; 2],
    weights: Vec<Weight>,
    /// Vectors (norms, biases, scales) decoded once.
    pub(crate) vectors: HashMap<WeightId, Vec<f32>>,
    /// The kernel of each linear node.
    pub(crate) kernels: Vec<Option<LinearKernel>>,
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) state: Option<Arc<State>>,
    pub(crate) max_tokens: usize,
    pub(crate) max_outputs: usize,
    /// Columns of each input of a step.
    pub(crate) input_widths: Vec<usize>,
    /// Columns of the rows of images.
    pub(crate) image_width: usize,
    plan: Plan,
    memory: Arc<ValueMemory>,
    /// How each node's value is quantized, if a linear reads it as integers.
    pub(crate) roundings: Vec<Option<Rounding>>,
    /// How the rows that experts gather from each node's value are quantized.
    pub(crate) gathered: Vec<Option<Rounding>>,
    /// `None` if the instruction set has no kernels for tiles of tokens.
    tiles: Option<Tiles>,
    pub(crate) rotations: Vec<Shared<f32>>,
}

/// What the steps of a program write to.
pub(crate) struct Memory {
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) state: Option<Arc<State>>,
}

/// The largest step of a program.
#[derive(Clone, Copy)]
pub(crate) struct StepSize {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
}

impl Compiled {
    pub(crate) fn new(
        graph: &Graph,
        weights: Vec<Weight>,
        Memory { kv, state }: Memory,
        StepSize { tokens: max_tokens, outputs: max_outputs }: StepSize,
        kernels: &Kernels,
        others: &[Compiled],
    ) -> Result<Compiled, Refused> {
        let [roundings, gathered] = [false, true].map(|experts| roundings(graph, &weights, experts));
        let phases = phases(graph, &roundings);
        let plan = plan(graph, &phases);
        let mut needs = vec![false; plan.width.len()];
        roundings
            .iter()
            .zip(&plan.slot)
            .filter(|(r, _)| r.is_some())
            .for_each(|(_, slot)| needs[*slot] = true);
        let [(few, few_outputs), (many, many_outputs)] =
            rows_in_integers(kernels.tiles, max_tokens, max_outputs);
        let quantized = |s: usize| [plan.room(s, few, few_outputs), plan.room(s, many, many_outputs)];
        let sizes = needs.iter().enumerate().map(|(s, needs)| SlotSize {
            floats: plan.room(s, max_tokens, max_outputs),
            quantized: needs.then(|| quantized(s)),
        });
        let memory = ValueMemory::of(sizes.collect(), others.iter().map(|other| &other.memory))?;
        let whole_tiles = matches!(kernels.tiles, Some(Tiles { quantize: QuantizeTiles::Whole(_), .. }));
        let phases = |many: [bool; 2]| with_ints(graph, &phases, &roundings, many.map(|m| m && whole_tiles));
        let phases = [false, true].map(|tokens| [false, true].map(|outputs| phases([tokens, outputs])));
        let turns = |t: &RopeTable| Shared::new(max_tokens * t.freqs.len() * 2);
        Ok(Compiled {
            phases,
            vectors: vectors(graph, &weights),
            kernels: linear_kernels(graph, &weights),
            memory,
            roundings,
            gathered,
            tiles: kernels.tiles,
            rotations: graph.ropes.iter().map(turns).collect::<Result<_, _>>()?,
            input_widths: graph.input_widths(),
            image_width: graph.image_width(),
            graph: graph.clone(),
            weights,
            kv,
            state,
            max_tokens,
            max_outputs,
            plan,
        })
    }

    /// Bytes of values, quantized activations (as if every slot had them), rotations and
    /// partial results of attention.
    pub(crate) fn scratch(graph: &Graph, max_tokens: usize, max_outputs: usize, kernels: &Kernels) -> u64 {
        let plan = plan(graph, &phases(graph, &vec![None; graph.nodes.len()]));
        let most = rows_in_integers(kernels.tiles, max_tokens, max_outputs);
        let [few, many] = most.map(|(tokens, outputs)| plan.bytes(tokens, outputs) / 4);
        let turns: usize = graph.ropes.iter().map(|t| max_tokens * t.freqs.len() * 2).sum();
        let values = plan.bytes(max_tokens, max_outputs);
        (values
            + QuantizedRowsBuffer::bytes(few)
            + TokenTilesBuffer::bytes(many)
            + turns * 4
            + PartialResults::bytes(graph)) as u64
    }

    /// Whether this number of rows is quantized in tiles.
    pub(crate) fn is_many(&self, rows: usize) -> bool {
        self.tiles.is_some_and(|t| rows >= t.from)
    }

    /// The first node that a step could not run, if any.
    pub(crate) fn unsupported(&self) -> Option<usize> {
        let chains = self.phases.iter().flatten().flatten().flatten();
        let mut links = chains.flat_map(|chain| chain.links.iter().map(|link| (chain.cut, *link)));
        links.find(|(cut, link)| !self.can_run(*cut, *link)).map(|(_, link)| link.node)
    }

    /// Whether `run` has an implementation of this work, cut in this way.
    fn can_run(&self, cut: Cut, link: Link) -> bool {
        let quantizes = self.ints(link.node).is_some() && self.roundings[link.node].is_some();
        let runs = match (link.work, &self.graph.nodes[link.node].op, cut) {
            (Work::Rotations(_), _, Cut::Alone) => true,
            (Work::QuantizeTiles, _, Cut::Alone) => {
                quantizes && matches!(self.tiles, Some(Tiles { quantize: QuantizeTiles::Whole(_), .. }))
            }
            (Work::Quantize, _, Cut::Rows | Cut::Runs(_)) => quantizes,
            (Work::StoreKv, Op::Attend { kv: Some(_), .. }, Cut::Rows | Cut::Runs(_)) => self.kv.is_some(),
            (Work::Compute, Op::Attend { .. }, Cut::Alone) => self.kv.is_some(),
            (Work::Compute, Op::Conv { layer: None, .. }, Cut::Alone) => true,
            (Work::Compute, Op::Conv { .. } | Op::Delta { .. } | Op::Scan { .. }, Cut::Alone) => {
                self.state.is_some()
            }
            (Work::Compute, Op::Rotate { rotation, inverse: true, .. }, _)
                if self.graph.rotations[*rotation].heads.is_some() =>
            {
                false
            }
            (Work::Compute, Op::Linear { x, .. }, Cut::Columns) => match self.kernels[link.node] {
                Some(kernel) => kernel.reads_floats() || self.ints(x.index()).is_some(),
                None => false,
            },
            (Work::Compute, Op::ExpertLinear { .. }, Cut::Experts { .. }) => {
                self.kernels[link.node].is_some()
            }
            (
                Work::Compute,
                Op::Linear { .. }
                | Op::ExpertLinear { .. }
                | Op::Attend { .. }
                | Op::Conv { .. }
                | Op::Delta { .. }
                | Op::Scan { .. }
                | Op::HostExperts { .. },
                _,
            ) => false,
            (Work::Compute, _, Cut::Columns | Cut::Experts { .. } | Cut::Rows | Cut::Runs(_)) => true,
            (_, _, Cut::Alone | Cut::Columns | Cut::Experts { .. } | Cut::Rows | Cut::Runs(_)) => false,
        };
        runs && (quantizes || !link.with_ints)
    }

    /// Cuts the chains of a node in a way that its op may not have.
    #[cfg(test)]
    pub(crate) fn run_alone(&mut self, node: usize) {
        let chains = self.phases.iter_mut().flatten().flatten().flatten();
        chains.filter(|chain| chain.links[0].node == node).for_each(|chain| chain.cut = Cut::Alone);
    }

    /// The phases of a step with this number of tokens and outputs.
    pub(crate) fn phases(&self, tokens: usize, outputs: usize) -> &[Vec<Chain>] {
        &self.phases[usize::from(self.is_many(tokens))][usize::from(self.is_many(outputs))]
    }

    /// The memory of a node's value.
    pub(crate) fn value(&self, node: usize) -> &Shared<f32> {
        self.memory.floats(self.plan.slot[node])
    }

    /// The quantized activations of a node's value: of few rows, and of many.
    pub(crate) fn ints(&self, node: usize) -> Option<&(QuantizedRowsBuffer, TokenTilesBuffer)> {
        self.memory.quantized(self.plan.slot[node])
    }

    /// A weight by id.
    pub(crate) fn weight(&self, id: WeightId) -> &HostTensor {
        &self.weights[id.index()].tensor
    }

    /// The panels of a weight, if it was packed when it was stored.
    pub(crate) fn packed(&self, id: WeightId) -> Option<&Packed> {
        self.weights[id.index()].packed.as_deref()
    }

    /// A decoded vector.
    pub(crate) fn vector(&self, id: WeightId) -> &[f32] {
        self.vectors.get(&id).map_or(&[], Vec::as_slice)
    }
}

/// Tokens and outputs that the buffers for few rows and for many rows hold.
fn rows_in_integers(tiles: Option<Tiles>, tokens: usize, outputs: usize) -> [(usize, usize); 2] {
    let Some(Tiles { from, .. }) = tiles else { return [(tokens, outputs), (0, 0)] };
    let pad = |n: usize| n.next_multiple_of(MAX_TILE_TOKENS);
    [(tokens.min(from), outputs.min(from)), (pad(tokens), pad(outputs))]
}

/// How each value is quantized: the widest span and the fewest bits that suit all linears that read it, or
/// all linears of experts, which gather their rows and quantize them apart.
fn roundings(graph: &Graph, weights: &[Weight], experts: bool) -> Vec<Option<Rounding>> {
    let mut roundings = vec![None; graph.nodes.len()];
    for node in &graph.nodes {
        let (x, weight) = match node.op {
            Op::Linear { x, weight, .. } if !experts => (x, weight),
            Op::ExpertLinear { x, weight, .. } if experts => (x, weight),
            _ => continue,
        };
        let tensor = &weights[weight.index()].tensor;
        let Some(codes) = tensor.quant().codes() else { continue };
        // groups smaller than a block of activations are multiplied into the codes if their scales are
        // integers; offsets are added for each block
        let large = codes.group > INT_BLOCK && !codes.offsets;
        let shared = large || codes.group < INT_BLOCK && codes.integer_scales;
        // a row is a whole number of spans: 128, 64 or 32
        let whole = 1 << tensor.cols().trailing_zeros();
        let span = if shared { MAX_SPAN.min(whole) } else { INT_BLOCK };
        let low = codes.activation_bits - 8;
        let other = roundings[x.index()].unwrap_or(Rounding { span, low });
        // short activations only if all readers allow them
        let low = if low == 8 || other.low == 8 { 8 } else { low.min(other.low) };
        roundings[x.index()] = Some(Rounding { span: span.max(other.span), low });
    }
    roundings
}

fn vectors(graph: &Graph, weights: &[Weight]) -> HashMap<WeightId, Vec<f32>> {
    let wanted = graph.nodes.iter().flat_map(|node| node.op.weights());
    let wanted = wanted.filter(|(_, role)| *role == Role::Vector);
    let mut vectors: HashMap<_, _> =
        wanted.map(|(id, _)| (id, weights[id.index()].tensor.to_f32())).collect();
    for node in &graph.nodes {
        let Op::Conv { weight, .. } = node.op else { continue };
        // taps of adjacent columns side by side: [taps, width]
        let (rows, taps) = (graph.weight(weight).rows, graph.weight(weight).cols);
        let by_column = weights[weight.index()].tensor.to_f32();
        let by_tap = (0..taps).flat_map(|tap| (0..rows).map(move |row| row * taps + tap));
        vectors.insert(weight, by_tap.map(|i| by_column[i]).collect());
    }
    vectors
}

fn linear_kernels(graph: &Graph, weights: &[Weight]) -> Vec<Option<LinearKernel>> {
    let linear = |node: &tern_graph::Node| match node.op {
        Op::Linear { weight, .. } | Op::ExpertLinear { weight, .. } => weights[weight.index()].kernel,
        _ => None,
    };
    graph.nodes.iter().map(linear).collect()
}

/// Whether an op quantizes its result itself, which requires that one thread finishes whole spans of columns.
fn quantizes_its_value(op: &Op, span: usize) -> bool {
    match op {
        Op::Attend { args, .. } => args.v_dim.is_multiple_of(span),
        Op::Linear { .. } | Op::ExpertLinear { .. } => false,
        Op::Conv { .. } | Op::Delta { .. } | Op::Scan { .. } => false,
        _ => true,
    }
}

/// The phases with quantization: by the op that computes a value, or in a separate phase. `in_tiles` says for
/// tokens and for outputs whether rows are quantized in tiles, which need all of a tile's tokens.
fn with_ints(
    graph: &Graph,
    phases: &[Vec<Chain>],
    roundings: &[Option<Rounding>],
    in_tiles: [bool; 2],
) -> Vec<Vec<Chain>> {
    let mut all = vec![];
    for phase in phases {
        let (mut chains, mut later) = (phase.clone(), vec![]);
        let links = chains.iter_mut().flat_map(|c| c.links.iter_mut().map(|link| (c.cut, link)));
        for (cut, link) in links.filter(|(_, link)| link.work == Work::Compute) {
            let (node, Some(rounding)) = (&graph.nodes[link.node], roundings[link.node]) else { continue };
            let in_tiles = in_tiles[usize::from(node.value.outputs_only)];
            let whole_spans =
                !matches!(cut, Cut::Experts { .. }) && quantizes_its_value(&node.op, rounding.span);
            link.with_ints = !in_tiles && whole_spans;
            let (work, cut) = match (link.with_ints, in_tiles) {
                (true, _) => continue,
                (false, true) => (Work::QuantizeTiles, Cut::Alone),
                (false, false) => (Work::Quantize, Cut::Rows),
            };
            later.push(Chain { links: vec![Link { work, ..*link }], cut });
        }
        all.extend([chains, later].into_iter().filter(|phase| !phase.is_empty()));
    }
    all
}
