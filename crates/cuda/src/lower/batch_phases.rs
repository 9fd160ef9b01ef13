//! The phases of a fused step of several tokens: linears get x as halves (`kernels/x/x_fragments.cuh`), from
//! the phase before if it can pass them, or else from a separate phase.

use tern_graph::Graph;

use super::fused::Fused;
use super::passed_halves::{NORMED_FACTOR, PASSED_FACTOR, order, passed_factor, passes_before_norm};
use crate::shared::{
    BITS_ORDER, CHUNK, FRAGMENT_TOKENS, FRESH_X, FragmentArgs, LinearArgs, PASSED_IN_BITS_ORDER, PASSED_Y,
    PassedArgs, Phase, TILE,
};

/// Memory of what phases pass, written once per step: no reader takes a half of the step
/// before for one of this step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedMemory {
    at: u64,
    bytes: u64,
}

impl PassedMemory {
    /// Memory from an address on.
    pub(crate) fn new(at: u64) -> PassedMemory {
        PassedMemory { at, bytes: 0 }
    }

    fn take(&mut self, bytes: usize) -> u64 {
        let at = self.at + self.bytes;
        self.bytes += bytes.next_multiple_of(128) as u64;
        at
    }

    /// For x of a linear as halves, and for the sums of its squares.
    fn x(&mut self, l: &LinearArgs) -> PassedX {
        let columns = l.chunks as usize * CHUNK;
        PassedX {
            halves: self.take(columns * FRAGMENT_TOKENS * 2),
            squares: self.take(columns / TILE * FRAGMENT_TOKENS * 4),
        }
    }
}

/// x of one linear.
#[derive(Clone, Copy, Debug, Default)]
struct PassedX {
    halves: u64,
    squares: u64,
}

/// A phase of a fused step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPhase {
    pub(crate) phase: Phase,
    /// Flags of a linear's shape that are not in its arguments.
    pub(crate) flags: i32,
    /// All blocks wait for each other before it.
    pub(crate) barrier: bool,
}

/// What the phases of a step are made from.
pub(crate) struct BatchSources<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) fused: &'a [Fused],
    /// The phases for one token.
    pub(crate) phases: &'a [Phase],
    /// Which of them pass their value without a norm, see `passed_as_halves`.
    pub(crate) passed: &'a [bool],
    /// Whether all blocks wait for each other before each of them; phases beyond the end of the list
    /// begin with such a wait.
    pub(crate) barriers: &'a [bool],
}

impl BatchSources<'_> {
    fn passes_without_norm(&self, i: usize) -> bool {
        self.passed.get(i) == Some(&true)
    }

    /// The linear after a phase that gets its value as halves.
    fn next(&self, i: usize) -> Option<&LinearArgs> {
        match self.phases.get(i + 1) {
            Some(Phase::Linear(next))
                if self.passes_without_norm(i) || passes_before_norm(self.graph, self.fused, i) =>
            {
                Some(next)
            }
            _ => None,
        }
    }

    fn has_barrier(&self, i: usize) -> bool {
        self.barriers.get(i).is_none_or(|barrier| *barrier)
    }

    /// The phases for one token.
    pub(crate) fn unchanged(&self) -> Vec<BatchPhase> {
        let phases = self.phases.iter().enumerate();
        phases
            .map(|(i, phase)| BatchPhase { phase: *phase, flags: 0, barrier: self.has_barrier(i) })
            .collect()
    }

    /// The phases of the step, and the bytes that they pass.
    pub(crate) fn phases(&self, memory: PassedMemory) -> (Vec<BatchPhase>, usize) {
        let (mut all, mut memory) = (vec![], memory);
        let mut x = PassedX::default(); // what the phase before has passed
        for (i, phase) in self.phases.iter().enumerate() {
            let barrier = self.has_barrier(i);
            let next = self.next(i);
            let mut flags = match next {
                Some(next) if order(next) == BITS_ORDER => PASSED_Y | PASSED_IN_BITS_ORDER,
                Some(_) => PASSED_Y,
                None => 0,
            };
            let y = next.map(|next| memory.x(next)).unwrap_or_default();
            let mut phase = *phase;
            match &mut phase {
                Phase::Linear(l) => {
                    let before = i.checked_sub(1).filter(|&before| self.next(before).is_some());
                    let x_factor = match before {
                        Some(before) if self.passes_without_norm(before) => {
                            passed_factor(&self.phases[before])
                        }
                        Some(_) => NORMED_FACTOR,
                        None => {
                            x = memory.x(l);
                            let factor = if l.norm.kind != 0 { NORMED_FACTOR } else { PASSED_FACTOR };
                            let phase = Phase::Fragments(fragments(l, x, factor));
                            all.push(BatchPhase { phase, flags: 0, barrier: true });
                            flags |= if l.norm.kind != 0 { FRESH_X } else { 0 };
                            factor
                        }
                    };
                    l.passed = PassedArgs {
                        x: x.halves,
                        squares: x.squares,
                        y: y.halves,
                        y_squares: y.squares,
                        y_weight: next.map_or(0, |next| next.norm.weight),
                        x_factor: 1.0 / x_factor,
                        y_factor: if l.gated != 0 { PASSED_FACTOR } else { NORMED_FACTOR },
                    };
                }
                Phase::Attend(a) => {
                    (a.y_half, a.y_order) = (y.halves, next.map_or(0, order));
                }
                _ => {}
            }
            x = y;
            all.push(BatchPhase { phase, flags, barrier });
        }
        (all, memory.bytes as usize)
    }
}

/// Makes x of a linear.
fn fragments(l: &LinearArgs, x: PassedX, factor: f32) -> FragmentArgs {
    FragmentArgs {
        x: l.x,
        norm: l.norm,
        to: x.halves,
        squares: x.squares,
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

    use super::super::fuse::fuse;
    use super::super::fused::work;
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
                Phase::Linear(LinearArgs { norm, gated, signs: 1, chunks: 2, ..LinearArgs::default() })
            }
            Fused::Attend(_) => Phase::Attend(AttendArgs::default()),
            _ => Phase::Outputs(OutputsArgs::default()),
        };
        let phases: Vec<Phase> = fused.iter().map(phase).collect();
        let barriers = vec![false; phases.len()];
        let (graph, fused, phases, passed) = (&graph, &fused[..], &phases[..], &passed[..]);
        let sources = BatchSources { graph, fused, phases, passed, barriers: &barriers };
        let (all, bytes) = sources.phases(PassedMemory::new(1 << 20));
        let mut linears = vec![];
        for BatchPhase { phase, flags, .. } in &all {
            if let Phase::Linear(l) = phase {
                linears.push((l.passed.x, l.passed.y, l.passed.x_factor, *flags));
            }
        }
        let (bits, fresh) = (PASSED_Y | PASSED_IN_BITS_ORDER, FRESH_X);
        // q k v; o; gate and up; down; head: each reads what the one before has written, in separate memory
        let facts: Vec<(f32, i32)> = linears.iter().map(|l| (l.2, l.3)).collect();
        assert_eq!(facts, [(64.0, fresh), (1.0, bits), (64.0, bits), (16.0, bits), (64.0, 0)]);
        let mut places: Vec<u64> = linears.iter().map(|l| l.0).collect();
        assert!(linears.windows(2).skip(1).all(|l| l[0].1 == l[1].0));
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), linears.len());
        assert!(places.iter().all(|at| (1 << 20..(1 << 20) + bytes as u64).contains(at)));
        let made = all.iter().filter(|p| matches!(p.phase, Phase::Fragments(_)));
        assert_eq!(made.map(|p| p.barrier).collect::<Vec<_>>(), [true]);
        assert!(all.iter().any(|p| matches!(&p.phase, Phase::Attend(a) if a.y_half == linears[1].0)));
    }
}
