//! The ops. Every value is a matrix of f32 with one row per token; an op reads values of earlier nodes.

use std::ops::Range;

use crate::{DeltaRule, DeltaWeights, KvLayer, Role, Routing, ScanWeights, SelectiveScan, Slice};

/// A value: the result of the node with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Val(pub(crate) u32);

impl Val {
    /// Index into the graph's nodes.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A weight: an index into the graph's weight table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId(pub(crate) u32);

impl WeightId {
    /// Index into the graph's weights.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operation.
#[expect(missing_docs, reason = "the sentence of a variant describes its fields")]
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// One row of `table` per token, times `scale`. `[tokens, cols(table)]`
    Embed { table: WeightId, scale: f32 },
    /// `x` plus a row of `table`: that of the token's position, or its first one. `[tokens, cols(table)]`
    AddRow { x: Val, table: WeightId, row: TableRow },
    /// Normalises each group of `len` columns, whole rows or each head of a row; without
    /// a weight the factor is 1.
    Norm { x: Val, len: usize, weight: Option<WeightId>, bias: Option<WeightId>, eps: f32, kind: NormKind },
    /// `x * weight^T * scale + bias`. `[rows, rows(weight)]`
    Linear { x: Val, weight: WeightId, scale: Option<WeightId>, bias: Option<WeightId> },
    /// Rotates pairs inside each head by position times the table's frequencies.
    Rope { x: Val, head_dim: usize, style: RopeStyle, table: usize },
    /// Stores keys and values at the tokens' positions in KV layer `layer`, then attends; without any,
    /// attends to those that an earlier node has stored. A head's sink is one more score, without a value.
    /// `[tokens, heads * v_dim]`
    Attend { q: Val, kv: Option<KeysAndValues>, layer: usize, args: Attention, sinks: Option<WeightId> },
    /// A function of each value.
    Apply { x: Val, function: Function },
    /// `act(gate, up)`
    Gated { gate: Val, up: Val, act: Activation },
    /// The experts of each token: ids, as floats, and then their weights. `[tokens, 2 * used]`
    Route { logits: Val, bias: Option<WeightId>, args: Routing },
    /// A linear per chosen expert, side by side: `x * weight[e]^T * scale[e] + bias[e]`, of the same `x` or
    /// of one part of it per expert. Without a route, each part has the matrix at its place.
    /// `[tokens, used * rows(weight[e])]`
    ExpertLinear {
        x: Val,
        route: Option<Val>,
        weight: WeightId,
        scale: Option<WeightId>,
        bias: Option<WeightId>,
    },
    /// The sum of the parts of `x`, one per chosen expert, times their weights. `[tokens, cols(x) / used]`
    Mix { x: Val, route: Val },
    /// `a + b`
    Add { a: Val, b: Val },
    /// `x * by`
    Scale { x: Val, by: f32 },
    /// Each column times its entry of a vector.
    ScaleColumns { x: Val, by: WeightId },
    /// `cap * tanh(x / cap)`
    SoftCap { x: Val, cap: f32 },
    /// Each `rank` columns belong to an adapter: times the scale with which the row's sequence uses
    /// it, and 0 if it does not.
    ScaleAdapters { x: Val, rank: usize },
    /// Columns `start .. start + len` of `x`.
    Columns { x: Val, start: usize, len: usize },
    /// Columns `start .. start + len` of each `every` columns of `x`: a part of each head.
    /// `[tokens, heads * len]`
    HeadColumns { x: Val, every: usize, start: usize, len: usize },
    /// `heads` heads, each a head of `a` followed by one of `b`. `[tokens, cols(a) + cols(b)]`
    JoinHeads { a: Val, b: Val, heads: usize },
    /// A convolution of each column with its own taps, one row of `weight` per column; plus a bias, and then
    /// SiLU if `silu`. It is causal, the last tap for the token itself, and state layer `layer` has the rows
    /// before; or, without a layer, the tap in the middle is for the token itself, and rows beyond the text
    /// are zeros. `[tokens, cols(x)]`
    Conv { x: Val, weight: WeightId, bias: Option<WeightId>, layer: Option<usize>, silu: bool },
    /// A gated delta rule, see [`DeltaRule`]. `[tokens, v_heads * v_dim]`
    Delta { qkv: Val, decay: Val, beta: Val, weights: DeltaWeights, layer: usize, args: DeltaRule },
    /// A Mamba-2 scan, see [`SelectiveScan`]. `[tokens, heads * head_dim]`
    Scan { xbc: Val, dt: Val, weights: ScanWeights, layer: usize, args: SelectiveScan },
    /// `x * sigmoid(gate)`, with one gate per row.
    GateRows { x: Val, gate: Val },
    /// Rotates each group of columns, or rotates it back, see [`crate::Rotation`].
    Rotate { x: Val, rotation: usize, inverse: bool },
    /// The rows that the step requests. `[outputs, cols(x)]`
    Outputs { x: Val },
    /// Rows that are given with the step (`Step::inputs`). `[tokens, width]`
    Input { index: usize },
    /// `x`, with columns `start .. start + cols(x)` of the rows of images (`Slice::images`) in place of the
    /// rows of their tokens; or, if `adds`, with these added to them. `[tokens, cols(x)]`
    ImageRows { x: Val, start: usize, adds: bool },
    /// Experts that the host computes while a device runs the step: route, linears and mix of a piece
    /// (`ExpertSplit`). `[tokens, cols(x)]`
    HostExperts { x: Val, logits: Val, piece: usize },
    /// The mean of the rows of a sequence up to each row that the step requests; sequences are whole.
    /// `[outputs, cols(x)]`
    Means { x: Val },
}

/// What an attention stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeysAndValues {
    /// Keys. `[tokens, kv_heads * head_dim]`
    pub k: Val,
    /// Values. `[tokens, kv_heads * v_dim]`
    pub v: Val,
}

/// Which row of a table is added to a token's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableRow {
    /// That of the token's position: learned positions.
    Position,
    /// The first one: the only type of tokens.
    First,
    /// The first one, or the second one for tokens of the second text of a pair: types of tokens.
    Type,
}

/// How a norm centres and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)`
    Layer,
}

/// Which two columns of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(2i, 2i + 1)`: GGUF files of the llama family.
    Interleaved,
    /// `(i, i + n / 2)`: all other models.
    Halves,
}

/// The function of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `gate * sigmoid(gate) * up`
    Silu,
    /// GELU in its tanh form, times `up`.
    GeluTanh,
    /// GELU by the error function, times `up`.
    Gelu,
    /// `max(gate, 0)^2 * up`
    Relu2,
    /// `g * sigmoid(1.702 * g) * (u + 1)`, where g is the gate, at most 7, and u is `up`, from -7 to 7.
    SwigluOai,
    /// Silu with the gate at most this, and `up` within it on both sides.
    SwigluClamp(f32),
    /// `sigmoid(gate) * up`
    Sigmoid,
    /// `gate * up`
    Product,
    /// `max(gate, 0) * up`
    Relu,
}

impl Activation {
    /// Factor in the sigmoid of [`Activation::SwigluOai`].
    pub const OAI_ALPHA: f32 = 1.702;
    /// Bound of [`Activation::SwigluOai`].
    pub const OAI_LIMIT: f32 = 7.0;

    /// The function itself, as the reference computes it.
    pub fn apply(self, gate: f32, up: f32) -> f32 {
        let silu = |x: f32, alpha: f32| x / (1.0 + (-alpha * x).exp());
        match self {
            Activation::Silu => silu(gate, 1.0) * up,
            Activation::GeluTanh => {
                0.5 * gate * (1.0 + (0.797_884_6 * gate * (1.0 + 0.044_715 * gate * gate)).tanh()) * up
            }
            Activation::Gelu => gelu(gate) * up,
            Activation::Relu2 => gate * gate.max(0.0) * up, // not `max` twice, which would turn a NaN into 0
            Activation::SwigluOai => {
                let (gate, up) = clamp(gate, up, Activation::OAI_LIMIT);
                silu(gate, Activation::OAI_ALPHA) * (up + 1.0)
            }
            Activation::SwigluClamp(limit) => {
                let (gate, up) = clamp(gate, up, limit);
                silu(gate, 1.0) * up
            }
            Activation::Sigmoid => up / (1.0 + (-gate).exp()),
            Activation::Product => gate * up,
            Activation::Relu => (gate.max(0.0) + gate * 0.0) * up,
        }
    }
}

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `x * (1 + erf(x / sqrt(2))) / 2`
    Gelu,
    /// GELU in its tanh form.
    GeluTanh,
    /// `tanh(x)`; NaN if `x` is not finite.
    Tanh,
    /// `x * sigmoid(1.702 * x)`
    GeluQuick,
    /// At least the first and at most the second; NaN if `x` is not finite.
    Clamp(f32, f32),
}

impl Function {
    /// Factor in the sigmoid of [`Function::GeluQuick`].
    pub const QUICK: f32 = 1.702;

    /// The function itself, as the reference computes it.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Function::Gelu => gelu(x),
            Function::GeluTanh => Activation::GeluTanh.apply(x, 1.0),
            Function::Tanh => softcap(x, 1.0),
            Function::GeluQuick => x / (1.0 + (-Function::QUICK * x).exp()),
            Function::Clamp(low, high) => x.max(low).min(high) + x * 0.0,
        }
    }
}

/// GELU by the error function, whose series converges fast enough wherever the function is not 1 in f32.
fn gelu(x: f32) -> f32 {
    let z = f64::from(x) * std::f64::consts::FRAC_1_SQRT_2;
    let erf = if z.abs() < 4.0 {
        let (mut sum, mut power) = (z, z);
        for n in 1..80 {
            power *= -z * z / f64::from(n);
            sum += power / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        z.signum()
    };
    (0.5 * f64::from(x) * (1.0 + erf)) as f32
}

/// The gate at most `limit`, and `up` within it on both sides; values that are not finite become NaN.
#[inline(always)]
pub fn clamp(gate: f32, up: f32, limit: f32) -> (f32, f32) {
    (gate.min(limit) + gate * 0.0, up.clamp(-limit, limit) + up * 0.0)
}

/// `cap * tanh(x / cap)`, and NaN if `x` is infinite: a value that is not finite must not become finite.
#[inline(always)]
pub fn softcap(x: f32, cap: f32) -> f32 {
    cap * (x / cap).tanh() + x * 0.0
}

/// The parameters of one attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Columns of a query or key head.
    pub head_dim: usize,
    /// Columns of a value head.
    pub v_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// A query sees no keys after it; otherwise it sees all tokens of its sequence,
    /// which must be in one step.
    pub causal: bool,
    /// Keys visible to a query, itself included; `None` is all. Without a causal order,
    /// half of them on each side.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` on the scaled scores.
    pub softcap: Option<f32>,
    /// One more factor on the scores, which grows with the position of the query.
    pub temperature: Option<Temperature>,
    /// Scores decrease with the distance of the key, by a slope per head that follows from this number.
    pub alibi: Option<f32>,
    /// What tokens of an image see of it.
    pub images: ImageOrder,
}

/// What tokens of an image see of it, beside what they see by the order of the sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageOrder {
    /// Nothing: images have the order of the sequence.
    #[default]
    Sequence,
    /// All of its tokens, within the window.
    Whole,
    /// All of its tokens, and nothing else: images are windows of a picture.
    Alone,
}

/// A factor that grows with the position: `1 + scale * ln(floor(position / length) + 1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Growth.
    pub scale: f32,
    /// Positions without growth.
    pub length: usize,
}

impl Temperature {
    /// The factor at a position.
    pub fn at(self, position: usize) -> f32 {
        1.0 + self.scale * ((position / self.length + 1) as f32).ln()
    }
}

impl Attention {
    /// Keys and values of one size, all of them visible.
    pub const fn full(heads: usize, kv_heads: usize, head_dim: usize, scale: f32) -> Attention {
        let v_dim = head_dim;
        Attention {
            heads,
            kv_heads,
            head_dim,
            v_dim,
            scale,
            causal: true,
            window: None,
            softcap: None,
            temperature: None,
            alibi: None,
            images: ImageOrder::Sequence,
        }
    }

    /// The positions that a query of a slice sees.
    #[inline(always)]
    pub fn visible(&self, slice: &Slice, position: usize) -> Range<usize> {
        let end = slice.position + slice.len;
        let visible = match (self.causal, self.window) {
            (true, window) => window.map_or(0, |w| (position + 1).saturating_sub(w))..position + 1,
            (false, None) => 0..end,
            (false, Some(w)) => position.saturating_sub(w / 2)..end.min(position + w / 2 + 1),
        };
        let image = match self.images {
            ImageOrder::Sequence => None,
            ImageOrder::Whole | ImageOrder::Alone => slice.images.at(position),
        };
        match image {
            None => visible,
            Some(image) if self.images == ImageOrder::Alone => image.start..image.end().min(end),
            Some(image) => visible.start..visible.end.max(image.end().min(end)),
        }
    }

    /// What a head's score loses per position of distance.
    pub fn slope(&self, head: usize) -> f32 {
        let Some(alibi) = self.alibi else { return 0.0 };
        // heads beyond a power of two have slopes between those of the others
        let power = 1 << self.heads.ilog2();
        if head < power {
            (-alibi * (head + 1) as f32 / power as f32).exp2()
        } else {
            (-alibi * (2 * (head - power) + 1) as f32 / (2 * power) as f32).exp2()
        }
    }

    /// What its KV layer keeps per token.
    pub fn kv_layer(&self) -> KvLayer {
        KvLayer { kv_heads: self.kv_heads, k_dim: self.head_dim, v_dim: self.v_dim }
    }

    /// The factor on the scores of a query.
    pub fn scale_at(&self, position: usize) -> f32 {
        self.scale * self.temperature.map_or(1.0, |t| t.at(position))
    }
}

impl Op {
    /// The values this op reads.
    pub fn inputs(&self) -> Vec<Val> {
        self.clone().inputs_mut().into_iter().map(|v| *v).collect()
    }

    /// The same, to replace them.
    pub(crate) fn inputs_mut(&mut self) -> Vec<&mut Val> {
        match self {
            Op::Embed { .. } | Op::Input { .. } => vec![],
            Op::Norm { x, .. }
            | Op::AddRow { x, .. }
            | Op::Apply { x, .. }
            | Op::Linear { x, .. }
            | Op::Rope { x, .. }
            | Op::Scale { x, .. }
            | Op::ScaleColumns { x, .. }
            | Op::SoftCap { x, .. }
            | Op::ScaleAdapters { x, .. }
            | Op::Columns { x, .. }
            | Op::HeadColumns { x, .. }
            | Op::Conv { x, .. }
            | Op::Rotate { x, .. }
            | Op::ImageRows { x, .. }
            | Op::Means { x }
            | Op::Outputs { x } => vec![x],
            Op::Attend { q, kv, .. } => {
                [q].into_iter().chain(kv.iter_mut().flat_map(|kv| [&mut kv.k, &mut kv.v])).collect()
            }
            Op::Gated { gate, up, .. } => vec![gate, up],
            Op::Route { logits, .. } => vec![logits],
            Op::ExpertLinear { x, route, .. } => [x].into_iter().chain(route).collect(),
            Op::Mix { x, route } => vec![x, route],
            Op::Delta { qkv, decay, beta, .. } => vec![qkv, decay, beta],
            Op::Scan { xbc, dt, .. } => vec![xbc, dt],
            Op::GateRows { x, gate } => vec![x, gate],
            Op::Add { a, b } | Op::JoinHeads { a, b, .. } => vec![a, b],
            Op::HostExperts { x, logits, .. } => vec![x, logits],
        }
    }

    /// The weights this op reads, and how.
    pub fn weights(&self) -> Vec<(WeightId, Role)> {
        self.clone().weights_mut().into_iter().map(|(id, role)| (*id, role)).collect()
    }

    /// The same, to replace them.
    pub(crate) fn weights_mut(&mut self) -> Vec<(&mut WeightId, Role)> {
        fn vectors(ids: Vec<&mut Option<WeightId>>) -> Vec<(&mut WeightId, Role)> {
            ids.into_iter().flatten().map(|id| (id, Role::Vector)).collect()
        }
        match self {
            Op::Embed { table, .. } | Op::AddRow { table, .. } => vec![(table, Role::Table)],
            Op::Norm { weight, bias, .. } => vectors(vec![weight, bias]),
            Op::Linear { weight, scale, bias, .. } => {
                [(weight, Role::Matrix)].into_iter().chain(vectors(vec![scale, bias])).collect()
            }
            Op::ExpertLinear { weight, scale, bias, .. } => {
                [(weight, Role::Experts)].into_iter().chain(vectors(vec![scale, bias])).collect()
            }
            Op::Route { bias, .. } => vectors(vec![bias]),
            Op::ScaleColumns { by, .. } => vec![(by, Role::Vector)],
            Op::Attend { sinks, .. } => vectors(vec![sinks]),
            Op::Conv { weight, bias, .. } => {
                [(weight, Role::Vector)].into_iter().chain(vectors(vec![bias])).collect()
            }
            Op::Delta { weights: DeltaWeights { rate, bias }, .. } => {
                [rate, bias].map(|id| (id, Role::Vector)).into()
            }
            Op::Scan { weights: ScanWeights { rate, bias, skip }, .. } => {
                [rate, bias, skip].map(|id| (id, Role::Vector)).into()
            }
            Op::Rope { .. }
            | Op::Mix { .. }
            | Op::Apply { .. }
            | Op::Gated { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::SoftCap { .. }
            | Op::ScaleAdapters { .. }
            | Op::Columns { .. }
            | Op::HeadColumns { .. }
            | Op::JoinHeads { .. }
            | Op::Input { .. }
            | Op::ImageRows { .. }
            | Op::HostExperts { .. }
            | Op::GateRows { .. }
            | Op::Rotate { .. }
            | Op::Means { .. }
            | Op::Outputs { .. } => vec![],
        }
    }

    /// The op's name in printed graphs and timings.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::AddRow { .. } => "add_row",
            Op::Norm { .. } => "norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::Attend { .. } => "attend",
            Op::Apply { .. } => "apply",
            Op::Gated { .. } => "gated",
            Op::Route { .. } => "route",
            Op::ExpertLinear { .. } => "expert_linear",
            Op::Mix { .. } => "mix",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::ScaleColumns { .. } => "scale_columns",
            Op::SoftCap { .. } => "softcap",
            Op::ScaleAdapters { .. } => "scale_adapters",
            Op::Columns { .. } => "columns",
            Op::HeadColumns { .. } => "head_columns",
            Op::JoinHeads { .. } => "join_heads",
            Op::Conv { .. } => "conv",
            Op::Delta { .. } => "delta",
            Op::Scan { .. } => "scan",
            Op::GateRows { .. } => "gate_rows",
            Op::Rotate { .. } => "rotate",
            Op::Outputs { .. } => "outputs",
            Op::Input { .. } => "input",
            Op::ImageRows { .. } => "image_rows",
            Op::HostExperts { .. } => "host_experts",
            Op::Means { .. } => "means",
        }
    }
}
