//! The slow, obvious backend: f32 everywhere, one loop per op. All other backends are compared with it.

use std::sync::PoisonError;

use crate::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Finished, Graph, HostOpsHandle, HostRows,
    HostTensor, KeysAndValues, KvLayer, KvSize, NormKind, Op, Program, Reserve, Roles, RopeStyle, RopeTable,
    RoutingWorkspace, Slice, StateSpec, Step, StepOutput, TableRow, Ticket, Val, Value, sigmoid, softcap,
};

mod recurrent;

type Result<T> = std::result::Result<T, BackendError>;

/// The reference interpreter.
#[derive(Default)]
pub struct Reference {
    buffers: Vec<Stored>,
    programs: Vec<Compiled>,
    finished: Finished,
    host_ops: Option<HostOpsHandle>,
}

#[derive(Debug)]
enum Stored {
    Tensor(HostTensor),
    Kv(Kv),
    State(State),
}

#[derive(Debug)]
struct Compiled {
    graph: Graph,
    weights: Vec<Buffer>,
    kv: Option<Buffer>,
    state: Option<Buffer>,
}

/// Keys and values in f32. `[layer][page * page_len + slot][kv_heads * dim]`
#[derive(Clone, Debug, Default)]
struct Kv {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    /// Whether a layer has the page tables of the window. `[layer]`
    windowed: Vec<bool>,
    size: KvSize,
}

/// State in f32. `[layer][slot * floats]`
#[derive(Clone, Debug, Default)]
struct State {
    layers: Vec<Vec<f32>>,
    slots: usize,
}

impl Reference {
    /// A reference with nothing stored.
    pub fn new() -> Reference {
        Reference::default()
    }

    fn tensor(&self, b: Buffer) -> &HostTensor {
        match &self.buffers[b.0 as usize] {
            Stored::Tensor(t) => t,
            Stored::Kv(_) | Stored::State(_) => unreachable!("compile checked that weights are tensors"),
        }
    }

    fn buffer(&mut self, b: Option<Buffer>) -> Option<&mut Stored> {
        b.map(|b| &mut self.buffers[b.0 as usize])
    }

    fn on_host(&self, piece: usize, rows: HostRows<'_>, out: &mut [f32]) -> Result<()> {
        let Some(ops) = &self.host_ops else {
            return Err(BackendError::Invalid("host_experts: no ops of the host are set".into()));
        };
        ops.lock().unwrap_or_else(PoisonError::into_inner).compute(piece, rows, out)
    }

    fn run(&mut self, program: usize, step: &Step) -> Result<StepOutput> {
        let Compiled { kv: kv_buffer, state: state_buffer, .. } = self.programs[program];
        let (mut kv, mut state) = (Kv::default(), State::default());
        if let Some(Stored::Kv(stored)) = self.buffer(kv_buffer) {
            kv = std::mem::take(stored);
        }
        if let Some(Stored::State(stored)) = self.buffer(state_buffer) {
            state = std::mem::take(stored);
        }
        let result = self.run_with(program, step, &mut kv, &mut state);
        if let Some(Stored::Kv(stored)) = self.buffer(kv_buffer) {
            *stored = kv;
        }
        if let Some(Stored::State(stored)) = self.buffer(state_buffer) {
            *stored = state;
        }
        result
    }

    fn run_with(&self, program: usize, step: &Step, kv: &mut Kv, state: &mut State) -> Result<StepOutput> {
        let Compiled { graph, weights, .. } = &self.programs[program];
        let state_slots = (!graph.states.is_empty()).then_some(state.slots);
        step.check(graph.vocab(), kv.size, state_slots)?;
        step.check_inputs(&graph.input_widths())?;
        step.check_sequences(graph.sequence_rules())?;
        step.check_images(graph.image_width())?;
        let weight = |id: crate::WeightId| self.tensor(weights[id.index()]);
        let positions: Vec<usize> = step.positions().collect();
        let places = step.slices.iter().flat_map(|s| (s.position..s.position + s.len).map(move |p| (s, p)));
        let places: Vec<(&Slice, usize)> = places.collect();
        let mut values: Vec<Vec<f32>> = Vec::with_capacity(graph.nodes.len()); // [rows, width] each
        for node in &graph.nodes {
            let get = |v: Val| values[v.index()].as_slice();
            let width = |v: Val| graph.width(v);
            let out = match &node.op {
                Op::Embed { table, scale } => embed(weight(*table), &step.tokens, *scale),
                Op::AddRow { x, table, row } => {
                    let mut added = vec![0.0; width(*x)];
                    let mut out = get(*x).to_vec();
                    let tokens = positions.iter().zip(step.types());
                    for (out, (&position, kind)) in out.chunks_mut(width(*x)).zip(tokens) {
                        let row = match row {
                            TableRow::Position => position,
                            TableRow::First => 0,
                            TableRow::Type => kind,
                        };
                        weight(*table).decode_row(row, &mut added);
                        out.iter_mut().zip(&added).for_each(|(o, a)| *o += a);
                    }
                    out
                }
                Op::Apply { x, function } => get(*x).iter().map(|x| function.apply(*x)).collect(),
                Op::Norm { x, len, weight: w, bias, eps, kind } => {
                    let [w, bias] = [w, bias].map(|id| id.map(|id| weight(id).to_f32()));
                    let w = w.unwrap_or_else(|| vec![1.0; *len]);
                    let mut out = get(*x).to_vec();
                    for (i, g) in out.chunks_mut(*len).enumerate() {
                        let w = &w[i * len % w.len()..][..*len]; // one weight, or one per group
                        apply_norm(g, w, bias.as_deref(), *eps, *kind);
                    }
                    out
                }
                Op::Linear { x, weight: w, scale, bias } => {
                    let mut out = linear(get(*x), weight(*w));
                    let scale = scale.map_or(1.0, |s| weight(s).to_f32()[0]);
                    let bias = bias.map(|b| weight(b).to_f32());
                    for row in out.chunks_mut(node.value.width) {
                        for (i, y) in row.iter_mut().enumerate() {
                            *y = *y * scale + bias.as_ref().map_or(0.0, |b| b[i]);
                        }
                    }
                    out
                }
                Op::Rope { x, head_dim, style, table } => {
                    let mut out = get(*x).to_vec();
                    for (row, (slice, p)) in out.chunks_mut(width(*x)).zip(&places) {
                        let turns = slice.images.turns(*p);
                        row.chunks_mut(*head_dim)
                            .for_each(|h| apply_rope(h, turns, &graph.ropes[*table], *style));
                    }
                    out
                }
                Op::Attend { q, kv: new, layer, args, sinks } => {
                    let sinks = sinks.map(|s| weight(s).to_f32());
                    if let Some(KeysAndValues { k, v }) = new {
                        let (windowed, page_len) = (kv.windowed[*layer], kv.size.page_len);
                        let slots: Vec<usize> = slots(step, windowed, page_len).collect();
                        store(&slots, get(*k), width(*k), &mut kv.keys[*layer]);
                        store(&slots, get(*v), width(*v), &mut kv.values[*layer]);
                    }
                    attend(step, get(*q), kv, *layer, args, sinks.as_deref())
                }
                Op::Gated { gate, up, act } => {
                    get(*gate).iter().zip(get(*up)).map(|(g, u)| act.apply(*g, *u)).collect()
                }
                Op::Route { logits, bias, args } => {
                    let (bias, mut workspace) =
                        (bias.map(|b| weight(b).to_f32()), RoutingWorkspace::default());
                    let mut out = vec![0.0; positions.len() * node.value.width];
                    let rows = out.chunks_mut(node.value.width).zip(get(*logits).chunks(width(*logits)));
                    rows.for_each(|(out, x)| args.choose(x, bias.as_deref(), &mut workspace, out));
                    out
                }
                Op::ExpertLinear { x, route, weight: w, scale, bias } => {
                    let route = route.map(|r| (get(r), width(r)));
                    let (scale, bias) = (scale.map(|s| weight(s).to_f32()), bias.map(|b| weight(b).to_f32()));
                    let experts = graph.weight(*w).experts;
                    let mut out = expert_linear(get(*x), width(*x), weight(*w), experts, route);
                    let each = weight(*w).rows() / experts;
                    for (i, part) in out.chunks_mut(each).enumerate() {
                        let e = expert_of(i, experts, route);
                        for (j, y) in part.iter_mut().enumerate() {
                            *y = *y * scale.as_ref().map_or(1.0, |s| s[e])
                                + bias.as_ref().map_or(0.0, |b| b[e * each + j]);
                        }
                    }
                    out
                }
                Op::Mix { x, route } => {
                    let (used, each) = (width(*route) / 2, node.value.width);
                    let rows = get(*x).chunks(width(*x)).zip(get(*route).chunks(width(*route)));
                    rows.flat_map(|(x, route)| {
                        (0..each).map(move |i| (0..used).map(|j| route[used + j] * x[j * each + i]).sum())
                    })
                    .collect()
                }
                Op::Add { a, b } => get(*a).iter().zip(get(*b)).map(|(a, b)| a + b).collect(),
                Op::Scale { x, by } => get(*x).iter().map(|x| x * by).collect(),
                Op::ScaleColumns { x, by } => {
                    let by = weight(*by).to_f32();
                    get(*x).iter().zip(by.iter().cycle()).map(|(x, by)| x * by).collect()
                }
                Op::ScaleAdapters { x, rank } => {
                    let mut out = get(*x).to_vec();
                    let rows = step.row_adapters(node.value.outputs_only);
                    for (row, adapters) in out.chunks_mut(width(*x)).zip(rows) {
                        for (adapter, columns) in row.chunks_mut(*rank).enumerate() {
                            let scale = adapters.scale(adapter);
                            // not a product with 0, which would be NaN for values of other
                            // adapters that are not finite
                            columns.iter_mut().for_each(|x| *x = if scale == 0.0 { 0.0 } else { *x * scale });
                        }
                    }
                    out
                }
                Op::SoftCap { x, cap } => get(*x).iter().map(|x| softcap(*x, *cap)).collect(),
                Op::Columns { x, start, len } => {
                    get(*x).chunks(width(*x)).flat_map(|r| &r[*start..start + len]).copied().collect()
                }
                Op::HeadColumns { x, every, start, len } => {
                    get(*x).chunks(*every).flat_map(|h| &h[*start..start + len]).copied().collect()
                }
                Op::JoinHeads { a, b, heads } => {
                    let heads_of = |v: Val| get(v).chunks(width(v) / heads);
                    heads_of(*a).zip(heads_of(*b)).flat_map(|(a, b)| a.iter().chain(b)).copied().collect()
                }
                Op::Conv { x, weight: w, bias, layer, silu } => {
                    let [w, bias] = [Some(*w), *bias].map(|id| id.map(|id| weight(id).to_f32()));
                    let conv = recurrent::Conv { taps: w.unwrap_or_default(), bias, silu: *silu };
                    match layer {
                        Some(layer) => conv.run(&step.slices, get(*x), width(*x), &mut state.layers[*layer]),
                        None => conv.run_centred(&step.slices, get(*x), width(*x)),
                    }
                }
                Op::Delta { qkv, decay, beta, weights: w, layer, args } => {
                    let inputs = [get(*qkv), get(*decay), get(*beta)];
                    let weights = [w.rate, w.bias].map(|id| weight(id).to_f32());
                    recurrent::delta(&step.slices, inputs, &weights, args, &mut state.layers[*layer])
                }
                Op::Scan { xbc, dt, weights: w, layer, args } => {
                    let weights = [w.rate, w.bias, w.skip].map(|id| weight(id).to_f32());
                    let inputs = [get(*xbc), get(*dt)];
                    recurrent::scan(&step.slices, inputs, &weights, args, &mut state.layers[*layer])
                }
                Op::GateRows { x, gate } => {
                    let rows = get(*x).chunks(width(*x)).zip(get(*gate));
                    rows.flat_map(|(row, gate)| row.iter().map(|x| x * sigmoid(*gate))).collect()
                }
                Op::Rotate { x, rotation, inverse } => {
                    let (rotation, mut out) = (&graph.rotations[*rotation], get(*x).to_vec());
                    out.chunks_mut(rotation.width()).for_each(|group| rotation.apply(group, *inverse));
                    out
                }
                Op::Outputs { x } => {
                    let w = width(*x);
                    step.outputs.iter().flat_map(|o| &get(*x)[o.row * w..(o.row + 1) * w]).copied().collect()
                }
                Op::Input { index } => step.inputs[*index].clone(),
                Op::ImageRows { x, start, adds } => {
                    let mut out = get(*x).to_vec();
                    for (out, (slice, p)) in out.chunks_mut(width(*x)).zip(&places) {
                        let Some(row) = slice.images.row(*p).filter(|row| !row.is_empty()) else { continue };
                        let row = &row[*start..][..out.len()];
                        out.iter_mut().zip(row).for_each(|(o, r)| *o = if *adds { *o + r } else { *r });
                    }
                    out
                }
                Op::HostExperts { x, logits, piece } => {
                    let mut out = vec![0.0; positions.len() * node.value.width];
                    let rows = HostRows { tokens: positions.len(), x: get(*x), logits: get(*logits) };
                    self.on_host(*piece, rows, &mut out)?;
                    out
                }
                Op::Means { x } => {
                    let w = width(*x);
                    let mean = |row: usize| {
                        let count = positions[row] + 1; // sequences are whole
                        let rows = &get(*x)[(row + 1 - count) * w..(row + 1) * w];
                        (0..w).map(move |col| rows.iter().skip(col).step_by(w).sum::<f32>() / count as f32)
                    };
                    step.outputs.iter().flat_map(|o| mean(o.row)).collect()
                }
            };
            values.push(out);
        }
        let (last, node) = (values.last(), graph.nodes.last());
        let (Some(last), Some(node)) = (last, node) else { return Ok(StepOutput::default()) };
        Ok(step.answer(last.chunks(node.value.width)))
    }
}

fn embed(table: &HostTensor, tokens: &[u32], scale: f32) -> Vec<f32> {
    let mut out = vec![0.0; tokens.len() * table.cols()];
    for (row, &id) in out.chunks_mut(table.cols()).zip(tokens) {
        table.decode_row(id as usize, row);
        row.iter_mut().for_each(|x| *x *= scale);
    }
    out
}

/// Normalises one group in place.
fn apply_norm(x: &mut [f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, kind: NormKind) {
    let n = x.len() as f32;
    let mean = match kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().sum::<f32>() / n,
    };
    let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n;
    let scale = 1.0 / (var + eps).sqrt();
    for (i, v) in x.iter_mut().enumerate() {
        *v = (*v - mean) * scale * weight[i] + bias.map_or(0.0, |b| b[i]);
    }
}

/// Rotates one head in place.
fn apply_rope(head: &mut [f32], turns: [usize; 3], table: &RopeTable, style: RopeStyle) {
    let pairs = table.freqs.len();
    for i in 0..pairs {
        let (a, b) = match style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::Halves => (i, i + pairs),
        };
        let (sin, cos) = table.angle(i, turns).sin_cos();
        let (x, y) = (head[a], head[b]);
        head[a] = (x * cos - y * sin) * table.magnitude;
        head[b] = (x * sin + y * cos) * table.magnitude;
    }
}

/// `[tokens, cols] x [rows, cols]^T -> [tokens, rows]`; a weight row is decoded once for all tokens.
fn linear(x: &[f32], w: &HostTensor) -> Vec<f32> {
    let tokens = x.len() / w.cols();
    let mut out = vec![0.0; tokens * w.rows()];
    let mut row = vec![0.0; w.cols()];
    for r in 0..w.rows() {
        w.decode_row(r, &mut row);
        for (t, xs) in x.chunks(w.cols()).enumerate() {
            out[t * w.rows() + r] = dot(xs, &row);
        }
    }
    out
}

/// The expert of a part of a value, counted through all tokens: the one at its place if there is no route.
fn expert_of(part: usize, experts: usize, route: Option<(&[f32], usize)>) -> usize {
    match route {
        Some((route, width)) => route[part / (width / 2) * width + part % (width / 2)] as usize,
        None => part % experts,
    }
}

/// Each part of the tokens times its expert's rows; a weight row is decoded once for all of them.
fn expert_linear(
    x: &[f32],
    width: usize,
    w: &HostTensor,
    experts: usize,
    route: Option<(&[f32], usize)>,
) -> Vec<f32> {
    let (each, used) = (w.rows() / experts, route.map_or(experts, |(_, width)| width / 2));
    let parts = x.len() / width * used;
    let mut out = vec![0.0; parts * each];
    let mut row = vec![0.0; w.cols()];
    for r in 0..w.rows() {
        w.decode_row(r, &mut row);
        for part in (0..parts).filter(|part| expert_of(*part, experts, route) == r / each) {
            let at = if width == w.cols() { part / used } else { part };
            out[part * each + r % each] = dot(&x[at * w.cols()..][..w.cols()], &row);
        }
    }
    out
}

/// Eight running sums, so that a real model runs in reasonable time.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Where the tokens of a step are in a layer's pages.
fn slots(step: &Step, windowed: bool, page_len: usize) -> impl Iterator<Item = usize> {
    step.slices.iter().flat_map(move |slice| {
        let positions = slice.position..slice.position + slice.len;
        positions.map(move |p| slice.table(windowed)[p / page_len] as usize * page_len + p % page_len)
    })
}

/// Stores one row per token.
fn store(slots: &[usize], rows: &[f32], width: usize, to: &mut [f32]) {
    for (slot, row) in slots.iter().zip(rows.chunks(width)) {
        to[slot * width..][..width].copy_from_slice(row);
    }
}

fn attend(
    step: &Step,
    q: &[f32],
    kv: &Kv,
    layer: usize,
    a: &crate::Attention,
    sinks: Option<&[f32]>,
) -> Vec<f32> {
    let (k_width, v_width) = (a.kv_heads * a.head_dim, a.kv_heads * a.v_dim);
    let mut out = Vec::with_capacity(step.tokens.len() * a.heads * a.v_dim);
    let mut row = 0;
    for slice in &step.slices {
        let (pages, page_len) = (slice.table(kv.windowed[layer]), kv.size.page_len);
        let slot = |p: usize| pages[p / page_len] as usize * page_len + p % page_len;
        for i in 0..slice.len {
            let position = slice.position + i;
            let visible = a.visible(slice, position);
            for h in 0..a.heads {
                let group = h / (a.heads / a.kv_heads);
                let query = &q[((row + i) * a.heads + h) * a.head_dim..][..a.head_dim];
                let score = |p: usize| {
                    let key = &kv.keys[layer][slot(p) * k_width + group * a.head_dim..][..a.head_dim];
                    let s = dot(query, key) * a.scale_at(position);
                    let s = s - a.slope(h) * position.abs_diff(p) as f32;
                    a.softcap.map_or(s, |cap| softcap(s, cap))
                };
                let scores: Vec<f32> = visible.clone().map(score).collect();
                let sink = sinks.map(|s| s[h]);
                let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f32>() + sink.map_or(0.0, |s| (s - max).exp());
                let mut head = vec![0.0; a.v_dim];
                for (p, w) in visible.clone().zip(&weights) {
                    let value = &kv.values[layer][slot(p) * v_width + group * a.v_dim..][..a.v_dim];
                    head.iter_mut().zip(value).for_each(|(o, x)| *o += w / sum * x);
                }
                out.extend(head);
            }
        }
        row += slice.len;
    }
    out
}

impl Backend for Reference {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "reference (f32, one thread)".into(),
            memory_total: u64::MAX,
            memory_free: u64::MAX,
            step_tokens: 512,
        }
    }

    fn store(&mut self, tensor: &HostTensor, _: Roles) -> Result<Buffer> {
        self.buffers.push(Stored::Tensor(tensor.clone()));
        Ok(Buffer(self.buffers.len() as u32 - 1))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        let spec = match what {
            Reserve::Kv(spec) => spec,
            Reserve::State(StateSpec { layers, slots }) => {
                let layers = layers.iter().map(|layer| vec![0.0; layer.floats * slots]).collect();
                self.buffers.push(Stored::State(State { layers, slots: *slots }));
                return Ok(Buffer(self.buffers.len() as u32 - 1));
            }
        };
        let zeros = |width: fn(&KvLayer) -> usize| {
            let layers = spec.layers.iter().enumerate();
            let slots = |layer: usize| spec.pages_of(layer) * spec.page_len;
            layers.map(|(i, l)| vec![0.0; slots(i) * l.kv_heads * width(l)]).collect()
        };
        let (keys, values) = (zeros(|l| l.k_dim), zeros(|l| l.v_dim));
        let windowed = (0..spec.layers.len()).map(|layer| spec.is_windowed(layer)).collect();
        self.buffers.push(Stored::Kv(Kv { keys, values, windowed, size: spec.size() }));
        Ok(Buffer(self.buffers.len() as u32 - 1))
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        let widths = graph.nodes.iter().map(|n| n.value);
        let rows = |v: Value| if v.outputs_only { max_outputs } else { max_tokens };
        widths.map(|v| (v.width * rows(v) * 4) as u64).sum() // every value is kept to the end of the step
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        bindings.check(graph, |b| match self.buffers.get(b.0 as usize) {
            Some(Stored::Tensor(t)) => Some([t.rows(), t.cols()]),
            _ => None,
        })?;
        let stored = |b: Option<Buffer>| b.and_then(|b| self.buffers.get(b.0 as usize));
        let (kv, state) = (stored(bindings.kv), stored(bindings.state));
        if !graph.kv.is_empty() && !matches!(kv, Some(Stored::Kv(kv)) if kv.keys.len() == graph.kv.len()) {
            return Err(BackendError::Invalid("a graph with attention needs KV pages".into()));
        }
        let fits = |state: &State| {
            let floats = graph.states.iter().map(|layer| layer.floats * state.slots);
            state.layers.iter().map(Vec::len).eq(floats)
        };
        if !graph.states.is_empty() && !matches!(state, Some(Stored::State(state)) if fits(state)) {
            return Err(BackendError::Invalid("a graph with recurrent layers needs state slots".into()));
        }
        let Bindings { kv, state, .. } = *bindings;
        self.programs.push(Compiled { graph: graph.clone(), weights: bindings.weights.to_vec(), kv, state });
        Ok(Program(self.programs.len() as u32 - 1))
    }

    fn runs_host_ops(&self) -> bool {
        true
    }

    fn set_host_ops(&mut self, ops: HostOpsHandle) -> Result<()> {
        self.host_ops = Some(ops);
        Ok(())
    }

    fn submit(&mut self, program: Program, mut step: Step) -> Result<Ticket> {
        self.finished.carry(program, &mut step)?;
        let output = self.run(program.0 as usize, &step)?;
        Ok(self.finished.keep_step(program, &step, output))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        self.finished.take(ticket)
    }
}
