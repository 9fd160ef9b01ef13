//! How much the columns of a row matter to an encoder.

use crate::MAX_BLOCK;

/// The importance of the columns of one block: its weights' errors count as much.
#[derive(Clone, Copy, Debug)]
pub struct Importance<'a> {
    /// One per weight of the block: the mean square of what the column is multiplied with.
    pub columns: &'a [f32],
    /// The mean square of the row's weights.
    pub row_square: f32,
}

impl Importance<'_> {
    /// What the errors of the block's weights count: large weights count more, by `square`, the
    /// mean square around them.
    pub(crate) fn by(&self, weights: &[f32], square: f32) -> [f32; MAX_BLOCK] {
        let mut by = [0.0; MAX_BLOCK];
        for (by, (w, column)) in by.iter_mut().zip(weights.iter().zip(self.columns)) {
            *by = column * (square + w * w).sqrt();
        }
        by
    }
}

/// The sum of squares, added in order.
pub(crate) fn squares(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |sum, w| sum + w * w)
}
