//! Graphs for the tests of lowering.

use tern_graph::{Activation, Attention, Gating, Graph, RopeStyle, RopeTable, Routing, Val};

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

/// A decoder of one layer and so many columns with this MLP, whose attention may have sinks.
fn decoder_with(width: usize, sinks: bool, mlp: impl Fn(&mut Graph, Val) -> Val) -> Graph {
    let mut g = Graph::new();
    let table = g.matrix("embed", 512, width).unwrap();
    let turns = g.rope_table(RopeTable { freqs: vec![1.0; 32], magnitude: 1.0 });
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
