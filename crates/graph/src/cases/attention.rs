//! Cases of attention.

use super::{Case, INPUTS};
use crate::{
    Attention, GraphError, HostTensor, KvCells, Op, Output, PageTable, Random, Slice, Step, Temperature,
};

/// Attention of one sequence, in steps of `lens` tokens.
pub fn attend(args: Attention, lens: &[usize]) -> Result<Case, GraphError> {
    let rng = &mut Random::new(2);
    let mut case = Case::new(attend_name(args, lens), 2e-3); // keys and values are kept in f16
    let q = case.input("q", args.heads * args.head_dim, rng)?;
    let k = case.input("k", args.kv_heads * args.head_dim, rng)?;
    let v = case.input("v", args.kv_heads * args.v_dim, rng)?;
    case.graph.attend(q, k, v, args)?;
    case.sequence(lens, rng);
    case.bytes += lens.iter().sum::<usize>() * case.graph.kv[0].bytes_per_token(case.kv_cells);
    Ok(case)
}

pub(super) fn attend_name(args: Attention, lens: &[usize]) -> String {
    let (w, c) = (args.window.unwrap_or(0), args.softcap.unwrap_or(0.0));
    let (t, heads) = (args.temperature.map_or(0.0, |t| t.scale), args.heads);
    format!(
        "attend {heads}/{} heads x {} window {w} softcap {c} temperature {t} steps {lens:?}",
        args.kv_heads, args.head_dim
    )
}

/// The same with a sink per head: small ones, large ones, and one that takes nearly all of the weight.
fn sinks(args: Attention, lens: &[usize]) -> Result<Case, GraphError> {
    let mut case = attend(args, lens)?;
    case.name = format!("{} with sinks", case.name);
    let sinks = [0.5, -3.0, 2.0, 30.0, -100.0, 1.0];
    let id = case.matrix(HostTensor::from_f32("sinks", 1, args.heads, &sinks[..args.heads]))?;
    if let Some(Op::Attend { sinks, .. }) = case.graph.nodes.last_mut().map(|node| &mut node.op) {
        *sinks = Some(id);
    }
    Ok(case)
}

/// All of them.
pub(super) fn attentions() -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    let plain = Attention::full(4, 4, 64, 0.125);
    for (args, lens) in [
        (plain, vec![1, 1, 1]),
        (plain, vec![40]),
        (Attention { kv_heads: 1, ..plain }, vec![5, 33, 1]),
        (Attention { heads: 6, kv_heads: 2, head_dim: 80, v_dim: 48, ..plain }, vec![17, 1, 9]),
        (Attention { window: Some(7), ..plain }, vec![20, 1, 30]),
        (Attention { temperature: Some(Temperature { scale: 0.8, length: 6 }), ..plain }, vec![20, 1, 9]),
        (Attention { softcap: Some(5.0), scale: 1.0, ..plain }, vec![50, 1]),
        // long enough to be split, in odd groups
        (Attention { heads: 9, kv_heads: 3, ..plain }, vec![1030, 4]),
        (Attention { kv_heads: 2, head_dim: 512, v_dim: 512, scale: 0.05, ..plain }, vec![37, 1, 3, 600]),
        (Attention { kv_heads: 1, head_dim: 576, v_dim: 512, scale: 0.05, ..plain }, vec![20, 1]),
    ] {
        cases.push(attend(args, &lens)?);
    }
    for (kv_cells, tolerance) in [(KvCells::Int8, 1e-2), (KvCells::Fp8, 6e-2)] {
        for (args, lens) in [
            (plain, vec![1, 40, 1]),
            (Attention { heads: 8, kv_heads: 2, head_dim: 128, v_dim: 128, ..plain }, vec![300, 1, 1]),
        ] {
            let case = attend(args, &lens)?;
            cases.push(Case { kv_cells, tolerance, name: format!("{} {kv_cells:?}", case.name), ..case });
        }
    }
    for lens in [vec![1, 40, 1], vec![600, 1]] {
        cases.push(sinks(Attention { heads: 6, kv_heads: 2, window: Some(30), ..plain }, &lens)?);
        cases.push(sinks(plain, &lens)?);
    }
    for lens in [vec![1, 1, 1], vec![20, 1, 30]] {
        cases.push(shared(plain, &lens)?);
        cases.push(shared(Attention { heads: 6, kv_heads: 2, head_dim: 80, v_dim: 48, ..plain }, &lens)?);
    }
    cases.push(two_sequences()?);
    Ok(cases)
}

/// Two attentions to the same keys and values, the second one with other queries and a window;
/// another layer is between them.
fn shared(args: Attention, lens: &[usize]) -> Result<Case, GraphError> {
    let rng = &mut Random::new(6);
    let (heads, dim) = (args.heads, args.head_dim);
    let name = format!("attend {heads}/{} heads x {dim} to keys of another, steps {lens:?}", args.kv_heads);
    let mut case = Case::new(name, 2e-3);
    let [q, other_q] = ["q", "other q"].map(|name| case.input(name, args.heads * args.head_dim, rng));
    let [k, other_k] = ["k", "other k"].map(|name| case.input(name, args.kv_heads * args.head_dim, rng));
    let v = case.input("v", args.kv_heads * args.v_dim, rng)?;
    let (q, other_q) = (q?, other_q?);
    let first = case.graph.attend(q, k?, v, args)?;
    let between = case.graph.attend(other_q, other_k?, v, args)?;
    let second = case.graph.attend_to(other_q, 0, Attention { window: Some(9), ..args })?;
    let sum = case.graph.add(first, between)?;
    case.graph.add(sum, second)?;
    case.sequence(lens, rng);
    Ok(case)
}

/// Two sequences in one step, at different positions, with only some rows requested.
fn two_sequences() -> Result<Case, GraphError> {
    let rng = &mut Random::new(5);
    let mut case = Case::new("two sequences, rows chosen".into(), 2e-3);
    let args = Attention::full(2, 1, 32, 0.2);
    let q = case.input("q", 64, rng)?;
    let k = case.input("k", 32, rng)?;
    let v = case.input("v", 32, rng)?;
    let out = case.graph.attend(q, k, v, args)?;
    case.graph.outputs(out);
    let ids = |n: usize, rng: &mut Random| (0..n).map(|_| rng.below(INPUTS) as u32).collect::<Vec<u32>>();
    let (a, b) = (PageTable::from([2, 0]), PageTable::from([1, 3]));
    case.steps.push(Step::all_logits(&ids(18, rng), 0, a.clone()));
    let both = Step {
        tokens: ids(20, rng),
        slices: vec![Slice::new(1, 18, a), Slice::new(19, 0, b)],
        outputs: [19, 0, 4].map(|row| Output { row, sample: None, logits: true }).to_vec(),
        ..Step::default()
    };
    case.steps.push(both);
    Ok(case)
}
