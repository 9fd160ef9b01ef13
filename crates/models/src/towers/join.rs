//! How the rows of patches become the rows of tokens: neighbours side by side, or their mean.

/// What one row of the projector's input consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// One patch.
    #[default]
    Alone,
    /// The patches of a square of this side, row after row, side by side.
    Cells(usize),
}

impl Join {
    /// Patches of a side of one token.
    pub fn side(self) -> usize {
        match self {
            Join::Alone => 1,
            Join::Cells(side) => side,
        }
    }

    /// Rows and columns of the tokens of a grid of patches.
    pub fn grid(self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        [rows / self.side(), cols / self.side()]
    }

    /// Columns of a joined row.
    pub fn width(self, width: usize) -> usize {
        match self {
            Join::Alone => width,
            Join::Cells(side) => side * side * width,
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
            for y in row * side..(row + 1) * side {
                out.extend_from_slice(&patches[(y * grid[1] + col * side) * width..][..side * width]);
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
        let joined = Join::Cells(2).apply(patches.clone(), 1, [2, 4]);
        assert_eq!(joined, [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
        assert_eq!(Join::Alone.apply(patches.clone(), 1, [2, 4]), patches);
        assert_eq!((Join::Cells(2).grid([2, 4]), Join::Cells(2).width(3)), ([1, 2], 12));
    }
}
