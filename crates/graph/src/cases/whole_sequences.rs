//! Cases of ops that are not causal: texts of different lengths in one step, and
//! layers that share a KV layer.

use super::{Case, INPUTS, PAGE_LEN};
use crate::{Attention, GraphError, HostTensor, KvCells, Output, PageTable, Random, Slice, Step, TableRow};

/// All of them.
pub(super) fn whole_sequences() -> Result<Vec<Case>, GraphError> {
    let plain = Attention { causal: false, ..Attention::full(4, 4, 64, 0.125) };
    let mut cases = vec![];
    for args in [
        plain,
        Attention { heads: 12, kv_heads: 12, head_dim: 32, v_dim: 32, scale: 0.177, ..plain },
        Attention { heads: 6, kv_heads: 2, head_dim: 80, v_dim: 48, ..plain },
        Attention { heads: 8, kv_heads: 1, head_dim: 128, v_dim: 128, ..plain },
        Attention { window: Some(20), ..plain },
        Attention { window: Some(1), ..plain },
        Attention { window: Some(301), kv_heads: 2, ..plain },
        Attention { alibi: Some(8.0), ..plain },
        Attention { heads: 6, kv_heads: 6, alibi: Some(8.0), ..plain },
        Attention { alibi: Some(4.0), window: Some(90), ..plain },
    ] {
        cases.push(texts(args, KvCells::F16, 2e-3)?);
        cases.push(texts(args, KvCells::F32, 2e-5)?);
    }
    cases.push(texts(plain, KvCells::Int8, 1e-2)?);
    cases.push(positions()?);
    cases.push(means()?);
    for (width, taps) in [(48, 3), (300, 7), (7, 5)] {
        cases.push(centred_conv(width, taps)?);
    }
    Ok(cases)
}

/// Two attentions one after the other, which share a KV layer, on several texts; the second step has their
/// pages in another order.
fn texts(args: Attention, kv_cells: KvCells, tolerance: f32) -> Result<Case, GraphError> {
    let rng = &mut Random::new(9);
    let Attention { heads, kv_heads, head_dim, v_dim, .. } = args;
    let (window, alibi) = (args.window.unwrap_or(0), args.alibi.unwrap_or(0.0));
    let name = format!(
        "attend whole texts, {heads}/{kv_heads} heads x {head_dim} window {window} alibi {alibi} {kv_cells:?}"
    );
    let mut case = Case { kv_cells, ..Case::new(name, tolerance) };
    let q = case.input("q", heads * head_dim, rng)?;
    let [k, other_k] = ["k", "other k"].map(|name| case.input(name, kv_heads * head_dim, rng));
    let [v, other_v] = ["v", "other v"].map(|name| case.input(name, kv_heads * v_dim, rng));
    let first = case.graph.attend(q, k?, v?, args)?;
    let second = case.graph.attend(q, other_k?, other_v?, args)?;
    case.graph.add(first, second)?;
    case.texts(rng);
    Ok(case)
}

/// A convolution that sees tokens after a token, of texts that are shorter and longer than its window.
fn centred_conv(width: usize, taps: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(21);
    let mut case = Case::new(format!("centred conv {width} x {taps}"), 1e-5);
    let x = case.input("x", width, rng)?;
    let w = case.vector("w", [width, taps], 0.0, rng)?;
    case.graph.centred_conv(x, w)?;
    case.texts(rng);
    Ok(case)
}

impl Case {
    /// Steps of several texts.
    fn texts(&mut self, rng: &mut Random) {
        for lens in [vec![1, 40, 17, 3], vec![600, 33, 1], vec![5], vec![15, 16, 2]] {
            self.steps.push(step_of_texts(&lens, rng));
        }
    }
}

fn step_of_texts(lens: &[usize], rng: &mut Random) -> Step {
    let mut next_page = 48;
    let slices: Vec<Slice> = lens
        .iter()
        .map(|&len: &usize| {
            let pages = len.div_ceil(PAGE_LEN) as u32;
            next_page -= pages;
            Slice::new(len, 0, (next_page..next_page + pages).rev().collect::<PageTable>())
        })
        .collect();
    let count: usize = lens.iter().sum();
    Step {
        tokens: (0..count).map(|_| rng.below(INPUTS) as u32).collect(),
        slices,
        outputs: (0..count).map(|row| Output { row, sample: None, logits: true }).collect(),
        ..Step::default()
    }
}

/// The means of three texts, requested in another order, and of a part of one.
fn means() -> Result<Case, GraphError> {
    let rng = &mut Random::new(12);
    let mut case = Case::new("means of texts".into(), 1e-5);
    let x = case.input("x", 100, rng)?;
    let means = case.graph.means(x)?;
    case.graph.scale(means, 2.0);
    case.steps.push(Step {
        tokens: (0..60).map(|_| rng.below(INPUTS) as u32).collect(),
        slices: [(1, 0), (40, 1), (19, 4)].map(|(len, page)| Slice::new(len, 0, vec![page; 3])).to_vec(),
        outputs: [59, 0, 40, 13].map(|row| Output { row, sample: None, logits: true }).to_vec(),
        ..Step::default()
    });
    Ok(case)
}

/// Rows per position and per type and the first row of another table, added to a text and two pairs of texts.
fn positions() -> Result<Case, GraphError> {
    let rng = &mut Random::new(10);
    let mut case = Case::new("add rows of positions".into(), 1e-6);
    let x = case.input("x", 96, rng)?;
    let positions = case.matrix(HostTensor::from_f32("positions", 40, 96, &rng.normals(40 * 96, 1.0)))?;
    let types = case.matrix(HostTensor::from_f32("types", 2, 96, &rng.normals(2 * 96, 1.0)))?;
    let x = case.graph.add_row(x, positions, TableRow::Position)?;
    let x = case.graph.add_row(x, types, TableRow::First)?;
    case.graph.add_row(x, types, TableRow::Type)?;
    let count = 56;
    case.steps.push(Step {
        tokens: (0..count).map(|_| rng.below(INPUTS) as u32).collect(),
        slices: vec![
            Slice { second: Some(33), ..Slice::new(40, 0, vec![0, 1, 2]) },
            Slice::new(7, 3, vec![3]),
            Slice { second: Some(3), ..Slice::new(9, 0, vec![4]) },
        ],
        outputs: (0..count).map(|row| Output { row, sample: None, logits: true }).collect(),
        ..Step::default()
    });
    case.sequence(&[5, 1], rng);
    Ok(case)
}
