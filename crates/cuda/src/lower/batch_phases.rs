//! The phases of a fused step of several tokens: linears get x as halves (`kernels/x_fragments.cuh`), from the phase before
//! if it can pass them, or else from a phase of its own.

use tern_graph::{Graph, NormKind};

use super::fuse::Fused;
use crate::shared::{
    BITS_ORDER, BYTES_ORDER, CHUNK, FRESH_X, FragmentArgs, LinearArgs, PASSED_IN_BITS_ORDER, PASSED_Y,
    PassedArgs, Phase,
};

/// On values that were not normalised before they become halves: an absolute error of 2^-20 is small for all of them, and
/// values up to a million stay finite.
pub(crate) const PASSED_FACTOR: f32 = 1.0 / 16.0;

/// On values that are about one, or were about one before something was added to them.
const NORMED_FACTOR: f32 = 1.0 / 64.0;

/// Memory of what is passed: two rows of halves by turns, and the sums of squares of rows that a norm follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassedMemory {
    pub(crate) halves: [u64; 2],
    pub(crate) squares: u64,
}

/// A phase, and the flags of a linear's shape that are about what is passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPhase {
    pub(crate) phase: Phase,
    pub(crate) flags: i32,
}

/// The order of columns in x of a linear.
pub(crate) fn order(l: &LinearArgs) -> i32 {
    if l.signs != 0 { BITS_ORDER } else { BYTES_ORDER }
}

/// The factor on a value that a phase passes to the linear behind it, which has no norm.
pub(crate) fn passed_factor(phase: &Phase) -> f32 {
    match phase {
        Phase::Linear(_) => PASSED_FACTOR,
        _ => 1.0, // attention's are means of values, which are halves
    }
}

/// Whether the phase is a linear whose value is normalised by the linear behind it.
fn passes_before_norm(graph: &Graph, fused: &[Fused], i: usize) -> bool {
    let (Some(Fused::Linear(l)), Some(Fused::Linear(next))) = (fused.get(i), fused.get(i + 1)) else {
        return false;
    };
    let out = l.parts[0].out;
    l.gated.is_none()
        && l.parts.len() == 1
        && next.x == out
        && next.norm.is_some_and(|norm| norm.kind == NormKind::Rms)
        && graph.width(out).is_multiple_of(CHUNK)
}

/// The phases of the step. `passed` says which of them pass their value without a norm, see `passed_as_halves`.
pub(crate) fn batch_phases(
    graph: &Graph,
    fused: &[Fused],
    phases: &[Phase],
    passed: &[bool],
    memory: &PassedMemory,
) -> Vec<BatchPhase> {
    let mut all = vec![];
    let mut x_in = 0; // the memory of the x that was written last
    for (i, phase) in phases.iter().enumerate() {
        let without_norm = |i: usize| passed.get(i) == Some(&true);
        let next = match phases.get(i + 1) {
            Some(Phase::Linear(next)) if without_norm(i) || passes_before_norm(graph, fused, i) => Some(next),
            _ => None,
        };
        let mut flags = match next {
            Some(next) if order(next) == BITS_ORDER => PASSED_Y | PASSED_IN_BITS_ORDER,
            Some(_) => PASSED_Y,
            None => 0,
        };
        let mut phase = *phase;
        match &mut phase {
            Phase::Linear(l) => {
                let x_factor = match i.checked_sub(1) {
                    Some(before) if without_norm(before) => passed_factor(&phases[before]),
                    Some(before) if passes_before_norm(graph, fused, before) => NORMED_FACTOR,
                    _ => {
                        let factor = if l.norm.kind != 0 { NORMED_FACTOR } else { PASSED_FACTOR };
                        let args = fragments(l, memory.halves[x_in], memory.squares, factor);
                        all.push(BatchPhase { phase: Phase::Fragments(args), flags: 0 });
                        flags |= if l.norm.kind != 0 { FRESH_X } else { 0 };
                        factor
                    }
                };
                l.passed = PassedArgs {
                    x: memory.halves[x_in],
                    squares: memory.squares,
                    x_factor: 1.0 / x_factor,
                    ..PassedArgs::default()
                };
                if let Some(next) = next {
                    x_in = 1 - x_in;
                    l.passed.y = memory.halves[x_in];
                    l.passed.y_weight = next.norm.weight;
                    l.passed.y_factor = if l.gated != 0 { PASSED_FACTOR } else { NORMED_FACTOR };
                }
            }
            Phase::Attend(a) => {
                if let Some(next) = next {
                    (a.y_half, a.y_order) = (memory.halves[x_in], order(next));
                }
            }
            _ => {}
        }
        all.push(BatchPhase { phase, flags });
    }
    all
}

/// Makes x of a linear.
fn fragments(l: &LinearArgs, to: u64, squares: u64, factor: f32) -> FragmentArgs {
    FragmentArgs {
        x: l.x,
        norm: l.norm,
        to,
        squares,
        factor,
        cols: l.cols,
        chunks: l.chunks,
        order: order(l),
        outputs_only: i32::from(l.outputs_only != 0 && l.gather == 0),
        pad: 0,
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::Work;
    use tern_quant::Q1_0;

    use super::super::fuse::{fuse, work};
    use super::super::passed_halves::passed_as_halves;
    use super::super::test_graphs::decoder;
    use super::*;
    use crate::shared::{AttendArgs, NormArgs, OutputsArgs};
    use crate::weights::Layout;

    #[test]
    fn only_the_first_linear_of_a_decoder_needs_a_phase_that_makes_its_x() {
        let graph = decoder();
        let fused = fuse(&graph, |_| Layout::of(&Q1_0)).unwrap();
        let work: Vec<Work> = fused.iter().map(|phase| work(&graph, phase)).collect();
        let passed = passed_as_halves(&graph, &fused, &work);
        let phase = |f: &Fused| match f {
            Fused::Linear(l) => {
                let norm = NormArgs { kind: i32::from(l.norm.is_some()), ..NormArgs::default() };
                let gated = i32::from(l.gated.is_some());
                Phase::Linear(LinearArgs { norm, gated, signs: 1, ..LinearArgs::default() })
            }
            Fused::Attend(_) => Phase::Attend(AttendArgs::default()),
            _ => Phase::Outputs(OutputsArgs::default()),
        };
        let phases: Vec<Phase> = fused.iter().map(phase).collect();
        let memory = PassedMemory { halves: [100, 200], squares: 300 };
        let all = batch_phases(&graph, &fused, &phases, &passed, &memory);
        let mut linears = vec![];
        for BatchPhase { phase, flags } in &all {
            if let Phase::Linear(l) = phase {
                linears.push((l.passed.x, l.passed.y, l.passed.x_factor, *flags));
            }
        }
        let (bits, fresh) = (PASSED_Y | PASSED_IN_BITS_ORDER, FRESH_X);
        // q k v; o; gate and up; down; head
        assert_eq!(
            linears,
            [
                (100, 0, 64.0, fresh),
                (100, 200, 1.0, bits),
                (200, 100, 64.0, bits),
                (100, 200, 16.0, bits),
                (200, 0, 64.0, 0)
            ]
        );
        assert_eq!(all.iter().filter(|p| matches!(p.phase, Phase::Fragments(_))).count(), 1);
        assert!(all.iter().any(|p| matches!(&p.phase, Phase::Attend(a) if a.y_half == 100)));
    }
}
