//! Learned positions of patches: a square table, resampled to the grid of an image.

use std::fmt;

use crate::ModelError;

/// A table of positions.
#[derive(Clone, PartialEq)]
pub struct Positions {
    /// `[side * side, width]`
    table: Vec<f32>,
    side: usize,
    width: usize,
    resampling: Resampling,
}

/// How a table becomes the positions of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resampling {
    /// Linear in both directions; the corners of the table are those of the grid.
    Corners,
}

impl fmt::Debug for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Positions { side, width, resampling, .. } = self;
        write!(f, "positions {side} x {side} of {width} columns, {resampling:?}")
    }
}

impl Positions {
    pub(crate) fn new(
        table: Vec<f32>,
        width: usize,
        resampling: Resampling,
    ) -> Result<Positions, ModelError> {
        let rows = table.len() / width.max(1);
        let side = rows.isqrt();
        if side == 0 || side * side != rows {
            let found = format!("{rows} rows");
            return Err(ModelError::shape("v.position_embd.weight", "a square number of rows", found));
        }
        Ok(Positions { table, side, width, resampling })
    }

    /// The rows of a grid, row after row. `[rows * cols, width]`
    pub fn of_grid(&self, [rows, cols]: [usize; 2]) -> Vec<f32> {
        let Resampling::Corners = self.resampling;
        let mut out = vec![0.0; rows * cols * self.width];
        let (ys, xs) = (taps(rows, self.side), taps(cols, self.side));
        let cells = ys.iter().flat_map(|y| xs.iter().map(move |x| (y, x)));
        for (out, (y, x)) in out.chunks_exact_mut(self.width).zip(cells) {
            for (row, wy) in y {
                for (col, wx) in x {
                    let from = &self.table[(row * self.side + col) * self.width..][..self.width];
                    let weight = wy * wx;
                    out.iter_mut().zip(from).for_each(|(o, v)| *o += weight * v);
                }
            }
        }
        out
    }
}

/// The two entries of the table for each place of an axis, and their weights.
fn taps(places: usize, side: usize) -> Vec<[(usize, f32); 2]> {
    let tap = |place: usize| {
        let at = place as f32 * (side - 1) as f32 / (places - 1).max(1) as f32;
        let low = (at as usize).min(side - 1);
        let weight = at - low as f32;
        [(low, 1.0 - weight), ((low + 1).min(side - 1), weight)]
    };
    (0..places).map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_stay_corners() {
        let table = Positions::new((0..9).map(|i| i as f32).collect(), 1, Resampling::Corners).unwrap();
        assert_eq!(table.of_grid([3, 3]), (0..9).map(|i| i as f32).collect::<Vec<_>>());
        let wide = table.of_grid([2, 5]);
        assert_eq!(wide, [0.0, 0.5, 1.0, 1.5, 2.0, 6.0, 6.5, 7.0, 7.5, 8.0]);
        assert_eq!(table.of_grid([1, 1]), [0.0]);
    }

    #[test]
    fn a_table_must_be_square() {
        let error = Positions::new(vec![0.0; 12], 2, Resampling::Corners).unwrap_err().to_string();
        assert_eq!(error, "v.position_embd.weight: want a square number of rows, file has 6 rows");
    }
}
