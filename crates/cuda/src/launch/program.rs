//! A graph made ready: its phases, its values in device memory, and how a step goes through them.

use std::sync::Arc;

use tern_graph::{BackendError, Graph, KvLayer, Output, OutputRow, Plan, Sampled, Step, StepOutput, Value};

use super::fused_step::{Few, StepOf};
use super::phase_launches::Many;
use crate::driver::{Compiler, Device, Event, Memory, Pinned, Source};
use crate::lower::fuse::{self, Fused};
use crate::lower::{AttentionShape, Best, Exchange, Lowering, Scratch};
use crate::sampling::{Chooser, is_plain};
use crate::shared::{
    CARRIED_BIT, IDS_AT, INPUTS_HEADER, MOST_TOKENS, OUTPUT_ROWS_AT, OUTPUTS, PAGES_AT, POSITIONS_AT,
    SLICES_AT, TABLE_STRIDE, TOKENS,
};
use crate::weights::{Layout, Weight};

type Result<T> = std::result::Result<T, BackendError>;

/// KV pages on the device.
pub(crate) struct Kv {
    pub(crate) layers: Vec<KvLayer>,
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    /// Keys and values of each layer: `[page][kv_head][page_len][dim]` halves.
    pub(crate) memory: Vec<(Memory, Memory)>,
}

/// What kernels are compiled for.
#[derive(Clone, Debug)]
pub(crate) struct Kinds {
    pub(crate) formats: Vec<Layout>,
    pub(crate) shapes: Vec<AttentionShape>,
    pub(crate) page_len: usize,
}

impl Kinds {
    pub(crate) fn offset_sums(&self) -> bool {
        self.formats.iter().any(|f| f.offsets)
    }

    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let formats = self.formats.iter().enumerate();
        let formats =
            formats.map(|(i, f)| format!("X({i}, {}, {}, {}, {})", f.bits, f.low, f.group, f.offsets));
        let shapes = self.shapes.iter().enumerate().filter(|(_, s)| s.head_dim % 8 == 0 && s.v_dim % 8 == 0);
        let shapes = shapes.map(|(i, s)| s.text(i));
        vec![
            ("FORMATS(X)", formats.collect::<Vec<_>>().join(" ")),
            ("ATTENTIONS(X)", shapes.collect::<Vec<_>>().join(" ")),
            ("PAGE_LEN", self.page_len.max(1).to_string()),
            ("OFFSET_SUMS", self.offset_sums().to_string()),
        ]
    }
}

/// A compiled graph.
pub(crate) struct Compiled {
    /// Steps of up to four tokens go through it; none where the device or the model does not allow it.
    few: Vec<Few>,
    many: Option<Many>,
    inputs: Memory,
    /// The rows of the last node.
    result: Memory,
    value: Value,
    /// The last step's choices, from which the next one may take its tokens.
    chosen: Memory,
    chooser: Option<Chooser>,
    /// Which outputs of the last step were asked for a token.
    sampled: Vec<bool>,
    /// Not under way at the moment.
    flights: Vec<Flight>,
    device: Arc<Device>,
    pub(crate) vocab: usize,
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) max_tokens: usize,
    pub(crate) max_outputs: usize,
    /// Phases point into them.
    _kept: Vec<Memory>,
    _weights: Vec<Arc<Weight>>,
}

/// Bytes of scratch beside the values' slots, for steps of so many tokens.
pub(crate) fn scratch_bytes(graph: &Graph, tokens: usize) -> usize {
    let widest = graph.weights.iter().map(|w| w.cols).max().unwrap_or(0);
    let queries = graph.nodes.iter().filter_map(|n| match &n.op {
        tern_graph::Op::Attend { args, .. } => Some(args.heads * args.head_dim),
        _ => None,
    });
    let x = Many::x_bytes(Layout::chunks(widest), tokens);
    let handed: usize = graph.nodes.iter().map(|n| n.value.width).sum(); // at most; for one token and for four
    x + queries.max().unwrap_or(0) * tokens * 4 + handed * (1 + MOST_TOKENS) * 4
}

impl Compiled {
    pub(crate) fn new(
        device: &Arc<Device>,
        compiler: &mut Compiler,
        graph: &Graph,
        weights: &[Arc<Weight>],
        kv: Option<Arc<Kv>>,
        (max_tokens, max_outputs): (usize, usize),
    ) -> Result<Compiled> {
        let last = graph
            .nodes
            .len()
            .checked_sub(1)
            .ok_or_else(|| BackendError::Invalid("the graph is empty".into()))?;
        let fused = fuse::fuse(graph, |id| match &*weights[id.index()] {
            Weight::Codes { layout, .. } => Some(*layout),
            Weight::Floats { .. } => None,
        });
        let work: Vec<_> = fused.iter().map(|phase| fuse::work(graph, phase)).collect();
        let plan = Plan::of(graph, &work);
        let rows = max_outputs.max(1);
        let mut slots = (0..plan.width.len())
            .map(|s| device.allocate(plan.room(s, max_tokens, max_outputs) * 4))
            .collect::<Result<Vec<_>>>()?;
        let pages = kv.as_ref().map_or(0, |kv| kv.pages);
        let inputs =
            device.allocate((INPUTS_HEADER + 3 * max_tokens + max_outputs + max_tokens * pages) * 4)?;
        let tables =
            graph.ropes.iter().map(|t| device.upload(&floats(&t.freqs))).collect::<Result<Vec<_>>>()?;
        let blocks = device.facts.processors;
        let chosen = device.allocate(rows.max(max_tokens) * 4)?;
        let (ready, partial, arrivals) = attention_scratch(&fused, blocks, max_tokens);
        let kept = [ready, partial, arrivals].map(|bytes| device.allocate(bytes));
        let [ready, partial, arrivals] = kept;
        let (ready, partial, arrivals) = (ready?, partial?, arrivals?);
        let scratch = Scratch {
            ready: ready.pointer(),
            partial: partial.pointer(),
            arrivals: arrivals.pointer(),
            chosen: chosen.pointer(),
        };
        let mut lowering = Lowering {
            graph,
            plan: &plan,
            slots: slots.iter().map(Memory::pointer).collect(),
            weights,
            tables: tables.iter().map(Memory::pointer).collect(),
            kv: kv.as_deref(),
            scratch,
            exchange: None,
            formats: vec![],
            shapes: vec![],
        };
        let value = graph.nodes[last].value;
        let bests = device.allocate(rows * blocks * 4)?;
        let places = device.allocate(rows * blocks * 4)?;
        let best = Best { values: bests.pointer(), places: places.pointer() };
        let best = value.outputs_only.then_some(best);
        let phases = lowering.phases(&fused, best)?;
        let kinds = Kinds {
            formats: lowering.formats.clone(),
            shapes: lowering.shapes.clone(),
            page_len: kv.as_ref().map_or(0, |kv| kv.page_len),
        };
        let ropes: Vec<(u64, usize)> =
            tables.iter().map(Memory::pointer).zip(graph.ropes.iter().map(|t| t.freqs.len())).collect();
        let mut few = vec![];
        let exchange = Exchange::of(graph, &fused, &work, &plan);
        for tokens in Few::sizes(device, &kinds, &phases, &ropes, max_tokens) {
            let handed = device.allocate(exchange.bytes(tokens))?;
            lowering.exchange = Some((&exchange, handed.pointer(), tokens));
            let phases = lowering.phases(&fused, best)?;
            let step =
                StepOf { phases: &phases, waits: &exchange.waits, ropes: &ropes, inputs: inputs.pointer() };
            match Few::new(device, compiler, &kinds, &step, tokens, handed)? {
                Some(program) => few.push(program),
                None => break,
            }
        }
        let most = few.last().map_or(0, Few::most_tokens);
        let many = if max_tokens > most {
            Some(Many::new(device, compiler.module(Source::Many, &kinds.defines())?, &phases, max_tokens)?)
        } else {
            None
        };
        let mut kept = vec![ready, partial, arrivals, bests, places];
        kept.extend(tables);
        let result = slots.swap_remove(plan.slot[last]);
        kept.extend(slots);
        let chooser = if value.outputs_only {
            Some(Chooser::new(device, compiler, max_outputs, value.width)?)
        } else {
            None
        };
        Ok(Compiled {
            chooser,
            sampled: vec![],
            flights: vec![],
            device: Arc::clone(device),
            few,
            many,
            inputs,
            result,
            value,
            chosen,
            vocab: graph.vocab(),
            kv,
            max_tokens,
            max_outputs,
            _kept: kept,
            _weights: weights.to_vec(),
        })
    }

    /// Starts a step.
    pub(crate) fn submit(&mut self, step: &Step) -> Result<Underway> {
        step.check_carried(&self.sampled)?;
        let (tokens, outputs) = (step.tokens.len(), step.outputs.len());
        let mut flight = match self.flights.pop() {
            Some(flight) => flight,
            None => Flight::new(&self.device, self.inputs.len(), self.chosen.len())?,
        };
        let words = pack(step);
        for (to, word) in flight.inputs.bytes().chunks_exact_mut(4).zip(&words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.inputs.write_pinned(0, &flight.inputs, words.len() * 4)?;
        let few = self.few.iter_mut().find(|few| tokens <= few.most_tokens() && outputs <= few.most_tokens());
        match (few, &self.many) {
            (Some(few), _) => few.launch(tokens)?,
            (None, Some(many)) => many.launch(self.inputs.pointer(), tokens, outputs)?,
            (None, None) => {
                return Err(BackendError::Invalid(format!("no program for steps of {tokens} tokens")));
            }
        }
        self.sampled = step.outputs.iter().map(|o| o.sample.is_some()).collect();
        if step.outputs.iter().any(wants_logits) {
            let answer = self.with_logits(step)?;
            self.flights.push(flight);
            return Ok(Underway::Done(answer));
        }
        let plain = |o: &Output| o.sample.as_ref().is_none_or(is_plain);
        if !step.outputs.iter().all(plain)
            && let Some(chooser) = &mut self.chooser
        {
            chooser.choose(step, self.result.pointer(), self.chosen.pointer())?;
        }
        self.chosen.read_pinned(&mut flight.chosen, outputs * 4)?;
        flight.done.record()?;
        Ok(Underway::Flying(flight, self.sampled.clone()))
    }

    /// Waits for a step.
    pub(crate) fn collect(&mut self, step: Underway) -> Result<StepOutput> {
        let (mut flight, sampled) = match step {
            Underway::Done(output) => return Ok(output),
            Underway::Flying(flight, sampled) => (flight, sampled),
        };
        flight.done.wait()?;
        let ids = flight.chosen.bytes().chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let rows = sampled.iter().zip(ids).map(|(sampled, id)| {
            let id = u32::try_from(id).ok().filter(|_| *sampled);
            OutputRow { sampled: id.map(|id| Sampled { id, ..Sampled::default() }), logits: None }
        });
        let output = StepOutput { rows: rows.collect() };
        self.flights.push(flight);
        Ok(output)
    }

    /// Brings whole rows back and chooses here; the next step may want the choices all the same.
    fn with_logits(&self, step: &Step) -> Result<StepOutput> {
        let width = self.value.width;
        let rows = if self.value.outputs_only { step.outputs.len() } else { step.tokens.len() };
        let mut bytes = vec![0; rows * width * 4];
        self.result.read(0, &mut bytes)?;
        let logits: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let output = step.answer(logits.chunks_exact(width));
        let ids = output.rows.iter().map(|row| row.sampled.as_ref().map_or(-1, |s| s.id as i32));
        let ids: Vec<u8> = ids.flat_map(i32::to_le_bytes).collect();
        self.chosen.write(0, &ids[..ids.len().min(self.chosen.len())])?;
        Ok(output)
    }
}

/// Host memory of one step under way: its inputs, what it chose, and the end of it.
pub(crate) struct Flight {
    inputs: Pinned,
    chosen: Pinned,
    done: Event,
}

impl Flight {
    fn new(device: &Arc<Device>, inputs: usize, chosen: usize) -> Result<Flight> {
        let (inputs, chosen) = (Pinned::new(device, inputs)?, Pinned::new(device, chosen)?);
        Ok(Flight { inputs, chosen, done: Event::new(device)? })
    }
}

/// A submitted step.
pub(crate) enum Underway {
    /// It had to be waited for.
    Done(StepOutput),
    /// With the outputs that were asked for a token.
    Flying(Flight, Vec<bool>),
}

/// Bytes for queries made ready, splits of attention, and their counters.
fn attention_scratch(fused: &[Fused], blocks: usize, max_tokens: usize) -> (usize, usize, usize) {
    let each = fused.iter().filter_map(|f| match f {
        Fused::Attend { args, .. } => {
            let shape = AttentionShape::of(args);
            let units = blocks.max(MOST_TOKENS * args.heads / shape.queries);
            let ready = args.heads * args.head_dim * max_tokens * 4;
            let partial = units * shape.partial() * 4;
            Some((ready, partial, MOST_TOKENS * args.heads * 4))
        }
        _ => None,
    });
    each.fold((0, 0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1), a.2.max(b.2)))
}

/// Log-probabilities are of whole rows, and computed on the host.
fn wants_logits(output: &Output) -> bool {
    output.logits || output.sample.as_ref().is_some_and(|s| s.params.logprobs.is_some())
}

/// The inputs of a step in one piece: the header, then its arrays.
fn pack(step: &Step) -> Vec<u32> {
    let (tokens, outputs) = (step.tokens.len(), step.outputs.len());
    let stride = step.slices.iter().map(|s| s.pages.len()).max().unwrap_or(0);
    let ids = INPUTS_HEADER;
    let mut out = vec![0; INPUTS_HEADER];
    out[IDS_AT] = ids as u32;
    out[POSITIONS_AT] = (ids + tokens) as u32;
    out[SLICES_AT] = (ids + 2 * tokens) as u32;
    out[OUTPUT_ROWS_AT] = (ids + 3 * tokens) as u32;
    out[PAGES_AT] = (ids + 3 * tokens + outputs) as u32;
    (out[TABLE_STRIDE], out[TOKENS], out[OUTPUTS]) = (stride as u32, tokens as u32, outputs as u32);
    out.extend(&step.tokens);
    for carried in &step.carried {
        out[ids + carried.token] = 1 << CARRIED_BIT | carried.output as u32;
    }
    out.extend(step.positions().map(|p| p as u32));
    out.extend((0..).zip(&step.slices).flat_map(|(i, s)| std::iter::repeat_n(i, s.len)));
    out.extend(step.outputs.iter().map(|o| o.row as u32));
    for slice in &step.slices {
        out.extend(&*slice.pages);
        out.extend(std::iter::repeat_n(0, stride - slice.pages.len()));
    }
    out
}

fn floats(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}
