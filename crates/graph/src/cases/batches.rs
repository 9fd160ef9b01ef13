//! Cases of steps that a server runs: a few tokens of several sequences, and ops that
//! pass values to each other.

use tern_quant::{Q1_0, Q2_0, Q4_K, Q8_0, Quant};

use super::{Attention, Case, GraphError, HostTensor, INPUTS, PAGE_LEN, Random, Step, linear, random_tensor};
use crate::{Activation, Output, PageTable, Slice};

/// All of them.
pub(super) fn batches() -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    for quant in [&Q1_0, &Q2_0, &Q4_K, &Q8_0] {
        cases.push(residual(quant)?);
    }
    for quant in [&Q1_0, &Q4_K] {
        // more columns and rows than the registers of a few tokens hold
        cases.push(linear(quant, 4400, 5120, 4)?);
    }
    for quant in [&Q1_0, &Q2_0] {
        cases.push(layer(quant, 2)?);
        cases.push(layer(quant, 300)?);
    }
    cases.push(sequences(None)?);
    cases.push(sequences(Some(50))?);
    Ok(cases)
}

/// `norm(x + x * v^T) * w^T`: the second linear normalises what the first one adds to, here
/// without a norm before it.
fn residual(quant: &'static Quant) -> Result<Case, GraphError> {
    let rng = &mut Random::new(6);
    let mut case = Case::new(format!("residual and norm {}", quant.name.to_lowercase()), 1e-3);
    let x = case.input("x", 512, rng)?;
    let [v, w] = [("v", 512), ("w", 70)].map(|(name, rows)| random_tensor(name, quant, rows, 512, rng));
    let (v, w) = (case.matrix(v?)?, case.matrix(w?)?);
    let by = case.matrix(HostTensor::from_f32("norm", 1, 512, &rng.normals(512, 3.0)))?;
    let added = case.graph.linear(x, v)?;
    let sum = case.graph.add(x, added)?;
    let normed = case.graph.norm(sum, by, 1e-6)?;
    case.graph.linear(normed, w)?;
    case.sequence(&[4, 1, 3, 9], rng);
    Ok(case)
}

/// A layer of a decoder, whose linears pass values to each other in every way, with four heads and a row
/// of zeros.
fn layer(quant: &'static Quant, tokens: usize) -> Result<Case, GraphError> {
    const WIDTH: usize = 512;
    let rng = &mut Random::new(8);
    let mut case = Case::new(format!("layer {} tokens {tokens}", quant.name.to_lowercase()), 2e-3);
    let mut values = rng.normals(INPUTS * WIDTH, 1.0);
    values[..WIDTH].fill(0.0);
    let x = case.matrix(HostTensor::from_f32("x", INPUTS, WIDTH, &values))?;
    let x = case.graph.embed(x, 1.0);
    let norm: Vec<f32> = rng.normals(WIDTH, 0.2).iter().map(|x| 1.0 + x).collect();
    let norm = case.matrix(HostTensor::from_f32("norm", 1, WIDTH, &norm))?;
    let mut linear = |case: &mut Case, name: &str, x, rows, cols| {
        let weight = case.matrix(random_tensor(name, quant, rows, cols, rng)?)?;
        case.graph.linear(x, weight)
    };
    let normed = case.graph.norm(x, norm, 1e-6)?;
    let [q, k, v] = ["q", "k", "v"].map(|name| linear(&mut case, name, normed, WIDTH, WIDTH));
    let attended = case.graph.attend(q?, k?, v?, Attention::full(4, 4, 128, 0.1))?;
    let out = linear(&mut case, "out", attended, WIDTH, WIDTH)?;
    let x = case.graph.add(x, out)?;
    let normed = case.graph.norm(x, norm, 1e-6)?;
    let [gate, up] = ["gate", "up"].map(|name| linear(&mut case, name, normed, 3 * WIDTH, WIDTH));
    let hidden = case.graph.gated(gate?, up?, Activation::Silu)?;
    let down = linear(&mut case, "down", hidden, WIDTH, 3 * WIDTH)?;
    case.graph.add(x, down)?;
    case.sequence(&[tokens], rng);
    Ok(case)
}

/// Eight sequences of very different lengths, which decode together; then some of them with several tokens.
fn sequences(window: Option<usize>) -> Result<Case, GraphError> {
    let rng = &mut Random::new(7);
    let name = format!("eight sequences, window {}", window.unwrap_or(0));
    let mut case = Case::new(name, 2e-3);
    let args = Attention { window, ..Attention::full(8, 2, 64, 0.125) };
    let [q, k, v] = [("q", 8), ("k", 2), ("v", 2)].map(|(name, heads)| case.input(name, heads * 64, rng));
    case.graph.attend(q?, k?, v?, args)?;
    let mut lens = [3, 40, 1500, 17, 129, 1, 64, 700];
    let mut next_page = 0;
    let tables = lens.map(|len: usize| {
        let pages = (len + 8).div_ceil(PAGE_LEN) as u32;
        next_page += pages;
        (next_page - pages..next_page).rev().collect::<PageTable>()
    });
    let mut step = |slices: Vec<Slice>| {
        let count: usize = slices.iter().map(|slice| slice.len).sum();
        case.steps.push(Step {
            tokens: (0..count).map(|_| rng.below(INPUTS) as u32).collect(),
            slices,
            outputs: (0..count).map(|row| Output { row, sample: None, logits: true }).collect(),
            ..Step::default()
        });
    };
    for (len, pages) in lens.iter().zip(&tables) {
        step(vec![Slice::new(*len, 0, pages.clone())]);
    }
    // (sequence, tokens): all, two, and drafts of three
    let all: Vec<(usize, usize)> = (0..8).map(|s| (s, 1)).collect();
    for tokens in [all.clone(), vec![(2, 1), (5, 1)], vec![(7, 4), (0, 1), (2, 3)], all] {
        let slices = tokens.iter().map(|&(s, len)| Slice::new(len, lens[s], tables[s].clone()));
        step(slices.collect());
        tokens.iter().for_each(|&(s, len)| lens[s] += len);
    }
    Ok(case)
}
