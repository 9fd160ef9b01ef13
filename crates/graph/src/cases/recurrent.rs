//! Cases of recurrent ops: several steps of one sequence, and several sequences in one
//! step, in slots that change.

use super::{Case, INPUTS};
use crate::{
    Activation, Basis, DeltaRule, DeltaWeights, GraphError, HeadOrder, HostTensor, KeyHeads, Output, Random,
    ScanWeights, SelectiveScan, Slice, StateSlots, Step, Val, WeightId,
};

/// All of them.
pub(super) fn recurrent() -> Result<Vec<Case>, GraphError> {
    let rng = &mut Random::new(12);
    let mut cases = vec![];
    for (width, taps, silu, biased) in
        [(48, 4, true, false), (300, 3, false, true), (7, 2, true, true), (40, 8, false, false)]
    {
        let mut case = Case::new(format!("conv {width} x {taps}"), 1e-5);
        let x = case.input("x", width, rng)?;
        let w = case.vector("w", [width, taps], 0.0, rng)?;
        let bias = if biased { Some(case.vector("b", [1, width], 0.0, rng)?) } else { None };
        case.graph.conv(x, w, bias, silu)?;
        cases.push(case.in_slots(rng));
    }
    let rules = [
        DeltaRule { k_heads: 2, v_heads: 6, k_dim: 16, v_dim: 16, eps: 1e-6, key_heads: KeyHeads::Tiled },
        DeltaRule { k_heads: 2, v_heads: 4, k_dim: 24, v_dim: 40, eps: 0.5, key_heads: KeyHeads::Grouped },
        DeltaRule { k_heads: 1, v_heads: 2, k_dim: 128, v_dim: 128, eps: 1e-6, key_heads: KeyHeads::Tiled },
        DeltaRule { k_heads: 1, v_heads: 3, k_dim: 18, v_dim: 10, eps: 1e-6, key_heads: KeyHeads::Tiled },
    ];
    for args in rules {
        let (heads, dim) = (args.v_heads, args.v_dim);
        let mut case = Case::new(format!("delta {heads} x {dim} {:?}", args.key_heads), 2e-5);
        let qkv = case.input("qkv", args.width(), rng)?;
        let (decay, beta) = (case.input("decay", heads, rng)?, case.input("beta", heads, rng)?);
        let weights = case.delta_weights(heads, rng)?;
        case.graph.delta(qkv, decay, beta, weights, args)?;
        cases.push(case.in_slots(rng));
    }
    for (heads, head_dim, groups, state_dim) in [(4, 16, 1, 24), (6, 40, 2, 16), (2, 64, 1, 128)] {
        let args = SelectiveScan { heads, head_dim, groups, state_dim };
        let mut case = Case::new(format!("scan {heads} x {head_dim} groups {groups}"), 2e-5);
        let (xbc, dt) = (case.input("xbc", args.width(), rng)?, case.input("dt", heads, rng)?);
        let rate = case.vector("rate", [heads, 1], -1.0, rng)?;
        let bias = case.vector("bias", [1, heads], 0.0, rng)?;
        let skip = case.vector("skip", [heads, 1], 1.0, rng)?;
        case.graph.scan(xbc, dt, ScanWeights { rate, bias, skip }, args)?;
        cases.push(case.in_slots(rng));
    }
    cases.push(layer(rng)?.in_slots(rng));
    cases.extend(rotations(rng)?);
    Ok(cases)
}

/// Convolution, delta rule, norm, gate and a linear of integers after each other.
fn layer(rng: &mut Random) -> Result<Case, GraphError> {
    let args =
        DeltaRule { k_heads: 2, v_heads: 4, k_dim: 32, v_dim: 32, eps: 1e-6, key_heads: KeyHeads::Tiled };
    let mut case = Case::new("delta layer".into(), 5e-4);
    let x = case.input("x", args.width(), rng)?;
    let (decay, beta) = (case.input("decay", 4, rng)?, case.input("beta", 4, rng)?);
    let z = case.input("z", 128, rng)?;
    let w = case.vector("w", [args.width(), 4], 0.0, rng)?;
    let weights = case.delta_weights(4, rng)?;
    let norm = case.vector("norm", [1, 32], 1.0, rng)?;
    let out = case.matrix(super::random_tensor("out", &tern_quant::Q4_K, 24, 256, rng)?)?;
    let x = case.graph.conv(x, w, None, true)?;
    let x = case.graph.delta(x, decay, beta, weights, args)?;
    let x = case.graph.norm(x, norm, 1e-6)?;
    let x = case.graph.gated(z, x, Activation::Silu)?;
    let x = case.graph.join_heads(x, z, 1)?;
    case.graph.linear(x, out)?;
    Ok(case)
}

/// Linears and tables of rotated weights, of whole rows and of parts.
fn rotations(rng: &mut Random) -> Result<Vec<Case>, GraphError> {
    let mut cases = vec![];
    for (width, block, heads) in [
        (96, 32, None),
        (256, 128, None),
        (192, 64, Some(HeadOrder { outer: 3, inner: 4 })),
        (1024, 512, Some(HeadOrder { outer: 2, inner: 4 })),
        (2048, 1024, None),
    ] {
        let mut case = Case::new(format!("rotate {width} by {block}"), 1e-5);
        let signs = (0..width).map(|_| if rng.below(2) == 0 { 1.0 } else { -1.0 }).collect();
        let basis = Basis { signs: vec![signs], block, heads };
        case.graph.rotate_weight("w", &basis)?;
        if heads.is_none() {
            case.graph.rotate_weight("x", &basis)?;
        }
        let x = case.input("x", width, rng)?;
        let w = case.matrix(super::random_tensor("w", &tern_quant::F32, 21, width, rng)?)?;
        case.graph.linear(x, w)?;
        case.sequence(&[5, 1], rng);
        cases.push(case);
    }
    Ok(cases)
}

impl Case {
    /// A random vector, in this shape.
    pub(super) fn vector(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        mean: f32,
        rng: &mut Random,
    ) -> Result<WeightId, GraphError> {
        let values: Vec<f32> = rng.normals(rows * cols, 0.3).iter().map(|x| x + mean).collect();
        self.matrix(HostTensor::from_f32(name, rows, cols, &values))
    }

    fn delta_weights(&mut self, heads: usize, rng: &mut Random) -> Result<DeltaWeights, GraphError> {
        let rate = self.vector("rate", [1, heads], -1.0, rng)?;
        Ok(DeltaWeights { rate, bias: self.vector("bias", [1, heads], 0.0, rng)? })
    }

    /// One step per length: tokens of one sequence, whose state stays in one slot.
    fn in_one_slot(&mut self, lens: &[usize], rng: &mut Random) {
        self.sequence(lens, rng);
        for slice in self.steps.iter_mut().flat_map(|step| &mut step.slices) {
            slice.state = Some(StateSlots::in_place(0, slice.position));
        }
    }

    /// Steps of three sequences: alone, together, from a slot that another sequence also reads, and in place.
    fn in_slots(mut self, rng: &mut Random) -> Case {
        let slots = |read: Option<u32>, write: u32| Some(StateSlots { read, write });
        let steps: [&[(usize, usize, Option<StateSlots>)]; 5] = [
            &[(5, 0, slots(None, 3))],
            &[(1, 5, slots(Some(3), 0)), (9, 0, slots(None, 1))],
            &[(2, 5, slots(Some(3), 2)), (1, 9, slots(Some(1), 1)), (1, 6, slots(Some(0), 4))],
            &[(70, 7, slots(Some(2), 2)), (3, 10, slots(Some(1), 0))],
            &[(1, 77, slots(Some(2), 2)), (1, 13, slots(Some(0), 0)), (4, 7, slots(Some(4), 1))],
        ];
        for slices in steps {
            let len: usize = slices.iter().map(|s| s.0).sum();
            self.steps.push(Step {
                tokens: (0..len).map(|_| rng.below(INPUTS) as u32).collect(),
                slices: slices
                    .iter()
                    .map(|&(len, position, state)| Slice { state, ..Slice::new(len, position, vec![0; 6]) })
                    .collect(),
                outputs: (0..len).map(|row| Output { row, sample: None, logits: true }).collect(),
                ..Step::default()
            });
        }
        self
    }
}

/// A layer with a convolution and a delta rule, one step per length.
pub fn delta_layer(lens: &[usize]) -> Result<Case, GraphError> {
    let rng = &mut Random::new(14);
    let mut case = layer(rng)?;
    case.in_one_slot(lens, rng);
    Ok(case)
}

/// A delta rule of the sizes of known models, worth timing.
pub fn delta(tokens: &[usize]) -> Result<Case, GraphError> {
    let args =
        DeltaRule { k_heads: 16, v_heads: 16, k_dim: 128, v_dim: 128, eps: 1e-6, key_heads: KeyHeads::Tiled };
    let rng = &mut Random::new(13);
    let mut case = Case::new(delta_name(tokens), 2e-5);
    let qkv = case.input("qkv", args.width(), rng)?;
    let [decay, beta]: [Val; 2] = [case.input("decay", 16, rng)?, case.input("beta", 16, rng)?];
    let weights = case.delta_weights(16, rng)?;
    case.graph.delta(qkv, decay, beta, weights, args)?;
    case.in_one_slot(tokens, rng);
    case.bytes += 2 * 16 * 128 * 128 * 4;
    Ok(case)
}

pub(super) fn delta_name(tokens: &[usize]) -> String {
    format!("delta 16 x 128 tokens {}", tokens.last().unwrap_or(&0))
}
