//! From fused phases to the arguments of kernels: where values lie, which format and shape each kernel is made for.

use std::sync::Arc;

use tern_graph::{Activation, Attention, BackendError, Graph, NormKind, Plan, RopeStyle, Val, WeightId};

use super::fuse::{Element, Fused, Heads, Linear, Matrix, Norm, root};
use super::tagged_values::Exchange;
use crate::launch::Kv;
use crate::shared::{
    self, ArgmaxArgs, AttendArgs, ElementArgs, EmbedArgs, FloatLinearArgs, HeadArgs, KEYS, LinearArgs,
    MOST_HEAD_DIM, MOST_PARTS, MOST_QUERIES, MOST_TOKENS, NormArgs, OWNERS, OutputsArgs, Part, Phase,
    RopeArgs, RowNormArgs, View,
};
use crate::weights::{Layout, TILE, Weight};

type Result<T> = std::result::Result<T, BackendError>;

/// What attention is compiled for: columns of key and value heads, query heads of a block, whether scores have a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    pub(crate) head_dim: usize,
    pub(crate) v_dim: usize,
    pub(crate) queries: usize,
    pub(crate) capped: bool,
}

impl AttentionShape {
    pub(crate) fn of(args: &Attention) -> AttentionShape {
        let each = args.heads / args.kv_heads;
        let queries = (1..=MOST_QUERIES).rev().find(|n| each.is_multiple_of(*n)).unwrap_or(1);
        let capped = args.softcap.is_some_and(|cap| cap > 0.0);
        AttentionShape { head_dim: args.head_dim, v_dim: args.v_dim, queries, capped }
    }

    /// Bytes of shared memory that a block needs at most; `kernels/attend.cuh` asserts that they suffice.
    pub(crate) fn workspace(&self) -> usize {
        let (d, v, g) = (self.head_dim, self.v_dim, self.queries);
        let takers = if v > 128 { OWNERS / 2 } else { OWNERS };
        let floats = (OWNERS + MOST_TOKENS) * d + (takers + MOST_TOKENS) * g * 2 + takers * g * v;
        floats * 4 + (g * (d + 8) + MOST_TOKENS * (d + v)) * 2 + 80
    }

    /// Its entry of ATTENTIONS.
    pub(crate) fn text(&self, index: usize) -> String {
        let AttentionShape { head_dim, v_dim, queries, capped } = self;
        format!(
            "X({index}, {head_dim}, {v_dim}, {queries}, {capped}, {}, {})",
            self.partial(),
            self.workspace()
        )
    }

    /// Floats of one split of a unit: sums, largest scores and weights.
    pub(crate) fn partial(&self) -> usize {
        (self.queries * (self.v_dim + 2)).next_multiple_of(4)
    }

    /// Bytes of the keys and values that come together.
    pub(crate) fn slot(&self) -> usize {
        KEYS * (self.head_dim + self.v_dim) * 2
    }
}

/// Memory that phases share beside the values' slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scratch {
    /// Queries made ready for attention.
    pub(crate) ready: u64,
    /// Splits of attention, and how many have arrived.
    pub(crate) partial: u64,
    pub(crate) arrivals: u64,
    /// The last step's choices.
    pub(crate) chosen: u64,
}

/// Memory for what blocks find while they look for the best tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    pub(crate) values: u64,
    pub(crate) places: u64,
}

/// Everything at hand while phases are lowered.
pub(crate) struct Lowering<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plan: &'a Plan,
    /// Where each slot is.
    pub(crate) slots: Vec<u64>,
    /// Values that are handed on with marks, where they lie, and for how many tokens.
    pub(crate) exchange: Option<(&'a Exchange, u64, usize)>,
    pub(crate) weights: &'a [Arc<Weight>],
    /// Rotary tables.
    pub(crate) tables: Vec<u64>,
    pub(crate) kv: Option<&'a Kv>,
    pub(crate) scratch: Scratch,
    /// Formats and shapes in the order of their numbers in the kernels.
    pub(crate) formats: Vec<Layout>,
    pub(crate) shapes: Vec<AttentionShape>,
}

impl Lowering<'_> {
    /// All phases, and the choice of the best tokens of the last value's rows at the end.
    pub(crate) fn phases(&mut self, fused: &[Fused], best: Option<Best>) -> Result<Vec<Phase>> {
        let mut phases = fused.iter().map(|f| self.phase(f)).collect::<Result<Vec<_>>>()?;
        phases.extend(best.map(|best| {
            let last = self.graph.val(self.graph.nodes.len() - 1);
            Phase::Argmax(ArgmaxArgs {
                logits: self.out(last),
                best: best.values,
                places: best.places,
                chosen: self.scratch.chosen,
                width: self.graph.width(last) as i32,
                pad: 0,
            })
        }));
        Ok(phases)
    }

    fn phase(&mut self, fused: &Fused) -> Result<Phase> {
        Ok(match fused {
            Fused::Embed { table, scale, out } => Phase::Embed(self.embed(*table, *scale, *out)),
            Fused::Linear(linear) => Phase::Linear(self.linear(linear)?),
            Fused::FloatLinear { x, matrix } => Phase::FloatLinear(self.float_linear(*x, matrix)?),
            Fused::Norm { x, norm, out } => Phase::Norm(RowNormArgs {
                x: self.view(*x),
                y: self.view(*out),
                norm: self.norm(norm)?,
                group: self.graph.weight(norm.weight).cols as i32,
                width: self.graph.width(*out) as i32,
                outputs_only: self.outputs_only(*out),
                pad: 0,
            }),
            Fused::Rope { x, head_dim, style, table, out } => Phase::Rope(RopeArgs {
                x: self.view(*x),
                y: self.view(*out),
                freqs: self.tables[*table],
                magnitude: self.graph.ropes[*table].magnitude,
                width: self.graph.width(*out) as i32,
                head_dim: *head_dim as i32,
                pairs: self.graph.ropes[*table].freqs.len() as i32,
                interleaved: i32::from(*style == RopeStyle::Interleaved),
                pad: 0,
            }),
            Fused::Attend { q, k, v, rope, layer, args, out } => {
                Phase::Attend(self.attend([q, k], *v, *rope, (*layer, args), *out)?)
            }
            Fused::Elements { a, b, what, out } => {
                let (what, by) = match *what {
                    Element::Gated(act) => (activation(act), 0.0),
                    Element::Add => (shared::Element::Add as i32, 0.0),
                    Element::Scale(by) => (shared::Element::Scale as i32, by),
                    Element::SoftCap(cap) => (shared::Element::SoftCap as i32, cap),
                };
                Phase::Elements(ElementArgs {
                    a: self.view(*a),
                    b: b.map(|b| self.view(b)).unwrap_or_default(),
                    y: self.out(*out),
                    by,
                    what,
                    width: self.graph.width(*out) as i32,
                    outputs_only: self.outputs_only(*out),
                })
            }
            Fused::Outputs { x, out } => {
                let width = self.graph.width(*out) as i32;
                Phase::Outputs(OutputsArgs { x: self.view(*x), y: self.view(*out), width, pad: 0 })
            }
        })
    }

    /// Where a value is read: its own rows, or columns of another's.
    fn view(&self, v: Val) -> View {
        let (base, first) = root(self.graph, v);
        let out = self.out(base);
        View { at: out.at + first as u64 * 4, ..out }
    }

    /// Where a value is made.
    fn out(&self, v: Val) -> View {
        let stride = self.graph.width(v) as i64;
        let handed = self.exchange.and_then(|(all, at, tokens)| Some(at + all.place(v.index(), tokens)?));
        match handed {
            Some(at) => View { at, stride, mask: 1, pad: 0 },
            None => View { at: self.slots[self.plan.slot[v.index()]], stride, ..View::default() },
        }
    }

    fn outputs_only(&self, v: Val) -> i32 {
        i32::from(self.graph.value(v).outputs_only)
    }

    fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }

    /// A vector of floats, or nothing.
    fn vector(&self, id: Option<WeightId>) -> Result<u64> {
        let Some(id) = id else { return Ok(0) };
        let name = &self.graph.weight(id).name;
        self.weight(id)
            .vector()
            .ok_or_else(|| BackendError::Invalid(format!("{name}: want a vector of floats")))
    }

    fn norm(&self, norm: &Norm) -> Result<NormArgs> {
        let kind = match norm.kind {
            NormKind::Rms => shared::NormKind::Rms,
            NormKind::Layer => shared::NormKind::Layer,
        };
        Ok(NormArgs {
            weight: self.vector(Some(norm.weight))?,
            bias: self.vector(norm.bias)?,
            eps: norm.eps,
            kind: kind as i32,
        })
    }

    fn format(&mut self, layout: &Layout) -> i32 {
        number(&mut self.formats, *layout)
    }

    fn embed(&mut self, table: WeightId, scale: f32, out: Val) -> EmbedArgs {
        let (y, cols) = (self.out(out), self.graph.width(out));
        let (at, factor, format) = match &*Arc::clone(&self.weights[table.index()]) {
            Weight::Floats { memory, kind } => (memory.pointer(), scale, -1 - *kind as i32),
            Weight::Codes { layout, records, factor } => {
                (records.pointer(), scale * factor / layout.unit(), self.format(layout))
            }
        };
        let (chosen, chunks) = (self.scratch.chosen, Layout::chunks(cols) as i32);
        EmbedArgs { table: at, y, chosen, factor, cols: cols as i32, chunks, format }
    }

    fn float_linear(&self, x: Val, m: &Matrix) -> Result<FloatLinearArgs> {
        let shape = self.graph.weight(m.weight);
        let Weight::Floats { memory, kind } = self.weight(m.weight) else {
            return Err(BackendError::Invalid(format!("{}: want a matrix of floats", shape.name)));
        };
        Ok(FloatLinearArgs {
            w: memory.pointer(),
            x: self.view(x),
            bias: self.vector(m.bias)?,
            scale: self.vector(m.scale)?,
            y: self.out(m.out),
            rows: shape.rows as i32,
            cols: shape.cols as i32,
            kind: *kind as i32,
            outputs_only: self.outputs_only(m.out),
        })
    }

    fn linear(&mut self, l: &Linear) -> Result<LinearArgs> {
        let cols = self.graph.weight(l.parts[0].weight).cols;
        let (x, chunks) = (self.view(l.x), Layout::chunks(cols));
        if x.at % 16 != 0 || x.stride % 4 != 0 {
            let name = &self.graph.weight(l.parts[0].weight).name;
            return Err(BackendError::Unsupported(format!(
                "{name}: reads columns that do not begin at a multiple of four"
            )));
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
            gated: l.gated.map_or(0, |act| 1 + activation(act)),
            outputs_only: self.outputs_only(l.parts[0].out),
            gather: i32::from(l.gather),
            signs: i32::from(self.formats[parts[0].format as usize].is_signs()),
            pad: 0,
            part,
        })
    }

    fn part(&mut self, m: &Matrix, chunks: usize) -> Result<Part> {
        let weight = Arc::clone(&self.weights[m.weight.index()]);
        let Weight::Codes { layout, records, factor } = &*weight else {
            return Err(BackendError::Invalid(format!(
                "{}: want a matrix of codes",
                self.graph.weight(m.weight).name
            )));
        };
        let (y, bytes) = (self.out(m.out), layout.bytes());
        let bias = self.vector(m.bias)?;
        Ok(Part {
            records: records.pointer() + (m.first_row / TILE * chunks * bytes) as u64,
            bias: if bias == 0 { 0 } else { bias + m.first_row as u64 * 4 },
            scale: self.vector(m.scale)?,
            y: y.at,
            y_stride: y.stride as i32,
            rows: m.rows as i32,
            tiles: m.rows.div_ceil(TILE) as i32,
            format: self.format(layout),
            bytes: bytes as i32,
            factor: factor / layout.unit(),
            y_mask: y.mask,
            pad: 0,
        })
    }

    fn attend(
        &mut self,
        [q, k]: [&Heads; 2],
        v: Val,
        rope: Option<(usize, RopeStyle)>,
        (layer, args): (usize, &Attention),
        out: Val,
    ) -> Result<AttendArgs> {
        let Some(kv) = self.kv else {
            return Err(BackendError::Invalid("attention without KV pages".into()));
        };
        if args.head_dim.max(args.v_dim) > MOST_HEAD_DIM {
            let most = args.head_dim.max(args.v_dim);
            return Err(BackendError::Unsupported(format!(
                "attend: heads of {most} columns, at most {MOST_HEAD_DIM}"
            )));
        }
        let heads = |h: &Heads| -> Result<HeadArgs> {
            let norm = h.norm.map_or(Ok(NormArgs::default()), |n| self.norm(&n))?;
            Ok(HeadArgs { x: self.view(h.x), norm_weight: norm.weight, eps: norm.eps, norm: norm.kind })
        };
        let (q, k) = (heads(q)?, heads(k)?);
        let table = rope.map_or(0, |r| r.0);
        let graph = self.graph;
        let turns = rope.map(|r| &graph.ropes[r.0]);
        let shape = AttentionShape::of(args);
        Ok(AttendArgs {
            q,
            k,
            v: self.view(v),
            y: self.out(out),
            ready: View {
                at: self.scratch.ready,
                stride: (args.heads * args.head_dim) as i64,
                ..View::default()
            },
            freqs: rope.map_or(0, |r| self.tables[r.0]),
            keys: kv.memory[layer].0.pointer(),
            values: kv.memory[layer].1.pointer(),
            partial: self.scratch.partial,
            arrivals: self.scratch.arrivals,
            magnitude: turns.map_or(1.0, |t| t.magnitude),
            scale: args.scale,
            softcap: args.softcap.unwrap_or(0.0),
            heads: args.heads as i32,
            kv_heads: args.kv_heads as i32,
            head_dim: args.head_dim as i32,
            v_dim: args.v_dim as i32,
            window: args.window.unwrap_or(0) as i32,
            pairs: turns.map_or(0, |t| t.freqs.len()) as i32,
            interleaved: i32::from(rope.is_some_and(|r| r.1 == RopeStyle::Interleaved)),
            table: table as i32,
            shape: number(&mut self.shapes, shape),
            groups: (args.heads / args.kv_heads / shape.queries) as i32,
            pad: 0,
        })
    }
}

/// The place of a thing in a list, put there if need be.
pub(crate) fn number<T: PartialEq>(list: &mut Vec<T>, thing: T) -> i32 {
    let at = list.iter().position(|t| *t == thing);
    at.unwrap_or_else(|| {
        list.push(thing);
        list.len() - 1
    }) as i32
}

fn activation(act: Activation) -> i32 {
    let element = match act {
        Activation::Silu => shared::Element::Silu,
        Activation::GeluTanh => shared::Element::GeluTanh,
        Activation::Relu2 => shared::Element::Relu2,
    };
    element as i32
}
