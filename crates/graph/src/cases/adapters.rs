//! Cases of low-rank adapters: sequences with different adapters, several and none in one step.

use tern_quant::{F32, Q4_K, Q8_0, Quant};

use super::{Case, PAGE_LEN, random_tensor, step_tolerance};
use crate::{AdaptedLinear, AdapterScales, GraphError, Output, Random, Slice, Step};

/// Adapters of the cases.
const ADAPTERS: usize = 3;

/// Two linears of one value, both with adapters, and a third one of their product; slices of these lengths.
fn adapted(quant: &'static Quant, rank: usize, lens: &[usize]) -> Result<Case, GraphError> {
    let rng = &mut Random::new(31);
    let tokens = lens.iter().sum();
    let name = format!("adapters {} rank {rank} slices {lens:?}", quant.name.to_lowercase());
    let mut case = Case::new(name, 3.0 * step_tolerance(quant, tokens));
    let x = case.input("x", 256, rng)?;
    let gate = case.matrix(random_tensor("gate", quant, 160, 256, rng)?)?;
    let up = case.matrix(random_tensor("up", quant, 160, 256, rng)?)?;
    let down = case.matrix(random_tensor("down", &F32, 70, 160, rng)?)?;
    let (gate, up) = (case.graph.linear(x, gate)?, case.graph.linear(x, up)?);
    let h = case.graph.gated(gate, up, crate::Activation::Silu)?;
    let h = case.graph.outputs(h);
    case.graph.linear(h, down)?;
    let linears = ["gate", "up", "down"].map(|weight| AdaptedLinear { weight: weight.into(), rank });
    case.graph = case.graph.with_adapters(ADAPTERS, &linears)?;
    for weight in &case.graph.weights[case.weights.len()..] {
        case.weights.push(random_tensor(&weight.name, &F32, weight.rows, weight.cols, rng)?);
    }
    let scales: [&[f32]; 5] = [&[1.0], &[], &[0.0, 0.0, -2.0], &[0.5, 0.25, 1.0], &[0.0, 0.75]];
    let slice = |(i, len): (usize, &usize)| {
        let adapters = AdapterScales::new(scales[i % scales.len()]);
        Slice { adapters, ..Slice::new(*len, 0, vec![0; len.div_ceil(PAGE_LEN)]) }
    };
    let slices: Vec<Slice> = lens.iter().enumerate().map(slice).collect();
    let row = |row| Output { row, sample: None, logits: true };
    case.steps.push(Step {
        tokens: (0..tokens).map(|_| rng.below(super::INPUTS) as u32).collect(),
        slices,
        outputs: (0..tokens).map(row).collect(),
        ..Step::default()
    });
    Ok(case)
}

/// All cases of adapters.
pub(super) fn adapters() -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    for quant in [&Q4_K, &Q8_0, &F32] {
        for lens in [&[1][..], &[1, 1, 1, 1, 1], &[3, 1, 9, 2, 6]] {
            cases.push(adapted(quant, 8, lens)?);
        }
        cases.push(adapted(quant, 5, &[40, 3, 70])?);
    }
    Ok(cases)
}
