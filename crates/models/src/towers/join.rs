//! How the rows of patches become the rows of tokens: neighbours side by side, or their mean.

/// What one row of the projector's input consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// One patch.
    #[default]
    Alone,
    /// The patches of a square of this side, row after row, side by side.
    Cells(usize),
    /// The same with the columns of all of these patches side by side: the first ones, the second ones, ...
    Columns(usize),
    /// The mean of the patches of a square of this side.
    Mean(usize),
}

impl Join {
    /// Patches of a side of one token.
    pub fn side(self) -> usize {
        match self {
            Join::Alone => 1,
            Join::Cells(side) | Join::Columns(side) | Join::Mean(side) => side,
        }
    }

    /// Rows and columns of the tokens of a grid of patches.
    pub fn grid(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        [rows / self.side(), cols / self.side()]
    }

    /// Columns of a joined row.
    pub fn width(self, width: usize) -> usize {
        match self {
            Join::Alone | Join::Mean(_) => width,
            Join::Cells(side) | Join::Columns(side) => side * side * width,
        }
    }

    /// Joins `width` columns of each patch of a grid, row after row, without those beyond whole squares.
    pub fn apply(self, patches: Vec<f32>, width: usize, grid: [usize; 2]) -> Vec<f32> {
        let (side, [rows, cols]) = (self.side(), self.grid(grid));
        if side == 1 {
            return patches;
        }
        let mut out = Vec::with_capacity(rows * cols * self.width(width));
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            let lines = (row * side..(row + 1) * side)
                .map(|y| &patches[(y * grid[1] + col * side) * width..][..side * width]);
            match self {
                Join::Alone | Join::Cells(_) => lines.for_each(|line| out.extend_from_slice(line)),
                Join::Columns(_) => {
                    let cells: Vec<&[f32]> = lines.flat_map(|line| line.chunks_exact(width)).collect();
                    out.extend((0..width).flat_map(|column| cells.iter().map(move |cell| cell[column])));
                }
                Join::Mean(_) => {
                    let mut sums = vec![0.0; width];
                    for cell in lines.flat_map(|line| line.chunks_exact(width)) {
                        sums.iter_mut().zip(cell).for_each(|(sum, x)| *sum += x);
                    }
                    out.extend(sums.iter().map(|sum| sum / (side * side) as f32));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_patches_of_a_square() {
        let patches: Vec<f32> = (0..8).map(|i| i as f32).collect(); // 2 x 4, one column
        let joined = |join: Join| join.apply(patches.clone(), 1, [2, 4]);
        assert_eq!(joined(Join::Cells(2)), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
        assert_eq!(joined(Join::Mean(2)), [2.5, 4.5]);
        assert_eq!(joined(Join::Alone), patches);
        assert_eq!((Join::Cells(2).grid([2, 4]), Join::Cells(2).width(3)), ([1, 2], 12));
        // 2 x 2, two columns
        let columns = Join::Columns(2).apply(patches.clone(), 2, [2, 2]);
        assert_eq!(columns, [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    }
}
