//! Cases of layers with a window that have their own pages: entries before the window name
//! pages of other sequences.

use super::{Case, INPUTS, PAGE_LEN};
use crate::{Attention, GraphError, HostTensor, KvCells, Output, PageTable, Random, Slice, Step};

/// The token whose keys and values are not finite.
const BROKEN: u32 = 0;

/// All of them.
pub(super) fn windows() -> Result<Vec<Case>, GraphError> {
    let plain = Attention::full(4, 2, 64, 0.125);
    let mut cases = vec![];
    for (window, kv_cells, tolerance) in [
        (50, KvCells::F16, 2e-3),
        (1, KvCells::F16, 2e-3),
        (70, KvCells::Int8, 1e-2),
        (33, KvCells::Fp8, 6e-2),
    ] {
        let case = released(plain, window)?;
        cases.push(Case { kv_cells, tolerance, name: format!("{} {kv_cells:?}", case.name), ..case });
    }
    cases.push(released(Attention { softcap: Some(5.0), ..plain }, 40)?);
    cases.push(released(Attention { heads: 6, kv_heads: 2, head_dim: 80, v_dim: 48, ..plain }, 20)?);
    Ok(cases)
}

/// Full attention and attention to a window, added up. The pages of a long sequence that fall out of the
/// window are used for another one, whose values are not finite, while their entries still name them.
fn released(args: Attention, window: usize) -> Result<Case, GraphError> {
    let rng = &mut Random::new(8);
    let Attention { heads, kv_heads, head_dim, v_dim, .. } = args;
    let cap = args.softcap.unwrap_or(0.0);
    let name =
        format!("window {window} with its own pages, {heads}/{kv_heads} heads x {head_dim} softcap {cap}");
    let mut case = Case::new(name, 2e-3);
    let widths = [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * v_dim)];
    let [q, k, v] = widths.map(|(name, width)| {
        let mut values = rng.normals(INPUTS * width, 1.0);
        if name == "v" {
            values[BROKEN as usize * width..][..width].fill(f32::NAN);
        }
        let id = case.matrix(HostTensor::from_f32(name, INPUTS, width, &values))?;
        Ok::<_, GraphError>(case.graph.embed(id, 1.0))
    });
    let (q, k, v) = (q?, k?, v?);
    let full = case.graph.attend(q, k, v, args)?;
    let local = case.graph.attend(q, k, v, Attention { window: Some(window), ..args })?;
    case.graph.add(full, local)?;

    let mut sequences = Sequences { window, held: [vec![], vec![]], free: vec![], total: 0, released: 0 };
    let mut step = |tokens: &[(usize, usize, usize)], rng: &mut Random| {
        let slices: Vec<Slice> = tokens
            .iter()
            .map(|&(sequence, position, len)| sequences.slice(sequence, position, len))
            .collect();
        let count: usize = slices.iter().map(|slice| slice.len).sum();
        let id = |broken: bool| if broken { BROKEN } else { 1 + rng.below(INPUTS - 1) as u32 };
        let broken = tokens.iter().flat_map(|&(sequence, _, len)| std::iter::repeat_n(sequence == 1, len));
        case.steps.push(Step {
            tokens: broken.map(id).collect(),
            slices,
            outputs: (0..count).map(|row| Output { row, sample: None, logits: true }).collect(),
            ..Step::default()
        });
    };
    // sequence, position and tokens: a prompt in two chunks, then both sequences
    // together, then the long one alone
    step(&[(0, 0, 100)], rng);
    step(&[(0, 100, 75)], rng);
    step(&[(1, 0, 40), (0, 175, 30)], rng);
    for i in 0..3 {
        step(&[(0, 205 + i, 1), (1, 40 + i, 1)], rng);
    }
    step(&[(0, 208, 3)], rng);
    step(&[(0, 211, 90)], rng);
    step(&[(0, 301, 1)], rng);
    Ok(case)
}

/// The window pages of two sequences; pages are used again as soon as they are released.
struct Sequences {
    window: usize,
    held: [Vec<u32>; 2],
    /// Released pages, the last of which is used first.
    free: Vec<u32>,
    /// Pages in total.
    total: u32,
    /// Entries of the first sequence whose pages are released.
    released: usize,
}

impl Sequences {
    fn slice(&mut self, sequence: usize, position: usize, len: usize) -> Slice {
        // the entries stay: they name pages that another sequence may own
        if sequence == 0 {
            let keep = (position + 1).saturating_sub(self.window) / PAGE_LEN;
            for at in std::mem::replace(&mut self.released, keep)..keep {
                self.free.push(self.held[0][at]);
            }
        }
        while self.held[sequence].len() * PAGE_LEN < position + len {
            let page = self.free.pop().unwrap_or_else(|| {
                self.total += 1;
                self.total - 1
            });
            self.held[sequence].push(page);
        }
        let first = 32 * sequence as u32; // pages of full attention: the sequences have different ones
        let pages: PageTable = (first..first + (position + len).div_ceil(PAGE_LEN) as u32).collect();
        Slice { window_pages: self.held[sequence].clone().into(), ..Slice::new(len, position, pages) }
    }
}
