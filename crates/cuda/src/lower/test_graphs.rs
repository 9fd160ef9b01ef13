//! Graphs for the tests of lowering.

use tern_graph::{
    Activation, Attention, Basis, DeltaRule, DeltaWeights, Gating, Graph, HeadOrder, KeyHeads, RopeStyle,
    RopeTable, Routing, ScanWeights, SelectiveScan, Val,
};

/// A decoder of one layer, with its output matrix.
pub(crate) fn decoder() -> Graph {
    decoder_with(256, false, |g, x| {
        let [gate, up] = ["gate", "up"].map(|name| {
            let w = g.matrix(name, 512, 256).unwrap();
            g.linear(x, w).unwrap()
        });
        let h = g.gated(gate, up, Activation::Silu).unwrap();
        let down = g.matrix("down", 256, 512).unwrap();
        g.linear(h, down).unwrap()
    })
}

/// The experts of a decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertSizes {
    /// Columns of the residual stream.
    pub(crate) width: usize,
    pub(crate) count: usize,
    pub(crate) used: usize,
    /// Columns inside each expert.
    pub(crate) ff: usize,
    pub(crate) gating: Gating,
    pub(crate) activation: Activation,
    /// Whether linears of experts have biases, and attention has sinks.
    pub(crate) biased: bool,
    /// Whether they have scales, and one more expert is for all tokens.
    pub(crate) shared: bool,
}

impl ExpertSizes {
    /// As gpt-oss has them, but few.
    pub(crate) const SMALL: ExpertSizes = ExpertSizes {
        width: 256,
        count: 16,
        used: 2,
        ff: 320,
        gating: Gating::ChosenSoftmax,
        activation: Activation::SwigluOai,
        biased: true,
        shared: false,
    };
}

/// A decoder of one layer with experts, biases and sinks.
pub(crate) fn expert_decoder() -> Graph {
    expert_decoder_of(ExpertSizes::SMALL)
}

/// A decoder of one layer with experts.
pub(crate) fn expert_decoder_of(sizes: ExpertSizes) -> Graph {
    let ExpertSizes { width, count, used, ff, gating, activation, biased, shared } = sizes;
    decoder_with(width, biased, |g, x| {
        let router = g.matrix("router", count, width).unwrap();
        let logits = g.linear(x, router).unwrap();
        let routing = Routing { used, gating, groups: None, renormalise: true, scale: 1.0 };
        let route = g.route(logits, None, routing).unwrap();
        let experts = |g: &mut Graph, name: &str, x: Val, [rows, cols]: [usize; 2]| {
            let w = g.experts(name, count, rows, cols).unwrap();
            let bias = biased.then(|| g.vector(format!("{name}.bias"), count * rows).unwrap());
            let scale = shared.then(|| g.vector(format!("{name}.scale"), count).unwrap());
            g.expert_linear_with(x, Some(route), w, scale, bias).unwrap()
        };
        let gate = experts(g, "gate", x, [ff, width]);
        let up = experts(g, "up", x, [ff, width]);
        let h = g.gated(gate, up, activation).unwrap();
        let parts = experts(g, "down", h, [width, ff]);
        let mixed = g.mix(parts, route).unwrap();
        if !shared {
            return mixed;
        }
        let w = g.matrix("shared", width, width).unwrap();
        let all = g.linear(x, w).unwrap();
        g.add(mixed, all).unwrap()
    })
}

/// A decoder of one layer and `width` columns with this MLP, whose attention may have sinks.
fn decoder_with(width: usize, sinks: bool, mlp: impl Fn(&mut Graph, Val) -> Val) -> Graph {
    let mut g = Graph::new();
    let table = g.matrix("embed", 512, width).unwrap();
    let turns = g.rope_table(RopeTable::new(vec![1.0; 32], 1.0));
    let mut x = g.embed(table, 1.0);
    let [norm, head_norm] = [("norm", width), ("head_norm", 64)].map(|(n, len)| g.vector(n, len).unwrap());
    let normed = g.norm(x, norm, 1e-6).unwrap();
    let [q, k, v] = [("q", 256), ("k", 128), ("v", 128)].map(|(name, rows)| {
        let w = g.matrix(name, rows, width).unwrap();
        g.linear(normed, w).unwrap()
    });
    let [q, k] = [q, k].map(|v| {
        let v = g.norm(v, head_norm, 1e-6).unwrap();
        g.rope(v, 64, RopeStyle::Halves, turns).unwrap()
    });
    let args = Attention::full(4, 2, 64, 0.1);
    let sinks = sinks.then(|| g.vector("sinks", 4).unwrap());
    let attended = g.attend_with(q, k, v, args, sinks).unwrap();
    let o = g.matrix("o", width, 256).unwrap();
    let o = g.linear(attended, o).unwrap();
    x = g.add(x, o).unwrap();
    let normed = g.norm(x, norm, 1e-6).unwrap();
    let down = mlp(&mut g, normed);
    x = g.add(x, down).unwrap();
    let rows = g.outputs(x);
    let last = g.norm(rows, norm, 1e-6).unwrap();
    g.linear(last, table).unwrap();
    g
}

/// A layer with a delta rule, and one with a gated attention; matrices are stored rotated. Vectors
/// have names of one letter.
pub(crate) fn rotated_hybrid() -> Graph {
    let mut g = Graph::new();
    let basis = |heads| Basis { signs: vec![], block: 128, heads };
    for name in ["embed", "qkv", "gate", "q gate", "keys", "values", "output", "head"] {
        g.rotate_weight(name, &basis(None)).unwrap();
    }
    g.rotate_weight("delta out", &basis(Some(HeadOrder { outer: 2, inner: 2 }))).unwrap();
    let rule =
        DeltaRule { k_heads: 2, v_heads: 4, k_dim: 64, v_dim: 64, eps: 1e-6, key_heads: KeyHeads::Tiled };
    let table = g.matrix("embed", 512, 256).unwrap();
    let x = g.embed(table, 1.0);
    let linear = |g: &mut Graph, x, name: &str, rows| {
        let w = g.matrix(name, rows, 256).unwrap();
        g.linear(x, w).unwrap()
    };
    let w = g.vector("n", 256).unwrap();
    let normed = g.norm(x, w, 1e-6).unwrap();
    let [decay, beta] = ["alpha", "beta"].map(|name| linear(&mut g, normed, name, 4));
    let (qkv, z) = (linear(&mut g, normed, "qkv", 512), linear(&mut g, normed, "gate", 256));
    let taps = g.matrix("c", 512, 4).unwrap();
    let qkv = g.conv(qkv, taps, None, true).unwrap();
    let weights = DeltaWeights { rate: g.vector("r", 4).unwrap(), bias: g.vector("b", 4).unwrap() };
    let y = g.delta(qkv, decay, beta, weights, rule).unwrap();
    let w = g.vector("h", 64).unwrap();
    let y = g.norm(y, w, 1e-6).unwrap();
    let y = g.gated(z, y, Activation::Silu).unwrap();
    let y = linear(&mut g, y, "delta out", 256);
    let x = g.add(x, y).unwrap();
    let w = g.vector("m", 256).unwrap();
    let normed = g.norm(x, w, 1e-6).unwrap();
    let q = linear(&mut g, normed, "q gate", 512);
    let [k, v] = ["keys", "values"].map(|name| linear(&mut g, normed, name, 128));
    let gate = g.head_columns(q, 128, 64, 64).unwrap();
    let q = g.head_columns(q, 128, 0, 64).unwrap();
    let y = g.attend(q, k, v, Attention::full(4, 2, 64, 0.125)).unwrap();
    let y = g.gated(gate, y, Activation::Sigmoid).unwrap();
    let y = linear(&mut g, y, "output", 256);
    let x = g.add(x, y).unwrap();
    let x = g.outputs(x);
    let w = g.vector("l", 256).unwrap();
    let x = g.norm(x, w, 1e-6).unwrap();
    linear(&mut g, x, "head", 512);
    g
}

/// A scan between a convolution and a gate, with a norm of groups after it.
pub(crate) fn scan_layer() -> Graph {
    let mut g = Graph::new();
    let scan = SelectiveScan { heads: 4, head_dim: 64, groups: 2, state_dim: 32 };
    let table = g.matrix("embed", 512, 256).unwrap();
    let x = g.embed(table, 1.0);
    let w = g.matrix("in", 256 + scan.width() + 4, 256).unwrap();
    let all = g.linear(x, w).unwrap();
    let [z, xbc, dt] =
        [(0, 256), (256, 384), (640, 4)].map(|(start, len)| g.columns(all, start, len).unwrap());
    let taps = g.matrix("c", scan.width(), 4).unwrap();
    let bias = g.vector("d", scan.width()).unwrap();
    let xbc = g.conv(xbc, taps, Some(bias), true).unwrap();
    let [rate, bias, skip] = ["r", "b", "s"].map(|name| g.vector(name, 4).unwrap());
    let y = g.scan(xbc, dt, ScanWeights { rate, bias, skip }, scan).unwrap();
    let y = g.gated(z, y, Activation::Silu).unwrap();
    let w = g.matrix("n", 2, 128).unwrap();
    let y = g.norm(y, w, 1e-6).unwrap();
    let w = g.matrix("out", 256, 256).unwrap();
    let y = g.linear(y, w).unwrap();
    g.add(x, y).unwrap();
    g
}
