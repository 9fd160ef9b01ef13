//! Phases of small graphs as text, so that a change of lowering shows as a diff. No device is needed.

use std::fmt::Write;

use tern_graph::{
    Activation, AdaptedLinear, Attention, Gating, Graph, NormKind, RopeStyle, RopeTable, Routing, Val,
};
use tern_quant::{Q1_0, Q4_K, Quant};

use super::test_graphs::{decoder, expert_decoder, rotated_hybrid, scan_layer};
use super::test_lowering::{Lowered, Strategy, lower};
use super::{AttentionShape, BatchPhase, LinearShape};
use crate::shared::{HeadArgs, NormArgs, Phase, TransformArgs, View};

/// The phases of a graph whose matrices have these formats, `None` for floats.
fn lowered(graph: &Graph, format: impl Fn(&str) -> Option<&'static Quant>, strategy: Strategy) -> String {
    let Lowered { config, phases } = lower(graph, format, strategy);
    let mut text = String::new();
    for (name, value) in config.defines() {
        writeln!(text, "{name} = {value}").unwrap();
    }
    for AttentionShape { head_dim, v_dim, queries, capped } in &config.attentions {
        writeln!(text, "attention heads {head_dim} values {v_dim} queries {queries} capped {capped}")
            .unwrap();
    }
    for BatchPhase { phase, barrier, .. } in &phases {
        writeln!(text, "{}{}", if *barrier { "barrier, " } else { "" }, line(phase)).unwrap();
    }
    text
}

fn line(phase: &Phase) -> String {
    match phase {
        Phase::Embed(a) => format!("embed {:x} format {} -> {}", a.table, a.format, view(&a.y)),
        Phase::Linear(a) => {
            let parts = a.used_parts().iter().map(|p| {
                let to = view(&View { at: p.y, stride: i64::from(p.y_stride), mask: p.y_mask, pad: 0 });
                let of =
                    if p.expert_tiles == p.tiles { String::new() } else { format!(" of {}", p.expert_tiles) };
                format!(
                    "\n    {:x} format {} rows {} tiles {}{of} -> {to}",
                    p.records, p.format, p.rows, p.tiles
                )
            });
            let add = if a.add.at == 0 { String::new() } else { format!(" + {}", view(&a.add)) };
            let flags = LinearShape::of(a, 9216, 0).flags;
            let x = format!("{}{}", view(&a.x), norm(&a.norm));
            let experts = match a.experts {
                e if e.used == 0 => String::new(),
                e if e.mixed != 0 => {
                    format!(" added {} of {} experts, x in {}", e.used, e.experts, e.x_parts)
                }
                e => format!(" {} of {} experts by {:x}, x in {}", e.used, e.experts, e.route, e.x_parts),
            };
            let shape = format!("cols {} gated {} flags {flags:#b}{experts}", a.cols, a.gated);
            let conv = match a.conv.width {
                0 => String::new(),
                _ => format!("\n    convolved with {} taps, state {:x}", a.conv.taps_count, a.conv.state),
            };
            format!("linear {x}{add} {shape}{}{conv}", parts.collect::<String>())
        }
        Phase::FloatLinear(a) => {
            let norm = norm(&a.norm);
            format!("float linear {}{norm} {:x} rows {} -> {}", view(&a.x), a.w, a.rows, view(&a.y))
        }
        Phase::Norm(a) => format!("norm {}{} group {} -> {}", view(&a.x), norm(&a.norm), a.group, view(&a.y)),
        Phase::Fragments(a) => format!("fragments {}{} -> {:x}", view(&a.x), norm(&a.norm), a.to),
        Phase::Rope(a) => {
            let heads = format!("heads of {} pairs {}", a.head_dim, a.pairs);
            format!("rope {} {heads} interleaved {} -> {}", view(&a.x), a.interleaved, view(&a.y))
        }
        Phase::Elements(a) => {
            format!("elements {} kind {} {} by {} -> {}", view(&a.a), a.what, view(&a.b), a.by, view(&a.y))
        }
        Phase::ImageRows(a) => {
            format!("image rows {} adds {} start {} -> {}", view(&a.x), a.adds, a.start, view(&a.y))
        }
        Phase::JoinHeads(a) => format!("join heads {} {} -> {}", view(&a.a), view(&a.b), view(&a.y)),
        Phase::Outputs(a) => {
            let what = if a.mean != 0 { "means" } else { "output rows" };
            format!("{what} {} -> {}", view(&a.x), view(&a.y))
        }
        Phase::Attend(a) => {
            let inputs = format!("q {} k {} v {}", heads(&a.q), heads(&a.k), view(&a.v));
            let shape = format!("{} heads, {} key heads, {} groups", a.heads, a.kv_heads, a.groups);
            let sinks = if a.sinks == 0 { String::new() } else { format!(" sinks {:x}", a.sinks) };
            format!("attend {inputs}{sinks} pairs {} shape {}: {shape} -> {}", a.pairs, a.shape, view(&a.y))
        }
        Phase::Route(a) => {
            let r = &a.router;
            let by = if r.factor == 1.0 { String::new() } else { format!(" x {}", r.factor) };
            let router = format!("{}{} x {:x}{by}", view(&r.x), norm(&r.norm), r.w);
            let logits = match (a.router.w, a.logits.at) {
                (0, _) => view(&a.logits),
                (_, 0) => router,
                _ => format!("{router} -> {}", view(&a.logits)),
            };
            format!("route {logits} {} of {} -> {}", a.used, a.experts, view(&a.y))
        }
        Phase::Mix(a) => {
            let add = if a.add.at == 0 { String::new() } else { format!(" + {}", view(&a.add)) };
            format!("mix {} of {} by {:x}{add} -> {}", view(&a.x), a.used, a.route, view(&a.y))
        }
        Phase::Conv(a) => {
            format!("conv {} taps {} state {:x} -> {}", view(&a.x), a.taps_count, a.state, view(&a.y))
        }
        Phase::Recurrent(a) => {
            let what = if a.skip == 0 { "delta" } else { "scan" };
            let inputs = format!("{} gate {} beta {}", view(&a.x), view(&a.gate), view(&a.beta));
            let heads = format!("heads {}/{} x {}/{}", a.heads, a.key_heads, a.rows, a.cols);
            format!("{what} {inputs} {heads} state {:x} aligned {} -> {}", a.state, a.aligned, view(&a.y))
        }
        Phase::Transform(a) => format!("transform {}{} -> {}", view(&a.x), transform(a), view(&a.y)),
        Phase::Argmax(a) => format!("argmax {} -> {:x}", view(&a.logits), a.chosen),
    }
}

/// Norm, gate and rotation.
fn transform(a: &TransformArgs) -> String {
    let gate = match a.act {
        0 => String::new(),
        act => format!(" gate {act} {} len {}", view(&a.gate), a.gate_len),
    };
    let rotation = match a.block {
        0 => String::new(),
        block => format!(" blocks {block} heads {} x {} inverse {}", a.outer, a.inner, a.inverse),
    };
    let rows = format!("wide {} gather {}", a.wide, a.gather);
    format!("{} group {}{gate}{rotation} {rows}", norm(&a.norm), a.group)
}

/// Address and columns; a tagged value has a `t`.
fn view(v: &View) -> String {
    if v.at == 0 {
        return "nothing".into();
    }
    format!("{:x}[{}]{}", v.at, v.stride, if v.mask == 0 { "" } else { "t" })
}

fn norm(norm: &NormArgs) -> String {
    if norm.kind == 0 { String::new() } else { format!(" norm {} {:x}", norm.kind, norm.weight) }
}

fn heads(h: &HeadArgs) -> String {
    if h.norm == 0 { view(&h.x) } else { format!("{} norm {} {:x}", view(&h.x), h.norm, h.norm_weight) }
}

#[test]
fn a_decoder_of_codes() {
    insta::assert_snapshot!("decoder", lowered(&decoder(), |_| Some(&Q4_K), Strategy::FusedStep));
}

#[test]
fn a_decoder_without_tags() {
    insta::assert_snapshot!("decoder_untagged", lowered(&decoder(), |_| Some(&Q4_K), Strategy::Launches));
}

#[test]
fn a_decoder_with_mixed_matrices() {
    let mixed = |name: &str| match name {
        "down" => None,
        "v" => Some(&Q1_0),
        _ => Some(&Q4_K),
    };
    insta::assert_snapshot!("decoder_mixed", lowered(&decoder(), mixed, Strategy::FusedStep));
}

/// Matrices of codes but for the router.
fn of_experts(name: &str) -> Option<&'static Quant> {
    (name != "router" && !name.ends_with(".bias")).then_some(&Q4_K)
}

#[test]
fn a_decoder_with_adapters() {
    let linears = ["q", "gate", "down"].map(|weight| AdaptedLinear { weight: weight.into(), rank: 8 });
    let graph = decoder().with_adapters(2, &linears).unwrap();
    let format = |name: &str| (!name.contains(".lora_")).then_some(&Q1_0);
    insta::assert_snapshot!("decoder_with_adapters", lowered(&graph, format, Strategy::Launches));
}

#[test]
fn a_decoder_of_experts() {
    insta::assert_snapshot!("experts", lowered(&expert_decoder(), of_experts, Strategy::FusedStep));
}

#[test]
fn a_decoder_of_experts_in_launches() {
    insta::assert_snapshot!("experts_launches", lowered(&expert_decoder(), of_experts, Strategy::Launches));
}

/// Normalised values, a layer that reads the keys of another, and experts beside a router with a factor.
#[test]
fn a_layer_with_shared_keys_and_joined_experts() {
    let mut g = Graph::new();
    let table = g.matrix("embed", 512, 256).unwrap();
    let x = g.embed(table, 1.0);
    let [norm, head_norm] = [("norm", 256), ("head_norm", 64)].map(|(n, len)| g.vector(n, len).unwrap());
    let turns = g.rope_table(RopeTable::new(vec![1.0; 32], 1.0));
    let normed = g.norm(x, norm, 1e-6).unwrap();
    let [q, other_q, k] = [("q", 256), ("other q", 256), ("k", 128)].map(|(name, rows)| {
        let w = g.matrix(name, rows, 256).unwrap();
        g.linear(normed, w).unwrap()
    });
    let v = g.plain_norm(k, 64, 1e-6).unwrap();
    let [q, other_q, k] = [q, other_q, k].map(|v| {
        let v = g.norm(v, head_norm, 1e-6).unwrap();
        g.rope(v, 64, RopeStyle::Halves, turns).unwrap()
    });
    let args = Attention::full(4, 2, 64, 1.0);
    let first = g.attend(q, k, v, args).unwrap();
    let second = g.attend_to(other_q, 0, args).unwrap();
    let x = g.add(first, second).unwrap();
    let router = g.matrix("router", 8, 256).unwrap();
    let normed = g.norm(x, norm, 1e-6).unwrap();
    let logits = g.linear(normed, router).unwrap();
    let logits = g.scale(logits, 0.25);
    let gating = Gating::Softmax;
    let routing = Routing { used: 2, gating, groups: None, renormalise: true, scale: 1.0 };
    let route = g.route(logits, None, routing).unwrap();
    let both = g.experts("gate_up", 8, 256, 256).unwrap();
    let both = g.expert_linear(x, Some(route), both).unwrap();
    let [gate, up] = [0, 128].map(|start| g.head_columns(both, 256, start, 128).unwrap());
    let h = g.gated(gate, up, Activation::GeluTanh).unwrap();
    let down = g.experts("down", 8, 256, 128).unwrap();
    let down = g.expert_linear(h, Some(route), down).unwrap();
    let mixed = g.mix(down, route).unwrap();
    g.outputs(mixed);
    let format = |name: &str| if name == "router" { None } else { Some(&Q4_K) };
    insta::assert_snapshot!("shared_and_joined", lowered(&g, format, Strategy::Launches));
}

/// A layer with a delta rule and a gated attention, both of rotated weights, as launches.
#[test]
fn a_hybrid_of_rotated_weights() {
    let graph = rotated_hybrid();
    let matrices = |name: &str| (name.len() > 1).then_some(&Q1_0);
    insta::assert_snapshot!("rotated_hybrid", lowered(&graph, matrices, Strategy::Launches));
}

/// The same as a fused step: the convolution is part of a linear, and there are no barriers;
/// alpha and beta are floats.
#[test]
fn a_fused_step_of_rotated_weights() {
    let graph = rotated_hybrid();
    let matrices = |name: &str| (name.len() > 1 && !["alpha", "beta"].contains(&name)).then_some(&Q1_0);
    insta::assert_snapshot!("rotated_hybrid_step", lowered(&graph, matrices, Strategy::FusedStep));
}

/// A scan between a convolution and a gate whose result has norms of groups, without rotations.
#[test]
fn a_scan_with_norms_of_groups() {
    insta::assert_snapshot!(
        "scan",
        lowered(&scan_layer(), |name| (name.len() > 1).then_some(&Q1_0), Strategy::Launches)
    );
}

#[test]
fn ops_that_fit_no_pattern() {
    let mut g = Graph::new();
    let [table, w] = [("embed", 64), ("w", 96)].map(|(name, rows)| g.matrix(name, rows, 96).unwrap());
    let [weight, bias] = ["norm", "bias"].map(|name| g.vector(name, 96).unwrap());
    let rope = g.rope_table(RopeTable::new(vec![1.0; 16], 1.0));
    let x = g.embed(table, 2.0);
    let normed = g.norm_of_kind(x, weight, Some(bias), 1e-5, NormKind::Layer).unwrap();
    let rotated = g.rope(normed, 32, RopeStyle::Interleaved, rope).unwrap();
    let product: Val = g.linear(rotated, w).unwrap();
    let sum = g.add(product, normed).unwrap();
    let scaled = g.scale(sum, 0.5);
    let capped = g.softcap(scaled, 30.0);
    g.outputs(capped);
    insta::assert_snapshot!("no_pattern", lowered(&g, |_| None, Strategy::FusedStep));
}
