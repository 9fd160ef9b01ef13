//! What becomes part of a linear in a fused step of one token: the transform of what it reads, and the convolution of what it
//! computes. Each would otherwise be a phase, and passing a value from phase to phase takes longer than the work.
//!
//! A joined value is read later than in launches, or written earlier, when other values may have its memory: it must have its own, as
//! values with tags do.

use tern_graph::{Graph, Val};

use super::fuse::{Fused, Linear, Matrices, work};
use super::recurrent::Conv;
use super::tagged_values::TaggedValues;
use super::transforms::Transform;

/// Linears that transform the same value at most: each does it again.
const MOST_READERS: usize = 2;

/// The phases with their joins. `tagged` are the values with tags without them.
pub(super) fn join_linears(graph: &Graph, phases: &[Fused], tagged: &TaggedValues) -> Vec<Fused> {
    let has_tags = |v: &Val| tagged.has(graph, *v);
    let mut phases = phases.to_vec();
    let mut i = 0;
    while i < phases.len() {
        let is_joined = match phases[i].clone() {
            Fused::Transform(transform) if transform.reads().iter().all(has_tags) => {
                join_transform(graph, &mut phases, transform)
            }
            Fused::Conv(conv) if has_tags(&conv.out) => join_convolution(graph, &mut phases, conv),
            _ => false,
        };
        if is_joined {
            phases.remove(i);
        } else {
            i += 1;
        }
    }
    phases
}

fn readers(graph: &Graph, phases: &[Fused], v: Val) -> Vec<usize> {
    let reads = |phase: &Fused| work(graph, phase).reads.contains(&v);
    phases.iter().enumerate().filter(|(_, phase)| reads(phase)).map(|(i, _)| i).collect()
}

/// Makes a transform part of all linears that read it, if no other phase does.
fn join_transform(graph: &Graph, phases: &mut [Fused], transform: Transform) -> bool {
    let readers = readers(graph, phases, transform.out);
    let joins = |&i: &usize| match &phases[i] {
        Fused::Linear(l) => {
            let plain = l.norm.is_none() && !l.gather && l.transform.is_none() && l.matrices == Matrices::One;
            plain && l.x == transform.out && l.add != Some(transform.out)
        }
        _ => false,
    };
    let few = (1..=MOST_READERS).contains(&readers.len());
    if !few || !transform.joins_linears(graph) || !readers.iter().all(joins) {
        return false;
    }
    for i in readers {
        let Fused::Linear(linear) = &mut phases[i] else { continue };
        let whole = transform.norm.filter(|norm| norm.len == graph.width(transform.out));
        (linear.x, linear.gather, linear.norm) = (transform.x, transform.gather, whole);
        let norm = if whole.is_some() { None } else { transform.norm };
        linear.transform = Some(Transform { norm, ..transform });
    }
    true
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
