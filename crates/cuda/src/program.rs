//! A graph made ready: its kernels, its values in device memory, and the launches of a step in order.

use std::collections::HashMap;
use std::sync::Arc;

use tern_graph::{BackendError, Graph, KvLayer, Output, OutputRow, Plan, Sample, Sampled, Step, StepOutput};

use crate::args::ArgmaxArgs;
use crate::build::Builder;
use crate::compiler::{Compiler, Source};
use crate::driver::{Device, Kernel, Memory, Recording};
use crate::weight::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// Steps of at most so many tokens are recorded and replayed.
const RECORDED: usize = 8;

/// KV pages on the device.
pub(crate) struct Kv {
    pub(crate) layers: Vec<KvLayer>,
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    /// Keys and values of each layer: `[page][kv_head][page_len][dim]` halves.
    pub(crate) memory: Vec<(Memory, Memory)>,
}

/// What one launch depends on in a step.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
}

impl Sizes {
    pub(crate) fn rows(self, outputs_only: bool) -> usize {
        if outputs_only { self.outputs } else { self.tokens }
    }
}

/// One kernel of a step.
pub(crate) type Launch = Box<dyn Fn(Sizes) -> Result<()> + Send>;

/// A compiled graph.
pub(crate) struct Compiled {
    device: Arc<Device>,
    launches: Vec<Launch>,
    recordings: HashMap<(usize, usize), Recording>,
    /// Step inputs: six offsets, then token ids, positions, slices, output rows and page tables.
    inputs: Memory,
    slots: Vec<Memory>,
    /// The slot of the last node.
    result: usize,
    width: usize,
    outputs_only: bool,
    argmax: Kernel,
    best: Memory,
    pub(crate) vocab: usize,
    pub(crate) kv: Option<Arc<Kv>>,
    pub(crate) max_tokens: usize,
    pub(crate) max_outputs: usize,
    /// Kernels point into them.
    _weights: Vec<Arc<Weight>>,
    _tables: Vec<Memory>,
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
        let last =
            graph.nodes.len().checked_sub(1).ok_or_else(|| BackendError("the graph is empty".into()))?;
        let plan = Plan::new(graph);
        let slots = (0..plan.width.len())
            .map(|s| device.allocate(plan.room(s, max_tokens, max_outputs) * 4))
            .collect::<Result<Vec<_>>>()?;
        let pages = kv.as_ref().map_or(0, |kv| kv.pages);
        let inputs = device.allocate((HEADER + 3 * max_tokens + max_outputs + max_tokens * pages) * 4)?;
        let tables =
            graph.ropes.iter().map(|t| device.upload(&floats(&t.freqs))).collect::<Result<Vec<_>>>()?;
        let argmax = compiler.kernel(Source::Ops, "argmax", &[])?;
        let mut builder = Builder {
            graph,
            slots: plan.slot.iter().map(|&s| slots[s].pointer()).collect(),
            weights,
            tables: tables.iter().map(Memory::pointer).collect(),
            kv: kv.as_deref(),
            inputs: inputs.pointer(),
            device,
            compiler,
            max_tokens,
            launches: vec![],
        };
        (0..graph.nodes.len()).try_for_each(|i| builder.node(i))?;
        let launches = builder.launches;
        let value = graph.nodes[last].value;
        Ok(Compiled {
            device: Arc::clone(device),
            launches,
            recordings: HashMap::new(),
            inputs,
            result: plan.slot[last],
            slots,
            width: value.width,
            outputs_only: value.outputs_only,
            argmax,
            best: device.allocate(max_outputs.max(max_tokens) * 4)?,
            vocab: graph.vocab(),
            kv,
            max_tokens,
            max_outputs,
            _weights: weights.to_vec(),
            _tables: tables,
        })
    }

    /// Computes a step and gives back what it asks for.
    pub(crate) fn run(&mut self, step: &Step) -> Result<StepOutput> {
        let sizes = Sizes { tokens: step.tokens.len(), outputs: step.outputs.len() };
        self.inputs.write(0, &words(&pack(step)))?;
        let key = (sizes.tokens, sizes.outputs);
        if sizes.tokens > RECORDED {
            self.launch(sizes)?;
        } else if let Some(recording) = self.recordings.get(&key) {
            recording.replay()?;
        } else {
            let recording = self.device.record(|| self.launch(sizes))?;
            recording.replay()?;
            self.recordings.insert(key, recording);
        }
        self.answer(step, sizes.rows(self.outputs_only))
    }

    fn launch(&self, sizes: Sizes) -> Result<()> {
        self.launches.iter().try_for_each(|launch| launch(sizes))?;
        let rows = sizes.rows(self.outputs_only);
        if rows == 0 {
            return Ok(());
        }
        let logits = self.slots[self.result].pointer();
        let args = ArgmaxArgs { logits, best: self.best.pointer(), width: self.width as i32 };
        // SAFETY: the struct is the kernel's, and the result has so many rows.
        unsafe { self.argmax.launch((rows, 1), 1024, &args) }
    }

    /// Brings back the best tokens where that is all that is wanted, and whole rows otherwise.
    fn answer(&self, step: &Step, rows: usize) -> Result<StepOutput> {
        if step.outputs.iter().all(wants_the_best) {
            let mut bytes = vec![0; rows * 4];
            self.best.read(0, &mut bytes)?;
            let best = bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let rows = step.outputs.iter().zip(best).map(|(output, best)| {
                let id = u32::try_from(best).ok().filter(|_| output.sample.is_some());
                OutputRow { sampled: id.map(|id| Sampled { id, ..Sampled::default() }), logits: None }
            });
            return Ok(StepOutput { rows: rows.collect() });
        }
        let mut bytes = vec![0; rows * self.width * 4];
        self.slots[self.result].read(0, &mut bytes)?;
        let logits: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(step.answer(logits.chunks_exact(self.width)))
    }
}

/// Nothing but the best token: no draw, no logits, nothing that changes them.
fn wants_the_best(output: &Output) -> bool {
    let plain = |s: &Sample| {
        let greedy = s.temperature <= 0.0 || s.top_k == 1;
        greedy && s.bias.is_empty() && s.seen.is_empty() && s.mask.is_none() && s.logprobs.is_none()
    };
    !output.logits && output.sample.as_ref().is_none_or(plain)
}

/// Words before the arrays: where each of them begins, and how many pages a slice has in its table.
const HEADER: usize = 8;

/// The inputs of a step in one piece.
fn pack(step: &Step) -> Vec<u32> {
    let (tokens, outputs) = (step.tokens.len(), step.outputs.len());
    let stride = step.slices.iter().map(|s| s.pages.len()).max().unwrap_or(0);
    let starts =
        [HEADER, HEADER + tokens, HEADER + 2 * tokens, HEADER + 3 * tokens, HEADER + 3 * tokens + outputs];
    let mut out: Vec<u32> = starts.iter().map(|&at| at as u32).collect();
    out.extend([stride as u32, 0, 0]);
    out.extend(&step.tokens);
    out.extend(step.positions().map(|p| p as u32));
    out.extend((0..).zip(&step.slices).flat_map(|(i, s)| std::iter::repeat_n(i, s.len)));
    out.extend(step.outputs.iter().map(|o| o.row as u32));
    for slice in &step.slices {
        out.extend(&slice.pages);
        out.extend(std::iter::repeat_n(0, stride - slice.pages.len()));
    }
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn floats(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}
