//! Learned positions of patches: a table that becomes the positions of the grid of an image.

use std::fmt;

use crate::ModelError;

/// A table of positions.
#[derive(Clone, PartialEq)]
pub struct Positions {
    /// `[side * side, width]`, or `[2 * side, width]` of columns and rows.
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
    /// Linear in both directions; the borders of the table are those of the grid, and all entries that become
    /// one of a smaller grid take part.
    Borders,
    /// A cubic with a = -0.75 in both directions; the borders of the table are those of the grid.
    Cubic,
    /// The entry that is at the same part of the table.
    Nearest,
    /// The sum of an entry of the column and one of the row, from a table each.
    Axes,
}

impl fmt::Debug for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Positions { side, width, resampling, .. } = self;
        write!(f, "positions {side} x {side} of {width} columns, {resampling:?}")
    }
}

/// Entries of a table and their weights.
type Taps = Vec<(usize, f32)>;

impl Positions {
    pub(crate) fn new(
        table: Vec<f32>,
        width: usize,
        resampling: Resampling,
    ) -> Result<Positions, ModelError> {
        let rows = table.len() / width.max(1);
        let (side, whole, want) = match resampling {
            Resampling::Axes => (rows / 2, rows / 2 * 2, "an even number of rows"),
            _ => (rows.isqrt(), rows.isqrt().pow(2), "a square number of rows"),
        };
        if side == 0 || whole != rows {
            return Err(ModelError::shape("v.position_embd.weight", want, format!("{rows} rows")));
        }
        Ok(Positions { table, side, width, resampling })
    }

    /// Rows and columns of the largest grid.
    pub fn most(&self) -> usize {
        if self.resampling == Resampling::Axes { self.side } else { usize::MAX }
    }

    /// The rows of a grid, row after row. `[rows * cols, width]`
    pub fn of_grid(&self, [rows, cols]: [usize; 2]) -> Vec<f32> {
        let mut out = vec![0.0; rows * cols * self.width];
        let (ys, xs) = (self.taps(rows), self.taps(cols));
        let cells = ys.iter().enumerate().flat_map(|y| xs.iter().enumerate().map(move |x| (y, x)));
        for (out, ((row, ys), (col, xs))) in out.chunks_exact_mut(self.width).zip(cells) {
            let mut add = |entry: usize, weight: f32| {
                let from = &self.table[entry * self.width..][..self.width];
                out.iter_mut().zip(from).for_each(|(o, v)| *o += weight * v);
            };
            if self.resampling == Resampling::Axes {
                add(col.min(self.side - 1), 1.0);
                add(self.side + row.min(self.side - 1), 1.0);
                continue;
            }
            for (y, wy) in ys {
                xs.iter().for_each(|(x, wx)| add(y * self.side + x, wy * wx));
            }
        }
        out
    }

    /// The entries of an axis for each of its places.
    fn taps(&self, places: usize) -> Vec<Taps> {
        let tap: fn(usize, usize, usize) -> Taps = match self.resampling {
            Resampling::Corners => corners,
            Resampling::Borders => borders,
            Resampling::Cubic if places == self.side => |place, _, _| vec![(place, 1.0)],
            Resampling::Cubic => cubic,
            Resampling::Nearest => |place, places, side| vec![((place * side / places).min(side - 1), 1.0)],
            Resampling::Axes => |_, _, _| vec![],
        };
        (0..places).map(|place| tap(place, places, self.side)).collect()
    }
}

fn corners(place: usize, places: usize, side: usize) -> Taps {
    let at = place as f32 * (side - 1) as f32 / (places - 1).max(1) as f32;
    let low = (at as usize).min(side - 1);
    let weight = at - low as f32;
    vec![(low, 1.0 - weight), ((low + 1).min(side - 1), weight)]
}

fn borders(place: usize, places: usize, side: usize) -> Taps {
    let scale = side as f32 / places as f32;
    let reach = scale.max(1.0);
    let center = scale * (place as f32 + 0.5);
    let first = (center - reach + 0.5).max(0.0) as usize;
    let end = ((center + reach + 0.5) as usize).min(side);
    let weight = |x: usize| (1.0 - ((x as f32 - center + 0.5) / reach).abs()).max(0.0);
    let sum: f32 = (first..end).map(weight).sum();
    (first..end).map(|x| (x, weight(x) / sum)).collect()
}

fn cubic(place: usize, places: usize, side: usize) -> Taps {
    const A: f32 = -0.75;
    let at = (place as f32 + 0.5) * side as f32 / places as f32 - 0.5;
    let (low, t) = (at.floor(), at - at.floor());
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
    let entry = |i: usize| (low + i as f32 - 1.0).clamp(0.0, (side - 1) as f32) as usize;
    weights.into_iter().enumerate().map(|(i, weight)| (entry(i), weight)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(resampling: Resampling) -> Positions {
        Positions::new((0..9).map(|i| i as f32).collect(), 1, resampling).unwrap()
    }

    #[test]
    fn a_grid_of_the_size_of_the_table_is_the_table() {
        for resampling in [Resampling::Corners, Resampling::Borders, Resampling::Cubic, Resampling::Nearest] {
            let same: Vec<f32> = (0..9).map(|i| i as f32).collect();
            assert_eq!(table(resampling).of_grid([3, 3]), same, "{resampling:?}");
        }
    }

    #[test]
    fn corners_stay_corners() {
        let wide = table(Resampling::Corners).of_grid([2, 5]);
        assert_eq!(wide, [0.0, 0.5, 1.0, 1.5, 2.0, 6.0, 6.5, 7.0, 7.5, 8.0]);
        assert_eq!(table(Resampling::Corners).of_grid([1, 1]), [0.0]);
    }

    #[test]
    fn axes_have_a_table_each() {
        let table = Positions::new((0..8).map(|i| i as f32).collect(), 1, Resampling::Axes).unwrap();
        assert_eq!(table.of_grid([2, 3]), [4.0, 5.0, 6.0, 5.0, 6.0, 7.0]);
        assert_eq!(table.most(), 4);
    }

    #[test]
    fn a_table_must_be_square() {
        let error = Positions::new(vec![0.0; 12], 2, Resampling::Corners).unwrap_err().to_string();
        assert_eq!(error, "v.position_embd.weight: want a square number of rows, file has 6 rows");
    }
}
