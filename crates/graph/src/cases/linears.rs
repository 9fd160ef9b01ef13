//! Cases of linears.

use tern_quant::Quant;

use super::{Case, random_tensor, step_tolerance};
use crate::{GraphError, Random};

/// `x * w^T` in one format.
pub fn linear(quant: &'static Quant, rows: usize, cols: usize, tokens: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(1);
    let mut case = Case::new(linear_name(quant, [rows, cols], tokens), step_tolerance(quant, tokens));
    let x = case.input("x", cols, rng)?;
    let w = case.matrix(random_tensor("w", quant, rows, cols, rng)?)?;
    case.graph.linear(x, w)?;
    case.sequence(&[tokens], rng);
    Ok(case)
}

pub(super) fn linear_name(quant: &Quant, [rows, cols]: [usize; 2], tokens: usize) -> String {
    format!("linear {} {rows}x{cols} tokens {tokens}", quant.name.to_lowercase())
}

/// `x * v^T + x * w^T`: one value that two formats read.
pub fn two_linears(
    quants: [&'static Quant; 2],
    rows: usize,
    cols: usize,
    tokens: usize,
) -> Result<Case, GraphError> {
    let rng = &mut Random::new(5);
    let [first, second] = quants.map(|q| q.name.to_lowercase());
    let name = format!("linears {first} and {second} {rows}x{cols} tokens {tokens}");
    // the shared value has the bits of the finer format
    let tolerances = quants.map(|quant| step_tolerance(quant, tokens));
    let mut case = Case::new(name, tolerances[0].min(tolerances[1]));
    let x = case.input("x", cols, rng)?;
    let v = case.matrix(random_tensor("v", quants[0], rows, cols, rng)?)?;
    let w = case.matrix(random_tensor("w", quants[1], rows, cols, rng)?)?;
    let (a, b) = (case.graph.linear(x, v)?, case.graph.linear(x, w)?);
    case.graph.add(a, b)?;
    case.sequence(&[tokens], rng);
    Ok(case)
}
