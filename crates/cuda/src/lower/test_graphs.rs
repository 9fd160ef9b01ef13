//! Graphs for the tests of lowering.

use tern_graph::{Activation, Attention, Graph, RopeStyle, RopeTable};

/// A decoder of one layer, with its output matrix.
pub(crate) fn decoder() -> Graph {
    let mut g = Graph::new();
    let table = g.matrix("embed", 512, 256).unwrap();
    let turns = g.rope_table(RopeTable { freqs: vec![1.0; 32], magnitude: 1.0 });
    let mut x = g.embed(table, 1.0);
    let [norm, head_norm] = [("norm", 256), ("head_norm", 64)].map(|(n, len)| g.vector(n, len).unwrap());
    let normed = g.norm(x, norm, 1e-6).unwrap();
    let [q, k, v] = [("q", 256), ("k", 128), ("v", 128)].map(|(name, rows)| {
        let w = g.matrix(name, rows, 256).unwrap();
        g.linear(normed, w).unwrap()
    });
    let [q, k] = [q, k].map(|v| {
        let v = g.norm(v, head_norm, 1e-6).unwrap();
        g.rope(v, 64, RopeStyle::Halves, turns).unwrap()
    });
    let args = Attention::full(4, 2, 64, 0.1);
    let attended = g.attend(q, k, v, args).unwrap();
    let o = g.matrix("o", 256, 256).unwrap();
    let o = g.linear(attended, o).unwrap();
    x = g.add(x, o).unwrap();
    let normed = g.norm(x, norm, 1e-6).unwrap();
    let [gate, up] = ["gate", "up"].map(|name| {
        let w = g.matrix(name, 512, 256).unwrap();
        g.linear(normed, w).unwrap()
    });
    let h = g.gated(gate, up, Activation::Silu).unwrap();
    let down = g.matrix("down", 256, 512).unwrap();
    let down = g.linear(h, down).unwrap();
    x = g.add(x, down).unwrap();
    let rows = g.outputs(x);
    let last = g.norm(rows, norm, 1e-6).unwrap();
    g.linear(last, table).unwrap();
    g
}
