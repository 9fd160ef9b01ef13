//! From fused phases to the arguments of kernels: the addresses of values and weights, and the index of each
//! format and attention shape that kernels are compiled for.
//!
//! Everything here is numbers: no device is needed.

use tern_graph::{BackendError, Gating, Graph, ImageOrder, NormKind, Plan, RopeStyle, Val, WeightId};

use super::attention_shape::AttentionShape;
use super::fused::{
    Attend, FloatLinear, Fused, Heads, Linear, Matrices, Matrix, Norm, Route, activation, resolve_view,
};
use super::kernel_config::{KernelConfig, intern};
use super::tagged_values::TaggedValues;
use crate::shared::{
    self, ALL_KEYS, ArgmaxArgs, AttendArgs, ConvArgs, ElementArgs, ElementKind, EmbedArgs, ExpertArgs,
    FloatKind, FloatLinearArgs, GatingKind, HeadArgs, ImageRowsArgs, JoinHeadsArgs, LinearArgs, MOST_EXPERTS,
    MOST_HEAD_DIM, MOST_PARTS, MOST_USED_EXPERTS, MixArgs, NormArgs, OutputsArgs, Part, PassedArgs, Phase,
    RopeArgs, RouteArgs, RouterLinear, RowNormArgs, TILE, View,
};
use crate::weights::{Layout, WeightRef};

type Result<T> = std::result::Result<T, BackendError>;

/// Where a program's data is on the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    /// Slots of values, as the plan numbers them.
    pub(crate) slots: Vec<u64>,
    pub(crate) weights: Vec<WeightRef>,
    pub(crate) rope_tables: Vec<u64>,
    /// One entry per attention layer.
    pub(crate) kv: Vec<KvAddresses>,
    pub(crate) attention: AttentionScratch,
    /// `None` if the result has a row per token, and so no token is sampled from it.
    pub(crate) argmax: Option<ArgmaxScratch>,
    /// Sampled token ids of the step before.
    pub(crate) sampled: u64,
    /// Rows of images.
    pub(crate) image_rows: u64,
    /// Slots of each recurrent layer.
    pub(crate) state: Vec<u64>,
    /// Signs of each rotation.
    pub(crate) signs: Vec<u64>,
    /// The inputs of a step.
    pub(crate) inputs: u64,
}

/// Keys and values of one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvAddresses {
    pub(crate) keys: u64,
    pub(crate) values: u64,
    /// Whether its pages are in the tables of layers with a window.
    pub(crate) windowed: bool,
}

/// Scratch that all attention phases share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttentionScratch {
    /// Queries after norm and rotation.
    pub(crate) ready: u64,
    /// Results of splits.
    pub(crate) partial: u64,
    /// Counters of splits that are done.
    pub(crate) arrivals: u64,
}

/// The best logit and its token id that each block finds: `[row][block]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgmaxScratch {
    pub(crate) values: u64,
    pub(crate) ids: u64,
}

/// Memory of tagged values, for steps of up to `tokens`.
#[derive(Clone, Copy)]
pub(crate) struct TaggedMemory<'a> {
    pub(crate) values: &'a TaggedValues,
    pub(crate) at: u64,
    pub(crate) tokens: usize,
}

/// Lowers phases, and collects what kernels are compiled for.
pub(crate) struct Lowering<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a Plan,
    pub(crate) addresses: &'a Addresses,
    pub(crate) tagged: Option<TaggedMemory<'a>>,
    pub(crate) config: KernelConfig,
    /// Blocks of a fused step that phases for a few of them have used since the last linear:
    /// the next one has others.
    pub(crate) used_blocks: usize,
}

impl Lowering<'_> {
    /// All phases; the last one finds the best token of each row of the result, if
    /// tokens are sampled from it.
    pub(crate) fn phases(&mut self, fused: &[Fused]) -> Result<Vec<Phase>> {
        let mut phases = fused.iter().map(|f| self.phase(f)).collect::<Result<Vec<_>>>()?;
        phases.extend(self.addresses.argmax.map(|scratch| {
            let last = self.graph.val(self.graph.nodes.len() - 1);
            Phase::Argmax(ArgmaxArgs {
                logits: self.out(last),
                best: scratch.values,
                places: scratch.ids,
                chosen: self.addresses.sampled,
                width: self.width(last),
                pad: 0,
            })
        }));
        Ok(phases)
    }

    fn phase(&mut self, fused: &Fused) -> Result<Phase> {
        Ok(match fused {
            Fused::Embed { table, rows, scale, add, out } => Phase::Embed(EmbedArgs {
                add: add.map(|v| self.view(v)).unwrap_or_default(),
                rows: *rows as i32,
                ..self.embed(*table, *scale, *out)
            }),
            Fused::Linear(linear) => Phase::Linear(self.linear(linear)?),
            Fused::FloatLinear(linear) => Phase::FloatLinear(self.float_linear(linear)?),
            Fused::Norm { x, norm, out } => Phase::Norm(RowNormArgs {
                x: self.view(*x),
                y: self.view(*out),
                norm: self.norm(norm)?,
                group: norm.len as i32,
                width: self.width(*out),
                outputs_only: self.outputs_only(*out),
                weights: norm.weight.map_or(1, |id| self.graph.weight(id).rows) as i32,
            }),
            Fused::Rope { x, head_dim, rope, out } => Phase::Rope(RopeArgs {
                x: self.view(*x),
                y: self.view(*out),
                freqs: self.addresses.rope_tables[rope.table],
                magnitude: self.graph.ropes[rope.table].magnitude,
                width: self.width(*out),
                head_dim: *head_dim as i32,
                pairs: self.graph.ropes[rope.table].freqs.len() as i32,
                interleaved: i32::from(rope.style == RopeStyle::Interleaved),
                parted: i32::from(!self.graph.ropes[rope.table].parts.is_empty()),
            }),
            Fused::Attend(attend) => Phase::Attend(self.attend(attend)?),
            Fused::Route(route) => Phase::Route(self.route(route)?),
            Fused::Mix { x, route, add, out } => Phase::Mix(MixArgs {
                x: self.view(*x),
                add: add.map(|v| self.view(v)).unwrap_or_default(),
                y: self.out(*out),
                route: self.out(*route).at,
                inputs: 0,
                used: self.width(*route) / 2,
                width: self.width(*out),
            }),
            Fused::Elements { a, b, kind, by, out } => Phase::Elements(ElementArgs {
                b: b.map(|b| self.view(b)).unwrap_or_default(),
                by: *by,
                ..self.elements(*a, *kind, *out)
            }),
            Fused::Clamp { x, low, high, out } => Phase::Elements(ElementArgs {
                low: *low,
                by: *high,
                ..self.elements(*x, ElementKind::Clamp, *out)
            }),
            // the vector is each row of b
            Fused::ScaleColumns { x, by, out } => Phase::Elements(ElementArgs {
                b: View { at: self.vector(Some(*by))?, ..View::default() },
                ..self.elements(*x, ElementKind::Product, *out)
            }),
            Fused::ImageRows { x, start, adds, out } => Phase::ImageRows(ImageRowsArgs {
                x: self.view(*x),
                y: self.out(*out),
                rows: self.addresses.image_rows,
                width: self.width(*out),
                row_width: self.graph.image_width() as i32,
                start: *start as i32,
                adds: i32::from(*adds),
            }),
            Fused::JoinHeads { a, every, start, len, b, heads, out } => Phase::JoinHeads(JoinHeadsArgs {
                a: self.view(*a),
                b: b.map(|b| self.view(b)).unwrap_or_default(),
                y: self.out(*out),
                heads: *heads as i32,
                a_every: *every as i32,
                a_first: *start as i32,
                a_len: *len as i32,
                b_len: b.map_or(0, |b| self.graph.width(b) / heads) as i32,
                outputs_only: self.outputs_only(*out),
            }),
            Fused::Outputs { x, mean, out } => {
                let (x, y) = (self.view(*x), self.view(*out));
                Phase::Outputs(OutputsArgs { x, y, width: self.width(*out), mean: i32::from(*mean) })
            }
            Fused::Conv(conv) => Phase::Conv(self.conv(conv)?),
            Fused::Recurrent(recurrent) => Phase::Recurrent(self.recurrent(recurrent)?),
            Fused::Transform(transform) => Phase::Transform(self.transform(transform)?),
            Fused::Host(host) => {
                return Err(BackendError::Other(format!("{host:?}: the host has no kernels")));
            }
        })
    }

    fn elements(&self, a: Val, kind: ElementKind, out: Val) -> ElementArgs {
        let (width, outputs_only) = (self.width(out), self.outputs_only(out));
        let (a, y) = (self.view(a), self.out(out));
        ElementArgs { a, y, what: kind as i32, width, outputs_only, ..ElementArgs::default() }
    }

    /// Where a value is read: in its own rows, or in columns of another value's.
    pub(super) fn view(&self, v: Val) -> View {
        let (base, first) = resolve_view(self.graph, v);
        let out = self.out(base);
        View { at: out.at + first as u64 * 4, ..out }
    }

    /// Where a value is written.
    pub(super) fn out(&self, v: Val) -> View {
        let stride = self.graph.width(v) as i64;
        let tagged = self.tagged.and_then(|t| Some(t.at + t.values.offset(v.index(), t.tokens)?));
        match tagged {
            Some(at) => View { at, stride, mask: 1, pad: 0 },
            None => View { at: self.addresses.slots[self.plan.slot[v.index()]], stride, ..View::default() },
        }
    }

    fn width(&self, v: Val) -> i32 {
        self.graph.width(v) as i32
    }

    pub(super) fn outputs_only(&self, v: Val) -> i32 {
        i32::from(self.graph.value(v).outputs_only)
    }

    /// The address of a vector, 0 for none.
    pub(super) fn vector(&self, id: Option<WeightId>) -> Result<u64> {
        let Some(id) = id else { return Ok(0) };
        match self.addresses.weights[id.index()] {
            WeightRef::Floats { at, kind: FloatKind::F32 } => Ok(at),
            WeightRef::Floats { .. } | WeightRef::Records { .. } => {
                let name = &self.graph.weight(id).name;
                Err(BackendError::Invalid(format!("{name}: expected a vector of f32")))
            }
        }
    }

    pub(super) fn norm(&self, norm: &Norm) -> Result<NormArgs> {
        let kind = match norm.kind {
            NormKind::Rms => shared::NormKind::Rms,
            NormKind::Layer => shared::NormKind::Layer,
        };
        let (weight, bias) = (self.vector(norm.weight)?, self.vector(norm.bias)?);
        Ok(NormArgs { weight, bias, eps: norm.eps, kind: kind as i32 })
    }

    fn embed(&mut self, table: WeightId, scale: f32, out: Val) -> EmbedArgs {
        let (table, factor, format) = match self.addresses.weights[table.index()] {
            WeightRef::Floats { at, kind } => (at, scale, -1 - kind as i32),
            WeightRef::Records { at, layout, factor } => {
                (at, scale * factor / layout.unit(), intern(&mut self.config.formats, layout))
            }
        };
        let (y, cols, chosen) = (self.out(out), self.graph.width(out), self.addresses.sampled);
        let chunks = Layout::chunks(cols) as i32;
        EmbedArgs { table, y, chosen, factor, cols: cols as i32, chunks, format, ..EmbedArgs::default() }
    }

    fn float_linear(&mut self, l: &FloatLinear) -> Result<FloatLinearArgs> {
        let m = &l.matrix;
        let shape = self.graph.weight(m.weight);
        let WeightRef::Floats { at, kind } = self.addresses.weights[m.weight.index()] else {
            return Err(BackendError::Invalid(format!("{}: expected a matrix of floats", shape.name)));
        };
        Ok(FloatLinearArgs {
            w: at,
            x: self.view(l.x),
            norm: l.norm.map_or(Ok(NormArgs::default()), |n| self.norm(&n))?,
            bias: self.vector(m.bias)?,
            scale: self.vector(m.scale)?,
            y: self.out(m.out),
            rows: m.rows as i32,
            cols: shape.cols as i32,
            kind: kind as i32,
            outputs_only: self.outputs_only(m.out),
            first_block: if l.has_few_rows(self.graph) {
                self.take_blocks(FloatLinearArgs::blocks(m.rows))
            } else {
                -1
            },
            pad: 0,
            experts: self.experts(l.x, m.weight, l.matrices)?,
        })
    }

    /// The first of `count` blocks for a phase that needs no more.
    pub(super) fn take_blocks(&mut self, count: usize) -> i32 {
        let first = self.used_blocks;
        self.used_blocks = (first + count) % (1 << 14); // `BlockRange` of a phase has 16 bits for it
        first as i32
    }

    fn route(&self, r: &Route) -> Result<RouteArgs> {
        let args = &r.args;
        let experts = r.router.map_or(self.graph.width(r.x), |m| m.rows);
        let used = args.used;
        let groups = args.groups.map_or(0, |g| g.count);
        if experts > MOST_EXPERTS || used > MOST_USED_EXPERTS || groups > 32 {
            return Err(BackendError::Unsupported(format!(
                "route: {used} of {experts} experts in {groups} groups, at most {MOST_USED_EXPERTS} of {MOST_EXPERTS} in \
                 32 groups are supported"
            )));
        }
        let gating = match args.gating {
            Gating::Softmax => GatingKind::Softmax,
            Gating::Sigmoid => GatingKind::Sigmoid,
            Gating::ChosenSoftmax => GatingKind::ChosenSoftmax,
            Gating::SqrtSoftplus => GatingKind::SqrtSoftplus,
        };
        let router = match &r.router {
            None => RouterLinear::default(),
            Some(m) => RouterLinear {
                x: self.view(r.x),
                norm: r.norm.map_or(Ok(NormArgs::default()), |n| self.norm(&n))?,
                w: self.vector(Some(m.weight))?,
                bias: self.vector(m.bias)?,
                cols: self.width(r.x),
                factor: r.factor,
            },
        };
        let logits = match (&r.router, self.tagged) {
            (None, _) => self.view(r.x),
            (Some(m), Some(_)) => self.out(m.out), // of a fused step
            (Some(_), None) => View::default(),
        };
        Ok(RouteArgs {
            logits,
            y: self.out(r.out),
            bias: self.vector(r.bias)?,
            inputs: 0,
            experts: experts as i32,
            used: used as i32,
            gating: gating as i32,
            groups: groups as i32,
            used_groups: args.groups.map_or(0, |g| g.used) as i32,
            renormalise: i32::from(args.renormalise),
            scale: args.scale,
            pad: 0,
            router,
        })
    }

    /// The experts of a linear.
    fn experts(&self, x: Val, weight: WeightId, matrices: Matrices) -> Result<ExpertArgs> {
        if matrices == Matrices::One {
            return Ok(ExpertArgs::default());
        }
        let (route, weight) = (matrices.route(), self.graph.weight(weight));
        if weight.experts > MOST_EXPERTS {
            let (name, experts) = (&weight.name, weight.experts);
            let message = format!("{name}: {experts} experts, at most {MOST_EXPERTS} are supported on GPUs");
            return Err(BackendError::Unsupported(message));
        }
        Ok(ExpertArgs {
            route: route.map_or(0, |route| self.out(route).at),
            experts: weight.experts as i32,
            used: route.map_or(weight.experts as i32, |route| self.width(route) / 2),
            x_parts: (self.graph.width(x) / weight.cols) as i32,
            mixed: i32::from(matches!(matrices, Matrices::Mixed(_))),
        })
    }

    fn linear(&mut self, l: &Linear) -> Result<LinearArgs> {
        self.used_blocks = 0;
        let shape = self.graph.weight(l.parts[0].weight);
        let (x, cols, chunks) = (self.view(l.x), shape.cols, Layout::chunks(shape.cols));
        let halves = l.parts.iter().any(|m| self.is_halves(m.weight)); // x is made column by column
        if !halves && (x.at % 16 != 0 || x.stride % 4 != 0) {
            let message = format!("{}: its input begins at a column that is no multiple of 4", shape.name);
            return Err(BackendError::Unsupported(message));
        }
        let parts = l.parts.iter().map(|m| self.part(m, chunks)).collect::<Result<Vec<_>>>()?;
        let mut part = [Part::default(); MOST_PARTS];
        part[..parts.len()].copy_from_slice(&parts);
        Ok(LinearArgs {
            x,
            add: l.add.map(|v| self.view(v)).unwrap_or_default(),
            norm: l.norm.map_or(Ok(NormArgs::default()), |n| self.norm(&n))?,
            cols: cols as i32,
            chunks: chunks as i32,
            parts: parts.len() as i32,
            gated: l.gated.map_or(0, |act| 1 + activation(act).0 as i32),
            outputs_only: self.outputs_only(l.parts[0].out),
            gather: i32::from(l.gather),
            signs: i32::from(self.config.formats[parts[0].format as usize].is_signs()),
            limit: l.gated.map_or(0.0, |act| activation(act).1),
            part,
            experts: self.experts(l.x, l.parts[0].weight, l.matrices)?,
            passed: PassedArgs::default(),
            conv: l.conv.map_or(Ok(ConvArgs::default()), |c| self.conv(&c))?,
        })
    }

    fn is_halves(&self, id: WeightId) -> bool {
        matches!(self.addresses.weights[id.index()], WeightRef::Records { layout, .. } if layout.is_halves())
    }

    fn part(&mut self, m: &Matrix, chunks: usize) -> Result<Part> {
        let shape = self.graph.weight(m.weight);
        let WeightRef::Records { at, layout, factor } = self.addresses.weights[m.weight.index()] else {
            let name = &shape.name;
            return Err(BackendError::Invalid(format!("{name}: expected a matrix of codes")));
        };
        let (y, bytes, bias) = (self.out(m.out), layout.bytes(), self.vector(m.bias)?);
        Ok(Part {
            records: at + (m.first_row / TILE * chunks * bytes) as u64,
            bias: if bias == 0 { 0 } else { bias + m.first_row as u64 * 4 },
            scale: self.vector(m.scale)?,
            y: y.at,
            y_stride: y.stride as i32,
            rows: m.rows as i32,
            tiles: m.rows.div_ceil(TILE) as i32,
            format: intern(&mut self.config.formats, layout),
            bytes: bytes as i32,
            factor: factor / layout.unit(),
            y_mask: y.mask,
            expert_tiles: (shape.rows / shape.experts).div_ceil(TILE) as i32,
        })
    }

    fn heads(&self, heads: &Heads) -> Result<HeadArgs> {
        let norm = heads.norm.map_or(Ok(NormArgs::default()), |n| self.norm(&n))?;
        Ok(HeadArgs { x: self.view(heads.x), norm_weight: norm.weight, eps: norm.eps, norm: norm.kind })
    }

    fn attend(&mut self, a: &Attend) -> Result<AttendArgs> {
        let args = &a.args;
        let Some(kv) = self.addresses.kv.get(a.layer).copied() else {
            return Err(BackendError::Invalid(format!("attention of layer {} has no KV pages", a.layer)));
        };
        let dim = args.head_dim.max(args.v_dim);
        if dim > MOST_HEAD_DIM {
            let message = format!("attend: heads of {dim} columns, at most {MOST_HEAD_DIM} are supported");
            return Err(BackendError::Unsupported(message));
        }
        let (window, after) = match (args.causal, args.window) {
            (true, window) => (window.unwrap_or(0), 0),
            (false, None) => (0, ALL_KEYS),
            (false, Some(window)) => (window / 2 + 1, window / 2),
        };
        let images = match args.images {
            ImageOrder::Sequence => shared::ImageOrder::Sequence,
            ImageOrder::Whole => shared::ImageOrder::Whole,
            ImageOrder::Alone => shared::ImageOrder::Alone,
        };
        let scratch = self.addresses.attention;
        let ready =
            View { at: scratch.ready, stride: (args.heads * args.head_dim) as i64, ..View::default() };
        let table = a.rope.map(|rope| &self.graph.ropes[rope.table]);
        let shape = AttentionShape::of(args);
        self.take_blocks(args.heads / shape.queries); // of short contexts
        Ok(AttendArgs {
            q: self.heads(&a.q)?,
            k: a.stored.map_or(Ok(HeadArgs::default()), |s| self.heads(&s.k))?,
            v: a.stored.map(|s| self.view(s.v)).unwrap_or_default(),
            y: self.out(a.out),
            ready,
            freqs: a.rope.map_or(0, |rope| self.addresses.rope_tables[rope.table]),
            keys: kv.keys,
            values: kv.values,
            partial: scratch.partial,
            arrivals: scratch.arrivals,
            magnitude: table.map_or(1.0, |t| t.magnitude),
            scale: args.scale,
            softcap: args.softcap.unwrap_or(0.0),
            heads: args.heads as i32,
            kv_heads: args.kv_heads as i32,
            head_dim: args.head_dim as i32,
            v_dim: args.v_dim as i32,
            window: window as i32,
            pairs: table.map_or(0, |t| t.freqs.len()) as i32,
            interleaved: i32::from(a.rope.is_some_and(|rope| rope.style == RopeStyle::Interleaved)),
            table: a.rope.map_or(0, |rope| rope.table) as i32,
            shape: intern(&mut self.config.attentions, shape),
            groups: (args.heads / args.kv_heads / shape.queries) as i32,
            y_half: 0,
            y_order: 0,
            sinks: self.vector(a.sinks)?,
            growth: args.temperature.map_or(0.0, |t| t.scale),
            growth_length: args.temperature.map_or(0, |t| t.length) as i32,
            windowed: i32::from(kv.windowed),
            after: after as i32,
            alibi: args.alibi.unwrap_or(0.0),
            parted: i32::from(table.is_some_and(|t| !t.parts.is_empty())),
            images: images as i32,
            pad: 0,
        })
    }
}
