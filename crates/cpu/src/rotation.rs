//! Rotations of rotated weights: signs and Hadamard transforms of blocks, with heads in another order.

use tern_graph::{HeadOrder, Rotation};

/// The Hadamard transform of each block, divided by the root of its length.
#[inline(always)]
pub(crate) fn hadamard(x: &mut [f32], block: usize) {
    let scale = 1.0 / (block as f32).sqrt();
    for x in x.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block {
            for pair in x.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Rotates whole blocks, or rotates them back; equals [`Rotation::apply`]. The columns are those from index
/// `first` on, counted through groups of the rotation's width; they are whole groups if heads change places,
/// and those are not rotated back.
pub(crate) fn rotate(
    rotation: &Rotation,
    inverse: bool,
    hadamard: fn(&mut [f32], usize),
    (first, x): (usize, &[f32]),
    out: &mut [f32],
) {
    let Rotation { signs, block, heads } = rotation;
    let signs = signs.iter().cycle().skip(first % signs.len());
    match heads {
        Some(order) => {
            let width = rotation.width();
            let groups = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
            groups.for_each(|(x, out)| reorder(*order, x, out));
        }
        None => out.copy_from_slice(x),
    }
    if inverse {
        hadamard(out, *block);
    }
    out.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
    if !inverse {
        hadamard(out, *block);
    }
}

/// `[outer][inner][..]` becomes `[inner][outer][..]`.
fn reorder(HeadOrder { outer, inner }: HeadOrder, x: &[f32], out: &mut [f32]) {
    let each = x.len() / outer / inner;
    for (i, head) in out.chunks_exact_mut(each).enumerate() {
        head.copy_from_slice(&x[(i % outer * inner + i / outer) * each..][..each]);
    }
}
