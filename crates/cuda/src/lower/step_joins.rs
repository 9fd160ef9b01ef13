//! What becomes part of a linear in a fused step of one token: the convolution of what it computes. It would
//! otherwise be a phase, and passing a value from phase to phase takes longer than the work. And the order of
//! phases that few blocks compute.
//!
//! A joined value is read later than in launches, or written earlier, when other values may have its memory:
//! it must have its own, as values with tags do.

use tern_graph::{Graph, Val};

use super::fused::{Conv, Fused, Linear, Matrices, work};
use super::tagged_values::TaggedValues;

/// The phases with their joins. `tagged` are the values with tags without them.
pub(super) fn join_linears(graph: &Graph, phases: &[Fused], tagged: &TaggedValues) -> Vec<Fused> {
    let has_tags = |v: &Val| tagged.has(graph, *v);
    let mut phases = phases.to_vec();
    let mut i = 0;
    while i < phases.len() {
        let is_joined = match phases[i].clone() {
            Fused::Conv(conv) if has_tags(&conv.out) => join_convolution(graph, &mut phases, conv),
            _ => false,
        };
        if is_joined {
            phases.remove(i);
        } else {
            i += 1;
        }
    }
    transforms_first(graph, &mut phases, tagged);
    phases
}

/// Moves transforms before matrices of floats: all blocks wait for a transform, and only
/// a later phase for those.
fn transforms_first(graph: &Graph, phases: &mut [Fused], tagged: &TaggedValues) {
    for i in 1..phases.len() {
        for k in (1..=i).rev() {
            let (Fused::FloatLinear(floats), Fused::Transform(transform)) = (&phases[k - 1], &phases[k])
            else {
                break;
            };
            let is_read = work(graph, &phases[k]).reads.contains(&floats.matrix.out);
            if is_read || !tagged.has(graph, transform.out) {
                break;
            }
            phases.swap(k - 1, k);
        }
    }
}

fn readers(graph: &Graph, phases: &[Fused], v: Val) -> Vec<usize> {
    let reads = |phase: &Fused| work(graph, phase).reads.contains(&v);
    phases.iter().enumerate().filter(|(_, phase)| reads(phase)).map(|(i, _)| i).collect()
}

/// Makes a convolution part of the linear whose result only it reads.
fn join_convolution(graph: &Graph, phases: &mut [Fused], conv: Conv) -> bool {
    if readers(graph, phases, conv.x).len() > 1 || graph.value(conv.out).outputs_only || conv.layer.is_none()
    {
        return false;
    }
    let part_of = |l: &Linear| l.parts.iter().position(|part| part.out == conv.x);
    let joined = phases.iter_mut().find_map(|phase| match phase {
        Fused::Linear(l) if l.gated.is_none() && l.add.is_none() && l.matrices == Matrices::One => {
            let part = part_of(l).filter(|_| l.conv.is_none())?;
            Some((l, part))
        }
        _ => None,
    });
    let Some((linear, part)) = joined else { return false };
    linear.parts.swap(0, part);
    linear.parts[0].out = conv.out;
    linear.conv = Some(conv);
    true
}
