//! Cases of routing and of experts.

use tern_quant::{MXFP4, Q1_0, Q4_K, Q8_0, Quant, TQ2_0};

use super::{Case, formats, random_tensor, tolerance};
use crate::{Activation, ExpertGroups, Gating, GraphError, HostTensor, Random, Routing, Val};

/// Softmax over all experts, renormalised.
const ROUTING: Routing =
    Routing { used: 3, gating: Gating::Softmax, groups: None, renormalise: true, scale: 1.0 };

/// The matrices of a case: how many, and the shape of each.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// Matrices.
    pub count: usize,
    /// Matrices per token.
    pub used: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub cols: usize,
}

/// All of them.
pub(super) fn experts() -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::ChosenSoftmax, Gating::SqrtSoftplus] {
        for groups in [None, Some(ExpertGroups { count: 4, used: 2 })] {
            let routing = Routing { gating, groups, scale: 1.5, ..ROUTING };
            cases.push(route(routing, true)?);
            cases.push(route(Routing { renormalise: false, ..routing }, false)?);
        }
    }
    let sizes = Experts { count: 5, used: 2, rows: 19, cols: 256 };
    for quant in formats() {
        for tokens in [1, 9, 40] {
            cases.push(expert_linear(quant, sizes, tokens)?);
        }
    }
    // more tokens per expert than are computed at a time, and experts without tokens
    for (used, tokens) in [(2, 330), (1, 3)] {
        cases.push(expert_linear(&Q4_K, Experts { count: 8, used, rows: 150, cols: 512 }, tokens)?);
    }
    for quant in [&Q1_0, &Q4_K, &Q8_0, &MXFP4, &TQ2_0, &tern_quant::BF16] {
        for tokens in [1, 5, 60] {
            cases.push(expert_mlp(quant, tokens)?);
        }
    }
    for (quant, ff) in [(&Q1_0, 256), (&Q4_K, 256), (&tern_quant::BF16, 256), (&Q8_0, 192)] {
        for tokens in [1, 5, 60] {
            cases.push(joined_experts(quant, ff, tokens)?);
        }
    }
    cases.push(router()?);
    cases.push(heads(&Q8_0)?);
    Ok(cases)
}

/// The choice of experts.
fn route(routing: Routing, biased: bool) -> Result<Case, GraphError> {
    let rng = &mut Random::new(11);
    let mut case = Case::new(format!("{routing:?}, biased {biased}"), 1e-5);
    let logits = case.input("logits", 24, rng)?;
    let bias = HostTensor::from_f32("bias", 1, 24, &rng.normals(24, 0.2));
    let bias = if biased { Some(case.matrix(bias)?) } else { None };
    case.graph.route(logits, bias, routing)?;
    case.sequence(&[40, 1], rng);
    Ok(case)
}

/// The linears of chosen experts on the same `x`.
pub fn expert_linear(quant: &'static Quant, sizes: Experts, tokens: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(12);
    let Experts { count, used, rows, cols } = sizes;
    let name = expert_linear_name(quant, sizes, tokens);
    let halves = if quant.codes().is_some() { 8e-4 } else { 0.0 }; // as which a backend may take activations
    let mut case = Case::new(name, tolerance(quant).max(halves));
    let x = case.input("x", cols, rng)?;
    let logits = case.input("logits", count, rng)?;
    let route = case.graph.route(logits, None, Routing { used, ..ROUTING })?;
    let w = case.experts(random_tensor("w", quant, count * rows, cols, rng)?, count)?;
    case.graph.expert_linear(x, Some(route), w)?;
    case.sequence(&[tokens], rng);
    case.bytes = case.bytes / count * count.min(used * tokens);
    Ok(case)
}

pub(super) fn expert_linear_name(quant: &Quant, sizes: Experts, tokens: usize) -> String {
    let Experts { count, used, rows, cols } = sizes;
    let name = quant.name.to_lowercase();
    format!("experts {name} {used} of {count} x {rows}x{cols} tokens {tokens}")
}

/// An MLP of experts, with biases and scales.
pub fn expert_mlp(quant: &'static Quant, tokens: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(13);
    let (count, width, ff) = (7, 256, 512);
    let name = format!("mlp of experts {} tokens {tokens}", quant.name.to_lowercase());
    let mut case = Case::new(name, 3.0 * tolerance(quant).max(1e-4)); // the second linear quantizes again
    let x = case.input("x", width, rng)?;
    let logits = case.input("logits", count, rng)?;
    let route = case.graph.route(logits, None, ROUTING)?;
    let mut linear = |case: &mut Case, name: &str, x: Val, [rows, cols]: [usize; 2]| {
        let w = case.experts(random_tensor(name, quant, count * rows, cols, rng)?, count)?;
        let scale = HostTensor::from_f32(&format!("{name}.scale"), 1, count, &rng.normals(count, 1.0));
        let bias =
            HostTensor::from_f32(&format!("{name}.bias"), count, rows, &rng.normals(count * rows, 1.0));
        let (scale, bias) = (case.matrix(scale)?, case.matrix(bias)?);
        case.graph.expert_linear_with(x, Some(route), w, Some(scale), Some(bias))
    };
    let gate = linear(&mut case, "gate", x, [ff, width])?;
    let up = linear(&mut case, "up", x, [ff, width])?;
    let hidden = case.graph.gated(gate, up, Activation::SwigluOai)?;
    let down = linear(&mut case, "down", hidden, [width, ff])?;
    let mixed = case.graph.mix(down, route)?;
    case.graph.add(x, mixed)?;
    case.sequence(&[tokens, 1], rng);
    Ok(case)
}

/// A router with its own norm, and a factor on its logits.
fn router() -> Result<Case, GraphError> {
    let rng = &mut Random::new(16);
    let (count, width) = (24, 256);
    let mut case = Case::new("a router with a norm and a factor".into(), 1e-5);
    let x = case.input("x", width, rng)?;
    let norm = case.matrix(HostTensor::from_f32("norm", 1, width, &rng.normals(width, 1.0)))?;
    let router = case.matrix(random_tensor("router", &tern_quant::F32, count, width, rng)?)?;
    let normed = case.graph.norm(x, norm, 1e-6)?;
    let logits = case.graph.linear(normed, router)?;
    let logits = case.graph.scale(logits, 0.3);
    case.graph.route(logits, None, ROUTING)?;
    case.sequence(&[40, 1, 3], rng);
    Ok(case)
}

/// Experts with gate and up in one tensor.
fn joined_experts(quant: &'static Quant, ff: usize, tokens: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(15);
    let (count, width) = (7, 256);
    let quant_name = quant.name.to_lowercase();
    let name = format!("mlp of experts of {ff} with gate and up in one {quant_name} tokens {tokens}");
    let mut case = Case::new(name, 3.0 * tolerance(quant).max(1e-4));
    let x = case.input("x", width, rng)?;
    let logits = case.input("logits", count, rng)?;
    let route = case.graph.route(logits, None, ROUTING)?;
    let both = case.experts(random_tensor("gate_up", quant, count * 2 * ff, width, rng)?, count)?;
    let both = case.graph.expert_linear(x, Some(route), both)?;
    let gate = case.graph.head_columns(both, 2 * ff, 0, ff)?;
    let up = case.graph.head_columns(both, 2 * ff, ff, ff)?;
    let hidden = case.graph.gated(gate, up, Activation::GeluTanh)?;
    let down = case.experts(random_tensor("down", quant, count * width, ff, rng)?, count)?;
    let down = case.graph.expert_linear(hidden, Some(route), down)?;
    let mixed = case.graph.mix(down, route)?;
    case.graph.add(x, mixed)?;
    case.sequence(&[tokens, 1], rng);
    Ok(case)
}

/// A matrix per head.
fn heads(quant: &'static Quant) -> Result<Case, GraphError> {
    let rng = &mut Random::new(14);
    let mut case = Case::new(format!("a matrix per head {}", quant.name.to_lowercase()), tolerance(quant));
    let x = case.input("x", 6 * 96, rng)?;
    let w = case.experts(random_tensor("w", quant, 6 * 40, 96, rng)?, 6)?;
    case.graph.expert_linear(x, None, w)?;
    case.sequence(&[1, 21, 3], rng);
    Ok(case)
}
