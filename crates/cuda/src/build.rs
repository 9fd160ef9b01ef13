//! From the nodes of a graph to the launches that compute them.

use std::sync::Arc;

use tern_graph::{Activation, BackendError, Graph, NormKind, Op, RopeStyle, Val, WeightId};

use crate::args::{
    AttendArgs, ColumnsArgs, ElementArgs, EmbedArgs, EmbedFloatArgs, LinearArgs, LinearFloatArgs, NormArgs,
    OutputsArgs, RopeArgs,
};
use crate::compiler::{Compiler, Source};
use crate::driver::{Device, Memory};
use crate::layout::{Layout, TILE};
use crate::linear::{LinearKernel, defines};
use crate::program::{Kv, Launch, Sizes};
use crate::weight::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// Everything at hand while a graph is compiled.
pub(crate) struct Builder<'a> {
    pub(crate) graph: &'a Graph,
    /// Where each node's value is.
    pub(crate) slots: Vec<u64>,
    pub(crate) weights: &'a [Arc<Weight>],
    pub(crate) tables: Vec<u64>,
    pub(crate) kv: Option<&'a Kv>,
    pub(crate) inputs: u64,
    pub(crate) device: &'a Arc<Device>,
    pub(crate) compiler: &'a mut Compiler,
    pub(crate) max_tokens: usize,
    pub(crate) launches: Vec<Launch>,
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

    pub(crate) fn node(&mut self, i: usize) -> Result<()> {
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
                let (facts, sizes) = (&self.device.facts, (shape.rows, chunks));
                let mut kernel = |columns| LinearKernel::new(self.compiler, facts, layout, sizes, columns);
                let few = kernel(1)?;
                let many = if self.max_tokens > 8 { Some(kernel(4)?) } else { None };
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
}
