//! Cases of embeddings, norms, rotations and elementwise ops.

use tern_quant::Quant;

use super::{Case, INPUTS, random_tensor};
use crate::{Activation, Function, GraphError, HostTensor, NormKind, Random, RopeStyle, RopeTable, Val};

/// Rows of a table in one format.
pub(super) fn embed(quant: &'static Quant) -> Result<Case, GraphError> {
    let rng = &mut Random::new(3);
    let mut case = Case::new(format!("embed {}", quant.name.to_lowercase()), 1e-6);
    let table = case.matrix(random_tensor("table", quant, INPUTS, 256, rng)?)?;
    case.graph.embed(table, 1.5);
    case.sequence(&[7], rng);
    Ok(case)
}

/// All others.
pub(super) fn small_ops() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(4);
    let (mut cases, mut applied) = (vec![], vec![]);
    let mut small = |name: &str, tolerance: f32, width: usize, build: Build| -> Result<(), GraphError> {
        let mut case = Case::new(name.into(), tolerance);
        let x = case.input("x", width, rng)?;
        let y = case.input("y", width, rng)?;
        build(&mut case, x, y, rng)?;
        case.sequence(&[5, 1], rng);
        cases.push(case);
        Ok(())
    };
    type Build = fn(&mut Case, Val, Val, &mut Random) -> Result<Val, GraphError>;
    small("norm rms", 1e-5, 200, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 1, 200, &rng.normals(200, 1.0)))?;
        c.graph.norm(x, w, 1e-6)
    })?;
    small("norm rms of heads", 1e-5, 192, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 1, 64, &rng.normals(64, 1.0)))?;
        c.graph.norm(x, w, 1e-5)
    })?;
    small("norm rms of heads, without a weight", 1e-5, 192, |c, x, _, _| c.graph.plain_norm(x, 48, 1e-3))?;
    small("norm layer", 1e-5, 96, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 1, 96, &rng.normals(96, 1.0)))?;
        let b = c.matrix(HostTensor::from_f32("b", 1, 96, &rng.normals(96, 1.0)))?;
        c.graph.norm_of_kind(x, w, Some(b), 1e-5, NormKind::Layer)
    })?;
    small("linear with scale and bias", 1e-4, 64, |c, x, _, rng| {
        let w = c.matrix(random_tensor("w", &tern_quant::Q8_0, 33, 64, rng)?)?;
        let s = c.matrix(HostTensor::from_f32("s", 1, 1, &[0.37]))?;
        let b = c.matrix(HostTensor::from_f32("b", 1, 33, &rng.normals(33, 1.0)))?;
        c.graph.linear_with(x, w, Some(s), Some(b))
    })?;
    small("rope halves", 1e-5, 128, |c, x, _, _| {
        let table = c.graph.rope_table(rope_table(32, 1.0));
        c.graph.rope(x, 64, RopeStyle::Halves, table)
    })?;
    small("rope interleaved, part of the head", 1e-5, 160, |c, x, _, _| {
        let table = c.graph.rope_table(rope_table(24, 1.2));
        c.graph.rope(x, 80, RopeStyle::Interleaved, table)
    })?;
    small("gated silu", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Silu))?;
    small("gated gelu", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::GeluTanh))?;
    small("gated gelu by erf", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Gelu))?;
    for (name, function) in [
        ("apply gelu", Function::Gelu),
        ("apply gelu in its tanh form", Function::GeluTanh),
        ("apply tanh", Function::Tanh),
    ] {
        let mut case = Case::new(name.into(), 1e-5);
        let rng = &mut Random::new(11);
        let x = case.input("x", 1003, rng)?;
        let x = case.graph.scale(x, 2.0); // also where the functions are nearly constant
        case.graph.apply(x, function);
        case.sequence(&[5, 1], rng);
        applied.push(case);
    }
    small("gated relu2", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Relu2))?;
    small("gated swiglu oai", 1e-5, 100, |c, x, y, _| {
        let x = c.graph.scale(x, 5.0); // beyond its limit
        let y = c.graph.scale(y, 5.0);
        c.graph.gated(x, y, Activation::SwigluOai)
    })?;
    small("gated swiglu clamp", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::SwigluClamp(0.7)))?;
    small("gated sigmoid", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Sigmoid))?;
    small("gated product", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Product))?;
    small("gated relu", 1e-5, 100, |c, x, y, _| c.graph.gated(x, y, Activation::Relu))?;
    small("gate rows", 1e-5, 100, |c, x, y, _| {
        let gate = c.graph.columns(y, 3, 1)?;
        c.graph.gate_rows(x, gate)
    })?;
    small("norm rms with a weight per group", 1e-5, 192, |c, x, _, rng| {
        let w = c.matrix(HostTensor::from_f32("w", 4, 48, &rng.normals(192, 1.0)))?;
        c.graph.norm(x, w, 1e-5)
    })?;
    small("add", 1e-6, 100, |c, x, y, _| c.graph.add(x, y))?;
    small("scale", 1e-6, 100, |c, x, _, _| Ok(c.graph.scale(x, -0.3)))?;
    small("softcap", 1e-5, 100, |c, x, _, _| Ok(c.graph.softcap(x, 2.0)))?;
    small("columns", 1e-6, 100, |c, x, _, _| c.graph.columns(x, 13, 50))?;
    small("head columns", 1e-6, 96, |c, x, _, _| c.graph.head_columns(x, 32, 7, 20))?;
    small("join heads", 1e-6, 96, |c, x, y, _| {
        let y = c.graph.columns(y, 5, 30)?;
        c.graph.join_heads(x, y, 3)
    })?;
    small("outputs", 1e-6, 100, |c, x, _, _| Ok(c.graph.outputs(x)))?;
    cases.extend(applied);
    Ok(cases)
}

fn rope_table(pairs: usize, magnitude: f32) -> RopeTable {
    let freqs = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
    RopeTable::new(freqs, magnitude)
}
