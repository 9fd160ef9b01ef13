//! Patches: squares of normalised pixels.

use crate::Picture;

impl Picture {
    /// The squares of `patch` pixels, row after row, of values from 0 to 1 less `mean` and over `deviation`;
    /// pixels beyond whole squares are omitted. `[rows * cols, channel, y, x]`
    pub fn patches(&self, patch: usize, mean: [f32; 3], deviation: [f32; 3]) -> Vec<f32> {
        let [rows, cols] = self.grid(patch);
        let mut out = Vec::with_capacity(rows * cols * 3 * patch * patch);
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            for channel in 0..3 {
                let value = |p: &u8| (f32::from(*p) / 255.0 - mean[channel]) / deviation[channel];
                for y in row * patch..(row + 1) * patch {
                    let line = &self.pixels()[(y * self.width() + col * patch) * 3..][..patch * 3];
                    out.extend(line.iter().skip(channel).step_by(3).map(value));
                }
            }
        }
        out
    }

    /// Rows and columns of whole squares of `patch` pixels.
    pub fn grid(&self, patch: usize) -> [usize; 2] {
        [self.height() / patch.max(1), self.width() / patch.max(1)]
    }
}
