//! Rotated weights: matrices and tables that are stored in another basis, whose
//! readers rotate what they read.
//!
//! The rotation is a property of the weight. A linear of such a weight reads the rotated value,
//! and an embedding is rotated back; [`Graph`] adds these ops itself, so that no graph reads a
//! rotated weight without them.

use crate::graph::{Result, fail};
use crate::{Graph, Op, Val};

/// A rotation of groups of columns: heads in another order, signs, and a Hadamard transform of each block,
/// divided by the root of its length. `H[i][j] = (-1)^popcount(i & j)`
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// Factor of each column, 1 or -1. `[width]`
    pub signs: Vec<f32>,
    /// Columns that are transformed together, a power of two.
    pub block: usize,
    /// Heads that change places before the signs.
    pub heads: Option<HeadOrder>,
}

/// The basis in which weights of several widths are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// The signs of each width; without any, all signs are 1.
    pub signs: Vec<Vec<f32>>,
    /// As of [`Rotation`].
    pub block: usize,
    /// As of [`Rotation`].
    pub heads: Option<HeadOrder>,
}

impl Basis {
    /// The rotation of weights with this number of columns.
    fn rotation(&self, width: usize) -> Result<Rotation> {
        let signs = match self.signs.iter().find(|signs| signs.len() == width) {
            Some(signs) => signs.clone(),
            None if self.signs.is_empty() => vec![1.0; width],
            None => return fail(format!("no signs for a rotation of {width} columns")),
        };
        let rotation = Rotation { signs, block: self.block, heads: self.heads };
        rotation.check()?;
        Ok(rotation)
    }
}

/// Columns `[outer][inner][..]` become `[inner][outer][..]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadOrder {
    /// Slow index before, fast index after.
    pub outer: usize,
    /// Fast index before, slow index after.
    pub inner: usize,
}

impl Rotation {
    /// Columns that it applies to.
    pub fn width(&self) -> usize {
        self.signs.len()
    }

    /// Refuses blocks and heads that do not divide the columns.
    fn check(&self) -> Result<()> {
        let (width, block) = (self.width(), self.block);
        if !block.is_power_of_two() || width == 0 || !width.is_multiple_of(block) {
            return fail(format!("a rotation of {width} columns in blocks of {block}"));
        }
        if let Some(HeadOrder { outer, inner }) = self.heads {
            let heads = outer.saturating_mul(inner);
            if heads == 0 || !width.is_multiple_of(heads) {
                return fail(format!("a rotation of {width} columns in {outer} times {inner} heads"));
            }
        }
        Ok(())
    }

    /// Rotates a value of `width` columns, or rotates it back, as the reference computes it.
    pub fn apply(&self, x: &mut [f32], inverse: bool) {
        if inverse {
            x.chunks_exact_mut(self.block).for_each(transform);
            x.iter_mut().zip(&self.signs).for_each(|(x, sign)| *x *= sign);
            if let Some(HeadOrder { outer, inner }) = self.heads {
                reorder(x, inner, outer);
            }
            return;
        }
        if let Some(HeadOrder { outer, inner }) = self.heads {
            reorder(x, outer, inner);
        }
        x.iter_mut().zip(&self.signs).for_each(|(x, sign)| *x *= sign);
        x.chunks_exact_mut(self.block).for_each(transform);
    }
}

/// The Hadamard transform of one block, which is its own inverse.
fn transform(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

/// `[outer][inner][..]` becomes `[inner][outer][..]`.
fn reorder(x: &mut [f32], outer: usize, inner: usize) {
    let (old, each) = (x.to_vec(), x.len() / outer / inner);
    for (i, head) in x.chunks_exact_mut(each).enumerate() {
        head.copy_from_slice(&old[(i % outer * inner + i / outer) * each..][..each]);
    }
}

impl Graph {
    /// Says that the weight of this name, which is declared later, is stored in another basis.
    pub fn rotate_weight(&mut self, name: impl Into<String>, basis: &Basis) -> Result<()> {
        let name = name.into();
        if self.is_declared(&name) {
            return fail(format!("{name}: declared before its rotation"));
        }
        let index = self.bases.iter().position(|b| b == basis).unwrap_or_else(|| {
            self.bases.push(basis.clone());
            self.bases.len() - 1
        });
        self.rotated.insert(name, index);
        Ok(())
    }

    /// The rotation of a weight that is declared now, if it has one.
    pub(crate) fn rotation_of(&mut self, name: &str, cols: usize) -> Result<Option<usize>> {
        let Some(basis) = self.rotated.get(name).map(|i| &self.bases[*i]) else { return Ok(None) };
        let rotation =
            basis.rotation(cols).map_err(|e| crate::GraphError::Mismatch(format!("{name}: {e}")))?;
        let found = self.rotations.iter().position(|r| *r == rotation);
        Ok(Some(found.unwrap_or_else(|| {
            self.rotations.push(rotation);
            self.rotations.len() - 1
        })))
    }

    /// The names of weights that are stored rotated, and that no op reads.
    pub fn unread_rotations(&self) -> impl Iterator<Item = &str> {
        let unread = |name: &&String| !self.weights.iter().any(|w| w.name == **name);
        self.rotated.keys().filter(unread).map(String::as_str)
    }

    /// `x` as a linear of a weight with this rotation reads it; the same value is rotated once.
    pub(crate) fn rotated(&mut self, x: Val, rotation: Option<usize>) -> Result<Val> {
        let Some(rotation) = rotation else { return Ok(x) };
        let width = self.rotations[rotation].width();
        if !self.width(x).is_multiple_of(width) {
            return fail(format!("a rotation of {width} columns on a value of {}", self.width(x)));
        }
        let op = Op::Rotate { x, rotation, inverse: false };
        match self.nodes.iter().position(|node| node.op == op) {
            Some(node) => Ok(self.val(node)),
            None => Ok(self.push(op, self.value(x))),
        }
    }
}
