//! A graph made ready: its kernels, its values in device memory, and the launches of a step in order.

use std::collections::HashMap;
use std::sync::Arc;

use tern_graph::{
    Activation, BackendError, Graph, KvLayer, NormKind, Op, Output, OutputRow, Plan, RopeStyle, Sample,
    Sampled, Step, StepOutput, Val, WeightId,
};

use crate::compiler::{Compiler, Source};
use crate::driver::{Device, Kernel, Memory, Recording};
use crate::layout::{Layout, TILE};
use crate::weight::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// Activations are taken this much smaller into halves, so that the largest outliers fit.
const X_SCALE: f32 = 1.0 / 64.0;
/// Warps of a block of the linear kernel.
const WARPS: usize = 8;
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
struct Sizes {
    tokens: usize,
    outputs: usize,
}

impl Sizes {
    fn rows(self, outputs_only: bool) -> usize {
        if outputs_only { self.outputs } else { self.tokens }
    }
}

type Launch = Box<dyn Fn(Sizes) -> Result<()> + Send>;

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

#[repr(C)]
struct ArgmaxArgs {
    logits: u64,
    best: u64,
    width: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LinearArgs {
    codes: u64,
    high: u64,
    scales: u64,
    offsets: u64,
    x: u64,
    bias: u64,
    factor: u64,
    y: u64,
    weight_factor: f32,
    tokens: i32,
    cols: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LinearFloatArgs {
    w: u64,
    x: u64,
    bias: u64,
    factor: u64,
    y: u64,
    rows: i32,
    cols: i32,
    tokens: i32,
    kind: i32,
}

#[repr(C)]
struct EmbedArgs {
    codes: u64,
    high: u64,
    scales: u64,
    offsets: u64,
    inputs: u64,
    y: u64,
    factor: f32,
    cols: i32,
}

#[repr(C)]
struct EmbedFloatArgs {
    table: u64,
    inputs: u64,
    y: u64,
    factor: f32,
    cols: i32,
    kind: i32,
}

#[repr(C)]
struct NormArgs {
    x: u64,
    weight: u64,
    bias: u64,
    y: u64,
    eps: f32,
    group: i32,
    layer: i32,
}

#[repr(C)]
struct RopeArgs {
    x: u64,
    freqs: u64,
    inputs: u64,
    y: u64,
    magnitude: f32,
    width: i32,
    head_dim: i32,
    pairs: i32,
    interleaved: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementArgs {
    a: u64,
    b: u64,
    y: u64,
    count: i64,
    by: f32,
    what: i32,
}

#[repr(C)]
struct ColumnsArgs {
    x: u64,
    y: u64,
    width: i32,
    start: i32,
    len: i32,
}

#[repr(C)]
struct OutputsArgs {
    x: u64,
    inputs: u64,
    y: u64,
    width: i32,
}

#[repr(C)]
struct AttendArgs {
    q: u64,
    k: u64,
    v: u64,
    inputs: u64,
    keys: u64,
    values: u64,
    y: u64,
    scale: f32,
    softcap: f32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    v_dim: i32,
    page_len: i32,
    window: i32,
}

/// Everything at hand while a graph is compiled.
struct Builder<'a> {
    graph: &'a Graph,
    /// Where each node's value is.
    slots: Vec<u64>,
    weights: &'a [Arc<Weight>],
    tables: Vec<u64>,
    kv: Option<&'a Kv>,
    inputs: u64,
    device: &'a Arc<Device>,
    compiler: &'a mut Compiler,
    max_tokens: usize,
    launches: Vec<Launch>,
}

/// Adds a launch whose argument does not depend on the step: `grid` gives its blocks.
macro_rules! fixed {
    ($self:ident, $name:literal, $threads:expr, $args:expr, $grid:expr) => {{
        let kernel = $self.compiler.kernel(Source::Ops, $name, &[])?;
        let (args, threads, grid) = ($args, $threads, $grid);
        // SAFETY: the struct has the kernel's fields, and values have as many rows as the step has.
        $self.launches.push(Box::new(move |sizes| unsafe { kernel.launch(grid(sizes), threads, &args) }));
    }};
}

impl Builder<'_> {
    fn at(&self, v: Val) -> u64 {
        self.slots[v.index()]
    }

    fn weight(&self, id: WeightId) -> &Arc<Weight> {
        &self.weights[id.index()]
    }

    /// A vector of floats, or nothing.
    fn vector(&self, id: Option<WeightId>) -> Result<u64> {
        let Some(id) = id else { return Ok(0) };
        let name = &self.graph.weight(id).name;
        self.weight(id).vector().ok_or_else(|| BackendError(format!("{name}: want a vector of floats")))
    }

    fn node(&mut self, i: usize) -> Result<()> {
        let node = &self.graph.nodes[i];
        let (y, value) = (self.slots[i], node.value);
        let rows = move |sizes: Sizes| sizes.rows(value.outputs_only);
        let width = value.width;
        match node.op.clone() {
            Op::Embed { table, scale } => self.embed(table, scale, y, width)?,
            Op::Norm { x, weight, bias, eps, kind } => {
                let group = self.graph.weight(weight).cols;
                let args = NormArgs {
                    x: self.at(x),
                    weight: self.vector(Some(weight))?,
                    bias: self.vector(bias)?,
                    y,
                    eps,
                    group: group as i32,
                    layer: i32::from(kind == NormKind::Layer),
                };
                let threads = group.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
                fixed!(self, "normalise", threads, args, move |s| (rows(s) * width / group, 1));
            }
            Op::Linear { x, weight, scale, bias } => {
                self.linear(x, weight, (scale, bias), (y, value.outputs_only))?
            }
            Op::Rope { x, head_dim, style, table } => {
                let rope = &self.graph.ropes[table];
                let args = RopeArgs {
                    x: self.at(x),
                    freqs: self.tables[table],
                    inputs: self.inputs,
                    y,
                    magnitude: rope.magnitude,
                    width: width as i32,
                    head_dim: head_dim as i32,
                    pairs: rope.freqs.len() as i32,
                    interleaved: i32::from(style == RopeStyle::Interleaved),
                };
                fixed!(self, "rope", 256, args, move |s| (rows(s), 1));
            }
            Op::Attend { q, k, v, layer, args } => {
                let Some(kv) = self.kv else { return Err(BackendError("attention without KV pages".into())) };
                if args.head_dim.max(args.v_dim) > 256 {
                    return Err(BackendError(format!(
                        "attend: heads of {} columns, at most 256",
                        args.head_dim
                    )));
                }
                let make = || AttendArgs {
                    q: self.at(q),
                    k: self.at(k),
                    v: self.at(v),
                    inputs: self.inputs,
                    keys: kv.memory[layer].0.pointer(),
                    values: kv.memory[layer].1.pointer(),
                    y,
                    scale: args.scale,
                    softcap: args.softcap.unwrap_or(0.0),
                    heads: args.heads as i32,
                    kv_heads: args.kv_heads as i32,
                    head_dim: args.head_dim as i32,
                    v_dim: args.v_dim as i32,
                    page_len: kv.page_len as i32,
                    window: args.window.unwrap_or(0) as i32,
                };
                let (store, attend, heads) = (make(), make(), args.heads);
                fixed!(self, "store_kv", 256, store, move |s| (rows(s), 1));
                fixed!(self, "attend", 128, attend, move |s| (rows(s), heads));
            }
            Op::Gated { gate, up, act } => {
                let what = match act {
                    Activation::Silu => 0,
                    Activation::GeluTanh => 1,
                    Activation::Relu2 => 2,
                };
                self.elements((self.at(gate), self.at(up)), (y, value), (what, 0.0))?;
            }
            Op::Add { a, b } => self.elements((self.at(a), self.at(b)), (y, value), (3, 0.0))?,
            Op::Scale { x, by } => self.elements((self.at(x), 0), (y, value), (4, by))?,
            Op::SoftCap { x, cap } => self.elements((self.at(x), 0), (y, value), (5, cap))?,
            Op::Columns { x, start, len } => {
                let from = self.graph.width(x) as i32;
                let args =
                    ColumnsArgs { x: self.at(x), y, width: from, start: start as i32, len: len as i32 };
                fixed!(self, "columns", 256, args, move |s| (rows(s), 1));
            }
            Op::Outputs { x } => {
                let args = OutputsArgs { x: self.at(x), inputs: self.inputs, y, width: width as i32 };
                fixed!(self, "outputs", 256, args, move |s| (rows(s), 1));
            }
        }
        Ok(())
    }

    fn elements(
        &mut self,
        (a, b): (u64, u64),
        (y, value): (u64, tern_graph::Value),
        (what, by): (i32, f32),
    ) -> Result<()> {
        let kernel = self.compiler.kernel(Source::Ops, "elements", &[])?;
        self.launches.push(Box::new(move |sizes| {
            let count = sizes.rows(value.outputs_only) * value.width;
            let args = ElementArgs { a, b, y, count: count as i64, by, what };
            // SAFETY: the struct is the kernel's; all values have `count` numbers.
            unsafe { kernel.launch((count.div_ceil(256).clamp(1, 4096), 1), 256, &args) }
        }));
        Ok(())
    }

    fn embed(&mut self, table: WeightId, scale: f32, y: u64, width: usize) -> Result<()> {
        let weight = Arc::clone(self.weight(table));
        let (inputs, cols) = (self.inputs, width as i32);
        match &*weight {
            Weight::Floats { memory, kind } => {
                let args = EmbedFloatArgs {
                    table: memory.pointer(),
                    inputs,
                    y,
                    factor: scale,
                    cols,
                    kind: *kind as i32,
                };
                fixed!(self, "embed_float", 256, args, |s: Sizes| (s.tokens, 1));
            }
            Weight::Codes { layout, codes, high, scales, offsets, factor } => {
                let kernel =
                    self.compiler.kernel(Source::Embed, "embed", &defines(layout, Layout::chunks(width)))?;
                let at = |m: &Option<Memory>| m.as_ref().map_or(0, Memory::pointer);
                let (high, offsets) = (at(high), at(offsets));
                let (codes, scales, factor) = (codes.pointer(), scales.pointer(), scale * factor);
                let args = EmbedArgs { codes, high, scales, offsets, inputs, y, factor, cols };
                // SAFETY: the struct is the kernel's; token ids were checked against the table's rows.
                self.launches
                    .push(Box::new(move |sizes| unsafe { kernel.launch((sizes.tokens, 1), 256, &args) }));
            }
        }
        Ok(())
    }

    fn linear(
        &mut self,
        x: Val,
        weight: WeightId,
        (scale, bias): (Option<WeightId>, Option<WeightId>),
        (y, outputs_only): (u64, bool),
    ) -> Result<()> {
        let (shape, w) = (self.graph.weight(weight).clone(), Arc::clone(self.weight(weight)));
        let (x, factor, bias) = (self.at(x), self.vector(scale)?, self.vector(bias)?);
        let (rows, cols) = (shape.rows as i32, shape.cols as i32);
        match &*w {
            Weight::Floats { memory, kind } => {
                let kernel = self.compiler.kernel(Source::Ops, "linear_float", &[])?;
                let args = LinearFloatArgs {
                    w: memory.pointer(),
                    x,
                    bias,
                    factor,
                    y,
                    rows,
                    cols,
                    tokens: 0,
                    kind: *kind as i32,
                };
                self.launches.push(Box::new(move |sizes| {
                    let tokens = sizes.rows(outputs_only);
                    let args = LinearFloatArgs { tokens: tokens as i32, ..args };
                    // SAFETY: the struct is the kernel's; rows beyond the last are not computed.
                    unsafe { kernel.launch((shape.rows.div_ceil(8), tokens.div_ceil(8)), 256, &args) }
                }));
            }
            Weight::Codes { layout, codes, high, scales, offsets, factor: weight_factor } => {
                let chunks = Layout::chunks(shape.cols);
                let tiles = shape.rows.div_ceil(TILE);
                let at = |m: &Option<Memory>| m.as_ref().map_or(0, Memory::pointer);
                let args = LinearArgs {
                    codes: codes.pointer(),
                    high: at(high),
                    scales: scales.pointer(),
                    offsets: at(offsets),
                    x,
                    bias,
                    factor,
                    y,
                    weight_factor: *weight_factor,
                    tokens: 0,
                    cols,
                };
                let few = self.linear_kernel(layout, shape.rows, chunks, 1)?;
                let many = if self.max_tokens > 8 {
                    Some(self.linear_kernel(layout, shape.rows, chunks, 4)?)
                } else {
                    None
                };
                self.launches.push(Box::new(move |sizes| {
                    let tokens = sizes.rows(outputs_only);
                    if tokens == 0 {
                        return Ok(());
                    }
                    let kernel = many.as_ref().filter(|_| tokens > 8).unwrap_or(&few);
                    let args = LinearArgs { tokens: tokens as i32, ..args };
                    // SAFETY: the struct is the kernel's; what lies beyond the last row or token is not written.
                    unsafe { kernel.launch(tiles, tokens, &args) }
                }));
            }
        }
        Ok(())
    }

    /// The kernel for `columns * 8` tokens at a time, and how many tiles of rows its blocks take.
    fn linear_kernel(
        &mut self,
        layout: &Layout,
        rows: usize,
        chunks: usize,
        columns: usize,
    ) -> Result<LinearKernel> {
        let processors = self.device.facts.processors;
        let tiles = rows.div_ceil(TILE);
        let each = [4, 2].into_iter().find(|each| columns == 1 && tiles / each >= 2 * processors);
        let each = each.unwrap_or(if columns == 1 { 1 } else { 2 });
        let groups = layout.groups();
        let sums = if layout.offsets { 2 } else { 1 };
        let shared = |slice: usize| Shared {
            token: (slice * 64 + 16) * 4,
            starts: slice * groups * sums * columns * 8 * 4,
            // the shares of the warps use the same room in the end
            least: WARPS * each * TILE * columns * 8 * 4,
        };
        let room = self.device.facts.shared_memory.saturating_sub(1024);
        let fits = |slice: &usize| shared(*slice).bytes(columns * 8) <= room;
        let slice = (1..=chunks).rev().find(fits).unwrap_or(1);
        let shared = shared(slice);
        let all = linear_defines(layout, rows, chunks, columns, each, slice);
        let kernel = self.compiler.kernel(Source::Linear, "linear", &all)?;
        let kernel = kernel.with_shared_memory(shared.bytes(columns * 8))?;
        Ok(LinearKernel { kernel, tiles: each, columns: columns * 8, shared })
    }
}

/// A linear kernel and what its blocks take.
struct LinearKernel {
    kernel: Kernel,
    /// Tiles of rows.
    tiles: usize,
    /// Tokens.
    columns: usize,
    shared: Shared,
}

/// Shared memory of a linear kernel's block, in bytes.
#[derive(Clone, Copy)]
struct Shared {
    token: usize,
    starts: usize,
    least: usize,
}

impl Shared {
    fn bytes(self, tokens: usize) -> usize {
        (tokens * self.token + self.starts).max(self.least)
    }
}

impl LinearKernel {
    /// # Safety
    ///
    /// As for [`Kernel::launch`].
    unsafe fn launch(&self, tiles: usize, tokens: usize, args: &LinearArgs) -> Result<()> {
        let grid = (tiles.div_ceil(self.tiles), tokens.div_ceil(self.columns));
        let shared = self.shared.bytes(tokens.min(self.columns));
        // SAFETY: by the caller.
        unsafe { self.kernel.launch_with(grid, WARPS * 32, shared, args) }
    }
}

/// What a kernel that reads codes is compiled for.
pub(crate) fn defines(layout: &Layout, chunks: usize) -> Vec<(&'static str, String)> {
    vec![
        ("CHUNKS", chunks.to_string()),
        ("BITS", layout.bits.to_string()),
        ("HIGH", layout.high.to_string()),
        ("GROUP", layout.group.to_string()),
        ("OFFSETS", i32::from(layout.offsets).to_string()),
        ("ZERO", format!("{:?}f", layout.zero)),
    ]
}

/// What a linear kernel is compiled for: `columns * 8` tokens and `tiles` tiles a block, `slice` chunks of x at a time.
pub(crate) fn linear_defines(
    layout: &Layout,
    rows: usize,
    chunks: usize,
    columns: usize,
    tiles: usize,
    slice: usize,
) -> Vec<(&'static str, String)> {
    let mut all = defines(layout, chunks);
    all.extend([
        ("ROWS", rows.to_string()),
        ("TILES", tiles.to_string()),
        ("WARPS", WARPS.to_string()),
        ("COLUMNS", columns.to_string()),
        ("SLICE", slice.to_string()),
        ("XSCALE", format!("{X_SCALE:?}f")),
    ]);
    all
}
