//! Values that a phase writes as halves, in the order in which the next linear reads them
//! (`kernels/x/half_x.cuh`).

use tern_graph::{Graph, NormKind, Work};

use super::fused::{Fused, Matrices};
use crate::shared::{BITS_ORDER, BYTES_ORDER, CHUNK, LinearArgs, Phase};

/// On values that were not normalised before they become halves: an absolute error of 2^-20 is small for all
/// of them, and values up to a million stay finite.
pub(crate) const PASSED_FACTOR: f32 = 1.0 / 16.0;

/// On values that are about one, or were about one before something was added to them.
pub(crate) const NORMED_FACTOR: f32 = 1.0 / 64.0;

/// The order of columns in x of a linear.
pub(crate) fn order(l: &LinearArgs) -> i32 {
    if l.signs != 0 { BITS_ORDER } else { BYTES_ORDER }
}

/// The factor on a value that a phase passes to the linear after it, which has no norm.
pub(crate) fn passed_factor(phase: &Phase) -> f32 {
    match phase {
        Phase::Linear(_) => PASSED_FACTOR,
        Phase::Transform(t) if t.norm.kind == 0 || t.act != 0 => PASSED_FACTOR,
        _ => 1.0, // attention's are means of values, which are halves; others are normalised
    }
}

/// For each phase: whether its value is x of the linear right after it and of no other phase,
/// and so is passed as halves.
pub(crate) fn passed_as_halves(graph: &Graph, fused: &[Fused], work: &[Work]) -> Vec<bool> {
    let reads = |v| work.iter().filter(|w| w.reads.contains(&v)).count();
    let passed = |i: usize| {
        let out = match &fused[i] {
            Fused::Linear(l) if l.gated.is_some() => l.parts[0].out,
            Fused::Attend(a) => a.out,
            Fused::Transform(t) => t.out,
            _ => return false,
        };
        let Some(Fused::Linear(next)) = fused.get(i + 1) else { return false };
        // of experts: the sorted rows of one phase are those of the next
        let (matrices, columns) = match &fused[i] {
            Fused::Linear(l) => (l.matrices, l.parts[0].rows),
            _ => (Matrices::One, graph.width(out)),
        };
        let alike = next.matrices == matrices && graph.weight(next.parts[0].weight).cols == columns;
        // columns beyond the last one of a chunk must be zero, and these phases do not write them
        let whole = columns.is_multiple_of(CHUNK);
        let reads_it = next.x == out && next.norm.is_none() && !next.gather && next.add != Some(out);
        whole && alike && reads_it && reads(out) == 1
    };
    (0..fused.len()).map(passed).collect()
}

/// Whether the phase is a linear whose value is normalised by the linear after it: it is passed
/// before its norm is known.
pub(crate) fn passes_before_norm(graph: &Graph, fused: &[Fused], i: usize) -> bool {
    let (Some(Fused::Linear(l)), Some(Fused::Linear(next))) = (fused.get(i), fused.get(i + 1)) else {
        return false;
    };
    let out = l.parts[0].out;
    l.gated.is_none()
        && l.parts.len() == 1
        && l.matrices == Matrices::One
        && next.matrices == Matrices::One
        && next.x == out
        && next.norm.is_some_and(|norm| norm.kind == NormKind::Rms)
        && graph.width(out).is_multiple_of(CHUNK)
}

#[cfg(test)]
mod tests {
    use tern_quant::Q1_0;

    use super::super::fuse::fuse;
    use super::super::fused::work;
    use super::super::test_graphs::decoder;
    use super::*;
    use crate::weights::Layout;

    #[test]
    fn attention_and_the_gate_of_a_decoder_pass_halves() {
        let graph = decoder();
        let fused = fuse(&graph, |_| Layout::of(&Q1_0)).unwrap();
        let work: Vec<Work> = fused.iter().map(|phase| work(&graph, phase)).collect();
        // embed, q k v, attend, o, gate and up, down, head
        assert_eq!(passed_as_halves(&graph, &fused, &work), [false, false, true, false, true, false, false]);
    }
}
